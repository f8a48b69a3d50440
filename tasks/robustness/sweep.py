"""sweep over seeds: the table that may compare the arms, because it has more than one training of each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from storage.errors import CheckFailed
from tasks.report import figures
from tasks.report.cautions import plain
from tasks.report.figures import Dots, dots
from tasks.report.numbers import NATS, RATE, SHARE, perplexity, rate_points, share_points, span
from tasks.report.page import Figure, Section, html_page
from tasks.report.provenance import provenance, provenance_section, run_directories, run_name, sources
from tasks.report.publish import Published, publish, require_verified
from tasks.report.table import Table
from tasks.robustness.final_results import (
    FinalResults,
    MeanAttacks,
    MeanEffects,
    MeanEffectsWithSuccess,
    MeanLosses,
    SweepResults,
)
from tasks.robustness.words import QUESTION, cautions, how_attacked, model_and_text, models, the_text
from tasks.stage.run import StageInput, StageRun
from tasks.statistics.effects import EffectDifference, EffectWithSuccess
from tasks.statistics.seeds import MeanOverSeeds, mean_over_seeds
from tasks.sweep.configuration import SweepConfig

ARMS = ("baseline", "monotonic")
Difference = TypeVar("Difference", bound=EffectDifference)


def sweep_seeds(run: StageRun, config: SweepConfig, **studies: StageInput) -> Published:
    """Verifies every byte that it reads, and writes tables, figure and report over all seeds that are there."""
    require_verified(studies)
    figures.prepare(run.cache)
    of_seed = {role: FinalResults.read_file(given.path / "final_results.json") for role, given in studies.items()}
    for arm in ARMS:
        digests = {role: result.arms.by_name()[arm].weights_digest for role, result in of_seed.items()}
        _require_distinct_seeds(arm, digests)
    level, seeds = config.confidence_level, list(of_seed.values())
    baseline, monotonic = ([result.models[arm].loss_nats_per_token for result in seeds] for arm in ARMS)
    differences = [_clean_difference(result) for result in seeds]
    combined = SweepResults(
        study=config.study,
        seeds=[seed for result in seeds for seed in result.seeds],
        loss_nats_per_token=MeanLosses(
            baseline=mean_over_seeds(baseline, level), monotonic=mean_over_seeds(monotonic, level)
        ),
        monotonic_minus_baseline_nats_per_token=mean_over_seeds(differences, level),
        attacks_monotonic_minus_baseline=_mean_attacks(seeds, level),
        of_seed=of_seed,
        runs=run_directories(studies, run.run.root),
        missing=config.missing,
    )
    drawn = _differences(combined)
    origins = provenance_section(combined.runs, provenance(studies), sources(studies), config.scientific())
    texts = {"table.md": table(combined), "report.html": _report(combined, drawn, origins)}
    return publish(run, combined, texts, {"differences": drawn.svg})


def _mean_attacks(seeds: Sequence[FinalResults], level: float) -> MeanAttacks:
    """The effects on monotonic minus those on baseline, mean over seeds."""
    uat = [_of_arms(result.attacks.uat.differences) for result in seeds]
    hotflip = [_of_arms(result.attacks.hotflip.differences) for result in seeds]
    rates = mean_over_seeds([difference.success_rate.value for difference in hotflip], level)
    return MeanAttacks(
        uat=_mean_effects(uat, level),
        hotflip=MeanEffectsWithSuccess(**dict(_mean_effects(hotflip, level)), success_rate=rates),
    )


def _mean_effects(differences: Sequence[EffectDifference], level: float) -> MeanEffects:
    def mean(values: list[float]) -> MeanOverSeeds:
        return mean_over_seeds(values, level)

    return MeanEffects(
        increase_nats_per_token=mean([found.increase_nats_per_token.value for found in differences]),
        attack_minus_control_nats_per_token=mean(
            [found.attack_minus_control_nats_per_token.value for found in differences]
        ),
        relative_increase=mean([found.relative_increase.value for found in differences]),
    )


def _of_arms(differences: Sequence[Difference]) -> Difference:
    """monotonic - baseline of one seed."""
    (found,) = [row for row in differences if (row.model, row.reference) == ("monotonic", "baseline")]
    return found


def table(results: SweepResults) -> str:
    """Perplexities of each seed, and the mean differences between the arms with their intervals."""
    blocks = [
        f"# {_title(results)}",
        *_missing(results),
        _what_was_studied(results),
        "\n".join(f"- {line}" for line in models(_first(results))),
        _seed_table(results).markdown(),
        _attack_table(results).markdown(),
        _mean_difference(results),
        _mean_table(results).markdown(),
        "\n\n".join(_cautions(results)),
        Table(
            "Run directories, below the root of all runs.",
            ["seed", "run directory"],
            [[result.seeds[0], results.runs[role]] for role, result in results.of_seed.items()],
        ).markdown(),
    ]
    return "\n\n".join(blocks) + "\n"


def _report(results: SweepResults, drawn: Figure, origins: Section) -> str:
    """The same as one HTML page, with a dot for each seed."""
    sections = [
        Section("The arms compared", texts=[_mean_difference(results)], figures=[drawn], tables=[_mean_table(results)]),
        Section("Every seed", tables=[_seed_table(results), _attack_table(results)]),
        Section("Cautions", points=[plain(caution) for caution in _cautions(results)]),
        origins,
    ]
    facts = [*_missing(results), *models(_first(results))]
    return html_page(_title(results), _what_was_studied(results), facts, sections)


def _differences(results: SweepResults) -> Figure:
    """monotonic - baseline of every seed, on clean text and under each attack."""
    means = results.attacks_monotonic_minus_baseline
    of_seed = results.of_seed.values()
    rows = [
        _row("clean", [_clean_difference(one) for one in of_seed], results.monotonic_minus_baseline_nats_per_token),
        *(
            _row(
                f"increase, {name}",
                [_of_arms(one.attacks.by_name()[name].differences).increase_nats_per_token.value for one in of_seed],
                mean,
            )
            for name, mean in (
                ("uat", means.uat.increase_nats_per_token),
                ("hotflip", means.hotflip.increase_nats_per_token),
            )
        ),
    ]
    numbers = "; ".join(f"{row.label}: {', '.join(map(NATS, row.values))}" for row in rows)
    caption = (
        "monotonic - baseline: one dot for each seed, and their mean with its interval. Loss on clean text, and "
        "its increase under each attack."
    )
    return Figure(dots("differences", f"{caption} {numbers}.", rows, "difference (nats per token)"), caption)


def _row(label: str, values: list[float], mean: MeanOverSeeds) -> Dots:
    return Dots(label, values, mean.mean, mean.interval)


def _clean_difference(result: FinalResults) -> float:
    baseline, monotonic = (result.models[arm].loss_nats_per_token for arm in ARMS)
    return monotonic - baseline


def _title(results: SweepResults) -> str:
    seeds = results.monotonic_minus_baseline_nats_per_token.seeds
    return f"{results.study}: test perplexity and attacks over {seeds} seeds"


def _missing(results: SweepResults) -> list[str]:
    return [f"Missing, because a stage of theirs stopped: {', '.join(results.missing)}."] if results.missing else []


def _mean_difference(results: SweepResults) -> str:
    difference = results.monotonic_minus_baseline_nats_per_token
    low, high = difference.interval
    return (
        f"monotonic - baseline: {difference.mean:+.4f} nats per token, "
        f"{difference.confidence_level:.0%} interval {low:+.4f} to {high:+.4f} "
        f"(Student's t over {difference.seeds} seeds; standard deviation "
        f"{difference.standard_deviation:.4f}). Seeds vary the order of the training examples and the random "
        "choices of the attacks, and nothing else: one base model, one initialisation, one text."
    )


def _cautions(results: SweepResults) -> list[str]:
    return sorted({caution for result in results.of_seed.values() for caution in cautions(result)})


def _first(results: SweepResults) -> FinalResults:
    """One of the seeds: model, text and attacks are the same for all."""
    return next(iter(results.of_seed.values()))


def _what_was_studied(results: SweepResults) -> str:
    """Model and text, the same for all seeds."""
    first = _first(results)
    return f"{QUESTION} {model_and_text(first)}. {the_text(first)} " + " ".join(
        how_attacked(name, first) for name in first.attacks.by_name()
    )


def _seed_table(results: SweepResults) -> Table:
    return Table(
        "Test perplexity of each seed, and monotonic - baseline in nats per token.",
        ["seed", "base", "constrained-untrained", *ARMS, "monotonic - baseline", "run"],
        [
            [
                result.seeds[0],
                *(perplexity(result.models[model].perplexity) for model in ("base", "constrained-untrained", *ARMS)),
                NATS(result.differences[-1].difference_nats_per_token),
                run_name(results.runs[role]),
            ]
            for role, result in results.of_seed.items()
        ]
        + [[name.removeprefix("seed "), *["missing"] * 5, "-"] for name in results.missing],
    )


def _attack_table(results: SweepResults) -> Table:
    """Both effects of each seed, with the clean losses that the relative one divides by."""
    return Table(
        "Increase of the loss under attack in nats per token (from a clean loss of), each arm and seed; hotflip's "
        "success rate.",
        ["seed", "attack", "arm", "increase", "clean", "relative", "success", "run"],
        [
            [
                result.seeds[0],
                name,
                arm,
                NATS(effect.increase_nats_per_token.value),
                f"{effect.clean_loss_nats_per_token:.4f}",
                SHARE(effect.relative_increase.value),
                RATE(effect.success_rate.value) if isinstance(effect, EffectWithSuccess) else "-",
                run_name(results.runs[role]),
            ]
            for role, result in results.of_seed.items()
            for name, findings in result.attacks.by_name().items()
            for arm, effect in findings.effects.items()
            if arm in ARMS
        ],
    )


def _mean_table(results: SweepResults) -> Table:
    means = results.attacks_monotonic_minus_baseline
    level = results.monotonic_minus_baseline_nats_per_token.confidence_level
    return Table(
        f"Attacks, monotonic - baseline: mean over seeds with the {level:.0%} interval of Student's t "
        "(- where every seed gave the same).",
        ["attack", "difference of", "mean", "interval", "seeds"],
        [
            *_mean_rows("uat", means.uat),
            *_mean_rows("hotflip", means.hotflip),
            _mean_row("hotflip", "success rate, percentage points", means.hotflip.success_rate, rate_points),
        ],
    )


def _mean_rows(attack: str, means: MeanEffects) -> list[list[object]]:
    return [
        _mean_row(attack, "increase, nats per token", means.increase_nats_per_token, NATS),
        _mean_row(attack, "attack - control, nats per token", means.attack_minus_control_nats_per_token, NATS),
        _mean_row(attack, "relative increase, percentage points", means.relative_increase, share_points),
    ]


def _mean_row(attack: str, name: str, mean: MeanOverSeeds, form: Callable[[float], str]) -> list[object]:
    return [attack, name, form(mean.mean), span(mean.interval, form), mean.seeds]


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
