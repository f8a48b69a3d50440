"""That the search of an attack was the one that the study is configured for, and that what it wrote was read.

What a search costs, and how many restarts and iterations it has, follows from the configuration and the text alone.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from typing import Any

from storage.errors import require, require_close, require_equal
from tasks.attacks.configuration import BACKWARD_FORWARDS, BUDGET_SHARES, FlipAttack, Search, TriggerAttack, steps_after
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
    require_equal(f"{what} spent what its configuration allows, in forwards and backwards", measured, required)
    if isinstance(found, UatResult):
        for search, trigger in (("gradient", found.gradient), ("blind", found.blind)):
            _require_best_restart(f"{search} search of {what}", trigger, found.attack)
            _require_curve(f"{search} search of {what}", trigger, found.attack, search_documents)


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
    made = (len(found.restarts), len(found.curve))
    require_equal(f"the {what} ran to its end, in restarts and iterations", made, (attack.restarts, points))
    best = max(found.restarts, key=lambda restart: restart.search_loss_nats_per_token)
    kept = (found.trigger_ids, found.search_loss_nats_per_token, found.budgets.get("1"))
    required = (best.trigger_ids, best.search_loss_nats_per_token, best.trigger_ids)
    require_equal(f"the {what} kept the trigger of its best restart, also at 1 of its budget", kept, required)


def _require_curve(what: str, found: Trigger, attack: TriggerAttack, documents: int) -> None:
    """The curve never falls, and has a point after each iteration, at what was spent by then.

    Where an iteration reads all search texts, it ends at the loss of the trigger that was kept.
    """
    read, points = min(attack.batch_documents, documents), [point.loss_nats_per_token for point in found.curve]
    for number, point in enumerate(found.curve):
        restarts = number // attack.iterations  # that had ended before this iteration
        spent = documents * (1 + restarts) + (number + 1) * read * (_as_forwards(attack) + 1)
        at = f"the curve of the {what} after iteration {number + 1} stands at what was spent"
        require_equal(at, point.forward_sequences, spent)
    require_equal(f"the curve of the {what} never falls", points, sorted(points))
    if read == documents:
        best = found.search_loss_nats_per_token
        ends = f"the curve of the {what} ends at the loss of its trigger"
        require_close(ends, points[-1], best, ROUNDING_OF[attack.search_precision] * best)


def _as_forwards(attack: Search) -> int:
    """What an iteration spends on a text beside reading it as it is by then, in forwards."""
    return attack.candidates + 1 + BACKWARD_FORWARDS


def require_flips_searched(model: str, found: HotFlipResult, rows: Rows) -> None:
    """What a search saw is what was judged, at the shares of its budget too, and the curve says the same."""
    what, rounding = f"hotflip on {model}", ROUNDING_OF[found.attack.search_precision]
    rounds = found.attack.rounds_on_a_text
    shares = [steps_after(share, rounds) for share in BUDGET_SHARES]
    for row in rows:
        saw, document = row["search_losses_sum_nats"], f"document {row['example_id']}"
        require_equal(f"{what} kept what it saw in every round in {document}", len(saw), rounds + 1)
        require_equal(f"{what} kept in no round what lowers the loss of {document}", saw, sorted(saw))
        judged = [("clean_loss_sum_nats", 0, row["clean_loss_sum_nats"]), ("loss_sum_nats", -1, row["loss_sum_nats"])]
        judged += [("budget_losses_sum_nats", *of) for of in zip(shares, row["budget_losses_sum_nats"], strict=True)]
        for column, number, loss in judged:
            same = f"{column} of {document} is what the search of {what} saw"
            require_close(same, loss, saw[number], rounding * saw[number])
    require_equal(f"the curve of {what} has a point for every round", len(found.curve), rounds + 1)
    tokens = sum(row["tokens_scored"] for row in rows)
    for number, point in enumerate(found.curve):
        risen = math.fsum(row["search_losses_sum_nats"][number] - row["search_losses_sum_nats"][0] for row in rows)
        after = f"the curve of {what} after round {number}"
        require_equal(
            f"{after} stands at what was spent", point.forward_sequences, 1 + number * _as_forwards(found.attack)
        )
        require_close(f"{after} follows from its records", point.loss_nats_per_token, risen / tokens, 1e-9)
    correlations = [value for row in rows for value in row["rank_correlations"]]
    median = statistics.median(correlations) if correlations else None
    require_equal(f"the rank correlation of {what} is the median of its records'", found.rank_correlation, median)


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
        require(
            not found or any(loss != row["clean_loss_sum_nats"] for row, losses in found for loss in losses),
            f"the models read what the {what} of {attack} wrote",
            f"the clean loss on all {len(found)} texts of all models, in every bit",
            "another on one of them",
            "Find what cuts the attacked texts, or puts them back: no number of this attack means anything",
        )
