"""The study's tables: the same rows for the terminal, the Prefect UI and the report.

Every row ends with the name of the run directory that its numbers came from; the last table says where these lie.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tasks.report.numbers import NATS, RATE, SHARE, perplexity, rate_points, share_points, span, value_and_span
from tasks.report.provenance import run_name, run_table
from tasks.report.table import Table, markdown_text, quoted
from tasks.robustness.final_results import FinalResults, HotFlipFindings
from tasks.robustness.results import Restart, Trigger
from tasks.robustness.words import (
    ATTACK_TITLES,
    QUESTION,
    attack_cautions,
    cautions,
    how_attacked,
    models,
    the_text,
    verified,
    what_was_studied,
)
from tasks.statistics.effects import Effect, EffectDifference, EffectDifferenceWithSuccess

STAGE_OF = {
    "unigram": "setup",
    "untrained": "base",
    "base": "base",
    "constrained-untrained": "constrain",
    "baseline": "train-baseline",
    "monotonic": "train-monotonic",
}
"""Model of evaluate -> the stage that made it; its loss on the test split is evaluate's."""


def tables(results: FinalResults) -> str:
    """`table.md`: everything that was measured, how sure it is, and where it comes from."""
    blocks = [
        f"# {results.study}: perplexity, and what two attacks did",
        f"{QUESTION} {what_was_studied(results)}",
        "## Perplexity on the test split",
        "\n".join(f"- {line}" for line in [*models(results), the_text(results)]),
        *(table.markdown() for table in perplexity_tables(results)),
    ]
    for name in results.attacks.by_name():
        blocks += [f"## {ATTACK_TITLES[name]}", how_attacked(name, results)]
        blocks += [table.markdown() for table in attack_tables(name, results)]
    blocks += [
        "\n".join(
            f"- trigger of {model}: {markdown_text(quoted(trigger.trigger_text))} (ids {ids_of(trigger)})"
            for model, trigger in results.attacks.uat.models.items()
        ),
        "## What was spent",
        arm_table(results).markdown(),
        cost_table(results).markdown(),
        "## How to read it",
        "\n".join(f"- {line}" for line in [*cautions(results), verified(results), *attack_cautions(results)]),
        run_table(results.runs).markdown(),
    ]
    return "\n\n".join(blocks) + "\n"


def ids_of(found: Trigger | Restart) -> str:
    """The token ids of a trigger."""
    return " ".join(map(str, found.trigger_ids))


def run_of(results: FinalResults, stage: str) -> str:
    """The name of the run directory of a stage: the last cell of every row of its numbers."""
    return run_name(results.runs[stage])


def perplexity_tables(results: FinalResults) -> list[Table]:
    differences = results.differences
    return [
        Table(
            "Loss of every model on the same tokens; model from: the run that made the model.",
            ["model", "perplexity", "nats per token", "tokens scored", "model from", "run"],
            [
                [
                    name,
                    perplexity(model.perplexity),
                    f"{model.loss_nats_per_token:.4f}",
                    f"{model.tokens_scored:,}",
                    run_of(results, STAGE_OF[name]),
                    run_of(results, "evaluate"),
                ]
                for name, model in results.models.items()
            ],
        ),
        Table(
            "Differences of these losses, paired by document; sources resampled.",
            ["difference", "nats per token", f"{differences[0].confidence_level:.0%} interval", "seeds", "run"],
            [
                [
                    f"{row.model} - {row.reference}",
                    NATS(row.difference_nats_per_token),
                    span(row.interval_nats_per_token, NATS),
                    len(results.seeds),
                    run_of(results, "evaluate"),
                ]
                for row in differences
            ],
        ),
    ]


def attack_tables(name: str, results: FinalResults) -> list[Table]:
    """What an attack did to each model, beside its control, and the differences between the models."""
    findings, run = results.attacks.by_name()[name], run_of(results, name)
    found = [_effect_table(findings.effects, run), _control_table(findings.effects, run)]
    if isinstance(findings, HotFlipFindings):
        found.append(_success_table(findings, run))
    return [
        *found,
        _difference_table(findings.differences, run),
        _share_difference_table(findings.differences, run),
    ]


