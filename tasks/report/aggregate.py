"""aggregate: the study's table and `final_results.json`, every number with the run directory it came from."""

from __future__ import annotations

from typing import Any

import pyarrow.parquet as pq

from storage import durable, markers
from storage.errors import CheckFailed
from tasks.report.table import markdown_table
from tasks.stage import StageInput, StageRun
from tasks.statistics.losses import paired_difference
from tasks.study import AggregateConfig, Evaluation

TOY_PARAMETERS = 50_000_000
"""Below this a model is called a toy in every table: it shows that the method runs, not what it does."""


def aggregate(
    run: StageRun,
    config: AggregateConfig,
    text: StageInput,
    base: StageInput,
    constrained: StageInput,
    baseline: StageInput,
    monotonic: StageInput,
    evaluation: StageInput,
) -> dict[str, Any]:
    """Verifies every byte that it reads, and writes `table.md` and `final_results.json`."""
    inputs = {
        "setup": text,
        "base": base,
        "constrain": constrained,
        "train-baseline": baseline,
        "train-monotonic": monotonic,
        "evaluate": evaluation,
    }
    require_verified(inputs)
    _require_distinct_arms(baseline, monotonic)
    _require_equal_budgets(baseline, monotonic, config)
    rows = pq.read_table(evaluation.path / "records.parquet").to_pylist()
    results = {
        "study": config.study,
        "seeds": [config.seed],
        "models": evaluation.result["models"],
        "differences": _differences(rows, config.evaluation),
        "arms": {"baseline": _arm(baseline, "base"), "monotonic": _arm(monotonic, "constrain")},
        "unequal_budgets_reason": config.unequal_budgets.reason if config.unequal_budgets else None,
        "constraint": monotonic.result["constraint"],
        "share_of_signs_changed": constrained.result["share_of_signs_changed"],
        "base": {key: base.result[key] for key in ("architecture", "parameters", "source", "trained_check")},
        "text": text.result["splits"],
        "numerics_changes": {
            stage: given.result["numerics_changes"]
            for stage, given in inputs.items()
            if "numerics_changes" in given.result
        },
        "numerics": {
            arm: durable.read_json(trained.run.stage_file)["numerics"]
            for arm, trained in (("baseline", baseline), ("monotonic", monotonic))
        },
        "runs": {stage: given.path.relative_to(run.run.root).as_posix() for stage, given in inputs.items()},
        "configuration": config.configuration,
    }
    return publish(run, results, table(results))


def _differences(rows: list[dict[str, Any]], how: Evaluation) -> list[dict[str, Any]]:
    pairs = (("baseline", "base"), ("monotonic", "base"), ("monotonic", "baseline"))
    return [
        paired_difference(rows, model, reference, how.bootstrap_resamples, how.confidence_level)
        for model, reference in pairs
    ]


def _arm(trained: StageInput, start: str) -> dict[str, Any]:
    """What one arm spent, and what came of it."""
    training = trained.result["training"]
    return {
        "start": start,
        **{key: training[key] for key in ("budget", "steps", "tokens_trained", "best_step")},
        "weights_digest": trained.result["weights_digest"],
    }


def publish(run: StageRun, results: dict[str, Any], text: str) -> dict[str, Any]:
    """Writes `final_results.json` and `table.md`; returns the stage's result, which names them."""
    with run.publish_file("final_results.json") as file:
        durable.write_json(file, results)
    with run.publish_file("table.md") as file:
        file.write_text(text)
    return {"tables": ["table.md"], "final_results_digest": durable.sha256_json(results)}


def table(results: dict[str, Any]) -> str:
    """The study's table as Markdown: what was measured, how sure it is, and where it comes from."""
    base, runs, split = results["base"], results["runs"], results["text"]["test"]
    toy = " (toy size: shows that the method runs, not what it does to a real model)"
    lines = [
        f"# {results['study']}: perplexity on the test split",
        "",
        f"{base['architecture']}, {base['parameters']:,} parameters"
        + (toy if base["parameters"] < TOY_PARAMETERS else "")
        + f". {split['documents']:,} test documents of {split['sources']:,} sources, seed {results['seeds'][0]}. "
        "One seed: differences describe these two trainings and rank nothing.",
        "",
        _model_rows(results["models"], runs),
        "",
        _difference_rows(results["differences"]),
        "",
        _arm_rows(results["arms"], runs),
        "",
        *cautions(results),
        f"{results['constraint']['layers_checked']} layers ({results['constraint']['variant']}), "
        f"{results['constraint']['weights_checked']:,} effective weights, all >= 0 after training "
        f"(smallest {results['constraint']['min_weight']:.3g}); "
        f"{results['share_of_signs_changed']:.1%} of them changed sign when they were constrained.",
    ]
    return "\n".join(lines) + "\n"


