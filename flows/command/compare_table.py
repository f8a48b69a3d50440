"""`ratchet compare FILE.csv`: arms over seeds of anybody's table, with the statistics of our reports."""

import csv
import io
from dataclasses import dataclass
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Any

from storage.errors import BadInput, CheckFailed
from storage.reading import read_text
from tasks.findings.arms import arm_table, comparison_table, in_words
from tasks.findings.compare import compare
from tasks.findings.configuration import Metric
from tasks.findings.numbers import p_value
from tasks.findings.statistics.comparison import Arms, Comparison, arm_mean, t_tests


@dataclass(frozen=True)
class Asked:
    """Question to a table; the columns `by` and `pair` name arm and seed of a row."""

    by: str = "arm"
    pair: str = "seed"
    value: str = ""
    """The column of the number; empty: the only other one."""
    reference: str = ""
    """Each other arm is compared with it; empty: every two."""
    confidence_level: float = 0.95
    min_seeds: int = 3
    higher_is_better: bool = False
    allow_equal: bool = False
    test: str = ""
    """Test that decides: paired, unpaired, or (empty) pairs where Welch's t agrees."""


@dataclass(frozen=True)
class Found:
    """Results; `undecided` are those on which the two tests disagree and nobody said which is meant."""

    asked: Asked
    value: str
    values: Arms
    comparisons: list[Comparison]
    undecided: list[Comparison]
    other: list[Comparison]
    """The same comparisons by Welch's t, where nobody said which test is meant."""


def compared_table(file: Path, asked: Asked) -> Found:
    """Compares the arms of a table. BadInput says what is wrong, and where."""
    value, values = _values(file, asked)
    if asked.reference and asked.reference not in values:
        raise BadInput(
            f"{file}: there is no {asked.by} {asked.reference!r} (--reference): there are {', '.join(values)}"
        )
    if len(values) < 2:
        raise BadInput(f"{file}: {len(values)} {asked.by}: two or more are compared")
    pairs = [(arm, asked.reference) for arm in values if arm != asked.reference]
    if not asked.reference:  # each with each one before it
        pairs = [(later, earlier) for earlier, later in combinations(values, 2)]
    metric = Metric(higher=asked.higher_is_better, pairs=[[*pair] for pair in pairs])
    judge = partial(
        compare, {value: values}, {value: metric}, asked.confidence_level, asked.min_seeds, may_equal=asked.allow_equal
    )
    try:
        decides = judge(unpaired=asked.test == "unpaired").differences[value]
    except CheckFailed as error:
        ways = {
            "have the same value": ". Where values may be equal (counts, say): --allow-equal",
            "needs the same seeds": f". Where arms share no {asked.pair}: leave one of them out, or --test unpaired",
        }
        hint = "".join(way for words, way in ways.items() if words in str(error.measured))
        raise BadInput(f"{file}: {error.measured}{hint}") from None
    other = [] if asked.test else judge(unpaired=True).differences[value]
    undecided = [
        comparison
        for comparison, by_other in zip(decides, other, strict=False)
        if (comparison.better, comparison.worse) != (by_other.better, by_other.worse)
    ]
    return Found(asked, value, values, decides, undecided, other)


def as_markdown(results: Found) -> str:
    """For a person."""
    asked, level = results.asked, results.asked.confidence_level
    arms = {name: arm_mean(of_arm, level) for name, of_arm in results.values.items()}
    return "\n\n".join(
        [
            arm_table(arms, level, results.value).markdown(),
            comparison_table(
                results.comparisons,
                level,
                asked.min_seeds,
                higher_is_better=asked.higher_is_better,
                undecided=results.undecided,
                unpaired=asked.test == "unpaired",
            ).markdown(),
            "\n".join(f"- {_in_words(results, place)}" for place in range(len(results.comparisons))),
            "Higher is better."
            if asked.higher_is_better
            else "Lower is taken as better; for the contrary: --higher-is-better",
        ]
    )


