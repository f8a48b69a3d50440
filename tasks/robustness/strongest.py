"""The strongest of all attacks that any search found for any model: by it models are compared.

A search on one model may be luckier than on another: then what it found for the one does more to the other than what
was found there, and a difference between the two models is one between searches. So each model faces everything that
was found for any of them, the same for all, and what does most counts.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from tasks.robustness.results import TransferResult
from tasks.robustness.stages import JUDGED

Rows = list[dict[str, Any]]


def strongest(attack: str, own: Mapping[str, Rows], transferred: Rows, matrix: TransferResult) -> dict[str, Rows]:
    """The records of an attack, of each model, with what the strongest attack did in place of its own search.

    uat: one trigger for a model, which does most to it on attack-search. hotflip: in every text the flips that do most
    to it; who attacks a text sees its loss. Each record says whose `attacked_by`: the search, and its model.
    """
    tried: dict[tuple[str, str], dict[tuple[str, str], float]] = defaultdict(dict)
    for row in transferred:
        if row["attack"] == attack and row["split"] == JUDGED:
            tried[row["model"], row["example_id"]][row["search"], row["found_for"]] = row["loss_sum_nats"]
    chosen: dict[str, Rows] = {}
    for model, rows in own.items():
        best = _best_trigger(model, matrix) if attack == "uat" else None
        chosen[model] = []
        for row in rows:
            losses = tried[model, row["example_id"]]
            by = best or max(losses, key=losses.__getitem__)
            chosen[model].append({**row, "loss_sum_nats": losses[by], "attacked_by": list(by)})
    return chosen


def _best_trigger(model: str, matrix: TransferResult) -> tuple[str, str]:
    increases = {
        (search, found_for): tried_on[model]
        for search, of_search in matrix.uat_on_search.items()
        for found_for, tried_on in of_search.items()
    }
    return max(increases, key=increases.__getitem__)
