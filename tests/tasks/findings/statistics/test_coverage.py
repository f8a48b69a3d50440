"""How often "95 %" intervals hold the truth, with the sources of a finished study (quick, seed 42) as the population.

`sources_of_quick.json` has the totals of each source as `interval` is given them: tokens, attacked and clean losses.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tasks.attacks.effects import increase, minus
from tasks.attacks.matched import _above_curve
from tasks.findings.statistics.resampling import Statistic, bootstrap_t, interval

POPULATIONS = json.loads((Path(__file__).parent / "sources_of_quick.json").read_text())
STUDIES, RESAMPLES, TAILS = 300, 500, np.array([0.025, 0.975])
DIFFERENCE = ("uat, monotonic - baseline", minus(increase, 3))
MATCHED = ("hotflip, monotonic at equal clean loss", _above_curve)
Method = Callable[[Statistic, list[np.ndarray]], Any]


def covered(name: str, statistic: Statistic, method: Method) -> float:
    """Share of studies of as many sources, drawn with replacement, whose interval holds the population's value."""
    columns = [np.array(column, float) for column in POPULATIONS[name]]
    truth, sources, chance = statistic(*(column.sum() for column in columns)), len(columns[0]), np.random.default_rng(1)
    hits = 0
    for _ in range(STUDIES):
        drawn = chance.integers(0, sources, sources)
        low, high = method(statistic, [column[drawn] for column in columns])
        hits += low <= truth <= high
    return hits / STUDIES


def by_bootstrap_t(statistic: Statistic, columns: list[np.ndarray]) -> Any:
    totals = [column.sum() for column in columns]
    left_out = statistic(*(total - column for total, column in zip(totals, columns, strict=True)))
    return bootstrap_t(statistic, columns, float(statistic(*totals)), left_out, RESAMPLES, TAILS)


def by_percentile(statistic: Statistic, columns: list[np.ndarray]) -> Any:
    counts = np.random.default_rng(0).multinomial(len(columns[0]), [1 / len(columns[0])] * len(columns[0]), RESAMPLES)
    return np.quantile(statistic(*(counts @ column for column in columns)), TAILS)


@pytest.mark.parametrize(("population", "smooth"), [(DIFFERENCE, True), (MATCHED, False)])
def test_nominal_95_percent_cover_where_some_sources_hold_far_more_tokens_than_others(population, smooth):
    assert covered(*population, lambda of, columns: interval(of, columns, RESAMPLES, 0.95, smooth=smooth)) >= 0.93


@pytest.mark.parametrize(
    ("population", "method"), [(DIFFERENCE, by_bootstrap_t), (MATCHED, by_percentile), (MATCHED, by_bootstrap_t)]
)
def test_what_stood_there_before_covers_too_little(population, method):
    assert covered(*population, method) < 0.92
