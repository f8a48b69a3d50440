"""audit: what the records say of every model, asked of `model/` again, by transformers' own forward.

No engine of the stages before is used: one whole text goes through the network at a time, in fp32, without padding,
batches or caches, and losses are read from the logits in float64.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import torch
from torch import nn

from storage.errors import CheckFailed, require_equal
from storage.records import read_records
from tasks.attacks.texts import tokenizer_of
from tasks.language import model as language
from tasks.language.blocks import Blocks
from tasks.language.tokenizer import encode
from tasks.monotonic.signs import AllowedSigns
from tasks.report.audit import Audited, AuditResult, sample
from tasks.robustness.results import ArmResult, BaseResult, ConstrainResult, HotFlipResult, SetupResult, UatResult
from tasks.robustness.stages import AUDIT_TOLERANCE, JUDGED, SEARCHED, AuditConfig
from tasks.stage.numerics import device
from tasks.stage.run import StageInput, StageRun
from tasks.training.weights import weights_digest

SEARCHES = {"gradient": "", "blind": "blind_"}
"""Search -> how the columns begin that tell its flips."""
Row = dict[str, Any]
Stages = Mapping[str, StageInput]


def audit(run: StageRun, config: AuditConfig, text: StageInput, **given: StageInput) -> AuditResult:
    """CheckFailed names the first number, or the first model, that is not what the records say."""
    where = device(config.execution)
    audited = Audited(f"transformers' own forward in fp32 on {where.type}", "nats per token", AUDIT_TOLERANCE)
    drawn = Drawn.of(config, text, given)
    _require_weights(config, given)
    with run.watched(config.execution.stall_minutes):
        for done, (name, place) in enumerate(config.models.items()):
            run.stop.check()
            run.progress.update(done, len(config.models), "models", note=name)
            role, _, folder = place.partition("/")
            model = language.load(given[role].path / folder).to(where).eval()
            losses = partial(token_losses, model, touch=run.progress.touch)
            arm = ArmResult.read(given[name]) if name in config.arms else None
            if arm:
                _require_signs(name, model, arm, given.get(config.starts.get(name, "")))
            _compare_test(audited, drawn, name, losses)
            if name in config.attacked:
                _compare_attacks(audited, drawn, name, losses)
            if arm:
                validation = Blocks(text.path / "text", "validation")
                _compare_liveness(audited, name, model, arm, validation, config, run.progress.touch)
    _compare_unigram(audited, drawn, np.load(text.path / "text" / "unigram.npy"))
    return audited.result()


@torch.no_grad()
def token_losses(model: nn.Module, ids: Sequence[int], touch: Callable[[], None] = lambda: None) -> torch.Tensor:
    """-log p of each of `ids` but the first, in nats, float64 on the CPU."""
    read = torch.tensor([ids], device=next(model.parameters()).device)
    log_p = model(input_ids=read[:, :-1]).logits[0].double().log_softmax(-1)
    touch()
    return -log_p.gather(-1, read[0, 1:, None])[:, 0].cpu()


@dataclass
class Drawn:
    """The documents that are asked again, as token ids, and everything that the records say of them."""

    end_of_text: int
    length: int
    tokens: dict[str, list[int]]
    """Document -> its tokens, whole."""
    test: list[Row]
    uat: dict[str, tuple[UatResult, list[Row]]] = field(default_factory=dict)
    hotflip: dict[str, tuple[HotFlipResult, dict[str, Row]]] = field(default_factory=dict)
    """Model that was attacked -> document -> record."""
    transfer: list[Row] = field(default_factory=list)

    @classmethod
    def of(cls, config: AuditConfig, text: StageInput, given: Stages) -> Drawn:
        setup, tokenizer = SetupResult.read(text), tokenizer_of(text)
        tokens: dict[str, list[int]] = {}

        def draw(split: str, what: str, first: int | None = None) -> set[str]:
            """Ids of some documents of a split, or of its first ones."""
            rows = pq.read_table(text.path / "text" / f"{split}.parquet").to_pylist()[:first]
            rows = [rows[place] for place in sample(config.seed, what, len(rows), config.audit.examples)]
            ids = [row["example_id"] for row in rows]
            tokens.update(zip(ids, encode(tokenizer, [row["text"] for row in rows]), strict=True))
            return set(ids)

        test, judged, searched = draw("test", "test"), draw(JUDGED, "uat"), draw(SEARCHED, "search")
        flipped = draw(JUDGED, "hotflip", config.hotflip.documents)
        wanted = {("uat", JUDGED): judged, ("uat", SEARCHED): searched, ("hotflip", JUDGED): flipped}
        found = cls(
            setup.end_of_text_id, setup.packed["train"].sequence_length, tokens, _records(given["evaluation"], test)
        )
        for name in config.attacked:
            uat, hotflip = given[f"uat-{name}"], given[f"hotflip-{name}"]
            rows = {row["example_id"]: row for row in _records(hotflip, flipped)}
            found.uat[name] = UatResult.read(uat), _records(uat, judged)
            found.hotflip[name] = HotFlipResult.read(hotflip), rows
        for row in _records(given["transfer"], judged | searched | flipped):
            if row["example_id"] in wanted[row["attack"].split(",")[0], row["split"]]:  # of every restart
                found.transfer.append(row)
        return found


def _records(given: StageInput, documents: set[str]) -> list[Row]:
    return [row for row in read_records(given.path / "records.parquet") if row["example_id"] in documents]


Losses = Callable[[Sequence[int]], torch.Tensor]


def _compare_test(audited: Audited, drawn: Drawn, name: str, losses: Losses) -> None:
    """Each document behind an end-of-text token, in windows of which each predicts the next `length` tokens."""
    for row in drawn.test:
        if row["model"] != name:
            continue
        stream, total = [drawn.end_of_text, *drawn.tokens[row["example_id"]]], 0.0
        for first in range(0, len(stream) - 1, drawn.length):
            end = min(first + drawn.length, len(stream) - 1)
            total += losses(stream[max(0, end - drawn.length) : end + 1])[first - end :].sum().item()
        _compare(audited, "test losses", f"evaluate, {name}", row, row["loss_sum_nats"], total)


def _compare_attacks(audited: Audited, drawn: Drawn, name: str, losses: Losses) -> None:
    """What was found for a model, and what transfer tried on it, written down as recorded and read again."""
    (uat, rows), (hotflip, flipped) = drawn.uat[name], drawn.hotflip[name]
    length = {"uat": uat.attack.text_tokens, "hotflip": hotflip.attack.text_tokens}
    read = cache(lambda prefix, ids: losses([drawn.end_of_text, *prefix, *ids])[len(prefix) :])

    def total(attack: str, row: Row, prefix: Sequence[int] = (), flips: Row | None = None, search: str = "") -> float:
        """The summed loss of the tokens that nobody may write, behind a prefix or with flips among them."""
        ids = drawn.tokens[row["example_id"]][: length[attack]]
        written = {}
        if flips and search:
            places, tokens = (flips[f"{SEARCHES[search]}{column}"] for column in ("positions", "replacements"))
            written = dict(zip(places, tokens, strict=True))
        ids = [written.get(place, token) for place, token in enumerate(ids)]
        closed = [place for place in range(len(ids)) if place not in (flips or {}).get("writable", ())]
        return float(read(tuple(prefix), tuple(ids))[closed].sum())

    for row in rows:
        compare = partial(_compare, audited, "losses under triggers", f"uat, {name}", row)
        compare(row["clean_loss_sum_nats"], total("uat", row))
        compare(row["loss_sum_nats"], total("uat", row, uat.gradient.trigger_ids))
        compare(row["blind_loss_sum_nats"], total("uat", row, uat.blind.trigger_ids))
    for row in flipped.values():
        compare = partial(_compare, audited, "losses under flips", f"hotflip, {name}", row)
        compare(row["text_clean_loss_sum_nats"], total("hotflip", row))
        compare(row["clean_loss_sum_nats"], total("hotflip", row, flips=row))
        compare(row["loss_sum_nats"], total("hotflip", row, flips=row, search="gradient"))
        compare(row["blind_loss_sum_nats"], total("hotflip", row, flips=row, search="blind"))
    for row in (row for row in drawn.transfer if row["model"] == name):
        attack, search, by = row["attack"], row["search"], row["found_for"]
        what = f"transfer of {attack} ({search} search) from {by} to {name} on {row['split']}"
        compare = partial(_compare, audited, "transfers", what, row)
        kind = attack.split(",")[0]
        prefix = getattr(drawn.uat[by][0], search).named()[attack] if kind == "uat" else ()
        flips = drawn.hotflip[by][1][row["example_id"]] if kind == "hotflip" else None
        compare(row["loss_sum_nats"], total(kind, row, prefix, flips, search))
        compare(row["clean_loss_sum_nats"], total(kind, row, flips=flips))


def _compare(audited: Audited, kind: str, what: str, row: Row, recorded: float, computed: float) -> None:
    audited.compare(kind, f"{what}, document {row['example_id'][:12]}", recorded, computed, row["tokens_scored"])


def _compare_unigram(audited: Audited, drawn: Drawn, counts: np.ndarray) -> None:
    for row in drawn.test:
        if row["model"] == "unigram":
            seen = counts[drawn.tokens[row["example_id"]]]
            computed = float(-np.log((seen + 1) / (counts.sum() + len(counts))).sum())
            _compare(audited, "test losses", "evaluate, unigram", row, row["loss_sum_nats"], computed)


# ------------------------------------------------------------------------------------------- what model/ is


def _require_weights(config: AuditConfig, given: Stages) -> None:
    """Every `model/` has the weights that its stage says it left."""
    kinds: dict[str, Any] = {"base": BaseResult} | dict.fromkeys(config.arms, ArmResult)
    kinds |= dict.fromkeys(sorted(set(config.starts.values())), ConstrainResult)
    for name, kind in kinds.items():
        said, found = kind.read(given[name]).weights_digest, weights_digest(given[name].path / "model")
        require_equal(f"model/ of {name} in {given[name].path} holds the weights that its stage left", found, said)


@torch.no_grad()
def _require_signs(name: str, model: nn.Module, arm: ArmResult, start: StageInput | None) -> None:
    """Of an arm that keeps signs: each constrained weight has its own, and they are as many as the result says."""
    said = arm.constraint
    if said is None:
        return
    if start is None:
        raise CheckFailed(f"{name} keeps signs that a start gave it", "no start", "constrain's")
    fixed = {"non-negative": torch.tensor(1), "off": torch.tensor(0)}.get(said.signs)
    allowed = AllowedSigns.load(start.path / "signs").layers
    weights = {layer: model.get_submodule(layer).weight.cpu() for layer in said.layers}
    for layer, weight in weights.items():
        sign = allowed[layer] if fixed is None else fixed
        if wrong := int((weight * sign < 0).sum() + ((sign == 0) & (weight != 0)).sum()):
            raise CheckFailed(
                f"the weights of {layer} in model/ of {name} have the signs they may have",
                f"{wrong:,} of {weight.numel():,} have not, the smallest is {weight.min().item():g}",
                f"signs {said.signs}",
            )
    for what, found, recorded in (
        ("number", sum(weight.numel() for weight in weights.values()), said.weights_checked),
        ("smallest", min(weight.min().item() for weight in weights.values()), said.min_weight),
        ("largest", max(weight.max().item() for weight in weights.values()), said.max_weight),
    ):
        require_equal(f"the {what} of the constrained weights in model/ of {name}", found, recorded)


@torch.no_grad()
def _compare_liveness(
    audited: Audited,
    name: str,
    model: nn.Module,
    arm: ArmResult,
    validation: Blocks,
    config: AuditConfig,
    touch: Callable[[], None],
) -> None:
    """The loss on the whole validation split, as it is and with each sublayer's outputs replaced by their mean."""
    size, said = config.execution.micro_batch_examples, arm.sublayers
    layers = {layer: model.get_submodule(layer) for layer in said.effective_rank}
    sums: dict[str, torch.Tensor] = {}
    tokens = len(validation) * (validation.sequence_length - 1)

    def loss(hook: Callable[[str], Any]) -> float:
        handles, total = [module.register_forward_hook(hook(layer)) for layer, module in layers.items()], 0.0
        for first in range(0, len(validation), size):
            read = validation[np.arange(first, min(first + size, len(validation)))].to(next(model.parameters()).device)
            log_p = model(input_ids=read[:, :-1]).logits.log_softmax(-1)
            total -= log_p.gather(-1, read[:, 1:, None]).double().sum().item()
            touch()
        for handle in handles:
            handle.remove()
        return total / tokens

    def add(layer: str) -> Callable[..., None]:
        def hook(_module: nn.Module, _given: Any, output: torch.Tensor) -> None:
            sums[layer] = sums.get(layer, 0) + output.double().sum((0, 1))

        return hook

    def replace(layer: str) -> Callable[..., torch.Tensor]:
        return lambda _module, _given, output: (sums[layer] / tokens).to(output).expand_as(output)

    audited.compare("losses of liveness", f"validation loss of {name}", said.loss_nats_per_token, loss(add))
    dead = f"validation loss of {name} with its sublayers replaced by their means"
    audited.compare("losses of liveness", dead, said.loss_with_means_nats_per_token, loss(replace))
