"""`ratchet compare FILE.csv`: arms over seeds of anybody's table, with the statistics of our reports."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path

from storage.errors import BadInput
from tasks.report.comparison_table import arm_table, comparison_table, in_words
from tasks.statistics.comparison import arm_mean, compare_together


def compared_table(
    file: Path,
    by: str,
    pair: str,
    value: str,
    reference: str,
    confidence_level: float,
    min_seeds: int,
    higher_is_better: bool,
    allow_equal: bool,
) -> str:
    """Markdown. The columns `by` and `pair` name arm and seed of a row, `value` (empty: the only other one) its number.

    With `reference` each other arm is compared with it, else every two. BadInput says what is wrong, and where.
    """
    header, rows = _rows(file)
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
    for line, row in rows:
        arm, seed = row[by], row[pair]
        if seed in values.setdefault(arm, {}):
            raise BadInput(f"{file}, line {line}: {by} {arm}, {pair} {seed} is there twice: give each once")
        try:
            values[arm][seed] = float(row[value])
        except ValueError:
            raise BadInput(f"{file}, line {line}: {value} is {row[value]!r}, and not a number") from None
    if reference and reference not in values:
        raise BadInput(f"{file}: there is no {by} {reference!r} (--reference): there are {', '.join(values)}")
    if len(values) < 2:
        raise BadInput(f"{file}: {len(values)} {by}: two or more are compared")
    pairs = [(arm, reference) for arm in values if arm != reference] if reference else _each_two(list(values))
    try:
        found = compare_together(
            {value: values},
            pairs,
            confidence_level,
            min_seeds,
            higher_is_better=higher_is_better,
            allow_equal=allow_equal,
        )[value]
    except ValueError as error:
        hint = ". Where values may be equal (counts, say): --allow-equal" if "have the same value" in str(error) else ""
        raise BadInput(f"{file}: {error}{hint}") from None
    arms = {name: arm_mean(of_arm, confidence_level) for name, of_arm in values.items()}
    blocks = [
        arm_table(arms, confidence_level, value).markdown(),
        comparison_table(found, confidence_level, min_seeds, higher_is_better=higher_is_better).markdown(),
        "\n".join(f"- {in_words(one, min_seeds)}" for one in found),
        "Higher is better." if higher_is_better else "Lower is taken as better; for the contrary: --higher-is-better",
    ]
    return "\n\n".join(blocks)


def _rows(file: Path) -> tuple[list[str], list[tuple[int, dict[str, str]]]]:
    """The header, and each row with its line."""
    try:
        with file.open(newline="", encoding="utf-8-sig") as opened:
            reader = csv.DictReader(opened, strict=True)
            header = [name or "" for name in reader.fieldnames or []]
            rows = []
            for row in reader:
                if None in row or None in row.values():
                    raise BadInput(f"{file}, line {reader.line_num}: {len(header)} columns are wanted, as in its head")
                rows.append((reader.line_num, {name: text.strip() for name, text in row.items()}))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise BadInput(f"{file} cannot be read as CSV: {error}") from None
    if not rows:
        raise BadInput(f"{file} has no rows: it wants a head and a line for each arm and seed")
    if twice := sorted({name for name in header if header.count(name) > 1}):
        raise BadInput(f"{file} has the column {twice[0]!r} twice")
    return header, rows


def _each_two(arms: Sequence[str]) -> list[tuple[str, str]]:
    """Each arm with each one before it, which is the reference."""
    return [(later, earlier) for earlier, later in combinations(arms, 2)]
