"""report: arms of a study of one's own side by side, and which of their differences the folds or seeds show."""

from __future__ import annotations

import csv
import io
import re
import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from storage.errors import BadInput
from tasks.findings.arms import (
    BETTER,
    LOWER,
    answer_figure,
    arms_figure,
    differences_in_words,
    number_line,
    undecided_in_words,
    why_not_shown,
)
from tasks.findings.comparison_table import arm_table, comparison_table
from tasks.findings.configuration import ArmsConfig, role_of
from tasks.findings.document import Document, Section
from tasks.findings.numbers import p_value, percent
from tasks.findings.publish import Published, publish_report, require_verified
from tasks.findings.statistics.comparison import Comparison, Values, arm_mean, compare_together
from tasks.findings.statistics.power import POWER, smallest_shown
from tasks.findings.table import Table, no_formula
from tasks.stage.run import StageInput, StageRun

Every = Mapping[str, Mapping[str, float | None]]
"""Arm -> fold or seed -> its number; None where it diverged."""
MIN_PAIRS = 3
"""The fewest folds or seeds of which anything is called better."""


def report(run: StageRun, config: ArmsConfig, **inputs: StageInput) -> Published:
    """Verifies every byte that it reads. BadInput for a metric that a result lacks, or has twice; one that is None has
    diverged, and is told."""
    require_verified(inputs)
    every: dict[str, dict[str, float | None]] = {arm: {} for arm in config.arms}
    said: set[bool | None] = set()
    for arm, of_arm in config.arms.items():
        for value in of_arm:
            number, higher = config.number_of(inputs[role_of(arm, config.varied, value)])
            every[arm][value] = number
            said.add(higher)
    if config.higher_is_better is None and len(said - {None}) > 1:
        raise BadInput(
            f"the arms' trainings disagree on whether a higher {config.metric} is better: say higher_is_better"
        )
    higher = config.higher_is_better if config.higher_is_better is not None else (said - {None} or {None}).pop()
    values = _numbers(every)
    compared = _comparable(values, config)
    (comparisons,) = compare_together(
        {config.metric: compared}, [pair for pair in config.pairs if {*pair} <= {*compared}], config.confidence_level,
        MIN_PAIRS, higher=[config.metric] if higher else [], allow_equal=True,
    ).values()  # fmt: skip
    words, diverged = LOWER if higher is None else BETTER, _diverged(every, compared, config)
    document = _document(run, config, inputs, every, comparisons, diverged, words, bool(higher))
    numbers = {
        config.metric: {
            arm: arm_mean(of_arm, config.confidence_level).mean for arm, of_arm in values.items() if of_arm
        },
        "higher_is_better": higher,
        "values": [{"arm": arm, **row} for arm, row in every.items()],
        "differences": [comparison.as_json() for comparison in comparisons],
    }
    return publish_report(run, inputs, numbers, document, texts={"compared.csv": _csv(config, values)})


def _numbers(every: Every) -> dict[str, dict[str, float]]:
    return {arm: {value: of for value, of in row.items() if of is not None} for arm, row in every.items()}


def _comparable(values: Values, config: ArmsConfig) -> dict[str, dict[str, float]]:
    """The arms that are compared, with the folds that all of them have; one with half of them or fewer is left out."""
    judged = dict.fromkeys(name for pair in config.pairs for name in pair)
    most = max(len(values[arm]) for arm in judged)
    arms = [arm for arm in judged if len(values[arm]) > most / 2]
    common = [value for value in config.arms[arms[0]] if all(value in values[arm] for arm in arms)] if arms else []
    return {arm: {value: values[arm][value] for value in common} for arm in arms if common}


def _diverged(every: Every, compared: Collection[str], config: ArmsConfig) -> list[str]:
    """What has no number, and what that costs."""
    lost = {arm: [value for value, of in row.items() if of is None] for arm, row in every.items()}
    names = ", ".join(f"{arm} ({config.varied} {', '.join(values)})" for arm, values in lost.items() if values)
    without = dict.fromkeys(arm for pair in config.pairs for arm in pair if arm not in compared)
    said = {
        f"**Diverged, without a {config.metric}: {names}.** Such a {config.varied} is left out of every arm that is "
        "compared, which spares the one that diverged.": names,
        f"**Not comparable: {', '.join(without)}**, of which too few are left.": without,
    }
    return [text for text, holds in said.items() if holds]


