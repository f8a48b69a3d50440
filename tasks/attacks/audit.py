"""The audit of a study of attacks: what records say of losses, asked of `model/` again by transformers' own forward.

No engine of the stages is used for losses: one text goes through the network at a time, in fp32, without padding,
batches or caches. What random tokens do is drawn by the stages' own functions, and movement and order are asked by
their own formulas.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache, cached_property, partial
from typing import Any, TypeVar

import numpy as np
import torch
from transformers import PreTrainedModel

from storage.errors import require, require_equal
from tasks.attacks.configuration import BUDGET_SHARES
from tasks.attacks.flips import FlipSearch, random_flips, written_into
from tasks.attacks.reading import records_of
from tasks.attacks.results import SEARCHES, UatResult
from tasks.attacks.stages import ASKED, JUDGED, SEARCHED, AttackAuditConfig, UatConfig
from tasks.attacks.texts import attacked_texts, usable_tokens, victim_of
from tasks.attacks.trigger import control_triggers
from tasks.findings.audit import Again, Asked, Audited
from tasks.language import model as language
from tasks.language.pairs import packed_pairs, packed_split
from tasks.language.result import BaseResult
from tasks.language.texts import Text, tokenizer_of
from tasks.language.tokenizer import round_trips
from tasks.monotonic import asked as of_models
from tasks.monotonic.arm import BASE
from tasks.monotonic.numbers import order_of
from tasks.monotonic.order import Texts
from tasks.monotonic.result import ArmResult
from tasks.stage.numerics import device
from tasks.stage.run import StageInput, StageRun
from tasks.training.trained import number_kept

HOW = (
    "transformers' own forward in fp32 on {}, text by text (movement, order, random tokens and one search by the "
    "stages' formulas)"
)
BY_ROUNDING = 0.2
"""The share of what a search adds to a loss by which another precision or machine may find more, or less."""
Row = dict[str, Any]
Key = TypeVar("Key")
Value = TypeVar("Value")
Stages = Mapping[str, StageInput]


def ask_models(
    run: StageRun,
    config: AttackAuditConfig,
    text: StageInput,
    stages: Stages,
    audited: Audited,
    also: Callable[[str, PreTrainedModel], Iterable[tuple[Asked[Any], str]]],
) -> None:
    """Asks every model of the study; `also` gives what else is asked of one, and what tells draws of a kind apart.

    `stages` are the models and the starts of their arms, `order`, `transfer`, and attacks as `uat-...`, `hotflip-...`.
    """
    recorded, where = Recorded(config, text, stages), device(config.execution)
    losses = BaseResult.read(stages[BASE]).validation_losses
    on, texts = of_models.Validation(packed_split(text.path / "text", "validation"), run.progress.touch), Texts.of(text)
    orders, counts_V = order_of(stages["order"], [BASE, *config.arms]), np.load(text.path / "text" / "unigram.npy")
    with run.watched(config.execution.stall_minutes):
        for done, (name, place) in enumerate(config.models.items()):
            run.step(done, len(config.models), "models", note=name)
            role, _, folder = place.partition("/")
            model = language.load(stages[role].path / folder).to(where).eval()
            arm = ArmResult.read(stages[name]) if name in config.arms else None
            start = stages.get(config.starts.get(name, ""))
            for of_weights in of_models.signs(name, arm, model, start) if arm else ():
                audited.ask(of_weights)
            for asked, apart in (*also(name, model), *_Attacked(name, recorded, model, run.progress.touch).asked()):
                audited.ask(asked, apart)
            known = {m: loss for m, loss in losses.items() if m == name or (name, m) == (BASE, "another_summary")}
            audited.ask(of_models.validation_losses(known, partial(on.loss_of, model)))
            if name == BASE:
                parameters = sum(parameter.numel() for parameter in model.parameters())
                require_equal("the parameters of base", number_kept(stages[BASE].path / "model"), parameters)
            if name in orders:
                seen = texts.seen(model, config.variant, config.execution.micro_batch_examples)
                audited.ask(of_models.order(name, orders[name], model, config.variant, seen))
            if arm:
                for of_arm in of_models.liveness(name, arm, model, on):
                    audited.ask(of_arm)
                audited.ask(of_models.movement(name, arm, model, start or stages[BASE], config.variant))
    audited.ask(of_models.validation_losses({"unigram": losses["unigram"]}, lambda _: on.unigram_loss(counts_V)))


@torch.no_grad()
def token_losses(model: PreTrainedModel, ids: Sequence[int]) -> torch.Tensor:
    """-log p of each of `ids` but the first, in nats, float64 on the CPU."""
    _require_tokens(model, ids)
    read = torch.tensor([ids], device=next(model.parameters()).device)
    log_p = model(input_ids=read[:, :-1]).logits[0].double().log_softmax(-1)
    return -log_p.gather(-1, read[0, 1:, None])[:, 0].cpu()


@torch.no_grad()
def summary_loss(model: PreTrainedModel, read: Sequence[int], reference: Sequence[int]) -> float:
    """Summed loss of a reference in nats, by the model's own mean over its labels."""
    _require_tokens(model, [*read, *reference])
    where = next(model.parameters()).device
    labels = torch.tensor([reference], device=where)
    loss = model(input_ids=torch.tensor([read], device=where), labels=labels).loss
    return float(loss.double().item() * len(reference))


