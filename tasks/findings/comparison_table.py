"""Arms over seeds as tables and words, for any study and for `ratchet compare FILE.csv`."""

from collections.abc import Collection, Mapping, Sequence

from tasks.findings.numbers import p_value, percent, span
from tasks.findings.statistics.comparison import ArmMean, Comparison, TTest
from tasks.findings.table import Table

DIGITS = "{:.6g}".format
SIGNED = "{:+.3g}".format


def arm_table(
    arms: Mapping[str, ArmMean],
    confidence_level: float,
    of: str,
    kinds: Mapping[str, str] | None = None,
    trivial: Mapping[str, float] | None = None,
    draws: str = "",
) -> Table:
    """Mean over seeds of `of`; `kinds`: what each arm is. Last, as multiples, what is `trivial`: needs no learning.

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
        f"{of}: mean over seeds, Student's t interval ({level}{draws}), standard deviation (ddof 1){multiple}.",
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
    words: tuple[str, str] = ("better", "worse"),
) -> Table:
    """Every comparison with what speaks for it.

    `together`: so many were corrected, when there are other tables. Of the `undecided` nothing is called better;
    `unpaired`: they were judged by Welch's t. `words`: what a lower and a higher value of an arm are.
    """
    by = "p and interval are of Welch's t" if unpaired else "p is of Student's t of the pairs"
    return Table(
        f"The arm minus its reference{'' if unpaired else ', seed by seed'}; "
        f"{'above' if higher_is_better else 'below'} 0 the arm is {words[0]}. "
        f"{by}, adjusted by Holm over the {together or len(comparisons)} comparisons that are "
        "made here; beside it Welch's t, which does not pair, and the exchange of both arms within seeds with the "
        "lowest p that so many seeds can give. That one is shown where the adjusted p is at most "
        f"{1 - confidence_level:g} and there are {min_seeds} seeds or more. Seeds needed: with so many, a difference "
        "like this would be found among these with a chance of 80%. Could show: the smallest true difference that "
        "these seeds show with that chance.",
        [
            "arm", "reference", "shown", "seeds", "difference", "interval", "percent", "p", "p adjusted", "p Welch",
            "p exchange (lowest)", "seeds needed", "could show",
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
                p_value(row.p_welch),
                "-" if row.p_exchange is None else f"{p_value(row.p_exchange)} ({p_value(row.least_p_exchange)})",
                "-" if row.seeds_needed is None else f"{row.seeds_needed:,}",
                "-" if row.smallest_shown is None else f"{row.smallest_shown:.3g}",
            ]
            for row in comparisons
        ],
    )  # fmt: skip


def test_table(tests: Mapping[tuple[str, str], Mapping[str, TTest]], confidence_level: float) -> Table:
    """Both t tests of every (arm, reference), with their numbers in full."""
    rows = []
    for pair, of_pair in tests.items():
        for name, test in of_pair.items():
            numbers = [f"{test.t:+.4g}", f"{test.degrees_of_freedom:.4g}", f"{test.p:.3g}"]
            rows.append([*pair, name, *numbers, span(test.interval, SIGNED)])
    return Table(
        f"Both t tests, with their intervals ({percent(confidence_level)}), not adjusted: of the pairs (Student), and "
        "without pairs (Welch).",
        ["arm", "reference", "test", "t", "degrees of freedom", "p", "interval"],
        rows,
    )


def verdict_of(comparison: Comparison, words: tuple[str, str] = ("better", "worse")) -> str:
    """The verdict of the seeds, in a word."""
    if comparison.better or comparison.worse:
        return f"**{words[comparison.worse]}**"
    return f"not learned: {' and '.join(comparison.unlearned)}" if comparison.unlearned else "no difference shown"


def percent_of(comparison: Comparison) -> str:
    """The difference in per cent of the size of the reference's mean."""
    return "-" if comparison.percent is None else f"{comparison.percent:+.2f}%"


def _why_none(comparison: Comparison) -> str:
    return "one seed" if comparison.seeds == 1 else "a value that never changes"
