"""Many comparisons at once: Holm's correction (1979), which keeps the chance of any false finding at the level."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

Name = TypeVar("Name")


def holm(p_values: Mapping[Name, float]) -> dict[Name, float]:
    """The adjusted p-value of each comparison, in the given order: what is below the level, is found at that level.

    Raises ValueError, with the comparison's name, for a p-value outside of [0, 1].
    """
    if wrong := [name for name, p in p_values.items() if not 0 <= p <= 1]:
        raise ValueError(f"the p-value of {wrong[0]} is {p_values[wrong[0]]}, not between 0 and 1")
    adjusted: dict[Name, float] = {}
    reached = 0.0
    for rank, name in enumerate(sorted(p_values, key=lambda name: p_values[name])):
        reached = max(reached, min(1.0, (len(p_values) - rank) * p_values[name]))
        adjusted[name] = reached
    return {name: adjusted[name] for name in p_values}
