"""The differences of two configurations, for a person who expected one of them to be continued."""

from collections.abc import Iterator
from typing import Any

ABSENT = "absent"


def differences(before: object, after: object) -> list[str]:
    """One line for each field in which two JSON values differ: `budget.epochs: 1.0 there, 2.0 here`."""
    old, new = dict(leaves(before)), dict(leaves(after))
    names = [*new, *(name for name in old if name not in new)]
    return [
        f"{name}: {old.get(name, ABSENT)!r} there, {new.get(name, ABSENT)!r} here"
        for name in names
        if old.get(name, ABSENT) != new.get(name, ABSENT)
    ]


def leaves(value: object, name: str = "") -> Iterator[tuple[str, Any]]:
    """(dotted name, value) for every value in nested dictionaries that is no dictionary itself."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from leaves(inner, f"{name}.{key}" if name else str(key))
    else:
        yield name, value
