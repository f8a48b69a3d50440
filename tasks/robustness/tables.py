"""The study's tables: the same rows for the terminal, the Prefect UI and the report.

Every row ends with the name of the run directory that its numbers came from; the last table says where these lie.
"""

from __future__ import annotations

from typing import Any

from tasks.report.table import Table, markdown_text, visible
from tasks.robustness.words import (
    ATTACK_TITLES,
    NATS,
    QUESTION,
    RATE,
    SHARE,
    attack_cautions,
    cautions,
    how_attacked,
    models,
    perplexity,
    rate_points,
    share_points,
    span,
    the_text,
    value,
    verified,
    what_was_studied,
)

STAGE_OF = {
    "unigram": "setup",
    "untrained": "base",
    "base": "base",
    "constrained-untrained": "constrain",
    "baseline": "train-baseline",
    "monotonic": "train-monotonic",
}
"""Model of evaluate -> the stage that made it; its loss on the test split is evaluate's."""


def tables(results: dict[str, Any]) -> str:
    """`table.md`: everything that was measured, how sure it is, and where it comes from."""
    blocks = [
        f"# {results['study']}: perplexity, and what two attacks did",
        f"{QUESTION} {what_was_studied(results)}",
        "## Perplexity on the test split",
        "\n".join(f"- {said}" for said in [*models(results), the_text(results)]),
        *(table.markdown() for table in perplexity_tables(results)),
    ]
    for name in results["attacks"]:
        blocks += [f"## {ATTACK_TITLES[name]}", how_attacked(name, results)]
        blocks += [table.markdown() for table in attack_tables(name, results)]
    blocks += [
        "\n".join(
            f"- trigger of {model}: {markdown_text(shown(found))} (ids {ids_of(found)})"
            for model, found in results["attacks"]["uat"]["models"].items()
        ),
        "## What was spent",
        arm_table(results).markdown(),
        cost_table(results).markdown(),
        "## How to read it",
        "\n".join(f"- {said}" for said in [*cautions(results), verified(results), *attack_cautions(results)]),
        run_table(results).markdown(),
    ]
    return "\n\n".join(blocks) + "\n"


def shown(found: dict[str, Any]) -> str:
    """A trigger's text in quotes: spaces at its ends are part of it."""
    return f'"{visible(found["trigger_text"])}"'


def ids_of(found: dict[str, Any]) -> str:
    return " ".join(map(str, found["trigger_ids"]))


def run_of(results: dict[str, Any], stage: str) -> str:
    """The last part of a run directory: the beginning of the fingerprint, which no other run has."""
    return results["runs"][stage].rsplit("/", 1)[-1]


def perplexity_tables(results: dict[str, Any]) -> list[Table]:
    differences = results["differences"]
    return [
        Table(
            "Loss of every model on the same tokens; model from: the run that made the model.",
            ["model", "perplexity", "nats per token", "tokens scored", "model from", "run"],
            [
                [
                    name,
                    perplexity(model["perplexity"]),
                    f"{model['loss_nats_per_token']:.4f}",
                    f"{model['tokens_scored']:,}",
                    run_of(results, STAGE_OF[name]),
                    run_of(results, "evaluate"),
                ]
                for name, model in results["models"].items()
            ],
        ),
        Table(
            "Differences of these losses, paired by document; sources resampled.",
            ["difference", "nats per token", f"{level_of(differences[0])} interval", "seeds", "run"],
            [
                [
                    f"{row['model']} - {row['reference']}",
                    NATS(row["difference_nats_per_token"]),
                    span(row["interval_nats_per_token"], NATS),
                    len(results["seeds"]),
                    run_of(results, "evaluate"),
                ]
                for row in differences
            ],
        ),
    ]


def level_of(found: dict[str, Any]) -> str:
    return f"{found['confidence_level']:.0%}"


def attack_tables(name: str, results: dict[str, Any]) -> list[Table]:
    """What an attack did to each model, beside its control, and the differences between the models."""
    attack, run = results["attacks"][name], run_of(results, name)
    found = [_effect_table(attack["effects"], run), _control_table(attack["effects"], run)]
    if "success_rate" in attack["differences"][0]:
        found.append(_success_table(attack, run))
    return [
        *found,
        _difference_table(attack["differences"], run),
        _share_difference_table(attack["differences"], run),
    ]


def _effect_table(effects: dict[str, Any], run: str) -> Table:
    level = level_of(next(iter(effects.values())))
    return Table(
        f"The attack: clean loss of the whole texts in nats per token, its increase where nothing was written, also as "
        f"a share of the clean loss; {level} intervals. Attacked = clean + increase.",
        ["model", "clean", "attacked", "increase", "interval", "relative", "interval", "run"],
        [
            [
                model,
                f"{effect['clean_loss_nats_per_token']:.4f}",
                f"{effect['attacked_loss_nats_per_token']:.4f}",
                value(effect["increase_nats_per_token"], NATS),
                span(effect["increase_nats_per_token"]["interval"], NATS),
                value(effect["relative_increase"], SHARE),
                span(effect["relative_increase"]["interval"], SHARE),
                run,
            ]
            for model, effect in effects.items()
        ],
    )


