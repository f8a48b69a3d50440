"""The xenon detector: each sensor once, its neighbours beside it, and networks that see every one of them."""

import numpy as np
import pytest
import torch

from tasks.sensors.batches import hide, near_mean
from tasks.sensors.configuration import Network
from tasks.sensors.networks import Filler, Regressor
from tasks.sensors.xenon import SENSORS, Face, detector, hexagonal

SHAPE = Network(channels=4, width=8, layers=1, heads=2)


def test_the_faces_have_the_sensors_of_the_experiment_each_once():
    counts = {name: len(np.unique(face.cells)) for name, face in detector().faces.items()}
    assert counts == {"inner": 4092, "outer": 234, "upstream": 144, "downstream": 144, "top": 73, "bottom": 73}
    every = np.concatenate([np.unique(face.cells) for face in detector().faces.values()])
    assert sorted(every) == [*range(SENSORS)] and len(every) == 4760


def test_the_finer_centre_of_the_outer_face_lies_where_its_coarse_sensors_lay():
    known, cells = detector(), detector().faces["outer"].cells
    centre = {*cells[30:42, 15:30].ravel().tolist()}
    assert len(centre) == 30 and {4185, 4187, 4196, 4214} <= centre and {*range(4742, 4760)} <= centre
    assert not centre & {*np.delete(cells, np.s_[30:42], 0).ravel().tolist()}
    # a fine sensor lies between the coarse ones that have the numbers beside it: 4742 between 4185 and 4186
    between = (known.places[4185] + known.places[4186]) / 2
    assert np.allclose(known.places[4742], between, atol=1e-9)
    areas = np.bincount(cells.ravel())[cells]
    assert {*np.unique(areas)} == {6, 15}


def test_neighbours_are_mutual_and_lie_beside_each_other():
    known = detector()
    pairs = {(one, int(other)) for one, near in enumerate(known.near) for other in near if other < SENSORS}
    assert all((other, one) in pairs for one, other in pairs)
    distances = [np.linalg.norm(known.places[one] - known.places[other]) for one, other in pairs]
    assert max(distances) < 10 and min(distances) > 1
    degrees = (known.near < SENSORS).sum(1)
    assert degrees[50] == 8 and degrees[0] == 3 and degrees[4596] == 3 and degrees.min() == 2
    assert {*np.diff([11, 12, 11, 12, 13, 14])} == {1, -1} and len(hexagonal((11, 12, 11, 12, 13, 14))[0]) == 183


def test_a_sensor_lies_between_two_of_a_longer_row():
    pairs, (rows, columns) = hexagonal((2, 3))
    assert pairs.tolist() == [[0, 1], [2, 3], [3, 4], [0, 2], [0, 3], [1, 3], [1, 4]]
    assert rows.tolist() == [0.25, 0.25, 0.75, 0.75, 0.75] and columns[3] == 0.5


def test_cells_of_one_sensor_are_no_neighbours_of_themselves():
    face = Face(np.array([[0, 0, 1], [0, 0, 2]]), (0, 1, 2), 0.0, 1.0)
    assert face.touching().tolist() == [[0, 1], [0, 2], [1, 2]]


# ------------------------------------------------------------------------------------ masks


def test_of_the_live_sensors_exactly_the_share_is_hidden():
    """90 % of 4,760 are 4,284, and 60 % of these 2,570: also where draws are equal."""
    alive = torch.ones(3, SENSORS, dtype=torch.bool)
    alive[:, torch.randperm(SENSORS, generator=torch.Generator().manual_seed(0))[:476]] = False
    draws = torch.rand(3, SENSORS, generator=torch.Generator().manual_seed(1))
    draws[1], draws[2] = 0.5, (draws[2] * 8).round() / 8
    hidden = hide(draws, alive, 0.6)
    assert alive.sum(1).tolist() == [4284] * 3 and hidden.sum(1).tolist() == [2570] * 3
    assert not (hidden & ~alive).any()
    assert hide(draws, alive, 1e-6).sum(1).tolist() == [1] * 3


def test_the_neighbours_mean_is_that_of_those_that_are_seen():
    near = torch.tensor([[1, 2], [0, 3], [0, 3], [3, 3]])[:3]
    values = torch.tensor([[1.0, 4.0, 7.0]])
    assert near_mean(values, torch.tensor([[1.0, 1.0, 1.0]]), near).tolist() == [[5.5, 1.0, 1.0]]
    assert near_mean(values, torch.tensor([[0.0, 1.0, 1.0]]), near).tolist() == [[5.5, 5.5, 5.5]]
    assert near_mean(values, torch.tensor([[1.0, 0.0, 1.0]]), near)[0, 0] == 7.0


# ------------------------------------------------------------------------------------ networks


@pytest.mark.parametrize("kind", [lambda: Regressor(SHAPE, 4), lambda: Filler(SHAPE)], ids=["regressor", "filler"])
def test_every_sensor_reaches_the_answer_and_no_tensor_is_made_in_a_forward_pass(kind):
    torch.manual_seed(0)
    network = kind()
    for parameter in network.parameters():  # the correction of a filler begins as 0
        torch.nn.init.normal_(parameter, std=0.3)
    seen = torch.rand(2, 2, SENSORS, requires_grad=True)
    found = network(seen)
    assert found.shape == (2, 4 if isinstance(network, Regressor) else SENSORS)
    found.square().sum().backward()
    assert seen.grad is not None and (seen.grad != 0).all()
    meta = network.to("meta")  # a tensor that is made on the CPU in between would be refused
    assert meta(torch.empty(2, 2, SENSORS, device="meta")).shape == found.shape


def test_a_filler_begins_as_the_neighbours_mean_and_puts_corrections_where_their_sensors_are():
    torch.manual_seed(0)
    network, near = Filler(SHAPE).eval(), torch.from_numpy(detector().near)
    seen = torch.stack([torch.rand(1, SENSORS), torch.ones(1, SENSORS)], 1)
    mean = near_mean(seen[:, 0], seen[:, 1], near)
    assert torch.equal(network(seen), mean)
    for name, face in detector().faces.items():
        network.head[name][2].bias.data[:] = 1.0
        changed = (network(seen) != mean)[0].nonzero()[:, 0].tolist()
        assert changed == sorted({*np.unique(face.cells).tolist()})
        network.head[name][2].bias.data[:] = 0.0
    network.head["inner"][2].bias.data[5] = 1.0  # row 1, column 1 of each patch of 3 x 4
    places = (network(seen) != mean)[0].nonzero()[:, 0]
    assert {*(places // 44 % 3).tolist()} == {1} and {*(places % 44 % 4).tolist()} == {1}


def test_buffers_are_no_weights():
    assert not [name for name in Filler(SHAPE).state_dict() if name.endswith(("near", "cells", "sensors"))]
