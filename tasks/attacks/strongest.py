"""The strongest of all attacks that any search found for any model: models are compared by it.

A search on one model may be luckier than on another: then what it found for the one does more to the other than what
was found there, and a difference between the two models is one between searches. So each model faces everything that
was found for any of them, the same for all, and what does most counts.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from storage.records import Rows
from tasks.attacks.results import SEARCHES, Transferred, UatResult
from tasks.attacks.stages import JUDGED, SEARCHED

By = tuple[str, str]
"""Origin of an attack: the search (gradient, blind), and the model that it was run on."""
KEY_COLUMNS = ("attack", "split", "search", "found_for", "model", "example_id")
"""There is one record for each attack, split, search, model that it was run on, model that is tried, and document."""
KEPT = (
    "model",
    "example_id",
    "source",
    "text_tokens",
    "tokens_scored",
    "clean_loss_sum_nats",
    "text_clean_loss_sum_nats",
    "control_losses_sum_nats",
    "blind_loss_sum_nats",
    "budget_losses_sum_nats",
)
"""Columns of an attack's record that are as true of any attack on the text."""


@dataclass(frozen=True)
class Tried:
    """Effect of everything that was found on every text of every model, for one attack.

    `own` are the records of the attack, model by model; `losses`, by model and document, those of every attack;
    `on_search` what every trigger does on attack-search, None where each text is attacked by itself. `restarts`: the
    same of what the first restart of every search found, the second, ...: each is a search with another seed.
    """

    own: Mapping[str, Rows]
    losses: Mapping[tuple[str, str], Mapping[By, float]]
    on_search: Transferred | None
    restarts: Sequence[Tried] = ()

    @classmethod
    def of(
        cls,
        attack: str,
        own: Mapping[str, Rows],
        transferred: Rows,
        on_search: Transferred | None = None,
        uat: Mapping[str, UatResult] | None = None,
    ) -> Self:
        """`uat` are the searches for triggers, where these are the attack."""
        restarts = range(1, len(next(iter(uat.values())).gradient.restarts) + 1) if uat else ()
        tries = tuple(cls._of_restart(number, own, transferred, uat or {}) for number in restarts)
        rows = [row for row in transferred if row["attack"] == attack]
        return cls(own, _judged(rows), on_search, tries)

    @classmethod
    def _of_restart(cls, number: int, own: Mapping[str, Rows], transferred: Rows, uat: Mapping[str, UatResult]) -> Self:
        names = {
            (search, model): list(getattr(result, search).named())[number - 1]
            for model, result in uat.items()
            for search in SEARCHES
        }
        rows = [
            row | {"attack": "uat"}
            for row in transferred
            if row["attack"] == names.get((row["search"], row["found_for"]))
        ]
        losses = _judged(rows)
        theirs = {
            model: [row | {"loss_sum_nats": losses[model, row["example_id"]]["gradient", model]} for row in of_model]
            for model, of_model in own.items()
        }
        return cls(theirs, losses, increases_of(rows)["uat", SEARCHED])

    def over_searches(self, chosen: Callable[[Tried], Mapping[str, Rows]]) -> list[Rows]:
        """The records of all models as `chosen` gives them, for each search by itself; of hotflip there is one.

        It searches each text anew, so that its searches vary with the texts.
        """
        return [[row for own in chosen(tried).values() for row in own] for tried in self.restarts or (self,)]

    def strongest(self, among: Collection[str] = ()) -> dict[str, Rows]:
        """The records of each model under the strongest attack that was found for any, or for any of `among`.

        uat: one trigger for a model, which does most to it on attack-search. hotflip: in every text the flips that do
        most to it; who attacks a text sees its loss. Each record says whose `attacked_by`: the search, and its model.
        """
        wanted = set(among or self.own)
        chosen = {}
        for model, rows in self.own.items():
            losses = {row["example_id"]: self.losses[model, row["example_id"]] for row in rows}
            choice = None if self.on_search is None else _most(self._on_search(model), model, wanted)
            by = {id_: choice or _most(of_text, model, wanted) for id_, of_text in losses.items()}
            chosen[model] = [
                _attacked(row, losses[row["example_id"]][by[row["example_id"]]], by[row["example_id"]]) for row in rows
            ]
        return chosen

    def alone(self) -> dict[str, Rows]:
        """The records of each model under what its own gradient search found."""
        return {
            model: [_attacked(row, row["loss_sum_nats"], ("gradient", model)) for row in rows]
            for model, rows in self.own.items()
        }

    def _on_search(self, model: str) -> dict[By, float]:
        return {
            (search, found_for): tried_on[model]
            for search, of_search in (self.on_search or {}).items()
            for found_for, tried_on in of_search.items()
        }


def increases_of(rows: Rows) -> dict[tuple[str, str], Transferred]:
    """(attack, split) -> increases of the loss, in nats per scored token, of these records."""
    tokens: dict[tuple[str, ...], int] = defaultdict(int)
    risen: dict[tuple[str, ...], float] = defaultdict(float)
    for row in rows:
        key = tuple(row[column] for column in KEY_COLUMNS[:-1])
        tokens[key] += row["tokens_scored"]
        risen[key] += row["loss_sum_nats"] - row["clean_loss_sum_nats"]
    increases: dict[tuple[str, str], Transferred] = {}
    for (attack, split, search, found_for, model), count in tokens.items():
        of_search = increases.setdefault((attack, split), {}).setdefault(search, {})
        of_search.setdefault(found_for, {})[model] = risen[attack, split, search, found_for, model] / count
    return increases


def _judged(rows: Rows) -> dict[tuple[str, str], dict[By, float]]:
    """Loss under each attack, by model and document."""
    losses: dict[tuple[str, str], dict[By, float]] = defaultdict(dict)
    for row in rows:
        if row["split"] == JUDGED:
            losses[row["model"], row["example_id"]][row["search"], row["found_for"]] = row["loss_sum_nats"]
    return losses


def _most(losses: Mapping[By, float], model: str, among: Collection[str]) -> By:
    """The attack that does most; of equals the model's own."""
    attacks = [by for by in losses if by[1] in among]
    return max(attacks, key=lambda by: (losses[by], by[1] == model))


def _attacked(row: dict[str, Any], loss: float, by: By) -> dict[str, Any]:
    return {column: row[column] for column in KEPT} | {"loss_sum_nats": loss, "attacked_by": list(by)}
