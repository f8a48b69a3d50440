"""The study's figures: training curves, losses before and under attack, effects of every text, differences."""

from __future__ import annotations

import json
from statistics import median
from typing import Any

from tasks.report.figures import (
    FAINT,
    INK,
    SERIES_STYLES,
    Curve,
    Panel,
    SeriesStyle,
    curves,
    distributions,
    intervals,
    levels,
)
from tasks.report.page import Figure
from tasks.robustness.final_results import FinalResults, Findings
from tasks.stage.run import StageInput
from tasks.statistics.effects import EffectDifference
from tasks.statistics.losses import LossDifference

MODEL_STYLES = dict(zip(("base", "baseline", "monotonic"), SERIES_STYLES, strict=True))
LEVEL_STYLES = {
    "clean": SeriesStyle(FAINT, "-", "o"),
    "random control": SeriesStyle(INK, "-", "x"),
    "attacked": SeriesStyle(INK, "-", "s"),
}
Row = tuple[str, float, list[float] | None]
"""(label, difference, its interval) of one row of `intervals`."""


def figures(
    results: FinalResults, records: dict[str, list[dict[str, Any]]], trained: dict[str, StageInput]
) -> dict[str, Figure]:
    """File name -> figure. `trained` are the models with a training to show: a base that was loaded has none."""
    drawn = {}
    for name, models in (("training-base", ["base"]), ("training-arms", ["baseline", "monotonic"])):
        if all(model in trained for model in models):
            drawn[name] = _training(name, {model: trained[model] for model in models})
    drawn["differences-test"] = _test_differences(results)
    for attack, findings in results.attacks.by_name().items():
        drawn[f"losses-{attack}"] = _losses(attack, findings)
        drawn[f"effects-{attack}"] = _effects(attack, records[attack])
        drawn[f"differences-{attack}"] = _attack_differences(attack, findings)
    return drawn


def _training(name: str, trained: dict[str, StageInput]) -> Figure:
    drawn, ends = [], []
    for model, given in trained.items():
        rows = [json.loads(line) for line in given.run.metrics_file.read_text().splitlines()]
        train = [[row["step"], row["train_loss"]] for row in rows if "train_loss" in row]
        validation = [[row["step"], row["validation_loss"]] for row in rows if "validation_loss" in row]
        drawn.append(Curve(f"{model}, train", MODEL_STYLES[model], train))
        drawn.append(Curve(f"{model}, validation", MODEL_STYLES[model], validation, dots=True))
        ends.append(f"{model} ends at a validation loss of {validation[-1][1]:.4f} nats per token")
    caption = f"Training of {' and '.join(trained)}: loss on the train blocks since the last point, and on validation."
    return Figure(
        curves(name, f"{caption} {'; '.join(ends)}.", drawn, "optimizer step", "loss (nats per token)"), caption
    )


def _losses(attack: str, findings: Findings) -> Figure:
    rows = {
        model: {
            "clean": effect.clean_loss_nats_per_token,
            "random control": effect.control_loss_nats_per_token,
            "attacked": effect.attacked_loss_nats_per_token,
        }
        for model, effect in findings.effects.items()
    }
    numbers = "; ".join(
        f"{model}: " + ", ".join(f"{level} {loss:.4f}" for level, loss in values.items())
        for model, values in rows.items()
    )
    caption = (
        f"{attack}: loss of each model clean, beside random tokens (their increase added to the clean loss), attacked."
    )
    return Figure(
        levels(f"losses-{attack}", f"{caption} {numbers}.", rows, LEVEL_STYLES, "loss (nats per token)"), caption
    )


def _effects(attack: str, rows: list[dict[str, Any]]) -> Figure:
    def increases(model: str, kind: str) -> list[float]:
        return [
            (row[f"{kind}loss_sum_nats"] - row[f"{kind}clean_loss_sum_nats"]) / row[f"{kind}tokens_scored"]
            for row in rows
            if row["model"] == model
        ]

    panels = [
        Panel("attack", {model: increases(model, "") for model in MODEL_STYLES}),
        Panel("random control", {model: increases(model, "control_") for model in MODEL_STYLES}),
    ]
    medians = "; ".join(f"{model}: median {median(values):+.4f}" for model, values in panels[0].samples.items())
    caption = (
        f"{attack}: increase of the loss of every single text. A line shows the share of texts with at most that "
        "increase; each step is a text."
    )
    label = "increase of a text's loss (nats per token)"
    return Figure(distributions(f"effects-{attack}", f"{caption} {medians}.", panels, MODEL_STYLES, label), caption)


def _test_differences(results: FinalResults) -> Figure:
    rows: list[Row] = [
        (_pair(row), row.difference_nats_per_token, row.interval_nats_per_token) for row in results.differences
    ]
    caption = "Differences of the loss on the test split, with intervals over sources; one seed."
    return _forest("differences-test", caption, rows, "difference (nats per token)")


def _attack_differences(attack: str, findings: Findings) -> Figure:
    rows: list[Row] = [
        (_pair(row), row.increase_nats_per_token.value, row.increase_nats_per_token.interval)
        for row in findings.differences
    ]
    caption = f"{attack}: differences of the increase, with intervals over sources; one seed."
    return _forest(f"differences-{attack}", caption, rows, "difference (nats per token)")


def _pair(row: LossDifference | EffectDifference) -> str:
    return f"{row.model} - {row.reference}"


def _forest(name: str, caption: str, rows: list[Row], label: str) -> Figure:
    numbers = "; ".join(f"{pair} {difference:+.4f}" for pair, difference, _ in rows)
    return Figure(intervals(name, f"{caption} {numbers}.", rows, label), caption)