def _require_tokens(model: PreTrainedModel, ids: Sequence[int]) -> None:
    vocabulary = len(model.get_input_embeddings().weight)
    known = all(0 <= id_ < vocabulary for id_ in ids)
    require(known, "what a model reads are tokens of its vocabulary", [*ids], f"each below {vocabulary}")


class Recorded:
    """What the records say of attacks, and the texts that were attacked."""

    def __init__(self, config: AttackAuditConfig, text: StageInput, stages: Stages) -> None:
        self.config, self.setup, self.tokenizer, self.given = config, text, tokenizer_of(text), stages
        uat = stages[f"uat-{config.attacked[0]}"].configuration(UatConfig)
        self.attack, self.seed, self.packed = uat.attack, uat.seed, packed_pairs(text.path / "text")
        wanted = (("uat", SEARCHED, uat.attack), ("uat", JUDGED, uat.attack), ("hotflip", JUDGED, config.hotflip))
        self.texts = {
            (kind, own.example_id): own
            for kind, split, attack in wanted
            for own in attacked_texts(text, split, attack.text_tokens)
        }

    @cache  # noqa: B019  # it lives as long as the audit
    def own(self, attack: str, model: str) -> dict[str, Row]:
        """The records of an attack on a model, by document."""
        return {row["example_id"]: row for row in records_of(self.given[f"{attack}-{model}"])}

    @cache  # noqa: B019
    def triggers(self, model: str) -> UatResult:
        return UatResult.read(self.given[f"uat-{model}"])

    def text(self, attack: str, document: str) -> Text:
        return _named(self.texts, (attack, document), f"the text that {attack} attacked is one of the study's")

    def flips(self, model: str, document: str) -> Row:
        return _named(self.own("hotflip", model), document, f"hotflip attacked the document on {model}")

    @cached_property
    def transfers(self) -> dict[tuple[str, str, str, str], list[Row]]:
        """The records of transfer by model, attack, split and document."""
        transfers = defaultdict(list)
        for row in records_of(self.given["transfer"]):
            transfers[row["model"], row["attack"].split(",")[0], row["split"], row["example_id"]].append(row)
        return transfers


def _named(values: Mapping[Key, Value], key: Key, check: str) -> Value:
    require(key in values, check, key, "one of them")
    return values[key]