def _document(
    run: StageRun,
    config: ArmsConfig,
    inputs: Mapping[str, StageInput],
    every: Every,
    comparisons: Sequence[Comparison],
    diverged: Sequence[str],
    words: tuple[str, str],
    higher: bool,
) -> Document:
    metric, level = config.metric.replace("_", " "), config.confidence_level
    values = _numbers(every)
    arms = {name: arm_mean(of_arm, level) for name, of_arm in values.items() if of_arm}
    shown = differences_in_words(comparisons, words)
    differences = comparison_table(comparisons, level, MIN_PAIRS, higher_is_better=higher, words=words)
    rows = [
        [
            arm,
            value,
            "diverged" if number is None else f"{number:.6g}",
            inputs[role_of(arm, config.varied, value)].path.name,
        ]
        for arm, of_arm in every.items()
        for value, number in of_arm.items()
    ]

    def called(text: str) -> str:
        """What the statistics call a seed by its own name."""
        return re.sub(r"\bseed(s?)\b", rf"{config.varied}\1", text)

    def table(of: Table) -> Table:
        return replace(of, caption=called(of.caption), header=[*map(called, of.header)])

    figure = arms_figure("arms", arms, {}, metric)
    caption = f"{metric}: the mean of each arm less that of its reference, {config.varied} by {config.varied}."
    limits = [
        *diverged,
        *undecided_in_words(comparisons, MIN_PAIRS),
        *_too_few(comparisons, level),
        *_by_exchanges(comparisons, level),
    ]
    if config.varied != "seed":
        limits.append(
            f"Each {config.varied} counts as a repetition of its own: where they share examples, intervals are too "
            "narrow."
        )
    verdict = f"{shown[0].upper()}{shown[1:]}." if shown else why_not_shown(comparisons, MIN_PAIRS, words)
    if diverged:
        verdict += f" {sum(of is None for row in every.values() for of in row.values())} of {len(rows)} runs diverged."
    return Document(
        config.question or f"{run.run.study}: {metric} of {', '.join(values)}",
        called(verdict),
        numbers=[called(f"{metric}: {number_line(comparison)}") for comparison in comparisons[:3]],
        answer=answer_figure({metric: comparisons}, caption, f"difference in {metric}") if comparisons else None,
        not_shown=[called(limit) for limit in limits],
        facts=[f"For other questions to the same numbers, in this folder: `{_command(config, values, higher)}`."],
        sections=[
            Section(
                "The arms",
                figures=[replace(figure, caption=called(figure.caption))],
                tables=[table(arm_table(arms, level, metric)), table(differences)],
            ),
            Section("The runs", tables=[Table(f"Every {metric}.", ["arm", config.varied, metric, "run"], rows)]),
        ],
    )


def _too_few(comparisons: Sequence[Comparison], level: float) -> list[str]:
    """What so few pairs could not have shown, and what the fewest that can show anything would."""
    few = next((row for row in comparisons if row.seeds < MIN_PAIRS), None)
    if few is None:
        return []
    more = ""
    if few.standard_deviation:
        among = 1 - (1 - level) / len(comparisons)
        least = smallest_shown([(few.standard_deviation / MIN_PAIRS**0.5, MIN_PAIRS - 1)], among)
        more = f"; {MIN_PAIRS} of such a spread show one of {least:.3g} or more with a chance of {percent(POWER)}"
    pairs = f"{few.seeds} seeds" if few.seeds > 1 else "one seed"
    return [f"With {pairs} no difference could have been seen, however large{more}."]


def _by_exchanges(comparisons: Sequence[Comparison], level: float) -> list[str]:
    """What is shown by Student's t alone, as so few pairs have too few exchanges for a low p."""
    shown = next((row for row in comparisons if row.better or row.worse), None)
    least = (shown.least_p_exchange or 0) * len(comparisons) if shown else 0
    if not shown or least <= 1 - level:
        return []
    return [
        f"p is by Student's t, which takes differences as normal; by exchanges, which do not, {shown.seeds} seeds give "
        f"no p below {p_value(min(1, least))}."
    ]


def _command(config: ArmsConfig, values: Values, higher: bool) -> str:
    """What compares these numbers as they are, also where arms do not pair or tie."""
    each = [number for of_arm in values.values() for number in of_arm.values()]
    options = {
        f" --pair {shlex.quote(config.varied)}": config.varied != "seed",
        " --higher-is-better": higher,
        " --allow-equal": len({*each}) < len(each),
        " --test unpaired": len({frozenset(of_arm) for of_arm in values.values()}) > 1,
    }
    return "ratchet compare compared.csv" + "".join(option for option, needed in options.items() if needed)


def _csv(config: ArmsConfig, values: Values) -> str:
    """A line for each number, as `ratchet compare` takes it."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(["arm", config.varied, config.metric])
    writer.writerows(
        [no_formula(arm), value, repr(number)] for arm, of_arm in values.items() for value, number in of_arm.items()
    )
    return file.getvalue()
