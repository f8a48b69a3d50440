"""One comparison of arms x repetitions, for studies, reports of one's own, sweeps and tables of anybody: what is shown,
what is not, and the file.

Who makes the numbers declares their metrics: nothing is read off a name.
"""

import csv
import io
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from storage.errors import CheckFailed
from tasks.findings.arms import (
    BETTER,
    LOWER,
    Words,
    answer_figure,
    arm_table,
    comparison_table,
    differences_in_words,
    number_line,
    undecided_in_words,
    why_not_shown,
)
from tasks.findings.configuration import Metric
from tasks.findings.document import Figure
from tasks.findings.numbers import p_value, percent
from tasks.findings.statistics.comparison import (
    ArmMean,
    Arms,
    Comparison,
    Pair,
    compare_pair,
    judge,
    require_comparable,
    with_sources,
)
from tasks.findings.statistics.power import POWER, smallest_shown
from tasks.findings.statistics.seeds import OverSeeds
from tasks.findings.table import Table, no_formula

Values = Mapping[str, Arms]
"""Title of a metric -> its arms."""
Sources = Mapping[str, Mapping[Pair, OverSeeds]]
"""Title of a metric -> arm and reference -> their difference over seeds and sources."""
LEAST = 3
"""The fewest repetitions of which anything is called better."""


@dataclass(frozen=True)
class Compared:
    """Metrics by title, what can be compared of each, and the differences; what answers stands first."""

    metrics: Mapping[str, Metric]
    values: Values
    differences: Mapping[str, list[Comparison]]
    level: float
    least: int = LEAST
    varied: str = "seed"

    @property
    def first(self) -> str:
        """The metric that answers: the first of which anything was compared; empty without any."""
        return next((title for title, rows in self.differences.items() if rows), "")

    @property
    def rows(self) -> Sequence[Comparison]:
        """The differences that answer."""
        return self.differences.get(self.first, [])

    def words(self, title: str) -> Words:
        """What a lower and a higher value are called."""
        return LOWER if self.metrics[title].higher is None else BETTER

    def shown(self, title: str) -> str:
        """What the repetitions show of a metric, or why nothing, as a clause."""
        rows, words = self.differences[title], self.words(title)
        return self.called(differences_in_words(rows, words) or why_not_shown(rows, self.least)[:-1])

    @property
    def verdict(self) -> str:
        """What is shown of the metric that answers, and of the next of which anything is."""
        decided = [title for title, rows in self.differences.items() if any(row.better or row.worse for row in rows)]
        clauses = {title: self.shown(title) for title in [*dict.fromkeys([self.first, *decided])][:2]}
        return " ".join(
            f"{title}: {clause[0].lower() if clause[:3] == 'No ' else clause[0]}{clause[1:]}."
            for title, clause in clauses.items()
        )

    @property
    def numbers(self) -> list[str]:
        """Up to three differences of the metric that answers, those that are shown before the others."""
        rows = sorted(self.rows, key=lambda row: not (row.better or row.worse))
        return [self.called(f"{self.first}: {number_line(row)}") for row in rows[:3]]

    @property
    def not_shown(self) -> list[str]:
        """What the differences that answer do not say, and what could have been seen."""
        few = [*undecided_in_words(self.rows, self.least), *_too_few(self.rows, self.level, self.least)]
        return [*map(self.called, [*few, *_by_exchanges(self.rows, self.level)])]

    @property
    def figure(self) -> Figure | None:
        """The differences that answer; None where nothing was compared."""
        caption = (
            f"{self.first}: the mean of each arm less that of its reference, {self.varied} by {self.varied}. Each "
            "interval is of this difference alone."
        )
        unit = self.metrics[self.first].unit if self.first else ""
        label = f"difference in {self.first}{f' ({unit})' if unit else ''}"
        return answer_figure({self.first: self.rows}, caption, label) if self.rows else None

    def table(self, title: str) -> list[Table]:
        """The differences of a metric; none where nothing was compared."""
        if not (rows := self.differences.get(title)):
            return []
        higher, together = bool(self.metrics[title].higher), sum(map(len, self.differences.values()))
        words = self.words(title)
        made = comparison_table(rows, self.level, self.least, together, higher_is_better=higher, words=words)
        return [self.called_in(made)]

    def mean_table(self, arms: Mapping[str, ArmMean], what: str) -> Table:
        return self.called_in(arm_table(arms, self.level, what))

    def called(self, text: str) -> str:
        """A text of the statistics, which call a repetition a seed, with its own name."""
        return re.sub(r"\bseed(s?)\b", rf"{self.varied}\1", text)

    def called_in(self, table: Table) -> Table:
        return replace(table, caption=self.called(table.caption), header=[*map(self.called, table.header)])


