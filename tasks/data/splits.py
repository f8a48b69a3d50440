"""Splits share nothing."""

from collections.abc import Collection, Mapping
from itertools import combinations

from storage.errors import CheckFailed


def require_disjoint(splits: Mapping[str, Collection[int]], what: str) -> None:
    """CheckFailed names two splits that share something; `what` is the plural of what they hold (events, files)."""
    for (one, ours), (other, theirs) in combinations(splits.items(), 2):
        if shared := sorted(set(ours) & set(theirs)):
            raise CheckFailed(
                f"no two splits share {what}",
                f"{one} and {other} share {len(shared):,}, the first {shared[0]}",
                "none",
                "What a model was trained on says nothing about what it has learned",
            )
