"""audit: some recorded numbers again, by transformers' own loss and `generate`, on single pairs without padding."""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import Any

import torch
from transformers import GenerationConfig

from storage.errors import require_equal
from tasks.attacks.reading import records_of
from tasks.findings.audit import Audited, AuditResult
from tasks.language import foreign
from tasks.language import model as language
from tasks.language.pairs import examples
from tasks.language.tokenizer import encode
from tasks.stage.numerics import device
from tasks.stage.run import StageInput, StageRun
from tasks.summarisation.rewrite import attacked
from tasks.summarisation.stages import AUDIT_TOLERANCE, AuditConfig
from tasks.summarisation.words import words
from tasks.training.weights import weights_digest


def audit(
    run: StageRun,
    config: AuditConfig,
    text: StageInput,
    evaluation: StageInput,
    rewritten: StageInput,
    **given: StageInput,
) -> AuditResult:
    """CheckFailed names the first model and pair whose number is another one than that of its record.

    `given` are the models, and their attacks as `uat-...` and `hotflip-...`.
    """
    tokenizer = foreign.tokenizer(text.path / "text" / "tokenizer", local_files_only=True)
    test = examples(text.path / "text", "test", tokenizer)
    audited = Audited(run, "transformers, one pair at a time", "nats per token or ROUGE", AUDIT_TOLERANCE)
    evaluated = records_of(evaluation)
    for done, (name, place) in enumerate(config.models.items()):
        run.step(done, len(config.models), "models", note=name)
        role, folder = place.split("/", 1)
        path = given[role].path / folder
        if folder == "model":
            said = given[role].result["weights_digest"]
            require_equal(f"model/ of {name} holds the weights that its stage left", weights_digest(path), said)
        model = language.load(path).to(device(config.execution)).eval()
        require_as_good = partial(_require_as_good, model, tokenizer, config)
        rows = {row["example_id"]: row for row in evaluated if row["model"] == name}
        for number in audited.sample(f"test, {name}", len(test), config.audit.examples) if rows else []:
            pair, row = test[number], rows[test[number].example_id]
            loss = plain_loss(model, pair.read, pair.reference)
            _compare(audited, "test losses", f"{name} on {pair.example_id[:12]}", row, loss)
            where = f"the summary that {name} writes of {pair.example_id[:12]} alone"
            require_as_good(where, pair.read, row["written"])
            audited.compare("summaries", f"rouge1 of {where}", row["rouge1"], rouge1(pair.summary, row["written"]))
        again = {(row["attack"], row["model"], row["example_id"]): row for row in records_of(rewritten)}
        found = list(attacked(config, text, given, name))
        for attack, kind in (("uat", "losses under triggers"), ("hotflip", "losses under flips")):
            of_attack = [one for one in found if one.attack == attack]
            for number in audited.sample(f"{attack}, {name}", len(of_attack), config.audit.examples):
                one = of_attack[number]
                where = f"{attack} on {name}, {one.pair.example_id[:12]}"
                _compare(audited, kind, where, one.row, plain_loss(model, one.read, one.pair.reference))
                row = again[attack, name, one.pair.example_id]
                require_as_good(f"the summary under {where} alone", one.read, row["written"])
                require_as_good(f"the summary without {where} alone", one.clean, row["clean_written"])
                for column, text_of in (("rouge1", row["written"]), ("clean_rouge1", row["clean_written"])):
                    audited.compare("summaries", f"{column} of {where}", row[column], rouge1(one.pair.summary, text_of))
    return audited.result()


@torch.no_grad()
def plain_loss(model: Any, read: list[int], reference: list[int]) -> float:
    """Summed loss of a reference in nats, by the model's own mean over its labels."""
    where = next(model.parameters()).device
    labels = torch.tensor([reference], device=where)
    loss = model(input_ids=torch.tensor([read], device=where), labels=labels).loss
    return loss.double().item() * len(reference)


def _require_as_good(model: Any, tokenizer: Any, config: AuditConfig, what: str, read: list[int], kept: str) -> None:
    """CheckFailed unless `kept` is what the model writes alone, or a text of the same score: rounding decides a tie."""
    if (written := _alone(model, tokenizer, config, read)) != kept:
        ids = ([*own, tokenizer.eos_token_id] for own in encode(tokenizer, [written, kept]))
        best, own = (plain_loss(model, read, one) / len(one) ** config.decoding.length_penalty for one in ids)
        if abs(best - own) > AUDIT_TOLERANCE:
            require_equal(what, written, kept)


def _alone(model: Any, tokenizer: Any, config: AuditConfig, ids: list[int]) -> str:
    """What a model writes of one article, in a batch of its own without padding."""
    read = torch.tensor([ids])
    how, ids_of = config.decoding, model.config
    model.generation_config = GenerationConfig(  # a pretrained model's own may say more
        decoder_start_token_id=ids_of.decoder_start_token_id,
        eos_token_id=ids_of.eos_token_id,
        pad_token_id=ids_of.pad_token_id,
    )
    (tokens,) = model.generate(
        input_ids=read.to(next(model.parameters()).device),
        num_beams=how.beams,
        length_penalty=how.length_penalty,
        no_repeat_ngram_size=how.no_repeat_tokens,
        min_new_tokens=how.min_tokens,
        max_new_tokens=config.summary_tokens,
    )
    return str(tokenizer.decode(tokens, skip_special_tokens=True)).strip()


def rouge1(reference: str, written: str) -> float:
    """ROUGE-1 F1 by its definition: words in common, each as often as both have it."""
    asked, given = (Counter(words(text)) for text in (reference, written))
    common = (asked & given).total()
    return 2 * common / (asked.total() + given.total()) if common else 0.0


def _compare(audited: Audited, kind: str, where: str, row: dict[str, Any], computed: float) -> None:
    tokens = row["tokens_scored"]
    audited.compare(kind, f"the loss of {where}", row["loss_sum_nats"] / tokens, computed / tokens)
