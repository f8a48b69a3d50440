"""The differences of two configurations, for a person who expected one of them to be continued."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

ABSENT = "absent"


def differences(theirs: Any, ours: Any) -> list[str]:
    """One line for each field in which two JSON values differ: `budget.epochs: 1.0 there, 2.0 here`."""
    there, here = dict(leaves(theirs)), dict(leaves(ours))
    names = [*here, *(name for name in there if name not in here)]
    return [
        f"{name}: {there.get(name, ABSENT)!r} there, {here.get(name, ABSENT)!r} here"
        for name in names
        if there.get(name, ABSENT) != here.get(name, ABSENT)
    ]


def leaves(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """(dotted name, value) of everything in nested dictionaries that is not one itself."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from leaves(inner, f"{name}.{key}" if name else str(key))
    else:
        yield name, value
