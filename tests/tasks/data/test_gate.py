"""Inputs that no network learns from are refused by name, and what is fit passes."""

import numpy as np
import pytest

from storage.errors import CheckFailed
from tasks.data.gate import require_inputs
from tasks.data.normaliser import Normaliser, Step
from tasks.data.statistics import column_statistics

NAMES = ["time", "charge"]
LOGARITHMS = [
    Step(name="time", offset=1e4, scale=3e4),
    Step(name="charge", offset=0.0, scale=3.0, logarithm_of_plus=1e-8),
]


def faults_of(rows: np.ndarray, normaliser: Normaliser, max_absolute_z: float = 20.0) -> str:
    """What the gate says it measured; empty where it lets the rows pass."""
    try:
        require_inputs(column_statistics([rows], NAMES), normaliser, max_absolute_z)
    except CheckFailed as error:
        assert error.check == "inputs are fit to train on"
        return str(error.measured)
    return ""


def rows() -> np.ndarray:
    """Of the recorded ranges: time 5,714 to 77,785, charge 0.025 to 2,762."""
    found = np.random.default_rng(0).uniform([5714, 0.025], [77785, 2762], (1000, 2)).astype(np.float32)
    found[:2] = [[5714, 0.025], [77785, 2762]]
    return found


def test_what_a_network_can_learn_from_passes():
    assert not faults_of(rows(), Normaliser(steps=LOGARITHMS))
    assert not faults_of(rows(), Normaliser.measured(column_statistics([rows()], NAMES)))


def test_raw_inputs_are_refused_with_their_ranges():
    said = "time: 5714 to 77785, 5714 to 7.778e+04 after normalising; charge: 0.025 to 2762, 0.025 to 2762 after"
    assert faults_of(rows(), Normaliser.none(NAMES)).startswith(said)


@pytest.mark.parametrize(
    ("column", "value", "said"),
    [
        (0, np.nan, "time: 1 of 1,000 values are not finite"),
        (1, np.inf, "charge: 1 of 1,000 values are not finite"),
        (1, -0.5, "charge: -0.5 to 2762 has no finite value after normalising"),
        (0, 3e6, "time: 5714 to 3e+06, -0.1429 to 99.67 after normalising"),
    ],
)
def test_one_planted_value_is_caught_by_its_column(column, value, said):
    planted = rows()
    planted[7, column] = value
    assert faults_of(planted, Normaliser(steps=LOGARITHMS)) == said


def test_a_value_far_below_is_as_far_as_one_above():
    planted = rows()
    planted[7, 0] = -3e6
    assert faults_of(planted, Normaliser(steps=LOGARITHMS)).startswith("time: -3e+06 to 77785, -100.3 to 2.26 ")


def test_a_constant_column_is_refused():
    planted = rows()
    planted[:, 0] = 9000.0
    assert faults_of(planted, Normaliser(steps=LOGARITHMS)) == "time: always 9000"


def test_a_spread_that_fp32_rounds_away_is_told_from_a_constant_column():
    """Seen: a column of 1e9 +- 1 was called constant."""
    planted = rows().astype(np.float64)
    planted[:, 0] = 1e9 + np.arange(len(planted)) % 3 - 1
    assert faults_of(planted, Normaliser.none(NAMES), 1e10).startswith("time: 999999999 to 1000000001, where fp32")


def test_the_limit_is_what_the_network_gets():
    assert faults_of(rows(), Normaliser(steps=LOGARITHMS), 2.0).startswith("time: 5714 to 77785, -0.1429 to 2.26 ")
