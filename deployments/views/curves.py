"""The curves of a training while it runs, from its `metrics.jsonl` alone: one SVG for each metric."""

from pathlib import Path
from typing import Any

from storage.rows import rows_of
from tasks.findings.figures import SERIES_STYLES, Curve, curves

TRAINING, VALIDATION = "train_loss", "validation_"
NO_LEARNING, SEEN_IN_TRAINING, JUDGED = SERIES_STYLES
Point = tuple[float, float]


def curves_of(metrics_file: Path) -> list[str]:
    """The SVGs: each validation metric over the steps, beside what needs no learning; losses beside training's own.

    Empty until there are two points of one of them.
    """
    rows = rows_of(metrics_file)
    judged = {name for row in rows for name in row if name.startswith(VALIDATION)}
    drawn = []
    for name in sorted(judged | {f"{VALIDATION}loss"}):
        of_metric = [Curve("validation", JUDGED, _points(rows, name), dots=True)]
        if name == f"{VALIDATION}loss":
            of_metric.insert(0, Curve("training", SEEN_IN_TRAINING, _points(rows, TRAINING)))
        lines = [curve for curve in of_metric if curve.points]
        if max((len(curve.points) for curve in lines), default=0) > 1:
            steps = [point[0] for curve in lines for point in curve.points]
            ends = min(steps), max(steps)
            lines += [
                Curve(f"{what}, without learning", NO_LEARNING, [(step, value) for step in ends])
                for what, value in _trivial(rows, name).items()
            ]
            metric = name.removeprefix(VALIDATION).replace("_", " ")
            described = f"{metric} up to step {max(steps):,.0f}."
            drawn.append(curves(f"live-{name}", described, "", lines, "step", metric).svg)
    return drawn


def _points(rows: list[dict[str, Any]], name: str) -> list[Point]:
    return [(row["step"], row[name]) for row in rows if name in row]


def _trivial(rows: list[dict[str, Any]], name: str) -> dict[str, float]:
    """Results of methods without learning, where the training named them for this metric."""
    return next(filter(None, (trivial_of(row, name) for row in rows)), {})


def trivial_of(row: dict[str, Any], name: str) -> dict[str, float]:
    """Results of methods without learning on the metric `name` of a row; empty where the row's are those of another."""
    trivial: dict[str, float] = row.get("trivial") or {}
    if trivial and name.startswith(VALIDATION) and name in row:
        best = (max if row.get("higher_is_better") else min)(trivial.values())
        return trivial if row[name] / best == row["ratio_to_trivial"] else {}
    return {}
