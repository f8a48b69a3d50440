"""sweep over seeds: the table that may compare the arms, because it has more than one training of each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from storage.errors import CheckFailed
from tasks.report import figures
from tasks.report.figures import Dots, dots
from tasks.report.numbers import NATS, RATE, perplexity, span
from tasks.report.page import Figure, Section, html_page
from tasks.report.provenance import provenance, provenance_section, run_directories, run_name, sources
from tasks.report.publish import Published, publish, require_verified
from tasks.report.table import Table
from tasks.robustness.arm import ALIVE_SHARE, ARMS, BASE, BASELINE, MONOTONIC, placebos
from tasks.robustness.final_results import FinalResults, MeanAnswer, SweepResults
from tasks.robustness.words import MEASURES, QUESTION, cautions, how_attacked, model_and_text, models, the_text
from tasks.stage.run import StageInput, StageRun
from tasks.statistics.effects import EffectWithSuccess
from tasks.statistics.equivalence import answer_of_interval
from tasks.statistics.seeds import MeanOverSeeds, mean_over_seeds
from tasks.sweep.configuration import SweepConfig


def sweep_seeds(run: StageRun, config: SweepConfig, **studies: StageInput) -> Published:
    """Verifies every byte that it reads, and writes tables, figure and report over all seeds that are there."""
    require_verified(studies)
    figures.prepare(run.cache)
    of_cell = {role: FinalResults.read_file(given.path / "final_results.json") for role, given in studies.items()}
    _require_distinct_seeds(of_cell)
    combined = _combined(config, of_cell, run_directories(studies, run.run.root))
    drawn = _differences(combined)
    origins = provenance_section(combined.runs, provenance(studies), sources(studies), config.scientific())
    texts = {"table.md": table(combined), "report.html": _report(combined, drawn, origins)}
    return publish(run, combined, texts, {"differences": drawn.svg})


def _combined(config: SweepConfig, of_cell: dict[str, FinalResults], runs: dict[str, str]) -> SweepResults:
    """Means over the cells: each is one training of every arm."""
    level, cells = config.confidence_level, list(of_cell.values())
    arms = list(cells[0].arms)
    others = [arm for arm in arms if arm != BASELINE]

    def mean(value: Callable[[FinalResults], float]) -> MeanOverSeeds:
        return mean_over_seeds([value(cell) for cell in cells], level)

    increases = {
        attack: {arm: mean(lambda cell, a=attack, m=arm: _increase(cell, a, m, BASELINE)) for arm in others}
        for attack in ("uat", "hotflip")
    }
    return SweepResults(
        study=config.study,
        cells=list(config.present),
        loss_nats_per_token={arm: mean(lambda cell, m=arm: cell.models[m].loss_nats_per_token) for arm in arms},
        alive_share={arm: mean(lambda cell, m=arm: cell.arms[m].alive_share) for arm in arms},
        loss_differences={arm: mean(lambda cell, m=arm: _clean_difference(cell, m)) for arm in others},
        increase_differences=increases,
        primary=_answer(cells, level),
        of_cell=of_cell,
        runs=runs,
        missing=config.missing,
    )


def _answer(cells: Sequence[FinalResults], level: float) -> MeanAnswer:
    """The primary comparison over the cells; not answered where in one of them it could not be."""
    asked = cells[0].primary.primary
    unanswered = [cell.primary.unanswered for cell in cells if cell.primary.unanswered]
    values = [cell.primary.difference.value for cell in cells if cell.primary.difference]
    if unanswered or len(values) < len(cells):
        return MeanAnswer(primary=asked, difference=None, answer=None, unanswered=unanswered[0], from_placebos={})
    difference = mean_over_seeds(values, level)
    from_placebos = {
        arm: mean_over_seeds([cell.primary.from_placebos[arm].value for cell in cells], level)
        for arm in cells[0].primary.from_placebos
    }
    given = answer_of_interval(values, asked.margin_nats_per_token, level)
    return MeanAnswer(
        primary=asked, difference=difference, answer=given, unanswered=None, from_placebos=from_placebos
    )


def _increase(cell: FinalResults, attack: str, model: str, reference: str) -> float:
    """What the attack adds on `model` minus what it adds on `reference`, of one cell."""
    effects = cell.attacks.by_name()[attack].effects
    return effects[model].increase_nats_per_token.value - effects[reference].increase_nats_per_token.value


def _clean_difference(cell: FinalResults, arm: str) -> float:
    return cell.models[arm].loss_nats_per_token - cell.models[BASELINE].loss_nats_per_token


def table(results: SweepResults) -> str:
    """The answer, what each arm costs and what attacks add to it, means over the cells, and each cell by itself."""
    blocks = [
        f"# {_title(results)}",
        *_missing(results),
        _what_was_studied(results),
        "\n".join(f"- {line}" for line in _answer_in_words(results)),
        _mean_table(results).markdown(),
        "\n".join(f"- {line}" for line in models(_first(results))),
        _cell_table(results).markdown(),
        _attack_table(results).markdown(),
        "\n\n".join(_cautions(results)),
        Table(
            "Run directories, below the root of all runs.",
            ["cell", "run directory"],
            [[name, directory] for name, directory in zip(results.cells, results.runs.values(), strict=True)],
        ).markdown(),
    ]
    return "\n\n".join(blocks) + "\n"


def _report(results: SweepResults, drawn: Figure, origins: Section) -> str:
    """The same as one HTML page, with a dot for each cell."""
    sections = [
        Section("The arms compared", figures=[drawn], tables=[_mean_table(results)]),
        Section("Every cell", tables=[_cell_table(results), _attack_table(results)]),
        Section("Cautions", points=_cautions(results)),
        origins,
    ]
    facts = [*_missing(results), *_answer_in_words(results), *models(_first(results))]
    return html_page(_title(results), _what_was_studied(results), facts, sections)


def _answer_in_words(results: SweepResults) -> list[str]:
    found, asked = results.primary, results.primary.primary
    measured = f"The primary comparison ({asked.attack}: {MEASURES[asked.measure]}), monotonic - baseline"
    if found.unanswered or found.difference is None or found.answer is None:
        return [f"**{measured}, is not answered:** {found.unanswered}."]
    verdict = {
        "differs": "the two differ",
        "equivalent": f"equivalent within the margin of {asked.margin_nats_per_token:g}",
        "undecided": f"undecided: neither a difference nor equivalence within {asked.margin_nats_per_token:g} is shown",
    }[found.answer.answer]
    mean = found.difference
    said = [
        f"**{measured}: {NATS(mean.mean)} nats per token, mean over {mean.seeds} cells ({mean.confidence_level:.0%} "
        f"interval of Student's t {span(mean.interval, NATS)}): {verdict}.**"
    ]
    beyond = [arm for arm, row in found.from_placebos.items() if row.interval[1] < 0]
    wanting = [arm for arm in placebos(list(_first(results).arms)) if arm not in beyond]
    if found.answer.answer != "differs" or mean.mean >= 0:
        return [*said, "So nothing here shows that non-negative weights make the model harder to attack."]
    if wanting:
        return [*said, f"That is no claim for the constraint: monotonic is not told apart from {', '.join(wanting)}."]
    return [*said, f"Non-negative weights make the model harder to attack, more than {', '.join(beyond)} do."]


def _differences(results: SweepResults) -> Figure:
    """Every arm minus baseline of every cell, on clean text and under each attack."""
    cells = list(results.of_cell.values())
    rows = [
        _row(f"clean, {arm}", [_clean_difference(cell, arm) for cell in cells], mean)
        for arm, mean in results.loss_differences.items()
    ]
    for attack, means in results.increase_differences.items():
        rows += [
            _row(f"{attack}, {arm}", [_increase(cell, attack, arm, BASELINE) for cell in cells], mean)
            for arm, mean in means.items()
        ]
    numbers = "; ".join(f"{row.label}: {', '.join(map(NATS, row.values))}" for row in rows)
    caption = (
        "Every arm - baseline: one dot for each cell, and their mean with its interval. Loss on clean text, and its "
        "increase under each attack."
    )
    return Figure(dots("differences", f"{caption} {numbers}.", rows, "difference (nats per token)"), caption)


def _row(label: str, values: list[float], mean: MeanOverSeeds) -> Dots:
    return Dots(label, values, mean.mean, mean.interval)


def _title(results: SweepResults) -> str:
    return f"{results.study}: the arms over {len(results.cells)} trainings of each"


def _missing(results: SweepResults) -> list[str]:
    return [f"Missing, because a stage of theirs stopped: {', '.join(results.missing)}."] if results.missing else []


def _cautions(results: SweepResults) -> list[str]:
    return sorted({caution for result in results.of_cell.values() for caution in cautions(result)})


def _first(results: SweepResults) -> FinalResults:
    """One of the cells: text, arms and attacks are the same for all."""
    return next(iter(results.of_cell.values()))


def _what_was_studied(results: SweepResults) -> str:
    """Model and text, the same for all cells."""
    first = _first(results)
    return f"{QUESTION} {model_and_text(first)}. {the_text(first)} " + " ".join(
        how_attacked(name, first) for name in first.attacks.by_name()
    )


def _label(results: SweepResults, arm: str) -> str:
    """The name of an arm in a table, in bold where its constrained layers are dead in the mean."""
    return f"**{arm} (dead)**" if results.alive_share[arm].mean < ALIVE_SHARE else arm


def _mean_table(results: SweepResults) -> Table:
    level = results.loss_nats_per_token[BASELINE].confidence_level

    def of(arm: str, means: Mapping[str, MeanOverSeeds]) -> list[str]:
        return [NATS(means[arm].mean), span(means[arm].interval, NATS)] if arm in means else ["-", "-"]

    return Table(
        "Means over the cells: share of the baseline's rise that the constrained layers are good for; then arm - "
        f"baseline in nats per token, of the clean loss and of what each attack adds, with the {level:.0%} interval of "
        "Student's t.",
        ["arm", "alive", "clean", "interval", "uat", "interval", "hotflip", "interval"],
        [
            [
                _label(results, arm),
                f"{results.alive_share[arm].mean:.0%}",
                *of(arm, results.loss_differences),
                *of(arm, results.increase_differences["uat"]),
                *of(arm, results.increase_differences["hotflip"]),
            ]
            for arm in ARMS
            if arm in results.alive_share
        ],
    )


def _cell_table(results: SweepResults) -> Table:
    arms = list(_first(results).arms)
    return Table(
        "Test perplexity in each cell, and monotonic - baseline in nats per token.",
        ["cell", BASE, *arms, "monotonic - baseline", "run"],
        [
            [
                name,
                *(perplexity(result.models[model].perplexity) for model in (BASE, *arms)),
                NATS(_clean_difference(result, MONOTONIC)),
                run_name(results.runs[role]),
            ]
            for name, (role, result) in zip(results.cells, results.of_cell.items(), strict=True)
        ]
        + [[name, *["missing"] * (len(arms) + 2), "-"] for name in results.missing],
    )


def _attack_table(results: SweepResults) -> Table:
    """What each attack adds in each cell, beside blind search, with the clean losses."""
    return Table(
        "Increase of the loss under attack in nats per token, each arm and cell; blind search at equal cost; hotflip's "
        "success rate.",
        ["cell", "attack", "arm", "clean", "increase", "blind", "success", "run"],
        [
            [
                cell,
                name,
                arm,
                f"{effect.clean_loss_nats_per_token:.4f}",
                NATS(effect.increase_nats_per_token.value),
                NATS(effect.blind_increase_nats_per_token.value),
                RATE(effect.success_rate.value) if isinstance(effect, EffectWithSuccess) else "-",
                run_name(results.runs[role]),
            ]
            for cell, (role, result) in zip(results.cells, results.of_cell.items(), strict=True)
            for name, findings in result.attacks.by_name().items()
            for arm, effect in findings.effects.items()
            if arm in result.arms
        ],
    )


def _require_distinct_seeds(of_cell: Mapping[str, FinalResults]) -> None:
    """Two cells with equal weights are one training under two names."""
    first: dict[str, str] = {}
    for role, result in of_cell.items():
        for arm, facts in result.arms.items():
            other = first.setdefault(facts.weights_digest, role)
            if other != role:
                raise CheckFailed(
                    f"every cell has weights of its own for {arm}",
                    f"{other} and {role} have equal weights_digest {facts.weights_digest[:12]}",
                    "different digests",
                    "One of the runs is a copy of the other: remove the copy and run that cell",
                )
