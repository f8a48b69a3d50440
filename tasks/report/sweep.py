"""aggregate over seeds: the table that may compare the arms, because it has more than one training of each."""

from __future__ import annotations

from typing import Any

from storage import durable
from storage.errors import CheckFailed
from tasks.report.aggregate import cautions, publish, require_verified
from tasks.report.table import markdown_table
from tasks.stage import StageInput, StageRun
from tasks.statistics.seeds import mean_over_seeds
from tasks.study import SweepConfig

ARMS = ("baseline", "monotonic")


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
        "of_seed": results,
        "runs": {role: given.path.relative_to(run.run.root).as_posix() for role, given in studies.items()},
    }
    return publish(run, combined, table(combined))


def table(results: dict[str, Any]) -> str:
    """Perplexities of each seed, and the mean difference between the arms with its interval."""
    rows = [
        [
            result["seeds"][0],
            *(f"{result['models'][model]['perplexity']:,.2f}" for model in ("base", "constrained-untrained", *ARMS)),
            f"{result['differences'][-1]['difference_nats_per_token']:+.4f}",
            results["runs"][role],
        ]
        for role, result in results["of_seed"].items()
    ]
    difference = results["monotonic_minus_baseline_nats_per_token"]
    low, high = difference["interval"]
    return "\n".join(
        [
            f"# {results['study']}: test perplexity over {difference['seeds']} seeds",
            "",
            markdown_table(
                [
                    "seed",
                    "base",
                    "constrained-untrained",
                    *ARMS,
                    "monotonic - baseline (nats per token)",
                    "run",
                ],
                rows,
            ),
            "",
            f"monotonic - baseline: {difference['mean']:+.4f} nats per token, "
            f"{difference['confidence_level']:.0%} interval {low:+.4f} to {high:+.4f} "
            f"(Student's t over {difference['seeds']} seeds; standard deviation "
            f"{difference['standard_deviation']:.4f}). Seeds vary the order of the training examples and nothing "
            "else: one base model, one initialisation, one text.",
            "",
            *sorted({said for result in results["of_seed"].values() for said in cautions(result)}),
            "",
        ]
    )


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
