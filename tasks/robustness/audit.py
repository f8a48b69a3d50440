"""audit: what the records say of every model, asked of `model/` again, by transformers' own forward.

No engine of the stages before is used: one whole text goes through the network at a time, in fp32, without padding,
batches or caches, and losses are read from the logits in float64. Test losses in another precision may be away by what
the documents were that have both; of these some are asked again too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import torch
from torch import nn
from transformers import PreTrainedTokenizerBase

from storage.errors import CheckFailed, require_equal
from storage.records import read_records
from tasks.attacks.configuration import BUDGET_SHARES
from tasks.attacks.results import HotFlipResult, UatResult
from tasks.attacks.stages import JUDGED, SEARCHED
from tasks.attacks.texts import round_trips, text_of, tokenizer_of
from tasks.findings.audit import Audited, AuditResult
from tasks.language import model as language
from tasks.language.blocks import Blocks
from tasks.language.losses import rounding_allowed
from tasks.language.result import BaseResult, EvaluateResult, SetupResult
from tasks.language.tokenizer import encode
from tasks.monotonic.arm import BASE, MONOTONIC
from tasks.monotonic.result import ArmResult, ConstrainResult
from tasks.monotonic.signs import AllowedSigns
from tasks.robustness.stages import AUDIT_TOLERANCE, AuditConfig
from tasks.stage.numerics import device
from tasks.stage.run import StageInput, StageRun
from tasks.training.weights import weights_digest

SEARCHES = {"gradient": "", "blind": "blind_"}
"""Search -> beginning of the columns that tell its flips."""
Row = dict[str, Any]
Stages = Mapping[str, StageInput]


def audit(run: StageRun, config: AuditConfig, text: StageInput, **given: StageInput) -> AuditResult:
    """CheckFailed names the first number, or the first model, that is not what the records say."""
    where = device(config.execution)
    precision = EvaluateResult.read(given["evaluation"]).precision
    but = f", beyond what {precision} rounds test losses by" if precision != "fp32" else ""
    audited = Audited(run, f"transformers' own forward in fp32 on {where.type}{but}", "nats per token", AUDIT_TOLERANCE)
    drawn = Drawn.of(config, text, given, audited)
    _require_weights(config, given)
    stated, blocks = stated_on_validation(config, given), Blocks(text.path / "text", "validation")
    on = OnValidation(blocks, config.execution.micro_batch_examples, run.progress.touch)
    with run.watched(config.execution.stall_minutes):
        for done, (name, place) in enumerate(config.models.items()):
            run.step(done, len(config.models), "models", note=name)
            role, _, folder = place.partition("/")
            model = language.load(given[role].path / folder).to(where).eval()
            losses = partial(token_losses, model, touch=run.progress.touch)
            arm = ArmResult.read(given[name]) if name in config.arms else None
            if arm:
                _require_signs(name, model, arm, given.get(config.starts.get(name, "")))
            _compare_test(audited, drawn, name, partial(_in_windows, drawn, losses))
            if name in config.attacked:
                _compare_attacks(audited, drawn, name, losses)
            if arm:
                _compare_liveness(audited, name, model, arm, on)
            if name in stated:
                what = f"validation loss of {name}"
                audited.compare("validation losses", what, stated[name], min(on.loss(model), 700.0))
            if name == BASE:
                parameters = sum(parameter.numel() for parameter in model.parameters())
                require_equal("the parameters of base", BaseResult.read(given[BASE]).parameters, parameters)
    counts = np.load(text.path / "text" / "unigram.npy")
    unigram_V = -np.log((counts + 1) / (counts.sum() + len(counts)))
    _compare_test(audited, drawn, "unigram", lambda ids: float(unigram_V[ids].sum()))
    audited.compare("validation losses", "validation loss of unigram", stated["unigram"], on.unigram_loss(unigram_V))
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

    tokenizer: PreTrainedTokenizerBase
    end_of_text: int
    length: int
    tokens: dict[str, list[int]]
    """Document -> its tokens, whole."""
    evaluated: list[Row]
    test: set[str]
    uat: dict[str, tuple[UatResult, list[Row]]] = field(default_factory=dict)
    hotflip: dict[str, tuple[HotFlipResult, dict[str, Row]]] = field(default_factory=dict)
    """Model that was attacked -> document -> record."""
    transfer: list[Row] = field(default_factory=list)

    @classmethod
    def of(cls, config: AuditConfig, text: StageInput, given: Stages, audited: Audited) -> Drawn:
        setup, tokenizer = SetupResult.read(text), tokenizer_of(text)
        tokens: dict[str, list[int]] = {}

        def draw(split: str, what: str, first: int | None = None, among: set[str] | None = None) -> set[str]:
            """Ids of some documents of a split, or of its first ones, or of those `among` it."""
            rows = pq.read_table(text.path / "text" / f"{split}.parquet").to_pylist()[:first]
            rows = [row for row in rows if among is None or row["example_id"] in among]
            rows = [rows[place] for place in audited.sample(what, len(rows), config.audit.examples)]
            ids = [row["example_id"] for row in rows]
            tokens.update(zip(ids, encode(tokenizer, [row["text"] for row in rows]), strict=True))
            return set(ids)

        test, judged, searched = draw("test", "test"), draw(JUDGED, "uat"), draw(SEARCHED, "search")
        flipped = draw(JUDGED, "hotflip", config.hotflip.documents)
        wanted = {("uat", JUDGED): judged, ("uat", SEARCHED): searched, ("hotflip", JUDGED): flipped}
        evaluated = [*read_records(given["evaluation"].path / "records.parquet")]
        if exact := {row["example_id"] for row in evaluated if row.get("fp32_loss_sum_nats") is not None}:
            test |= draw("test", "fp32", among=exact)
        length = setup.packed["train"].sequence_length
        found = cls(tokenizer, setup.end_of_text_id, length, tokens, evaluated, test)
        for name in config.attacked:
            uat, hotflip = given[f"uat-{name}"], given[f"hotflip-{name}"]
            rows = {row["example_id"]: row for row in _records(hotflip, flipped)}
            found.uat[name] = UatResult.read(uat), _records(uat, judged)
            found.hotflip[name] = HotFlipResult.read(hotflip), rows
        for row in _records(given["transfer"], judged | searched | flipped):
            if row["example_id"] in wanted[row["attack"].split(",")[0], row["split"]]:  # every restart's
                found.transfer.append(row)
        return found


def _records(given: StageInput, documents: set[str]) -> list[Row]:
    return [row for row in read_records(given.path / "records.parquet") if row["example_id"] in documents]


Losses = Callable[[Sequence[int]], torch.Tensor]


def _compare_test(audited: Audited, drawn: Drawn, name: str, total: Callable[[list[int]], float]) -> None:
    """`total` is the summed loss of a whole document, of token ids."""
    for row in drawn.evaluated:
        if row["model"] == name and row["example_id"] in drawn.test:
            computed, what = total(drawn.tokens[row["example_id"]]), f"evaluate, {name}"
            allowed = rounding_allowed(drawn.evaluated, name, row["tokens_scored"])
            _compare(audited, "test losses", what, row, row["loss_sum_nats"], computed, allowed)
            if (exact := row.get("fp32_loss_sum_nats")) is not None:
                _compare(audited, "test losses", f"{what} in fp32", row, exact, computed)


def _in_windows(drawn: Drawn, losses: Losses, ids: list[int]) -> float:
    """A document behind an end-of-text token, in windows of which each predicts the next `length` tokens."""
    stream, total = [drawn.end_of_text, *ids], 0.0
    for first in range(0, len(stream) - 1, drawn.length):
        end = min(first + drawn.length, len(stream) - 1)
        total += losses(stream[max(0, end - drawn.length) : end + 1])[first - end :].sum().item()
    return total


def _written(ids: Sequence[int], flips: Row, search: str) -> list[int]:
    """The tokens with what a search replaced."""
    written = list(ids)
    places, tokens = (flips[f"{SEARCHES[search]}{column}"] for column in ("positions", "replacements"))
    for place, token in zip(places, tokens, strict=True):
        written[place] = token
    return written


def _compare_attacks(audited: Audited, drawn: Drawn, name: str, losses: Losses) -> None:
    """Reads again what was found for a model and what transfer tried on it, written as recorded."""
    (uat, rows), (hotflip, flipped) = drawn.uat[name], drawn.hotflip[name]
    length = {"uat": uat.attack.text_tokens, "hotflip": hotflip.attack.text_tokens}
    read = cache(lambda prefix, ids: losses([drawn.end_of_text, *prefix, *ids])[len(prefix) :])

    def total(attack: str, row: Row, prefix: Sequence[int] = (), flips: Row | None = None, search: str = "") -> float:
        """The summed loss of the tokens that nobody may write, behind a prefix or with flips among them."""
        ids = drawn.tokens[row["example_id"]][: length[attack]]
        if flips and search:
            ids = _written(ids, flips, search)
        closed = [place for place in range(len(ids)) if place not in (flips or {}).get("writable", ())]
        return float(read(tuple(prefix), tuple(ids))[closed].sum())

    for trigger in (uat.gradient, uat.blind):
        said = (trigger.trigger_text, trigger.trigger_round_trips)
        read_as = (text_of(drawn.tokenizer, trigger.trigger_ids), round_trips(drawn.tokenizer, trigger.trigger_ids))
        require_equal(f"the text of the trigger of uat on {name} is that of its ids", said, read_as)
    for row in rows:
        compare = partial(_compare, audited, "losses under triggers", f"uat, {name}", row)
        compare(row["clean_loss_sum_nats"], total("uat", row))
        compare(row["loss_sum_nats"], total("uat", row, uat.gradient.trigger_ids))
        compare(row["blind_loss_sum_nats"], total("uat", row, uat.blind.trigger_ids))
        for share, loss in zip(BUDGET_SHARES, row["budget_losses_sum_nats"], strict=True):
            compare(loss, total("uat", row, uat.gradient.budgets[f"{share:g}"]))
    for row in flipped.values():
        compare = partial(_compare, audited, "losses under flips", f"hotflip, {name}", row)
        compare(row["text_clean_loss_sum_nats"], total("hotflip", row))
        compare(row["clean_loss_sum_nats"], total("hotflip", row, flips=row))
        compare(row["loss_sum_nats"], total("hotflip", row, flips=row, search="gradient"))
        compare(row["blind_loss_sum_nats"], total("hotflip", row, flips=row, search="blind"))
        written = _written(drawn.tokens[row["example_id"]][: length["hotflip"]], row, "gradient")
        again = f"what hotflip on {name} made of document {row['example_id']} comes back from its text"
        require_equal(again, row["round_trips"], round_trips(drawn.tokenizer, written))
    for row in (row for row in drawn.transfer if row["model"] == name):
        attack, search, by = row["attack"], row["search"], row["found_for"]
        what = f"transfer of {attack} ({search} search) from {by} to {name} on {row['split']}"
        compare = partial(_compare, audited, "transfers", what, row)
        kind = attack.split(",")[0]
        prefix = getattr(drawn.uat[by][0], search).named()[attack] if kind == "uat" else ()
        flips = drawn.hotflip[by][1][row["example_id"]] if kind == "hotflip" else None
        compare(row["loss_sum_nats"], total(kind, row, prefix, flips, search))
        compare(row["clean_loss_sum_nats"], total(kind, row, flips=flips))


def _compare(
    audited: Audited, kind: str, what: str, row: Row, recorded: float, computed: float, allowed: float = 0.0
) -> None:
    what = f"{what}, document {row['example_id'][:12]}"
    audited.compare(kind, what, recorded, computed, row["tokens_scored"], allowed)


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
    """Each constrained weight of an arm that keeps signs has its own, and they are as many as the result says."""
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
    zeros = sum(int((weight == 0).sum()) for weight in weights.values())
    for what, found, recorded in (
        ("number", sum(weight.numel() for weight in weights.values()), said.weights_checked),
        ("smallest", min(weight.min().item() for weight in weights.values()), said.min_weight),
        ("largest", max(weight.max().item() for weight in weights.values()), said.max_weight),
        ("share of zeros", zeros / sum(weight.numel() for weight in weights.values()), said.share_of_zeros),
    ):
        require_equal(f"the {what} of the constrained weights in model/ of {name}", found, recorded)


def stated_on_validation(config: AuditConfig, given: Stages) -> dict[str, float]:
    """Loss of each model on the validation split, in nats per token, as its stage says it beside its training."""
    base = BaseResult.read(given[BASE])
    found = {name: math.log(value) for name, value in base.trained_check.validation_perplexity.items()}
    start = ConstrainResult.read(given[config.starts[MONOTONIC]])
    found["constrained-untrained"] = math.log(start.validation_perplexity_after)
    for name, place in config.models.items():
        role, _, share = place.partition("/snapshots/")
        if share:
            kept = base if role == BASE else ArmResult.read(given[role])
            found[name] = kept.snapshots.get(share, math.nan)
    return found


class OnValidation:
    """Asks models on the whole validation split, block after block."""

    def __init__(self, blocks: Blocks, size: int, touch: Callable[[], None]) -> None:
        self.blocks, self.size, self.touch = blocks, size, touch
        self.tokens = len(blocks) * (blocks.sequence_length - 1)

    @torch.no_grad()
    def loss(self, model: nn.Module, hooks: Mapping[nn.Module, Any] = {}) -> float:
        """Loss in nats per token, with these forward hooks."""
        handles, total = [module.register_forward_hook(hook) for module, hook in hooks.items()], 0.0
        where = next(model.parameters()).device
        for first in range(0, len(self.blocks), self.size):
            read = self.blocks[np.arange(first, min(first + self.size, len(self.blocks)))].to(where)
            log_p = model(input_ids=read[:, :-1]).logits.log_softmax(-1)
            total -= log_p.gather(-1, read[:, 1:, None]).double().sum().item()
            self.touch()
        for handle in handles:
            handle.remove()
        return total / self.tokens

    def unigram_loss(self, losses_V: np.ndarray) -> float:
        return float(losses_V[self.blocks[np.arange(len(self.blocks))][:, 1:].numpy()].mean())


def _compare_liveness(audited: Audited, name: str, model: nn.Module, arm: ArmResult, on: OnValidation) -> None:
    """The loss on the whole validation split, as it is and with each sublayer's outputs replaced by their mean."""
    said, sums = arm.sublayers, dict[str, torch.Tensor]()
    layers = {layer: model.get_submodule(layer) for layer in said.effective_rank}

    def add(layer: str) -> Callable[..., None]:
        def hook(_module: nn.Module, _given: Any, output: torch.Tensor) -> None:
            sums[layer] = sums.get(layer, 0) + output.double().sum((0, 1))

        return hook

    def replace(layer: str) -> Callable[..., torch.Tensor]:
        return lambda _module, _given, output: (sums[layer] / on.tokens).to(output).expand_as(output)

    found, dead = (on.loss(model, {module: hook(layer) for layer, module in layers.items()}) for hook in (add, replace))
    audited.compare("losses of liveness", f"validation loss of {name}", said.loss_nats_per_token, found)
    where = f"validation loss of {name} with its sublayers replaced by their means"
    audited.compare("losses of liveness", where, said.loss_with_means_nats_per_token, dead)
