"""audit: some recorded numbers again, by transformers' own loss and `generate`, on single pairs without padding."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from storage.errors import require_equal
from storage.records import read_records
from tasks.attacks.results import UatResult
from tasks.attacks.stages import JUDGED
from tasks.findings.audit import Audited, AuditResult, sample
from tasks.language import foreign
from tasks.language import model as language
from tasks.language.pairs import Example, examples, packed_pairs
from tasks.stage.numerics import device
from tasks.stage.run import StageInput, StageRun
from tasks.summarisation.evaluate import generated, scores
from tasks.summarisation.results import METRICS
from tasks.summarisation.stages import AUDIT_TOLERANCE, AuditConfig
from tasks.training.weights import weights_digest


def audit(
    run: StageRun, config: AuditConfig, text: StageInput, evaluation: StageInput, **given: StageInput
) -> AuditResult:
    """CheckFailed names the first model and pair whose number is another one than that of its record.

    `given` are the models, and their attacks as `uat-...` and `hotflip-...`.
    """
    tokenizer = foreign.tokenizer(text.path / "text" / "tokenizer", local_files_only=True)
    test, judged = (examples(text.path / "text", split, tokenizer) for split in ("test", JUDGED))
    prefix = (packed_pairs(text.path / "text") or _none()).prefix_ids
    audited = Audited("transformers, one pair at a time", "nats per token or ROUGE", AUDIT_TOLERANCE)
    evaluated = list(read_records(evaluation.path / "records.parquet"))
    for done, (name, place) in enumerate(config.models.items()):
        run.stop.check()
        run.progress.update(done, len(config.models), "models", note=name)
        role, folder = place.split("/", 1)
        path = given[role].path / folder
        if folder == "model":
            said = given[role].result["weights_digest"]
            require_equal(f"model/ of {name} holds the weights that its stage left", weights_digest(path), said)
        model = language.load(path).to(device(config.execution)).eval()
        rows = {row["example_id"]: row for row in evaluated if row["model"] == name}
        for number in sample(config.seed, f"test, {name}", len(test), config.audit.examples) if rows else []:
            pair, row = test[number], rows[test[number].example_id]
            _compare(
                audited, "test losses", f"{name} on {pair.example_id[:12]}", row, plain_loss(model, pair.read, pair)
            )
            read = torch.tensor([pair.read])
            (alone,) = generated(model, tokenizer, read, torch.ones_like(read), config.decoding, config.summary_tokens)
            where = f"the summary that {name} writes of {pair.example_id[:12]} alone"
            require_equal(where, alone, row["written"])
            for metric, score in scores("", pair.summary, alone).items():
                audited.compare("summaries", f"{metric} of {where}", row[metric], score)
        for attack, attacked, row, pair in _attacked(config, given, name, judged, prefix):
            where = f"{attack} on {name}, {pair.example_id[:12]}"
            _compare(audited, f"losses under {'triggers' if attack == 'uat' else 'flips'}", where, row,
                     plain_loss(model, attacked, pair))  # fmt: skip
    require_equal("every metric is known", sorted(METRICS), sorted(scores("", "a", "a")))
    return audited.result()


def _none() -> Any:
    raise AssertionError("the text is of pairs")


@torch.no_grad()
def plain_loss(model: Any, read: list[int], pair: Example) -> float:
    """Summed loss of a reference in nats, by the model's own mean over its labels."""
    where = next(model.parameters()).device
    labels = torch.tensor([pair.reference], device=where)
    loss = model(input_ids=torch.tensor([read], device=where), labels=labels).loss
    return loss.double().item() * len(pair.reference)


def _compare(audited: Audited, kind: str, where: str, row: dict[str, Any], computed: float) -> None:
    tokens = row["tokens_scored"]
    audited.compare(kind, f"the loss of {where}", row["loss_sum_nats"] / tokens, computed / tokens)


def _attacked(
    config: AuditConfig, given: dict[str, StageInput], name: str, judged: list[Example], prefix: list[int]
) -> Iterator[tuple[str, list[int], dict[str, Any], Example]]:
    """What a model read of some attacked articles, built anew: attack, tokens, record, pair."""
    known = {pair.example_id: pair for pair in judged}
    trigger = UatResult.read(given[f"uat-{name}"]).gradient.trigger_ids
    for attack, most in (("uat", config.uat.text_tokens), ("hotflip", config.hotflip.text_tokens)):
        rows = list(read_records(given[f"{attack}-{name}"].path / "records.parquet"))
        for number in sample(config.seed, f"{attack}, {name}", len(rows), config.audit.examples):
            row, pair = rows[number], known[rows[number]["example_id"]]
            *own, end = pair.read
            article = own[len(prefix) :][:most]
            if attack == "uat":
                article = [*trigger, *article]
            else:
                for position, token in zip(row["positions"], row["replacements"], strict=True):
                    article[position] = token
            yield attack, [*prefix, *article, end], row, pair
