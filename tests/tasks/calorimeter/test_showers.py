"""Showers: what is generated, what is read, and what is refused before any training."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from storage.errors import BadInput, CheckFailed
from tasks.calorimeter.final_results import FinalResults
from tasks.calorimeter.fit import RECORDED, look, normaliser_of, residuals
from tasks.calorimeter.report import document
from tasks.calorimeter.showers import Told, generated, read, require_sound
from tasks.calorimeter.stages import Generated, LookConfig, RootFiles, ShowersResult
from tasks.data.normaliser import Normaliser
from tasks.sensors.xenon import SENSORS, SENTINEL, Events, detector
from tests.tasks.calorimeter.tiny import SMOKE, finished
from tests.tasks.tiny import stage_run

MADE = Generated(train_events=6, validation_events=4, dead_share=0.1)


def events(split: str = "train", **changes: Any) -> tuple[np.ndarray, np.ndarray]:
    ((_, _, light, truth),) = generated(MADE.model_copy(update=changes), split, 0)
    return light, truth


def test_a_shower_is_a_point_of_light_where_its_truth_says():
    light, truth = events(dead_share=0.0)
    places = detector().places
    for shown, (u, v, w, energy) in zip(light, truth, strict=True):
        brightest = places[np.argsort(shown[:4092])[-20:]]
        assert np.abs(brightest[:, :2] - [u, v]).max() < 2 * w + 2 and 15 <= energy <= 60
    one, _ = events(least_energy_mev=30.0, most_energy_mev=30.1)
    two, _ = events(least_energy_mev=60.0, most_energy_mev=60.1)
    assert (two.sum(1) - 8 * SENSORS) / (one.sum(1) - 8 * SENSORS) == pytest.approx(np.full(6, 2.0), rel=0.01)


def test_the_same_sensors_are_dead_in_every_event_and_no_two_splits_share_an_event():
    (light, truth), (other, others) = events(), events("validation")
    dead = light == SENTINEL
    assert dead.sum(1).tolist() == [476] * 6 and (dead == dead[0]).all() and ((other == SENTINEL) == dead[0]).all()
    assert not {*truth[:, 0].tolist()} & {*others[:, 0].tolist()}


# ------------------------------------------------------------------------------------ ROOT


def root_file(file: Path, light: np.ndarray, truth: np.ndarray, tree: str = "tree") -> str:
    """Events in the form of the experiment's files."""
    uproot = pytest.importorskip("uproot")
    with uproot.recreate(file) as made:
        made[tree] = {"npho": light, "uvwTruth": truth[:, :3].copy(), "energyTruth": truth[:, 3].copy()}
    return str(file)


def test_what_the_generator_made_is_read_from_a_ROOT_file_as_it_was(tmp_path):
    light, truth = events()
    foreign = light.copy()
    foreign[foreign == SENTINEL] = 1e10
    train = root_file(tmp_path / "train.root", foreign, truth)
    others = root_file(tmp_path / "validation.root", *events("validation"))
    ((file, first, found, places),) = read(RootFiles(train=[train], validation=[others]), "train")
    assert (file, first) == (train, 0) and np.array_equal(found, foreign) and np.array_equal(places, truth)
    study = SMOKE.study(f"showers={{source: files, train: [{train}], validation: [{others}]}}")
    handles = SMOKE.run_until("calorimeter-mae", tmp_path / "runs", study)
    kept = handles["calorimeter-showers"].as_input()
    assert np.array_equal(Events.open(kept, "train").light, light) and len(Events.open(kept, "validation")) == 4
    assert handles["calorimeter-mae"].finished


WRONG: list[tuple[str, Any, Any, str]] = [
    ("light", (2, ...), 1e10, "row 2 has fewer than 2 sensors that are alive"),
    ("light", (4, slice(1, None)), -1.0, "row 4 has fewer than 2 sensors that are alive"),
    ("light", (3, 7), np.nan, "row 3 has light that is not finite"),
    ("light", (3, 7), np.inf, "row 3 has light that is not finite"),
    ("light", (5, 9), -999.0, r"row 5 has light below -50 photons, .*\(showers.dead_photons is -1\)"),
    ("light", (5, 9), 9e9, r"row 5 has light above 1e\+07 photons in a sensor \(showers.max_photons\)"),
    ("truth", (1, 3), 0.0, "row 1 has no finite place, or no energy"),
    ("truth", (1, 0), np.inf, "row 1 has no finite place, or no energy"),
    ("truth", (..., 3), 0.0528, "row 0 has an energy below 1 MeV .*, as if it were in GeV"),
    ("truth", (..., 3), 52800.0, "row 0 has an energy above 1000 MeV .*, as if it were in keV"),
    ("truth", (2, 1), 650.0, "row 2 has a place far outside of the detector, as if it were in mm"),
]


@pytest.mark.parametrize(("which", "at", "value", "said"), WRONG)
def test_an_event_that_no_detector_shows_is_refused_with_file_and_row(which, at, value, said):
    made = dict(zip(("light", "truth"), events(), strict=True))
    require_sound("a.root", 0, made["light"], made["truth"], MADE)
    made[which][at] = value
    with pytest.raises(BadInput, match=rf"a\.root: the event in {said}"):
        require_sound("a.root", 0, made["light"], made["truth"], MADE)


