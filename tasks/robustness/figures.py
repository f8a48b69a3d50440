"""The study's figures beside the one that answers: trainings, strength, equal clean loss."""

import json
from collections.abc import Collection, Mapping

from tasks.attacks.comparisons import line_of_training
from tasks.attacks.results import Findings
from tasks.findings.document import Figure
from tasks.findings.figures import FAINT, SERIES_STYLES, Curve, SeriesStyle, against, curves
from tasks.monotonic.arm import BASE, BASELINE, MONOTONIC
from tasks.robustness.final_results import FinalResults
from tasks.stage.run import StageInput

MAIN_STYLES = dict(zip((BASE, BASELINE, MONOTONIC), SERIES_STYLES, strict=True))
"""The three models that every figure shows; further arms are drawn beside them in grey, told apart by line and mark."""
OTHER_LINES = ((0, (3, 1, 1, 1)), (0, (1, 3)), (0, (6, 1)), (0, (2, 2)), (0, (5, 1, 1, 1, 1, 1)), "-")
OTHER_MARKERS = ("v", "D", "P", "X", "<", ">")


def figures(results: FinalResults, trained: Mapping[str, StageInput]) -> dict[str, Figure]:
    """File name -> figure. `trained` are the models with a training to show: a base that was loaded has none."""
    drawn = {}
    if BASE in trained:
        drawn["training-base"] = _training("training-base", {BASE: trained[BASE]})
    arms = {arm: trained[arm] for arm in results.arms}
    drawn["training-arms"] = _training("training-arms", arms)
    for attack, findings in results.attacks.items():
        drawn[f"equal-loss-{attack}"] = _against_clean_loss(attack, findings)
        drawn[f"strength-{attack}"] = _strength(attack, findings)
    return drawn


def _styles(models: Collection[str]) -> dict[str, SeriesStyle]:
    others = [model for model in models if model not in MAIN_STYLES]
    grey = {
        model: SeriesStyle(FAINT, OTHER_LINES[place % len(OTHER_LINES)], OTHER_MARKERS[place % len(OTHER_MARKERS)])
        for place, model in enumerate(others)
    }
    return {model: MAIN_STYLES.get(model) or grey[model] for model in models}


def _training(name: str, trained: Mapping[str, StageInput]) -> Figure:
    """Validation curves; the loss on the train blocks beside it where there is one training alone."""
    drawn, ends, styles = [], [], _styles(trained)
    for model, training in trained.items():
        rows = [json.loads(line) for line in training.run.metrics_file.read_text("utf-8").splitlines()]
        validation = [[row["step"], row["validation_loss"]] for row in rows if "validation_loss" in row]
        if len(trained) == 1:
            train = [[row["step"], row["train_loss"]] for row in rows if "train_loss" in row]
            drawn.append(Curve(f"{model}, train", styles[model], train))
        drawn.append(Curve(f"{model}, validation", styles[model], validation, dots=True))
        ends.append(f"{model} ends at a validation loss of {validation[-1][1]:.4f} nats per token")
    caption = f"Training of {', '.join(trained)}: loss on validation" + (
        " and on the train blocks since the last point." if len(trained) == 1 else "."
    )
    return curves(name, caption, "; ".join(ends), drawn, "optimizer step", "loss (nats per token)")


def _against_clean_loss(attack: str, findings: Findings) -> Figure:
    """One point a model: whether an effect is more than what the clean loss alone explains."""

    def point(model: str) -> tuple[str, float, float]:
        effect = findings.effects[model]
        return model, effect.clean_loss_nats_per_token, effect.increase_nats_per_token.value

    line = [point(model) for model in line_of_training(findings.effects)]
    arms = [point(model) for model in findings.effects if model not in {name for name, *_ in line}]
    numbers = "; ".join(f"{model} {clean:.4f}, {increase:+.4f}" for model, clean, increase in [*line, *arms])
    caption = (
        f"{attack}: increase under the strongest attack against clean loss. The line joins the unconstrained model "
        "at moments of its training: an arm on it is attacked as its clean loss would have it."
    )
    labels = ("clean loss of the attacked texts (nats per token)", "increase (nats per token)")
    return against(f"equal-loss-{attack}", caption, numbers, line, arms, *labels)


def _strength(attack: str, findings: Findings) -> Figure:
    searched = "search documents" if findings.one_for_all else "attacked texts, their mean"
    styles = _styles({model: None for model in findings.curves if "@" not in model})
    drawn = [
        Curve(model, style, [[point.forward_sequences, point.loss_nats_per_token] for point in findings.curves[model]])
        for model, style in styles.items()
    ]
    ends = "; ".join(f"{model} {findings.curves[model][-1].loss_nats_per_token:.4f}" for model in styles)
    caption = (
        f"{attack}: what the search on each model had found after so many forwards (a backward counts as two), on the "
        f"{searched}."
    )
    label = "loss (nats per token)" if findings.one_for_all else "increase (nats per token)"
    return curves(f"strength-{attack}", caption, ends, drawn, "forward sequences", label)
