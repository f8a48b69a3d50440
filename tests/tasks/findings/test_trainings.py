"""Trainings of arms as a report tells them, and what a report stage may read."""

import pytest

from tasks.icecube import stages as icecube
from tasks.inversion import stages as inversion
from tasks.stage.configuration import field_class
from tasks.training.trained import Trained


def test_a_cell_knows_the_gradients_of_all_its_epochs_and_its_last_validation():
    of_epochs = ((1.0, 0.5, 9), (1.5, 0.8, 2))  # the second is half as long
    epochs = [
        {"step": 2, "epoch": epoch, "gradient_steps_clipped_share": share, "gradient_norm_max": norm}
        for epoch, share, norm in of_epochs
    ]
    points = [{"step": 1, "mse": 0.5, "trivial": {}}, {"step": 2, "mse": 0.75, "trivial": {}}]
    cell = Trained.of_rows([*points, *epochs], "mse")
    assert (cell.largest_gradient_norm, cell.last) == (9.0, 0.75) and cell.clipped_share == pytest.approx(0.6)
    assert cell.validations == [[1, 0.5], [2, 0.75]]


@pytest.mark.parametrize("config", [icecube.ReportConfig, inversion.ReportConfig])
def test_a_report_read_keys_of_the_study_outside_of_its_fingerprint(config):
    """Seen: the rates, the seed and the budget came out of a dictionary `configuration`, which no type checked."""
    of_the_frame = {"cell", "execution"}
    others = {name: field for name, field in config.model_fields.items() if name not in of_the_frame}
    assert not [name for name, field in others.items() if field_class(field) == "execution"]
