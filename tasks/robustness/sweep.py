"""aggregate over seeds: the table that may compare the arms, because it has more than one training of each."""

from __future__ import annotations

from typing import Any

from storage import durable
from storage.errors import CheckFailed
from tasks.report.publish import publish, require_verified
from tasks.report.table import Table
from tasks.robustness.study import SweepConfig
from tasks.robustness.tables import run_of
from tasks.robustness.words import (
    NATS,
    QUESTION,
    RATE,
    SHARE,
    cautions,
    how_attacked,
    model_and_text,
    models,
    perplexity,
    rate_points,
    share_points,
    span,
    the_text,
)
from tasks.stage.run import StageInput, StageRun
from tasks.statistics.seeds import mean_over_seeds

ARMS = ("baseline", "monotonic")
LOSSES = ("increase_nats_per_token", "attack_minus_control_nats_per_token", "relative_increase")
COMPARED = {"uat": LOSSES, "hotflip": (*LOSSES, "success_rate")}
"""Attack -> the differences between the arms that are taken over seeds."""


def aggregate_seeds(run: StageRun, config: SweepConfig, **studies: StageInput) -> dict[str, Any]:
    """Verifies every byte that it reads, and writes `table.md` and `final_results.json` over all seeds."""
    require_verified(studies)
    results = {role: durable.read_json(given.path / "final_results.json") for role, given in studies.items()}
    for arm in ARMS:
        _require_distinct_seeds(arm, {role: result["arms"][arm]["weights_digest"] for role, result in results.items()})
    level = config.evaluation.confidence_level
    losses = {arm: [result["models"][arm]["loss_nats_per_token"] for result in results.values()] for arm in ARMS}
    differences = [b - a for a, b in zip(losses["baseline"], losses["monotonic"], strict=True)]
    combined = {
        "study": config.study,
        "seeds": [seed for result in results.values() for seed in result["seeds"]],
        "loss_nats_per_token": {arm: mean_over_seeds(values, level) for arm, values in losses.items()},
        "monotonic_minus_baseline_nats_per_token": mean_over_seeds(differences, level),
        "attacks_monotonic_minus_baseline": {
            attack: {
                what: mean_over_seeds([_of_arms(result, attack, what) for result in results.values()], level)
                for what in compared
            }
            for attack, compared in COMPARED.items()
        },
        "of_seed": results,
        "runs": {role: given.path.relative_to(run.run.root).as_posix() for role, given in studies.items()},
    }
    return publish(run, combined, {"table.md": table(combined)})


def table(results: dict[str, Any]) -> str:
    """Perplexities of each seed, and the mean differences between the arms with their intervals."""
    difference = results["monotonic_minus_baseline_nats_per_token"]
    low, high = difference["interval"]
    blocks = [
        f"# {results['study']}: test perplexity and attacks over {difference['seeds']} seeds",
        _what_was_studied(results),
        "\n".join(f"- {said}" for said in models(next(iter(results["of_seed"].values())))),
        _seed_table(results).markdown(),
        _attack_table(results).markdown(),
        f"monotonic - baseline: {difference['mean']:+.4f} nats per token, "
        f"{difference['confidence_level']:.0%} interval {low:+.4f} to {high:+.4f} "
        f"(Student's t over {difference['seeds']} seeds; standard deviation "
        f"{difference['standard_deviation']:.4f}). Seeds vary the order of the training examples and the random "
        "choices of the attacks, and nothing else: one base model, one initialisation, one text.",
        _mean_table(results).markdown(),
        "\n\n".join(sorted({said for result in results["of_seed"].values() for said in cautions(result)})),
        Table(
            "Run directories, below the root of all runs.",
            ["seed", "run directory"],
            [[result["seeds"][0], results["runs"][role]] for role, result in results["of_seed"].items()],
        ).markdown(),
    ]
    return "\n\n".join(blocks) + "\n"


def _what_was_studied(results: dict[str, Any]) -> str:
    """Model and text, the same for all seeds."""
    first = next(iter(results["of_seed"].values()))
    return f"{QUESTION} {model_and_text(first)}. {the_text(first)} " + " ".join(
        how_attacked(name, first) for name in first["attacks"]
    )


def _seed_table(results: dict[str, Any]) -> Table:
    return Table(
        "Test perplexity of each seed, and monotonic - baseline in nats per token.",
        ["seed", "base", "constrained-untrained", *ARMS, "monotonic - baseline", "run"],
        [
            [
                result["seeds"][0],
                *(
                    perplexity(result["models"][model]["perplexity"])
                    for model in ("base", "constrained-untrained", *ARMS)
                ),
                NATS(result["differences"][-1]["difference_nats_per_token"]),
                run_of(results, role),
            ]
            for role, result in results["of_seed"].items()
        ],
    )


def _attack_table(results: dict[str, Any]) -> Table:
    """Both effects of each seed, with the clean losses that the relative one divides by."""
    return Table(
        "Increase of the loss under attack in nats per token (from a clean loss of), each arm and seed; hotflip's "
        "success rate.",
        ["seed", "attack", "arm", "increase", "clean", "relative", "success", "run"],
        [
            [
                result["seeds"][0],
                attack,
                arm,
                NATS(effect["increase_nats_per_token"]["value"]),
                f"{effect['clean_loss_nats_per_token']:.4f}",
                SHARE(effect["relative_increase"]["value"]),
                RATE(effect["success_rate"]["value"]) if "success_rate" in effect else "-",
                run_of(results, role),
            ]
            for role, result in results["of_seed"].items()
            for attack in COMPARED
            for arm, effect in result["attacks"][attack]["effects"].items()
            if arm in ARMS
        ],
    )


def _mean_table(results: dict[str, Any]) -> Table:
    told = {
        "increase_nats_per_token": ("increase, nats per token", NATS),
        "attack_minus_control_nats_per_token": ("attack - control, nats per token", NATS),
        "relative_increase": ("relative increase, percentage points", share_points),
        "success_rate": ("success rate, percentage points", rate_points),
    }
    rows = []
    for attack, compared in results["attacks_monotonic_minus_baseline"].items():
        for what, mean in compared.items():
            name, form = told[what]
            rows.append([attack, name, form(mean["mean"]), span(mean["interval"], form), mean["seeds"]])
    level = results["monotonic_minus_baseline_nats_per_token"]["confidence_level"]
    return Table(
        f"Attacks, monotonic - baseline: mean over seeds with the {level:.0%} interval of Student's t "
        "(- where every seed gave the same).",
        ["attack", "difference of", "mean", "interval", "seeds"],
        rows,
    )


def _of_arms(result: dict[str, Any], attack: str, what: str) -> float:
    """monotonic - baseline of one seed."""
    (pair,) = [
        row
        for row in result["attacks"][attack]["differences"]
        if (row["model"], row["reference"]) == ("monotonic", "baseline")
    ]
    return pair[what]["value"]


def _require_distinct_seeds(arm: str, digests: dict[str, str]) -> None:
    """Two seeds with equal weights are one training under two names."""
    first: dict[str, str] = {}
    for role, digest in digests.items():
        if digest in first:
            raise CheckFailed(
                f"every seed of train-{arm} has weights of its own",
                f"{first[digest]} and {role} have equal weights_digest {digest[:12]}",
                "different digests",
                "One of the runs is a copy of the other: remove the copy and run that seed",
            )
        first[digest] = role
