"""Arms over seeds in words, tables and figures, for any study, any sweep and `ratchet compare FILE.csv`.

`words` say what a lower and a higher value of an arm are: `BETTER` where lower is better, `LOWER` where nobody said so.
"""

from collections.abc import Callable, Collection, Mapping, Sequence

from tasks.findings.document import Figure
from tasks.findings.figures import Dots, Estimated, dots, forest
from tasks.findings.numbers import p_value, percent, span
from tasks.findings.statistics.comparison import ArmMean, Arms, Comparison
from tasks.findings.statistics.power import POWER
from tasks.findings.table import Table

DIGITS = "{:.6g}".format
SIGNED = "{:+.3g}".format
Words = tuple[str, str]
BETTER: Words = ("better", "worse")
LOWER: Words = ("lower", "higher")


def arm_table(
    arms: Mapping[str, ArmMean],
    confidence_level: float,
    what: str,
    kinds: Mapping[str, str] | None = None,
    trivial: Mapping[str, float] | None = None,
    draws: str = "",
) -> Table:
    """Mean over seeds of `what`; `kinds`: what each arm is. Last, as multiples, what is `trivial`: needs no learning.

    `draws`: what intervals are of, where that is more than the seeds.
    """
    rows: list[list[object]] = []
    for name, arm in arms.items():
        interval = span(arm.interval, DIGITS) if arm.interval else "none (one value)"
        deviation = "-" if arm.standard_deviation is None else f"{arm.standard_deviation:.3g}"
        rows.append([name, len(arm.values), DIGITS(arm.mean), interval, deviation])
    rows += [[name, "-", DIGITS(value), "-", "-"] for name, value in (trivial or {}).items()]
    header, multiple = ["arm", "seeds", "mean", "interval", "deviation"], ""
    if kinds is not None:
        header.insert(1, "what")
        for row in rows:
            row.insert(1, kinds.get(str(row[0]), "no learning"))
    if trivial:
        means = [*(arm.mean for arm in arms.values()), *trivial.values()]
        header.append("of the trivial")
        multiple = ", and the mean as a multiple of the better of what needs no learning"
        rows = [[*row, f"{mean / min(trivial.values()):.3f}"] for row, mean in zip(rows, means, strict=True)]
    level = percent(confidence_level)
    return Table(
        f"{what}: mean over seeds, Student's t interval ({level}{draws}), standard deviation (ddof 1){multiple}.",
        header,
        rows,
    )


def comparison_table(
    comparisons: Sequence[Comparison],
    confidence_level: float,
    min_seeds: int,
    together: int | None = None,
    higher_is_better: bool = False,
    undecided: Collection[Comparison] = (),
    unpaired: bool = False,
    words: Words = BETTER,
) -> Table:
    """Every comparison with what speaks for it.

    `together`: so many were corrected, when there are other tables. Of the `undecided` nothing is called better;
    `unpaired`: they were judged by Welch's t. `words`: what a lower and a higher value of an arm are.
    """
    by = "p and interval are of Welch's t" if unpaired else "p is of Student's t of the pairs"
    welch = "" if unpaired else "Welch's t, which does not pair, and "
    return Table(
        f"The arm minus its reference{'' if unpaired else ', seed by seed'}; "
        f"{'above' if higher_is_better else 'below'} 0 the arm is {words[0]}. "
        f"{by}, adjusted by Holm over the {together or len(comparisons)} comparisons that are "
        f"made here; beside it {welch}the exchange of both arms within seeds with the lowest p that so many seeds can "
        f"give. That one is shown where the adjusted p is at most {1 - confidence_level:g} and there are {min_seeds} "
        "seeds or more. Seeds needed: with so many, a difference like this would be found among these with a chance of "
        "80%. Could show: the smallest true difference that these seeds show with that chance.",
        [
            "arm", "reference", "shown", "seeds", "difference", "interval", "percent", "p", "p adjusted",
            *["p Welch"] * (not unpaired), "p exchange (lowest)", "seeds needed", "could show",
        ],
        [
            [
                row.arm,
                row.reference,
                "undecided" if row in undecided else verdict_of(row, words),
                row.seeds,
                SIGNED(row.mean),
                span(row.interval, SIGNED) if row.interval else f"none ({_why_none(row)})",
                percent_of(row),
                p_value(row.p),
                p_value(row.p_adjusted),
                *[p_value(row.p_welch)] * (not unpaired),
                "-" if row.p_exchange is None else f"{p_value(row.p_exchange)} ({p_value(row.least_p_exchange)})",
                "-" if row.seeds_needed is None else f"{row.seeds_needed:,}",
                "-" if row.smallest_shown is None else f"{row.smallest_shown:.3g}",
            ]
            for row in comparisons
        ],
    )  # fmt: skip


def verdict_of(comparison: Comparison, words: Words = BETTER) -> str:
    """The verdict of the seeds, in a word."""
    if comparison.better or comparison.worse:
        return f"**{words[comparison.worse]}**"
    return f"not learned: {' and '.join(comparison.unlearned)}" if comparison.unlearned else "no difference shown"


def percent_of(comparison: Comparison) -> str:
    """The difference in per cent of the size of the reference's mean."""
    return "-" if comparison.percent is None else f"{comparison.percent:+.2f}%"


