"""Which numbers of a sweep stand side by side: those of one metric, such as a method and its trivial baseline."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from tasks.findings.sweep.results import SweepResults


@dataclass(frozen=True)
class Metric:
    """Numbers that are compared with each other."""

    title: str
    form: str
    """How their dotted names are made: NAME stands for the label."""
    numbers: dict[str, str]
    """Dotted name of each number, by its label."""


def metrics_of(results: SweepResults, patterns: Sequence[str]) -> list[Metric]:
    """The numbers that one pattern names, as one metric; those that `*` alone names, by the group that they are in."""
    found: dict[str, dict[str, str]] = {}
    for name in results.numbers:
        form, label = _form_and_label(name, patterns)
        found.setdefault(form, {})[label] = name
    titles = [_title(form) for form in found]
    return [
        Metric(title if titles.count(title) == 1 else form, form, numbers)
        for title, (form, numbers) in zip(titles, found.items(), strict=True)
    ]


def _form_and_label(name: str, patterns: Sequence[str]) -> tuple[str, str]:
    pattern = next(pattern for pattern in patterns if fnmatchcase(name, pattern))
    stands = re.fullmatch("(.*)".join(map(re.escape, pattern.split("*"))), name)
    if pattern != "*" and stands and stands.groups():
        return pattern.replace("*", "NAME"), ", ".join(stands.groups())
    *group, label = re.split(r"(?<!\d)\.|\.(?!\d)", name)  # the point of "dropout 0.2" parts no names
    return (".".join([*group, "NAME"]), label) if group else (name, name)


def _title(form: str) -> str:
    """What the numbers have in common: the end of their names, else the beginning."""
    parts = [part.strip(".") for part in form.split("NAME")]
    return parts[-1] or parts[0]
