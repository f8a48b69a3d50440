"""The same event gives the same prediction alone, padded and in chunks; where it does not, that is caught."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from storage.errors import CheckFailed
from tasks.icecube.batches import Batch, DirectionNetwork, EventBatches, predicted, raw_features
from tasks.icecube.events import EventFiles, Pulses, read_geometry
from tasks.icecube.look import FIXED
from tasks.training.invariance import require_invariant
from tests.tasks.icecube.files import written

EVENTS = np.array([0, 7, 21, 49, 3])


def batches() -> EventBatches:
    files = EventFiles(written(), [1, 2, 3], 3)
    return EventBatches(files, read_geometry(written()), FIXED, 48, torch.device("cpu"))


def network(batch_norm: bool = False) -> DirectionNetwork:
    torch.manual_seed(0)
    return DirectionNetwork(16, 2, 2, 0.1, batch_norm).eval()


def ways(model: DirectionNetwork, make: EventBatches) -> dict:
    return {
        "together": lambda indices: predicted(model, make(indices), 100),
        "alone": lambda indices: torch.cat([predicted(model, make(np.array([index])), 1) for index in indices]),
        "padded": lambda indices: predicted(model, make(indices).padded(9), 100),
        "in chunks": lambda indices: predicted(model, make(indices), 2),
    }


@pytest.mark.parametrize("batch_norm", [False, True])
def test_an_event_gives_the_same_alone_padded_and_in_chunks(batch_norm: bool):
    found = ways(network(batch_norm), batches())
    assert require_invariant(found, EVENTS, 1e-5) < 1e-5
    unit = found["together"](EVENTS)
    assert torch.allclose(unit.norm(dim=1), torch.ones(5), atol=1e-5) and len(unit.unique(dim=0)) == 5


def test_a_mean_over_the_padding_is_caught():
    class Mean(DirectionNetwork):
        def events(self, batch: Batch) -> torch.Tensor:
            return super().events(replace(batch, there=torch.ones_like(batch.there)))

    torch.manual_seed(0)
    with pytest.raises(CheckFailed, match="the same of an example alone as together"):
        require_invariant(ways(Mean(16, 2, 2, 0.0).eval(), batches()), EVENTS, 1e-5)


@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), 2e-3])
def test_what_is_not_finite_or_differs_in_one_example_names_it(wrong: float):
    def planted(indices: np.ndarray) -> torch.Tensor:
        values = torch.zeros(len(indices), 3)
        values[list(indices).index(21), 1] = wrong
        return values

    found = {"one": lambda indices: torch.zeros(len(indices), 3), "other": planted}
    with pytest.raises(CheckFailed, match=r"in example 21, required at most 0\.001"):
        require_invariant(found, EVENTS, 1e-3)


def test_another_number_of_predictions_is_refused():
    found = {"one": lambda indices: torch.zeros(len(indices), 3), "other": lambda indices: torch.zeros(1, 3)}
    with pytest.raises(CheckFailed, match=r"predictions of the shape \[1, 3\], required \[5, 3\]"):
        require_invariant(found, EVENTS, 1.0)


def test_of_too_many_pulses_those_with_light_and_without_noise_stay_in_their_order():
    pulses = Pulses(
        sensor_id=np.array([5, 6, 7, 8, 9], dtype=np.int16),
        time=np.array([10, 20, 30, 40, 50], dtype=np.float32),
        charge=np.array([1.0, 9.0, 0.5, 8.0, 2.0], dtype=np.float32),
        auxiliary=np.array([False, True, False, True, False]),
        event_id=np.zeros(5, dtype=np.int64),
    )
    places = np.arange(30, dtype=np.float32).reshape(10, 3)
    assert raw_features(pulses, places, 9)[:, 0].tolist() == [10, 20, 30, 40, 50]
    assert raw_features(pulses, places, 4)[:, 0].tolist() == [10, 20, 30, 50]
    assert raw_features(pulses, places, 2).tolist() == [[10, 1, 5, 0, 15, 16, 17], [50, 2, 9, 0, 27, 28, 29]]


def test_a_batch_holds_the_normalised_features_and_the_truth_of_its_events():
    make = batches()
    batch = make(EVENTS)
    assert batch.features.abs().max() < 20 and batch.features[~batch.there].eq(0).all()
    for row, index in enumerate(EVENTS):
        raw = torch.from_numpy(raw_features(make.files.pulses_of(int(index)), make.places, 48)).float()
        assert torch.equal(batch.features[row][batch.there[row]], FIXED(raw))
        zenith = make.files.zenith[index]
        assert float(batch.directions[row, 2]) == pytest.approx(np.cos(zenith), abs=1e-6)
