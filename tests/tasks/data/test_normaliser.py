"""The normaliser: the published scaling, raw values as they are, fitted values, and the same after it was read."""

import math

import numpy as np
import pytest
import torch

from storage import durable
from storage.errors import BadInput
from tasks.data.normaliser import FILE, Normaliser, Step
from tasks.data.statistics import column_statistics

NAMES = ["time", "charge"]
FIXED = Normaliser(
    steps=[Step(name="time", offset=1e4, scale=3e4), Step(name="charge", offset=0.0, scale=3.0, logarithm_of_plus=1e-8)]
)


def rows(count: int = 1000) -> np.ndarray:
    chance = np.random.default_rng(0)
    return np.stack([chance.normal(13130, 1e4, count), chance.lognormal(0, 2, count)], axis=1).astype(np.float32)


def test_every_column_takes_its_own_step_also_in_padded_batches():
    values = torch.tensor([[[10_000.0, 1.0], [77_785.0, 2_762.0]], [[5_714.0, 0.025], [0.0, 0.0]]])
    expected = [[(t - 1e4) / 3e4, math.log10(q + 1e-8) / 3] for t, q in values.reshape(-1, 2).tolist()]
    assert torch.allclose(FIXED(values).reshape(-1, 2), torch.tensor(expected), atol=1e-6)
    assert torch.equal(FIXED(values[:1]), FIXED(values)[:1]), "alone and in a batch: the same bits"


def test_raw_values_stay_bit_for_bit():
    values = torch.from_numpy(rows())
    raw = Normaliser.none(NAMES)
    assert torch.equal(raw(values), values)


def test_a_measured_one_gives_mean_0_and_deviation_1():
    values = rows()
    measured = Normaliser.measured(column_statistics([values], NAMES))
    z = measured(torch.from_numpy(values)).double()
    assert z.mean(0).tolist() == pytest.approx([0, 0], abs=1e-6)
    assert z.std(0).tolist() == pytest.approx([1, 1], abs=1e-5)


@pytest.mark.parametrize("value", [3.0, math.nan])
def test_what_has_no_spread_cannot_be_measured(value):
    values = rows()
    values[:, 1] = value
    with pytest.raises(BadInput, match="the column charge has no spread"):
        Normaliser.measured(column_statistics([values], NAMES))


def test_what_was_saved_is_read_with_its_digest_and_an_edited_one_has_another(tmp_path):
    FIXED.save(tmp_path)
    assert Normaliser.load(tmp_path) == FIXED and Normaliser.load(tmp_path).digest == FIXED.digest
    written = durable.read_json(tmp_path / FILE)
    written["steps"][0]["scale"] = 3.0001e4
    durable.write_json(tmp_path / FILE, written)
    assert Normaliser.load(tmp_path).digest != FIXED.digest
    written["steps"][0]["scale"] = 0.0
    durable.write_json(tmp_path / FILE, written)
    with pytest.raises(BadInput, match=FILE):
        Normaliser.load(tmp_path)


def test_another_number_of_columns_is_refused():
    with pytest.raises(ValueError, match="the columns time, charge are normalised, and these are 3"):
        FIXED(torch.zeros(2, 3))