def _effect_table(effects: Mapping[str, Effect], run: str) -> Table:
    level = f"{next(iter(effects.values())).confidence_level:.0%}"
    return Table(
        f"The attack: clean loss of the whole texts in nats per token, its increase where nothing was written, also as "
        f"a share of the clean loss; {level} intervals. Attacked = clean + increase.",
        ["model", "clean", "attacked", "increase", "interval", "relative", "interval", "run"],
        [
            [
                model,
                f"{effect.clean_loss_nats_per_token:.4f}",
                f"{effect.attacked_loss_nats_per_token:.4f}",
                *value_and_span(effect.increase_nats_per_token, NATS),
                *value_and_span(effect.relative_increase, SHARE),
                run,
            ]
            for model, effect in effects.items()
        ],
    )


def _control_table(effects: Mapping[str, Effect], run: str) -> Table:
    return Table(
        "The random control, and what the search adds to it (attack - control), in nats per token.",
        ["model", "clean", "control", "increase", "interval", "attack - control", "interval", "run"],
        [
            [
                model,
                f"{effect.clean_loss_nats_per_token:.4f}",
                f"{effect.control_loss_nats_per_token:.4f}",
                *value_and_span(effect.control_increase_nats_per_token, NATS),
                *value_and_span(effect.attack_minus_control_nats_per_token, NATS),
                run,
            ]
            for model, effect in effects.items()
        ],
    )


def _difference_table(differences: Sequence[EffectDifference], run: str) -> Table:
    return Table(
        "Differences between models of the increase and of attack - control, in nats per token; paired by document, "
        "sources resampled, one seed.",
        ["difference", "increase", "interval", "attack - control", "interval", "run"],
        [
            [
                f"{row.model} - {row.reference}",
                *value_and_span(row.increase_nats_per_token, NATS),
                *value_and_span(row.attack_minus_control_nats_per_token, NATS),
                run,
            ]
            for row in differences
        ],
    )


def _share_difference_table(differences: Sequence[EffectDifference], run: str) -> Table:
    """Where an attack on one text can succeed, the success rates' differences too."""
    rates = isinstance(differences[0], EffectDifferenceWithSuccess)
    return Table(
        "The same of the relative increase"
        + (", and of the success rate" if rates else "")
        + ", in percentage points.",
        ["difference", "relative", "interval", *(["success", "interval"] if rates else []), "run"],
        [
            [
                f"{row.model} - {row.reference}",
                *value_and_span(row.relative_increase, share_points),
                *(
                    value_and_span(row.success_rate, rate_points)
                    if isinstance(row, EffectDifferenceWithSuccess)
                    else []
                ),
                run,
            ]
            for row in differences
        ],
    )


def _success_table(findings: HotFlipFindings, run: str) -> Table:
    threshold = findings.attack.success_relative_increase
    return Table(
        f"Successes: texts whose loss per token rose by more than {threshold:.0%} of the clean loss that the model has "
        "on the whole text (its mean in the second column); excess is success - control, in percentage points. "
        "Intervals of rates and of their differences reach as far as the farther of two: the bootstrap over sources, "
        "and the exact one (Clopper and Pearson) that counts each source as one trial.",
        ["model", "clean", "success", "interval", "control", "interval", "excess", "interval", "run"],
        [
            [
                model,
                f"{effect.clean_loss_nats_per_token:.4f}",
                *value_and_span(effect.success_rate, RATE),
                *value_and_span(effect.control_success_rate, RATE),
                *value_and_span(effect.success_rate_minus_control, rate_points),
                run,
            ]
            for model, effect in findings.effects.items()
        ],
    )


def arm_table(results: FinalResults) -> Table:
    return Table(
        "Training of the two arms.",
        ["arm", "starts from", "steps", "tokens trained", "best step", "peak rate", "run"],
        [
            [
                name,
                arm.start,
                f"{arm.steps:,}",
                f"{arm.tokens_trained:,}",
                f"{arm.best_step:,}",
                f"{arm.budget['learning_rate']:g}",
                run_of(results, f"train-{name}"),
            ]
            for name, arm in results.arms.by_name().items()
        ],
    )


def cost_table(results: FinalResults) -> Table:
    """Equal for every model, or aggregate would have refused."""
    return Table(
        "Cost of the searches, counted: sequences that went through a model until its attack was found; and on how "
        "many documents that was then judged.",
        ["attack", "model", "forwards", "backwards", "documents judged", "run"],
        [
            [
                name,
                model,
                f"{cost.forward_sequences:,}",
                f"{cost.backward_sequences:,}",
                f"{findings.documents:,}",
                run_of(results, name),
            ]
            for name, findings in results.attacks.by_name().items()
            for model, cost in findings.models.items()
        ],
    )