def test_what_a_dead_sensor_shows_can_be_told():
    light, truth = events()
    light[:, 5] = -999.0
    require_sound("a.root", 0, light, truth, MADE.model_copy(update={"dead_photons": -999.0}))
    assert (light[:, 5] == SENTINEL).all() and (light == SENTINEL).sum() in (6 * 476, 6 * 477)


@pytest.mark.parametrize(
    ("row", "said"),
    [
        (lambda light: light[2], "row 1 has the same light as one of the other split"),
        (lambda _: -5000.0, "row 1 has light below"),
    ],
    ids=["an event of train", "light below zero"],
)
def test_validation_is_gated_too_before_any_training(row, said, tmp_path):
    (light, truth), (others, places) = events(), events("validation")
    train = root_file(tmp_path / "train.root", light, truth)
    others[1] = row(light)
    validation = root_file(tmp_path / "validation.root", others, places)
    study = SMOKE.study(f"showers={{source: files, train: [{train}], validation: [{validation}]}}")
    handles = SMOKE.run_until("calorimeter-showers", tmp_path / "runs", study)
    outcome = handles["calorimeter-showers"].outcome
    assert outcome is not None and outcome.end_state == "bad_input"
    assert re.search(rf"validation\.root: the event in {said}", outcome.text)
    assert not [label for label, handle in handles.items() if "regress" in label and handle.run.path.exists()]


def test_events_that_are_twice_in_a_split_are_counted(tmp_path):
    known, (light, _) = Told(), events()
    known.require_new("train", "a.root", 0, light[[0, 1, 1]])
    known.require_new("train", "b.root", 0, light[[1, 2, 3]])
    assert dict(known.repeated) == {"train": 2}
    (light, truth), others = events(), events("validation")
    light[4] = light[2]
    files = [root_file(tmp_path / name, *of) for name, of in (("t.root", (light, truth)), ("v.root", others))]
    study = SMOKE.study(f"showers={{source: files, train: [{files[0]}], validation: [{files[1]}]}}")
    shown = SMOKE.run_until("calorimeter-showers", tmp_path / "runs", study)["calorimeter-showers"]
    assert ShowersResult.read(shown.as_input()).repeated == {"train": 1}
    assert "repeated" not in finished().result("calorimeter-showers")  # nothing to tell: as it was
    report = FinalResults.read_file(finished().path("calorimeter-report") / "final_results.json")
    assert "count twice" not in document(report).markdown()
    repeated = report.model_copy(update={"repeated": {"train": 1}})
    assert "**1 events of train are there before them**" in document(repeated).markdown()


def test_a_file_in_both_splits_is_refused(tmp_path):
    (tmp_path / "a.root").write_bytes(b"same")
    with pytest.raises(BadInput, match=r"there is no file .*b\.root"):
        RootFiles(train=[str(tmp_path / "a.root")], validation=[str(tmp_path / "b.root")]).external_inputs()
    (tmp_path / "b.root").write_bytes(b"same")
    asked = RootFiles(train=[str(tmp_path / "a.root")], validation=[str(tmp_path / "b.root")])
    with pytest.raises(BadInput, match="the same content"):
        asked.external_inputs()


# ------------------------------------------------------------------------------------ the one normaliser


def test_light_is_normalised_as_recorded_and_every_stage_has_the_digest_of_the_one_normaliser():
    values = np.array([[0.0], [1000.0], [119_003.0]], dtype=np.float32)
    found = Normaliser(steps=[RECORDED])(torch.from_numpy(values))[:, 0].numpy()
    assert found == pytest.approx(np.log1p(values[:, 0] / 1000) / 4.08, abs=1e-6)
    given = finished().input("calorimeter-look")
    one, raw = normaliser_of(given), normaliser_of(given, raw=True)
    assert one.digest != raw.digest
    models = {label: handle.run.path / "model" for label, handle in finished().handles.items()}
    there = {label: model for label, model in models.items() if model.exists()}
    assert len(there) == 15
    for label, model in there.items():
        assert Normaliser.load(model).digest == (raw if "(raw" in label else one).digest, label


def test_light_that_is_too_large_after_normalising_ends_the_study(tmp_path):
    config = finished().handles["calorimeter-look"].config.model_copy(update={"max_absolute_z": 0.5})
    assert isinstance(config, LookConfig)
    with pytest.raises(CheckFailed, match=r"light_photons: .* after normalising"):
        look(stage_run(tmp_path), config, finished().input("calorimeter-showers"))


def test_predicting_the_mean_is_judged_by_the_central_68_percent():
    assert residuals(np.tile(np.arange(-50, 51.0)[:, None], 4))["w_cm"] == 34.0
    given = finished().input("calorimeter-showers")
    train, validation = (Events.open(given, split).truth[:, 3] for split in ("train", "validation"))
    missed = np.quantile(np.abs(validation - train.astype(np.float64).mean()), 0.68)
    assert finished().result("calorimeter-look")["trivial"]["energy_mev"] == pytest.approx(missed, rel=1e-6)
