"""What could have been seen."""

import numpy as np
import pytest
from scipy.stats import nct, t

from tasks.findings.statistics.power import POWER, smallest_shown
from tasks.findings.statistics.resampling import estimate
from tasks.findings.statistics.seeds import over_seeds


@pytest.mark.parametrize("level", [0.95, 1 - 0.05 / 24])
@pytest.mark.parametrize("freedom", [1.4, 2, 9, 30, 500])
def test_it_is_what_the_noncentral_t_finds_in_four_of_five(freedom, level):
    found = smallest_shown([(0.5, freedom)], level)
    limit = t.ppf((1 + level) / 2, freedom)
    assert nct.sf(limit, freedom, found / 0.5) == pytest.approx(POWER, abs=1e-3)


def test_a_difference_of_that_size_is_shown_in_four_of_five_studies():
    chance, sources = np.random.default_rng(0), 12
    effect = smallest_shown([(1 / sources**0.5, sources - 1)], 0.95)
    values = effect + chance.normal(0, 1, (4000, sources))
    shown = values.mean(1) / values.std(1, ddof=1) * sources**0.5 > t.ppf(0.975, sources - 1)
    assert shown.mean() == pytest.approx(POWER, abs=0.02)


def test_it_stands_beside_every_estimate_and_follows_its_standard_error():
    values, ones = np.random.default_rng(0).normal(0.3, 1.0, 12), np.ones(12)

    def mean(total, count):
        return total / count

    of_sources = estimate(mean, [values, ones], 200, 0.95)
    assert of_sources.smallest_shown == pytest.approx(smallest_shown([(values.std(ddof=1) / 12**0.5, 11)], 0.95))
    assert estimate(mean, [values[:1], ones[:1]], 200, 0.95).smallest_shown is None
    few = [estimate(mean, [values[:sources], ones[:sources]], 200, 0.95) for sources in (5, 6)]
    assert [one.smallest_shown is None for one in few] == [True, False], "exchanges of five sources show nothing"
    over = over_seeds(mean, [[values, ones], [values + 0.5, ones]], 0.95)
    parts = [(over.standard_error_of_seeds, 1), (over.standard_error_of_sources, 11)]
    assert over.smallest_shown == pytest.approx(smallest_shown(parts, 0.95))
