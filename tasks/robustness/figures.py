"""The study's figures: training curves, losses before and under attack, effects of every text, differences."""

from __future__ import annotations

import json
from statistics import median
from typing import Any

from tasks.report.figures import FAINT, INK, LOOKS, Curve, Look, Panel, curves, distributions, intervals, levels
from tasks.report.page import Figure
from tasks.stage.run import StageInput

MODEL_LOOKS = dict(zip(("base", "baseline", "monotonic"), LOOKS, strict=True))
LEVEL_LOOKS = {
    "clean": Look(FAINT, "-", "o"),
    "random control": Look(INK, "-", "x"),
    "attacked": Look(INK, "-", "s"),
}


def figures(
    results: dict[str, Any], records: dict[str, list[dict[str, Any]]], trained: dict[str, StageInput]
) -> dict[str, Figure]:
    """File name -> figure. A base model that was loaded has no training to show."""
    drawn = {}
    for name, models in (("training-base", ["base"]), ("training-arms", ["baseline", "monotonic"])):
        if all(trained[model].result["training"] for model in models):
            drawn[name] = _training(name, {model: trained[model] for model in models})
    drawn["differences-test"] = _test_differences(results)
    for attack in results["attacks"]:
        drawn[f"losses-{attack}"] = _losses(attack, results)
        drawn[f"effects-{attack}"] = _effects(attack, records[attack])
        drawn[f"differences-{attack}"] = _attack_differences(attack, results)
    return drawn


def _training(name: str, trained: dict[str, StageInput]) -> Figure:
    drawn, ends = [], []
    for model, given in trained.items():
        rows = [json.loads(line) for line in given.run.metrics_file.read_text().splitlines()]
        train = [[row["step"], row["train_loss"]] for row in rows if "train_loss" in row]
        validation = [[row["step"], row["validation_loss"]] for row in rows if "validation_loss" in row]
        drawn.append(Curve(f"{model}, train", MODEL_LOOKS[model], train))
        drawn.append(Curve(f"{model}, validation", MODEL_LOOKS[model], validation, dots=True))
        ends.append(f"{model} ends at a validation loss of {validation[-1][1]:.4f} nats per token")
    caption = f"Training of {' and '.join(trained)}: loss on the train blocks since the last point, and on validation."
    return Figure(
        curves(name, f"{caption} {'; '.join(ends)}.", drawn, "optimizer step", "loss (nats per token)"), caption
    )


def _losses(attack: str, results: dict[str, Any]) -> Figure:
    rows = {
        model: {
            "clean": effect["clean_loss_nats_per_token"],
            "random control": effect["control_loss_nats_per_token"],
            "attacked": effect["attacked_loss_nats_per_token"],
        }
        for model, effect in results["attacks"][attack]["effects"].items()
    }
    said = "; ".join(
        f"{model}: " + ", ".join(f"{what} {loss:.4f}" for what, loss in values.items())
        for model, values in rows.items()
    )
    caption = (
        f"{attack}: loss of each model clean, beside random tokens (their increase added to the clean loss), attacked."
    )
    return Figure(levels(f"losses-{attack}", f"{caption} {said}.", rows, LEVEL_LOOKS, "loss (nats per token)"), caption)


def _effects(attack: str, rows: list[dict[str, Any]]) -> Figure:
    def increases(model: str, kind: str) -> list[float]:
        return [
            (row[f"{kind}loss_sum_nats"] - row[f"{kind}clean_loss_sum_nats"]) / row[f"{kind}tokens_scored"]
            for row in rows
            if row["model"] == model
        ]

    panels = [
        Panel("attack", {model: increases(model, "") for model in MODEL_LOOKS}),
        Panel("random control", {model: increases(model, "control_") for model in MODEL_LOOKS}),
    ]
    medians = "; ".join(f"{model}: median {median(values):+.4f}" for model, values in panels[0].samples.items())
    caption = (
        f"{attack}: increase of the loss of every single text. A line shows the share of texts with at most that "
        "increase; each step is a text."
    )
    label = "increase of a text's loss (nats per token)"
    return Figure(distributions(f"effects-{attack}", f"{caption} {medians}.", panels, MODEL_LOOKS, label), caption)


def _test_differences(results: dict[str, Any]) -> Figure:
    rows = [
        (_pair(row), row["difference_nats_per_token"], row["interval_nats_per_token"]) for row in results["differences"]
    ]
    caption = "Differences of the loss on the test split, with intervals over sources; one seed."
    return _forest("differences-test", caption, rows, "difference (nats per token)")


def _attack_differences(attack: str, results: dict[str, Any]) -> Figure:
    rows = [
        (_pair(row), row["increase_nats_per_token"]["value"], row["increase_nats_per_token"]["interval"])
        for row in results["attacks"][attack]["differences"]
    ]
    caption = f"{attack}: differences of the increase, with intervals over sources; one seed."
    return _forest(f"differences-{attack}", caption, rows, "difference (nats per token)")


def _pair(row: dict[str, Any]) -> str:
    return f"{row['model']} - {row['reference']}"


def _forest(name: str, caption: str, rows: list[Any], label: str) -> Figure:
    said = "; ".join(f"{pair} {difference:+.4f}" for pair, difference, _ in rows)
    return Figure(intervals(name, f"{caption} {said}.", rows, label), caption)