def compare(
    values: Values,
    metrics: Mapping[str, Metric],
    level: float,
    least: int = LEAST,
    unlearned: Collection[str] = (),
    may_equal: bool | Collection[str] = False,
    sources: Sources | None = None,
    varied: str = "seed",
    unpaired: bool = False,
) -> Compared:
    """The differences of the pairs that each metric declares, by repetition, all corrected together.

    Of fewer repetitions than `least`, and of arms that are `unlearned`, nothing is better or worse. Pairs in `sources`
    are judged by what other repetitions and other sources of examples would give; with `unpaired` Welch's t decides.
    CheckFailed for values that no comparison can be made of: see `require_comparable`, and `may_equal` there.
    """
    try:
        for arms in values.values():
            require_comparable(arms, may_equal, other_seeds=unpaired)
    except ValueError as error:
        raise CheckFailed("every cell has a number of its own", str(error), "other numbers") from None
    asked = [
        (title, (arm, reference))
        for title, arms in values.items()
        for arm, reference in metrics[title].pairs
        if {arm, reference} <= {*arms}
    ]
    rows, among = {}, 1 - (1 - level) / max(len(asked), 1)
    for title, pair in asked:
        row = compare_pair(values[title], *pair, level, len(asked), unlearned, pairs=not unpaired)
        over = (sources or {}).get(title, {}).get(pair)
        rows[title, pair] = with_sources(row, over, among) if over else row
    differences: dict[str, list[Comparison]] = {title: [] for title, _ in asked}
    higher = [(title, pair) for title, pair in asked if metrics[title].higher]
    for (title, _), row in zip(asked, judge(rows, level, least, higher), strict=True):
        differences[title].append(row)
    return Compared(metrics, values, differences, level, least, varied)


def comparable(arms: Arms) -> dict[str, dict[str, float]]:
    """The arms with more than half of the repetitions, and of each those that all of them have."""
    most = max(map(len, arms.values()), default=0)
    kept = {arm: numbers for arm, numbers in arms.items() if len(numbers) > most / 2}
    common = [seed for seed in next(iter(kept.values()), ()) if all(seed in numbers for numbers in kept.values())]
    return {arm: {seed: numbers[seed] for seed in common} for arm, numbers in kept.items() if common}


def _too_few(comparisons: Sequence[Comparison], level: float, least: int) -> list[str]:
    """What so few pairs could not have shown, and what the fewest that can show anything would."""
    few = next((row for row in comparisons if row.seeds < least), None)
    if few is None:
        return []
    more = ""
    if few.standard_deviation and few.p is not None:
        among = 1 - (1 - level) / len(comparisons)
        could = smallest_shown([(few.standard_deviation / least**0.5, least - 1)], among)
        more = f"; {least} of such a spread show one of {could:.3g} or more with a chance of {percent(POWER)}"
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


def as_csv(values: Values, varied: str = "seed") -> str:
    """A line for each arm and repetition with a column for each metric, as `ratchet compare` takes it; what is not
    known is empty."""
    lines = dict.fromkeys((arm, seed) for arms in values.values() for arm, numbers in arms.items() for seed in numbers)
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(["arm", varied, *map(no_formula, values)])
    for arm, seed in lines:
        numbers = [arms.get(arm, {}).get(seed) for arms in values.values()]
        writer.writerow([no_formula(arm), seed, *("" if number is None else repr(number) for number in numbers)])
    return file.getvalue()
