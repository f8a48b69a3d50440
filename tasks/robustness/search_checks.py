"""That the search of an attack was the one that the study is configured for, and that what it wrote was read.

What a search costs, and how many restarts and iterations it has, follows from the configuration and the text alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from storage.errors import CheckFailed, require_close, require_equal
from tasks.attacks.configuration import FlipAttack, TriggerAttack
from tasks.robustness.checks import ROUNDING_OF
from tasks.robustness.results import HotFlipResult, Trigger, UatResult

Rows = list[dict[str, Any]]


def require_search(
    attack: str, model: str, found: UatResult | HotFlipResult, given: TriggerAttack | FlipAttack, search_documents: int
) -> None:
    """One model was searched for as long as configured; `search_documents` are those of attack-search."""
    what = f"{attack} on {model}"
    if isinstance(found, UatResult):
        measured = (found.gradient.forward_sequences, found.gradient.backward_sequences)
    else:
        measured = (found.forward_sequences, found.backward_sequences)
    if isinstance(given, TriggerAttack):
        required = _trigger_cost(given, search_documents)
    else:
        required = _flip_cost(given, found.documents)
    if measured != required:
        raise CheckFailed(
            f"{what} spent what its configuration allows",
            f"{measured[0]} forwards, {measured[1]} backwards",
            f"{required[0]} forwards, {required[1]} backwards",
        )
    if isinstance(found, UatResult):
        for search, trigger in (("gradient", found.gradient), ("blind", found.blind)):
            _require_best_restart(f"{search} search of {what}", trigger, found.attack)


def _trigger_cost(attack: TriggerAttack, documents: int) -> tuple[int, int]:
    """Forwards and backwards of all restarts on so many search documents.

    All documents are read once without a trigger, and once behind the trigger of every restart. An iteration reads its
    documents behind the present trigger, behind every candidate, and for the gradient.
    """
    read = min(attack.batch_documents, documents)
    restart = attack.iterations * read * (1 + attack.candidates + 1) + documents
    return documents + attack.restarts * restart, attack.restarts * attack.iterations * read


def _flip_cost(attack: FlipAttack, documents: int) -> tuple[int, int]:
    """Forwards and backwards on so many documents, each read as it is, and in a round as every candidate and for the
    gradient."""
    rounds = attack.rounds_on_a_text
    return documents * (1 + rounds * (attack.candidates + 1)), documents * rounds


def _require_best_restart(what: str, found: Trigger, attack: TriggerAttack) -> None:
    points = attack.restarts * attack.iterations
    if (len(found.restarts), len(found.curve)) != (attack.restarts, points):
        raise CheckFailed(
            f"the {what} ran to its end",
            f"{len(found.restarts)} restarts, {len(found.curve)} iterations",
            f"{attack.restarts} restarts, {points} iterations",
        )
    best = max(found.restarts, key=lambda restart: restart.search_loss_nats_per_token)
    kept = (found.trigger_ids, found.search_loss_nats_per_token, found.budgets.get("1"))
    if kept != (best.trigger_ids, best.search_loss_nats_per_token, best.trigger_ids):
        raise CheckFailed(
            f"the {what} kept the trigger of its best restart",
            f"{kept[0]} at {kept[1]} nats per token, {kept[2]} of the whole budget",
            f"{best.trigger_ids} at {best.search_loss_nats_per_token}",
        )


def require_flips_searched(model: str, found: HotFlipResult, rows: Rows) -> None:
    """What a search saw before its first and after its last round is what was judged, and the curve says the same."""
    rounding = ROUNDING_OF[found.attack.search_precision]
    for row in rows:
        for column, seen in (("clean_loss_sum_nats", 0), ("loss_sum_nats", -1)):
            what = f"{column} of document {row['example_id']} is what the search of hotflip on {model} saw"
            require_close(what, row[column], (saw := row["search_losses_sum_nats"][seen]), rounding * saw)
    tokens, rounds = sum(row["tokens_scored"] for row in rows), len(found.curve)
    lengths = {len(row["search_losses_sum_nats"]) for row in rows}
    require_equal(f"hotflip on {model} kept what it saw in every round", lengths, {rounds})
    for number, point in enumerate(found.curve):
        risen = math.fsum(row["search_losses_sum_nats"][number] - row["search_losses_sum_nats"][0] for row in rows)
        what = f"the curve of hotflip on {model} after round {number} follows from its records"
        require_close(what, point.loss_nats_per_token, risen / tokens, 1e-9)


def require_read(attack: str, records: Mapping[str, Rows]) -> None:
    """What was written in front of a text, or into it, was read by some model.

    A loss that is the clean one in every bit, on every text of every model, is that of a text whose beginning was cut
    off, or of one in which nothing was replaced. Of one model alone it may be true: one that no longer looks at what it
    reads, of which the tables say that the attack finds no more than blind search.
    """
    rows = [row for own in records.values() for row in own]
    attacked = [(row, [row["loss_sum_nats"]]) for row in rows if row.get("positions", ["a trigger"])]
    drawn = [(row, row["control_losses_sum_nats"]) for row in rows]
    for what, found in (("search", attacked), ("random control", drawn)):
        if found and all(loss == row["clean_loss_sum_nats"] for row, losses in found for loss in losses):
            raise CheckFailed(
                f"the models read what the {what} of {attack} wrote",
                f"the clean loss on all {len(found)} texts of all models, in every bit",
                "another on one of them",
                "Find what cuts the attacked texts, or puts them back: no number of this attack means anything",
            )