def as_json(results: Found) -> dict[str, Any]:
    """For a program: everything, unrounded."""
    asked, undecided = results.asked, {"undecided": True, "better": False, "worse": False}
    tests_of = partial(t_tests, results.values, confidence_level=asked.confidence_level)
    return {
        "value": results.value,
        "confidence_level": asked.confidence_level,
        "min_seeds": asked.min_seeds,
        "higher_is_better": asked.higher_is_better,
        "arms": {name: arm_mean(arm, asked.confidence_level).as_json() for name, arm in results.values.items()},
        "comparisons": [
            comparison.as_json()
            | {"decided_by": asked.test or "paired"}
            | (undecided if comparison in results.undecided else {"undecided": False})
            | {name: test.as_json() for name, test in tests_of(comparison.arm, comparison.reference).items()}
            for comparison in results.comparisons
        ],
    }


def _in_words(results: Found, place: int) -> str:
    row = results.comparisons[place]
    if row not in results.undecided:
        return in_words(row, results.asked.min_seeds)
    other = results.other[place]
    shows, not_ = ("the pairs show a difference", "Welch's t does not")
    if not (row.better or row.worse):
        shows, not_ = ("the pairs show no difference", "Welch's t does")
    return (
        f"**{row.arm} and {row.reference}: {shows} (p {p_value(row.p_adjusted)} after Holm), and {not_} "
        f"(p {p_value(other.p_adjusted)}).** Which is meant? Where the same {results.asked.pair} gave both the same "
        "start (initial weights, order of the examples): --test paired. Where it did not: --test unpaired."
    )


def _values(file: Path, asked: Asked) -> tuple[str, dict[str, dict[str, float]]]:
    """Column that is compared, and its value of each seed of each arm."""
    header, rows = _rows(file)
    by, pair, value = asked.by, asked.pair, asked.value
    others = [name for name in header if name not in (by, pair)]
    if len(header) == 1 and ";" in header[0]:
        raise BadInput(f"{file}: its columns are separated by semicolons: save it with commas")
    for option, name in (("--by", by), ("--pair", pair), *([("--value", value)] if value else [])):
        if name not in header:
            raise BadInput(f"{file}: there is no column {name!r} ({option}): it has {', '.join(header)}")
    if not value and len(others) != 1:
        raise BadInput(f"{file}: say with --value which column is compared: {', '.join(others) or 'there is no other'}")
    value = value or others[0]
    values: dict[str, dict[str, float]] = {}
    without = {row[by] for _, row in rows} - {row[by] for _, row in rows if row[value]}  # arms with other numbers
    for line, row in rows:
        arm, seed = row[by], row[pair]
        if arm in without:
            continue
        if seed in values.setdefault(arm, {}):
            raise BadInput(f"{file}, line {line}: {by} {arm}, {pair} {seed} is there twice: give each once")
        try:
            values[arm][seed] = float(row[value])
        except ValueError:
            raise BadInput(f"{file}, line {line}: {value} is {row[value]!r}, and not a number") from None
    return value, values


def _rows(file: Path) -> tuple[list[str], list[tuple[int, dict[str, str]]]]:
    """The header, and each row with its line."""
    try:
        reader = csv.DictReader(io.StringIO(read_text(file), newline=""), strict=True)
        header = [name or "" for name in reader.fieldnames or []]
        rows = []
        for row in reader:
            if None in row or None in row.values():
                raise BadInput(f"{file}, line {reader.line_num}: {len(header)} columns are wanted, as in its head")
            rows.append((reader.line_num, {name: text.strip() for name, text in row.items()}))
    except (OSError, ValueError, csv.Error) as error:
        raise BadInput(f"{file} cannot be read as CSV: {error}") from None
    if not rows:
        raise BadInput(f"{file} has no rows: it wants a head and a line for each arm and seed")
    if twice := sorted({name for name in header if header.count(name) > 1}):
        raise BadInput(f"{file} has the column {twice[0]!r} twice")
    return header, rows
