"""The strongest of all attacks that any search found for any model: by it models are compared.

A search on one model may be luckier than on another: then what it found for the one does more to the other than what
was found there, and a difference between the two models is one between searches. So each model faces everything that
was found for any of them, the same for all, and what does most counts.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Self

from tasks.robustness.results import Transferred, TransferResult
from tasks.robustness.stages import JUDGED

Rows = list[dict[str, Any]]
By = tuple[str, str]
"""Whose an attack is: the search (gradient, blind), and the model that it was run on."""
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
"""Of an attack's record: what is as true of any attack on the text."""


@dataclass(frozen=True)
class Tried:
    """What everything that was found does to every text of every model, for one attack.

    `own` are the records of the attack, model by model; `losses`, by model and document, those of every attack;
    `on_search` what every trigger does on attack-search, None where each text is attacked by itself.
    """

    own: Mapping[str, Rows]
    losses: Mapping[tuple[str, str], Mapping[By, float]]
    on_search: Transferred | None

    @classmethod
    def of(cls, attack: str, own: Mapping[str, Rows], transferred: Rows, matrix: TransferResult) -> Self:
        losses: dict[tuple[str, str], dict[By, float]] = defaultdict(dict)
        for row in transferred:
            if (row["attack"], row["split"]) == (attack, JUDGED):
                losses[row["model"], row["example_id"]][row["search"], row["found_for"]] = row["loss_sum_nats"]
        return cls(own, losses, matrix.uat_on_search if attack == "uat" else None)

    def strongest(self, among: Collection[str] = ()) -> dict[str, Rows]:
        """The records of each model under the strongest attack that was found for any, or for any of `among`.

        uat: one trigger for a model, which does most to it on attack-search. hotflip: in every text the flips that do
        most to it; who attacks a text sees its loss. Each record says whose `attacked_by`: the search, and its model.
        """
        wanted = set(among or self.own)
        chosen = {}
        for model, rows in self.own.items():
            losses = {row["example_id"]: self.losses[model, row["example_id"]] for row in rows}
            one = None if self.on_search is None else _most(self._on_search(model), model, wanted)
            by = {id_: one or _most(of_text, model, wanted) for id_, of_text in losses.items()}
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


def _most(losses: Mapping[By, float], model: str, among: Collection[str]) -> By:
    """Whose attack does most; of equals the model's own."""
    of = [by for by in losses if by[1] in among]
    return max(of, key=lambda by: (losses[by], by[1] == model))


def _attacked(row: dict[str, Any], loss: float, by: By) -> dict[str, Any]:
    return {column: row[column] for column in KEPT} | {"loss_sum_nats": loss, "attacked_by": list(by)}