def _why_none(comparison: Comparison) -> str:
    return "one seed" if comparison.seeds == 1 else "a value that never changes"


def differences_in_words(comparisons: Sequence[Comparison], words: Words = BETTER) -> str:
    """The comparisons that the seeds show, as `a is better than none`; empty where they show none."""
    decided = [row for row in comparisons if row.better or row.worse]
    clauses = [f"{row.arm} is {words[row.worse]} than {row.reference}" for row in decided]
    return " and ".join(clauses[:2]) + (f", and {len(clauses) - 2} more differences" if clauses[2:] else "")


def why_not_shown(comparisons: Sequence[Comparison], min_seeds: int) -> str:
    """The reason why there is no such difference, as a sentence."""
    if not comparisons:
        return "Nothing can be compared."
    seeds = min(comparison.seeds for comparison in comparisons)
    if seeds < min_seeds:
        number = f"{seeds} seeds are" if seeds > 1 else "one seed is"
        return f"No difference is shown: {number} too few."
    return f"No difference is shown over {seeds} seeds."


def number_line(comparison: Comparison) -> str:
    """One comparison, and how sure it is."""
    if comparison.unlearned:
        unlearned = f"{' and '.join(comparison.unlearned)} {'are' if len(comparison.unlearned) > 1 else 'is'}"
        return f"{comparison.arm} - {comparison.reference}: not compared, as {unlearned} not shown to learn"
    percentage = f", {percent_of(comparison)}" if comparison.percent is not None else ""
    certain = "no interval"
    if comparison.interval and comparison.p_adjusted is not None:
        certain = f"interval {span(comparison.interval, SIGNED)}; p {p_value(comparison.p_adjusted)} after Holm"
    seeds = f"{comparison.seeds} seed{'s' * (comparison.seeds > 1)}"
    return f"{comparison.arm} - {comparison.reference}: {SIGNED(comparison.mean)}{percentage} ({certain}; {seeds})"


def in_words(comparison: Comparison, min_seeds: int) -> str:
    """One comparison as a sentence, its verdict first."""
    arm, reference, line = comparison.arm, comparison.reference, number_line(comparison)
    if comparison.better or comparison.worse:
        return f"**{arm} is {BETTER[comparison.worse]} than {reference}**: {line}."
    if comparison.seeds < min_seeds:
        return f"{why_not_shown([comparison], min_seeds)[:-1]} ({line})."
    return f"No difference between {arm} and {reference} is shown: {line}{_could(comparison)}."


def undecided_in_words(comparisons: Sequence[Comparison], min_seeds: int) -> list[str]:
    """The differences that the seeds do not show, how many would, and the smallest ones that these could have."""
    undecided = [row for row in comparisons if not row.better and not row.worse and not row.unlearned]
    if any(row.seeds < min_seeds for row in comparisons):
        return [f"Of fewer than {min_seeds} seeds nothing is called better, whatever the differences."]
    clauses = [f"{row.arm} against {row.reference}{_could(row)}" for row in undecided]
    often = f", each with a chance of {percent(POWER)}" if any(map(_could, undecided)) else ""
    return [f"No difference is shown: {'; '.join(clauses)}{often}."] if clauses else []


def _could(row: Comparison) -> str:
    needed = [f"{row.seeds_needed:,} seeds would show one like this"] if row.seeds_needed else []
    least = [f"these would show {row.smallest_shown:.3g} or more"] if row.smallest_shown else []
    return f" ({', '.join([*needed, *least])})" if needed or least else ""


def answer_figure(
    comparisons: Mapping[str, Sequence[Comparison]],
    caption: str,
    x_label: str,
    base: Callable[[str, Comparison], float] | None = None,
) -> Figure:
    """The differences as a forest, by kind; with `base` in per cent of it, by which the interval is divided too."""

    def row(kind: str, comparison: Comparison) -> Estimated:
        unit = base(kind, comparison) / 100 if base else 1.0
        interval = [end / unit for end in comparison.interval] if comparison.interval else None
        return Estimated(kind, f"{comparison.arm} - {comparison.reference}", comparison.mean / unit, interval)

    rows = [row(kind, comparison) for kind, group in comparisons.items() for comparison in group]
    return forest("answer", caption, rows, x_label, "{:+.2f}%".format if base else SIGNED)


def arms_figure(file: str, title: str, arms: Arms, means: Mapping[str, ArmMean], lost: Mapping[str, str]) -> Figure:
    """Every value of each arm, and their mean over seeds with its interval; `lost`: arm -> what it has no value of."""
    rows = []
    for name, values in arms.items():
        mean = means.get(name)
        known = mean is not None and mean.standard_deviation is not None
        interval = mean.interval if mean and mean.standard_deviation else None  # one without width is no interval
        label = f"{name} ({lost[name]})" if name in lost else name
        rows.append(Dots(label, [*values.values()], mean.mean if mean and known else None, interval))
    intervals = ", with its interval" if any(row.interval is not None for row in rows) else ""
    filled = f"; filled: the mean over seeds{intervals}" if any(row.mean is not None for row in rows) else ""
    listing = "; ".join(f"{row.label}: {', '.join(map(DIGITS, row.values)) or 'none'}" for row in rows)
    return dots(file, f"{title}. Open dot: one value{filled}.", listing, rows, title)
