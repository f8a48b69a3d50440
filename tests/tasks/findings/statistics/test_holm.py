"""Holm's correction against values computed by hand."""

import math

import pytest

from tasks.findings.statistics.comparison import holm


def test_the_smallest_is_multiplied_by_all_and_none_falls_below_the_one_before():
    found = holm({"a": 0.01, "b": 0.04, "c": 0.03, "d": 0.005})
    # sorted 0.005 * 4, 0.01 * 3, 0.03 * 2, 0.04 * 1 -> 0.04 is raised to 0.06
    assert found == pytest.approx({"a": 0.03, "b": 0.06, "c": 0.06, "d": 0.02})
    assert list(found) == ["a", "b", "c", "d"]


def test_one_is_left_as_it_is_and_none_exceeds_1():
    assert holm({"a": 0.03}) == {"a": 0.03}
    assert holm({"a": 0.6, "b": 0.7}) == {"a": 1.0, "b": 1.0}
    assert holm({}) == {}


@pytest.mark.parametrize("p", [-0.1, 1.1, math.nan])
def test_what_is_no_p_value_is_refused_by_name(p):
    with pytest.raises(ValueError, match="the p-value of b is"):
        holm({"a": 0.5, "b": p})