def _model_rows(models: dict[str, Any], runs: dict[str, str]) -> str:
    stage_of = {
        "unigram": "evaluate",
        "untrained": "base",
        "base": "base",
        "constrained-untrained": "constrain",
        "baseline": "train-baseline",
        "monotonic": "train-monotonic",
    }
    return markdown_table(
        ["model", "perplexity", "nats per token", "tokens scored", "run"],
        [
            [
                name,
                f"{model['perplexity']:,.2f}",
                f"{model['loss_nats_per_token']:.4f}",
                f"{model['tokens_scored']:,}",
                runs[stage_of[name]],
            ]
            for name, model in models.items()
        ],
    )


def _difference_rows(differences: list[dict[str, Any]]) -> str:
    level = differences[0]["confidence_level"]
    return markdown_table(
        ["difference", "nats per token", f"{level:.0%} interval (sources resampled)", "seeds"],
        [
            [
                f"{row['model']} - {row['reference']}",
                f"{row['difference_nats_per_token']:+.4f}",
                "{:+.4f} to {:+.4f}".format(*row["interval_nats_per_token"]),
                "1",
            ]
            for row in differences
        ],
    )


def _arm_rows(arms: dict[str, Any], runs: dict[str, str]) -> str:
    return markdown_table(
        ["arm", "starts from", "steps", "tokens trained", "best step", "peak rate", "run"],
        [
            [
                name,
                arm["start"],
                f"{arm['steps']:,}",
                f"{arm['tokens_trained']:,}",
                f"{arm['best_step']:,}",
                f"{arm['budget']['learning_rate']:g}",
                runs[f"train-{name}"],
            ]
            for name, arm in arms.items()
        ],
    )


def cautions(results: dict[str, Any]) -> list[str]:
    """What every table of these results must say: budgets, and numerics that were not the same throughout."""
    reason = results["unequal_budgets_reason"]
    said = [f"**The arms had unequal budgets:** {reason}" if reason else "Both arms had the same budget."]
    if results["numerics_changes"]:
        stages = ", ".join(results["numerics_changes"])
        said.append(f"**Numerics changed between attempts of {stages}:** not the bytes of one undisturbed run.")
    first, second = results["numerics"]["baseline"], results["numerics"]["monotonic"]
    if differing := [f"{key} ({first[key]}, {second[key]})" for key in first if first[key] != second.get(key)]:
        said.append(f"**The arms ran on different numerics** (baseline, monotonic): {', '.join(differing)}.")
    return said


def require_verified(inputs: dict[str, StageInput]) -> None:
    """Hashes every output again: a report never trusts sizes and times.

    A marker that does not hold is taken away, so that the next start runs its stage again.
    """
    for stage, given in inputs.items():
        verdict = markers.check_outputs(given.run)
        if not verdict.holds or verdict.outputs_digest != given.outputs_digest:
            markers.withdraw(given.run)
            raise CheckFailed(
                f"the outputs of {stage} in {given.path} verify",
                verdict.reason or "other bytes than when this stage started",
                "all digests hold",
                "Start the same command again: that stage runs again",
            )


def _require_distinct_arms(baseline: StageInput, monotonic: StageInput) -> None:
    if baseline.result["weights_digest"] == monotonic.result["weights_digest"]:
        raise CheckFailed("the two arms have different weights", "equal weights_digest", "different")


def _require_equal_budgets(baseline: StageInput, monotonic: StageInput, config: AggregateConfig) -> None:
    """What the arms really spent is compared: the table's sentence on budgets must be true."""
    spent = [
        {key: trained.result["training"][key] for key in ("budget", "steps", "tokens_trained")}
        for trained in (baseline, monotonic)
    ]
    if spent[0] != spent[1] and config.unequal_budgets is None:
        raise CheckFailed("both arms had the same budget", spent[1], spent[0], "Or give unequal_budgets with a reason")
    if spent[0] == spent[1] and config.unequal_budgets is not None:
        raise CheckFailed("the arms had unequal budgets, as configured", "equal budgets", "unequal budgets")