class _Attacked:
    """What is asked of one model that was attacked: what was written for it, and what was found for others."""

    def __init__(self, name: str, recorded: Recorded, model: PreTrainedModel, touch: Callable[[], None]) -> None:
        self.name, self.recorded, self.model, self.touch = name, recorded, model, touch
        self.hotflip, self._loss = recorded.config.hotflip, cache(self._computed)

    def asked(self) -> Iterator[tuple[Asked[Any], str]]:
        recorded, count = self.recorded, self.recorded.config.audit.examples
        if self.name not in recorded.config.attacked:
            return
        uat, hotflip = ([*recorded.own(attack, self.name).values()] for attack in ("uat", "hotflip"))
        kinds: list[tuple[str, list[Any], Callable[[Any], Iterator[Again]], str]] = [
            ("losses under triggers", uat, self._under_triggers, self.name),
            ("losses under flips", hotflip, self._under_flips, self.name),
        ]
        for wanted in (("uat", JUDGED), ("uat", SEARCHED), ("hotflip", JUDGED)):
            tried = [own for key, own in recorded.transfers.items() if key[:3] == (self.name, *wanted)]
            kinds.append(("transfers", tried, self._transferred, f"{self.name}, {', '.join(wanted)}"))
        for kind, rows, again, apart in kinds:
            yield Asked(kind, rows, again, "nats per token", ASKED[kind], count), apart
        yield Asked("searches", hotflip, self._searched, "nats per token", ASKED["searches"], 1), self.name

    def _computed(self, attack: str, document: str, prefix: tuple[int, ...], ids: tuple[int, ...]) -> torch.Tensor:
        """The losses of a text's own tokens behind a prefix; of a pair that of its whole reference."""
        self.touch()
        if (packed := self.recorded.packed) is not None:
            read = [*packed.prefix_ids, *prefix, *ids, packed.end_of_text_id]
            return torch.tensor([summary_loss(self.model, read, self.recorded.text(attack, document).reference)])
        end = self.recorded.tokenizer.eos_token_id
        return token_losses(self.model, [end, *prefix, *ids])[len(prefix) :]

    def _total(
        self, attack: str, row: Row, prefix: Sequence[int] = (), ids: Sequence[int] = (), whole: bool = False
    ) -> float:
        """The summed loss of the tokens that nobody may write, behind a prefix or with others in their places."""
        text = self.recorded.text(attack, row["example_id"])
        ids = tuple(ids or text.tokens)
        loss_L = self._loss(attack, text.example_id, tuple(prefix), ids)
        if attack == "uat" or text.reference or whole:
            return float(loss_L.sum())
        writable = self.recorded.flips(self.name, row["example_id"])["writable"]
        return float(loss_L[[place for place in range(len(ids)) if place not in writable]].sum())

    def _written(self, flips: Row, search: str) -> list[int]:
        """The tokens of a text with what a search replaced."""
        return [*written_into(self.recorded.text("hotflip", flips["example_id"]), flips, SEARCHES[search])]

    @cached_property
    def _usable_V(self) -> torch.Tensor:
        return usable_tokens(self.recorded.tokenizer, len(self.model.get_input_embeddings().weight))

    def _under_triggers(self, row: Row) -> Iterator[Again]:
        triggers, what = self.recorded.triggers(self.name), f"uat, {self.name}"
        yield again(what, row, row["clean_loss_sum_nats"], self._total("uat", row))
        for column, search in (("loss_sum_nats", triggers.gradient), ("blind_loss_sum_nats", triggers.blind)):
            yield again(what, row, row[column], self._total("uat", row, search.best.trigger_ids))
        for share, loss in zip(BUDGET_SHARES, row["budget_losses_sum_nats"], strict=True):
            yield again(what, row, loss, self._total("uat", row, triggers.gradient.budgets[f"{share:g}"]))
        drawn = control_triggers(self._usable_V, self.recorded.attack, self.recorded.seed)
        for trigger, loss in zip(drawn, row["control_losses_sum_nats"], strict=True):
            yield again(f"random triggers, {self.name}", row, loss, self._total("uat", row, trigger))

    def _under_flips(self, row: Row) -> Iterator[Again]:
        what, written = f"hotflip, {self.name}", {search: self._written(row, search) for search in SEARCHES}
        yield again(what, row, row["text_clean_loss_sum_nats"], self._total("hotflip", row, whole=True))
        yield again(what, row, row["clean_loss_sum_nats"], self._total("hotflip", row))
        yield again(what, row, row["loss_sum_nats"], self._total("hotflip", row, ids=written["gradient"]))
        yield again(what, row, row["blind_loss_sum_nats"], self._total("hotflip", row, ids=written["blind"]))
        text = self.recorded.text("hotflip", row["example_id"])
        drawn = random_flips(text, self._usable_V, self.hotflip, self.recorded.seed)
        for ids, loss in zip(drawn, row["control_losses_sum_nats"], strict=True):
            yield again(f"random tokens, {self.name}", row, loss, self._total("hotflip", row, ids=list(ids)))
        check = f"what hotflip on {self.name} made of document {row['example_id']} comes back from its text"
        require_equal(check, row["round_trips"], round_trips(self.recorded.tokenizer, written["gradient"]))

    def _searched(self, row: Row) -> Iterator[Again]:
        """Every round of the gradient search in one text, by the stage's own code; rounding may lead it another way."""
        recorded, text = self.recorded, self.recorded.text("hotflip", row["example_id"])
        fp32 = victim_of(self.model, recorded.setup, recorded.config.execution)
        computed = FlipSearch(fp32, text, self._usable_V, self.hotflip, recorded.seed).run().loss_sums
        apart = BY_ROUNDING * (computed[-1] - computed[0]) / row["tokens_scored"]
        check = f"the rounds of hotflip on {self.name} in document {row['example_id']}"
        require_equal(check, len(row["search_losses_sum_nats"]), len(computed))
        for saw, loss in zip(row["search_losses_sum_nats"], computed, strict=True):
            yield again(f"what hotflip on {self.name} found", row, saw, loss, apart)

    def _transferred(self, rows: list[Row]) -> Iterator[Again]:
        """What every search found for every model, on one document."""
        for row in rows:
            attack, search, by = row["attack"], row["search"], row["found_for"]
            what, kind = f"transfer of {attack} ({search} search) from {by} to {self.name}", attack.split(",")[0]
            prefix: Sequence[int] = ()
            ids: Sequence[int] = ()
            if kind == "uat":
                triggers = getattr(self.recorded.triggers(by), search).named()
                prefix = _named(triggers, attack, f"transfer tried what the {search} search found for {by}")
            else:
                ids = self._written(self.recorded.flips(by, row["example_id"]), search)
            yield again(what, row, row["loss_sum_nats"], self._total(kind, row, prefix, ids))
            yield again(what, row, row["clean_loss_sum_nats"], self._total(kind, row))


def again(what: str, row: Row, recorded: float, computed: float, allowed: float = 0.0) -> Again:
    """A summed loss of a record, per token."""
    return Again(f"{what}, document {row['example_id'][:12]}", recorded, computed, row["tokens_scored"], allowed)