def _control_table(effects: dict[str, Any], run: str) -> Table:
    return Table(
        "The random control, and what the search adds to it (attack - control), in nats per token.",
        ["model", "clean", "control", "increase", "interval", "attack - control", "interval", "run"],
        [
            [
                model,
                f"{effect['clean_loss_nats_per_token']:.4f}",
                f"{effect['control_loss_nats_per_token']:.4f}",
                value(effect["control_increase_nats_per_token"], NATS),
                span(effect["control_increase_nats_per_token"]["interval"], NATS),
                value(effect["attack_minus_control_nats_per_token"], NATS),
                span(effect["attack_minus_control_nats_per_token"]["interval"], NATS),
                run,
            ]
            for model, effect in effects.items()
        ],
    )


def _difference_table(differences: list[dict[str, Any]], run: str) -> Table:
    return Table(
        "Differences between models of the increase and of attack - control, in nats per token; paired by document, "
        "sources resampled, one seed.",
        ["difference", "increase", "interval", "attack - control", "interval", "run"],
        [
            [
                f"{row['model']} - {row['reference']}",
                value(row["increase_nats_per_token"], NATS),
                span(row["increase_nats_per_token"]["interval"], NATS),
                value(row["attack_minus_control_nats_per_token"], NATS),
                span(row["attack_minus_control_nats_per_token"]["interval"], NATS),
                run,
            ]
            for row in differences
        ],
    )


def _share_difference_table(differences: list[dict[str, Any]], run: str) -> Table:
    """Where an attack on one text can succeed, the success rates' differences too."""
    rates = "success_rate" in differences[0]
    return Table(
        "The same of the relative increase"
        + (", and of the success rate" if rates else "")
        + ", in percentage points.",
        ["difference", "relative", "interval", *(["success", "interval"] if rates else []), "run"],
        [
            [
                f"{row['model']} - {row['reference']}",
                value(row["relative_increase"], share_points),
                span(row["relative_increase"]["interval"], share_points),
                *([value(row["success_rate"], rate_points)] if rates else []),
                *([span(row["success_rate"]["interval"], rate_points)] if rates else []),
                run,
            ]
            for row in differences
        ],
    )


def _success_table(attack: dict[str, Any], run: str) -> Table:
    threshold = attack["attack"]["success_relative_increase"]
    return Table(
        f"Successes: texts whose loss per token rose by more than {threshold:.0%} of the clean loss that the model has "
        "on the whole text (its mean in the second column); excess is success - control, in percentage points. "
        "Intervals of rates and of their differences reach as far as the farther of two: the bootstrap over sources, "
        "and the exact one (Clopper and Pearson) that counts each source as one trial.",
        ["model", "clean", "success", "interval", "control", "interval", "excess", "interval", "run"],
        [
            [
                model,
                f"{effect['clean_loss_nats_per_token']:.4f}",
                value(effect["success_rate"], RATE),
                span(effect["success_rate"]["interval"], RATE),
                value(effect["control_success_rate"], RATE),
                span(effect["control_success_rate"]["interval"], RATE),
                value(effect["success_rate_minus_control"], rate_points),
                span(effect["success_rate_minus_control"]["interval"], rate_points),
                run,
            ]
            for model, effect in attack["effects"].items()
        ],
    )


def arm_table(results: dict[str, Any]) -> Table:
    return Table(
        "Training of the two arms.",
        ["arm", "starts from", "steps", "tokens trained", "best step", "peak rate", "run"],
        [
            [
                name,
                arm["start"],
                f"{arm['steps']:,}",
                f"{arm['tokens_trained']:,}",
                f"{arm['best_step']:,}",
                f"{arm['budget']['learning_rate']:g}",
                run_of(results, f"train-{name}"),
            ]
            for name, arm in results["arms"].items()
        ],
    )


def cost_table(results: dict[str, Any]) -> Table:
    """Equal for every model, or aggregate would have refused."""
    return Table(
        "Cost of the searches, counted: sequences that went through a model until its attack was found; and on how "
        "many documents that was then judged.",
        ["attack", "model", "forwards", "backwards", "documents judged", "run"],
        [
            [
                name,
                model,
                f"{spent['forward_sequences']:,}",
                f"{spent['backward_sequences']:,}",
                f"{attack['documents']:,}",
                run_of(results, name),
            ]
            for name, attack in results["attacks"].items()
            for model, spent in attack["models"].items()
        ],
    )


def run_table(results: dict[str, Any]) -> Table:
    return Table(
        "Run directories, below the root of all runs.",
        ["stage", "run directory"],
        [[stage, place] for stage, place in results["runs"].items()],
    )
