"""P-values of the difference between two models: the two exchanged within sources.

Where a model is attacked no harder than the other, who of the two has which losses is chance, source by source. Of all
such exchanges (sign flips of the paired differences; Fisher 1935) the share that gives as large a difference is the
p-value: exact with any number of sources, and without a distribution to assume. It is two-sided. With n sources it is
never below 2 / 2^n, so that five or fewer show nothing at 5 %.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from tasks.findings.statistics.resampling import DRAWN_AT_ONCE, RESAMPLING_SEED, Statistic

EXACT_SOURCES = 14
"""The most sources of which every exchange is counted."""

EXCHANGES = 9_999
"""The number that is drawn of more sources, beside the one that was observed."""

ROUNDING = 1e-9
"""Differences that are smaller by this share are as large: sums in another order have other last digits."""


def least_p_value(sources: int) -> float:
    """The lowest p-value that exchanges of so many sources can give: everything and its opposite, of all exchanges."""
    return 2.0 / 2.0**sources if sources <= EXACT_SOURCES else 1 / (1 + EXCHANGES)


def exchange_p_value(statistic: Statistic, ours: Sequence[np.ndarray], theirs: Sequence[np.ndarray]) -> float:
    """Two-sided p-value of `statistic(*totals of ours) - statistic(*totals of theirs)`.

    Both are the columns of one model each, float64 [sources], for the same sources in the same order.
    """
    both = [ours_S + theirs_S for ours_S, theirs_S in zip(ours, theirs, strict=True)]
    difference = [ours_S - theirs_S for ours_S, theirs_S in zip(ours, theirs, strict=True)]
    sources = len(both[0])

    def differences(signs_RS: np.ndarray) -> np.ndarray:
        total = [column.sum() for column in both]
        moved = [np.einsum("rs,s->r", signs_RS, column) for column in difference]
        sides = [[(whole + side * half) / 2 for whole, half in zip(total, moved, strict=True)] for side in (1, -1)]
        return np.abs(statistic(*sides[0]) - statistic(*sides[1]))

    least = differences(np.ones((1, sources)))[0] * (1 - ROUNDING)
    exact = sources <= EXACT_SOURCES
    parts = [differences(signs) >= least for signs in (_every_exchange(sources) if exact else _exchanges(sources))]
    as_large = np.concatenate(parts)
    return float(as_large.mean() if exact else (1 + as_large.sum()) / (1 + EXCHANGES))


def _every_exchange(sources: int) -> Iterator[np.ndarray]:
    """1 or -1 for each source, float64 [2^(sources - 1), sources]: the opposite of each has the same difference."""
    bits = np.arange(2 ** (sources - 1))[:, None] >> np.arange(sources) & 1
    yield 1.0 - 2.0 * bits


def _exchanges(sources: int) -> Iterator[np.ndarray]:
    """The same at random, float64 [exchanges of a part, sources]."""
    chance = np.random.default_rng(RESAMPLING_SEED)
    part = max(1, DRAWN_AT_ONCE // sources)
    for start in range(0, EXCHANGES, part):
        shape = (min(part, EXCHANGES - start), sources)
        yield 1.0 - 2.0 * chance.integers(0, 2, shape, dtype=np.int64)
