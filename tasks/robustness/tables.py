"""The study's tables but those of an attack. Every row ends with the name of the run that its numbers came from."""

from __future__ import annotations

from tasks.findings.numbers import NATS, p_value, percent, perplexity, smallest, span, value_and_span
from tasks.findings.statistics.power import POWER
from tasks.findings.table import Table
from tasks.robustness.answer import AT
from tasks.robustness.arm import BASELINE, CONTROL, MONOTONIC
from tasks.robustness.attack_tables import run_of
from tasks.robustness.final_results import FinalResults
from tasks.robustness.words import compared, label, pair


def liveness_table(results: FinalResults) -> Table:
    """First of all: what the constrained layers do, and how far their weights moved."""
    return Table(
        "What the constrained sublayers do on the validation split: what their replacement by their mean output adds "
        "to the loss (nats per token), as a share of the baseline's; effective rank of their outputs without what a "
        "LayerNorm takes away, mean over layers; median relative movement of their weights in training, and that as a "
        "multiple of the baseline's; share of these weights that are 0.",
        ["arm", "start", "kept by", "rise", "of baseline's", "rank", "moved", "x baseline", "zeros", "run"],
        [
            [
                label(results, name),
                arm.start or "base",
                arm.by,
                NATS(arm.sublayers.rise_nats_per_token),
                f"{arm.alive_share:.1%}",
                f"{sum(arm.sublayers.effective_rank.values()) / len(arm.sublayers.effective_rank):.1f}",
                "-" if arm.movement.constrained is None else f"{arm.movement.constrained:.2%}",
                "-" if arm.movement_ratio is None else f"{arm.movement_ratio:.2f}",
                f"{arm.constraint.share_of_zeros:.0%}" if arm.constraint else "-",
                run_of(results, f"train-{name}"),
            ]
            for name, arm in results.arms.items()
        ],
    )


def primary_table(results: FinalResults) -> Table:
    """The one comparison that was named beforehand, and the same against every placebo."""
    found = results.primary
    asked = found.primary
    same = f"{pair(results, MONOTONIC, BASELINE)}{AT[asked.measure]}"
    rows = {same: found.difference}
    rows |= {f"{same}, {how}": row for how, row in found.by_fewer_attacks.items()}
    rows |= {pair(results, MONOTONIC, placebo): row for placebo, row in found.from_placebos.items()}
    if found.control is not None:
        rows |= {f"{pair(results, CONTROL, BASELINE)}, the positive control": found.control}
    how = "by exchanges within sources (of n sources never below 2 / 2^n)"
    if asked.attack == "uat":
        how = "of Student's t, over searches and sources"
    return Table(
        f"The primary comparison ({asked.attack}, {asked.measure.replace('_', ' ')}), nats per token; margin "
        f"{asked.margin_nats_per_token:g}. Below it the same by fewer attacks, and against every placebo whose layers "
        f"live. p {how}, for one comparison. Last, the smallest true difference that is shown with a chance of "
        f"{percent(POWER)}.",
        ["difference", "value", "interval", "p", "could show", "run"],
        [
            [
                name,
                *(
                    ["unknown", "-", "-", "-"]
                    if row is None
                    else [*value_and_span(row, NATS), p_value(row.p_value), smallest(row)]
                ),
                run_of(results, "transfer"),
            ]
            for name, row in rows.items()
        ],
    )


def perplexity_tables(results: FinalResults) -> list[Table]:
    differences = results.differences
    return [
        Table(
            "Loss of every model on the same tokens of the test split.",
            ["model", "perplexity", "nats per token", "tokens scored", "run"],
            [
                [
                    label(results, name),
                    perplexity(model.perplexity),
                    f"{model.loss_nats_per_token:.4f}",
                    f"{model.tokens_scored:,}",
                    run_of(results, "evaluate"),
                ]
                for name, model in results.models.items()
            ],
        ),
        Table(
            "Differences of these losses, paired by document; sources resampled; one seed.",
            ["difference", "nats per token", f"{differences[0].confidence_level:.0%} interval", "p", "run"],
            [
                [
                    pair(results, row.model, row.reference),
                    NATS(row.difference_nats_per_token),
                    span(row.interval_nats_per_token, NATS),
                    p_value(row.p_value),
                    run_of(results, "evaluate"),
                ]
                for row in differences
            ],
        ),
    ]


def secondary_table(results: FinalResults) -> Table:
    """Every other comparison that a table shows with a p-value, adjusted for how many there are."""
    return Table(
        f"The {len(results.secondary)} secondary comparisons: p by exchanges within sources, under uat of Student's t "
        "over searches and sources, and adjusted for their number (Holm 1979). They are no answer to the study's "
        "question. Intervals come from resampled sources: at the border they may disagree with p. What has an interval "
        "and no p (such as a difference at equal clean loss, or the effect on one model) is not tested: each such "
        "interval is for itself, not adjusted.",
        ["comparison", "p", "adjusted", "run"],
        [
            [
                compared(results, row.measure, (row.model, row.reference)),
                p_value(row.p_value),
                p_value(row.adjusted_p_value),
                run_of(results, "evaluate" if row.measure == "test loss" else "transfer"),
            ]
            for row in results.secondary
        ],
    )


def arm_table(results: FinalResults) -> Table:
    return Table(
        "Training of the arms.",
        ["arm", "steps", "tokens trained", "best step", "peak rate", "run"],
        [
            [
                label(results, name),
                f"{arm.steps:,}",
                f"{arm.tokens_trained:,}",
                f"{arm.best_step:,}",
                f"{arm.budget['learning_rate']:g}",
                run_of(results, f"train-{name}"),
            ]
            for name, arm in results.arms.items()
        ],
    )


def cost_table(results: FinalResults) -> Table:
    """Equal for every model, or aggregate would have refused."""
    return Table(
        "Cost of the searches on one model, counted, the same for all: sequences that went through it in the gradient "
        "search (forwards, of these with a backward) and in the blind search; and on how many documents was judged. "
        "The run is that of the first model.",
        ["attack", "forwards", "backwards", "blind forwards", "documents judged", "models", "run"],
        [
            [
                name,
                f"{cost.forward_sequences:,}",
                f"{cost.backward_sequences:,}",
                f"{cost.blind_forward_sequences:,}",
                f"{findings.documents:,}",
                len(findings.costs),
                run_of(results, f"{name}-{first}"),
            ]
            for name, findings in results.attacks.by_name().items()
            for first, cost in [next(iter(findings.costs.items()))]
        ],
    )
