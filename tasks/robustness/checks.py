"""What must hold before any number of the study is shown; each failure names what was measured and required."""

from __future__ import annotations

from typing import Any

from storage.errors import CheckFailed
from tasks.robustness.results import BaselineResult, Flips, HotFlipResult, MonotonicResult, Trigger, UatResult
from tasks.robustness.study import AggregateConfig
from tasks.statistics.effects import succeeded

ATTACKED = ("base", "baseline", "monotonic")


def require_distinct_arms(baseline: BaselineResult, monotonic: MonotonicResult) -> None:
    if baseline.weights_digest == monotonic.weights_digest:
        raise CheckFailed("the two arms have different weights", "equal weights_digest", "different")


def require_equal_budgets(baseline: BaselineResult, monotonic: MonotonicResult, config: AggregateConfig) -> None:
    """CheckFailed unless the arms really spent what the table's sentence on budgets will state."""
    spent = [
        {"budget": training.budget, "steps": training.steps, "tokens_trained": training.tokens_trained}
        for training in (baseline.training, monotonic.training)
    ]
    if spent[0] != spent[1] and config.unequal_budgets is None:
        raise CheckFailed("both arms had the same budget", spent[1], spent[0], "Or give unequal_budgets with a reason")
    if spent[0] == spent[1] and config.unequal_budgets is not None:
        raise CheckFailed("the arms had unequal budgets, as configured", "equal budgets", "unequal budgets")


def require_fair_attack(
    name: str, found: UatResult | HotFlipResult, rows: list[dict[str, Any]], configured: dict[str, Any]
) -> None:
    """Every model was attacked as configured, at the same counted cost, on the same documents, none left out."""
    if found.attack.scientific() != configured:
        raise CheckFailed(f"{name} attacked as this study is configured", found.attack.scientific(), configured)
    spent = {model: _sequences(cost) for model, cost in found.models.items()}
    if set(spent) != set(ATTACKED) or set(ATTACKED) != {row["model"] for row in rows}:
        raise CheckFailed(f"{name} attacked the models of this study", sorted(spent), sorted(ATTACKED))
    for model in ATTACKED[1:]:
        if spent[model] != spent[ATTACKED[0]]:
            raise CheckFailed(
                f"{name} spent the same on every model", f"{model}: {spent[model]}", f"as on base: {spent['base']}"
            )
    documents = {
        model: sorted((row["example_id"], row["source"]) for row in rows if row["model"] == model) for model in ATTACKED
    }
    for model, attacked in documents.items():
        if attacked != documents["base"] or len({id_ for id_, _ in attacked}) != found.documents:
            raise CheckFailed(
                f"{name} attacked every model on the same documents",
                f"{model}: {len(attacked)} records",
                f"the {found.documents} documents of the result, each once, as for base",
            )


def _sequences(cost: Trigger | Flips) -> dict[str, int]:
    return {"forward_sequences": cost.forward_sequences, "backward_sequences": cost.backward_sequences}


def require_same_tokens(name: str, rows: list[dict[str, Any]]) -> None:
    """For an attack that replaces nothing: every model was scored on the same tokens of each document."""
    scored: dict[str, set[tuple[int, int]]] = {}
    for row in rows:
        scored.setdefault(row["example_id"], set()).add((row["tokens_scored"], row["control_tokens_scored"]))
    if differing := sorted(example for example, counts in scored.items() if len(counts) > 1):
        raise CheckFailed(
            f"{name} scored the same tokens for every model", f"document {differing[0]} differs", "equal counts"
        )


def require_true_successes(name: str, rows: list[dict[str, Any]], relative_threshold: float, draws: int) -> None:
    """What the records call a success is computed again from their losses."""
    for row in rows:
        if row["success"] != succeeded(row, relative_threshold):
            raise CheckFailed(
                f"successes of {name} follow from the losses in its records",
                f"{row['model']}, document {row['example_id']}: success is {row['success']}",
                not row["success"],
            )
        if not 0 <= row["control_successes"] <= draws:
            raise CheckFailed(
                f"successes of {name}'s control are of its draws",
                f"{row['model']}, document {row['example_id']}: {row['control_successes']}",
                f"0 to {draws}",
            )
