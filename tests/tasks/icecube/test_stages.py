"""The stages of the direction study: what is planted is caught by name, nothing is lost, and a kill changes no byte."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from deployments.dag.walk import Handle
from storage import durable
from storage.errors import BadInput, Stop
from storage.run_directory import RunDirectory
from tasks.data.normaliser import Normaliser
from tasks.icecube import events, train
from tasks.icecube import pulses as pulses_module
from tasks.icecube.batches import FEATURES, DirectionNetwork, angle, from_angles
from tasks.icecube.events import META, EventFiles, batch_file, read_pulses
from tasks.icecube.look import FIXED, best_constant
from tasks.icecube.study import Study, Trained
from tasks.icecube.train import ANGLE, Prepared
from tasks.stage.attempt import attempt
from tasks.training.culprits import FOLDER
from tasks.training.problem import Problem
from tasks.training.trained import metric_rows
from tests.tasks.icecube.files import edit, with_value, written
from tests.tasks.icecube.tiny import finished, run, run_until, smoke
from tests.tasks.tiny import files_of

# ------------------------------------------------------------------------------------------------ of files


def of_files(folder: Path, *changes: str) -> Study:
    """The smoke study on the 50 events of `files.written`, or on a copy of them."""
    events = (
        f"events={{source: files, folder: {folder}, train: {{first_batch: 1, last_batch: 2}}, "
        "validation: {first_batch: 3, last_batch: 3}}"
    )
    return smoke(events, "rates.probe_events=10", "overfit.events=8", *changes)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(written(), tmp_path / "files"))


def column_of(name: str, value: object) -> Callable[[pa.Table], pa.Table]:
    def change(table: pa.Table) -> pa.Table:
        field = table.schema.field(name)
        values = pa.array([value] * len(table), field.type)
        return table.set_column(table.schema.get_field_index(name), field, values)

    return change


@pytest.mark.parametrize(
    ("name", "change", "said"),
    [
        ("train/batch_2.parquet", with_value("charge", 3, float("nan")), "event 20 has a charge that is not finite"),
        (META, with_value("event_id", 45, 3), "event 3 is there twice"),  # of another split
        (META, with_value("zenith", 25, 90.0), "event 25 has a direction (zenith) that is not from 0 to pi"),
    ],
)
def test_a_planted_fault_ends_the_first_stage_by_name_and_what_was_checked_is_kept(
    tmp_path: Path, folder: Path, name: str, change: Callable[[pa.Table], pa.Table], said: str
):
    sound = (folder / name).read_bytes()
    edit(folder / name, change)
    pulses = run(tmp_path / "runs", of_files(folder))["icecube-pulses"]
    assert pulses.outcome and pulses.outcome.end_state == "bad_input" and said in pulses.outcome.text
    assert ("batch_2.parquet" in pulses.outcome.text) or "train_meta.parquet" in pulses.outcome.text
    (folder / name).write_bytes(sound)
    pulses = run_until("icecube-pulses", tmp_path / "runs", of_files(folder))["icecube-pulses"]
    assert pulses.finished, "repaired, the study goes on"


def test_a_truncated_file_is_named_and_the_files_before_it_are_not_looked_through_again(tmp_path: Path, folder: Path):
    file = batch_file(folder, 3)
    sound = file.read_bytes()
    file.write_bytes(sound[:-100])
    pulses = run(tmp_path / "runs", of_files(folder))["icecube-pulses"]
    assert pulses.outcome and "batch_3.parquet is not as the layout has it" in pulses.outcome.text
    kept = sorted(part.name for part in (pulses.run.path / "records").glob("*.json"))
    assert kept == ["batch-000001.json", "batch-000002.json"]


def test_events_that_were_written_are_not_made_again_when_their_check_is_interrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def interrupted(*_: object) -> None:
        raise Stop("sigterm", "stopped")

    with monkeypatch.context() as patch:
        patch.setattr(pulses_module, "require_sound", interrupted)
        handle = run_until("icecube-pulses", tmp_path / "runs", smoke())["icecube-pulses"]
        assert handle.outcome and handle.outcome.end_state == "sigterm"
    before = {file: file.stat().st_mtime_ns for file in (handle.run.path / "files").rglob("*.parquet")}
    again = run_until("icecube-pulses", tmp_path / "runs", smoke())["icecube-pulses"]
    assert again.finished and len(before) == 7
    assert {file: file.stat().st_mtime_ns for file in before} == before
    assert _results(again) == _results(finished().handles["icecube-pulses"])


@pytest.mark.parametrize(
    ("change", "label", "said"),
    [
        ("rates.probe_events=11", "icecube-rates (raw)", "rates.probe_events 11 is more than the 10 events"),
        ("overfit.events=41", "icecube-overfit", "overfit.events 41 is more than the 40 events"),
    ],
)
def test_more_events_than_the_files_hold_are_refused(tmp_path: Path, folder: Path, change: str, label: str, said: str):
    stage = run(tmp_path / "runs", of_files(folder, change, "trials=[{name: one}]"))[label]
    assert stage.outcome and stage.outcome.end_state == "bad_input" and said in stage.outcome.text


def test_a_missing_folder_or_file_is_named_when_the_page_is_walked(tmp_path: Path, folder: Path):
    batch_file(folder, 2).unlink()
    with pytest.raises(BadInput, match=r"events.folder: there is no file .*batch_2\.parquet \(of 5 .*, 1 are missing"):
        run(tmp_path / "runs", of_files(folder))


def test_files_elsewhere_are_the_same_study_and_files_that_changed_are_another(tmp_path: Path, folder: Path):
    first = run_until("icecube-pulses", tmp_path / "runs", of_files(folder))["icecube-pulses"]
    moved = folder.rename(tmp_path / "elsewhere")
    again = run_until("icecube-pulses", tmp_path / "runs", of_files(moved))["icecube-pulses"]
    assert again.run.fingerprint == first.run.fingerprint and again.finished
    edit(batch_file(moved, 2), with_value("charge", 3, 0.7))
    other = run_until("icecube-pulses", tmp_path / "runs", of_files(moved))["icecube-pulses"]
    assert other.run.fingerprint != first.run.fingerprint


def test_a_file_that_changes_after_it_was_found_sound_is_not_trained_on(tmp_path: Path, folder: Path):
    study = of_files(folder)
    handles = run_until("icecube-pulses", tmp_path / "runs", study)
    edit(batch_file(folder, 2), with_value("charge", 3, 0.7))
    look = handles["icecube-look"]
    outcome = attempt(look.stage, look.config, look.run, {"events": handles["icecube-pulses"].as_input()})
    assert outcome.end_state == "bad_input" and "batch_2.parquet" in outcome.text
    assert "is not the file any more whose sha256 is in the fingerprint" in outcome.text


@pytest.mark.parametrize(
    ("changes", "plant", "said"),
    [
        ([], column_of("auxiliary", False), "auxiliary: always 0"),
        (["limits.max_absolute_z=0.5"], None, "time: "),
    ],
)
def test_inputs_that_are_not_fit_to_train_on_end_the_study_before_anything_is_trained(
    tmp_path: Path, folder: Path, changes: list[str], plant: Callable[[pa.Table], pa.Table] | None, said: str
):
    if plant:
        for number in (1, 2):
            edit(batch_file(folder, number), plant)
    handles = run(tmp_path / "runs", of_files(folder, *changes))
    look = handles["icecube-look"]
    assert look.outcome and look.outcome.end_state == "check_failed" and said in look.outcome.text
    assert [handle.stage.name for handle in handles.values() if handle.run.path.exists()] == [
        "icecube-pulses",
        "icecube-look",
    ]


# ------------------------------------------------------------------------------------------------ the whole page


def test_the_results_have_the_fields_that_others_read():
    found = durable.read_json(finished().path("icecube-report") / "final_results.json")
    assert 45 < found["trivial"]["best_constant_degrees"] < 90
    (failed,), (as_found,) = (found["trials"][name]["seeds"].values() for name in ("exploding-rate", "as-found"))
    assert failed["ended"] == "numerical_failure" and as_found["ended"] in ("not_learning", "numerical_failure")
    assert found["trials"]["normalise"]["validation_angle_degrees"] > 0
    for inputs in ("raw", "normalised"):
        for row in found["rates"][inputs]:
            assert {"rate", "seeds", "low", "high", "gradient_norm_max"} <= row.keys()
        assert found["recommended"][inputs]["rate"] is None or found["recommended"][inputs]["rate"] > 0
    largest = {inputs: max(row["gradient_norm_max"] for row in rows) for inputs, rows in found["rates"].items()}
    assert largest["raw"] > 0 and 0 < largest["normalised"] < 100, "how far raw ones go depends on the processor"


def test_statistics_are_of_train_alone(tmp_path: Path, folder: Path):
    """A statistic over train and validation together tells a training of what it is judged by."""
    handles = run_until("icecube-look", tmp_path / "runs", of_files(folder, "pulses_per_event=1000"))
    files = folder / "train"
    train = np.concatenate([pq.read_table(files / f"batch_{number}.parquet")["time"] for number in (1, 2)])
    time = durable.read_json(handles["icecube-look"].run.path / "result.json")["columns"][0]
    assert (time["count"], time["mean"]) == (len(train), pytest.approx(train.mean(), rel=1e-12))


def test_events_are_named_as_the_files_name_them():
    study = finished()
    failure = study.result("icecube-trial (exploding-rate, seed 1)")["failure"]
    meta = pq.read_table(study.path("icecube-pulses") / "files" / META)
    of_train = set(meta["event_id"].to_pylist()[: study.study.events.train_events])
    assert failure["examples"] and set(failure["examples"]) <= of_train
    assert failure["of_examples"] == study.study.trial_budget.effective_batch_examples


def test_a_trial_that_fails_in_a_validation_keeps_the_weights_which_the_audit_asks(tmp_path: Path):
    one_step_an_epoch = ("trial_budget.effective_batch_examples=200", "trial_budget.not_learning=null")
    labels = run(tmp_path / "runs", smoke("trials=[{name: explodes, learning_rate: 1.0e+30}]", *one_step_an_epoch))
    trial, report = labels["icecube-trial (explodes, seed 1)"], labels["icecube-report"]
    assert report.finished and not (trial.run.path / FOLDER).exists() and (trial.run.path / "model").exists()
    failure = durable.read_json(trial.run.result_file)["failure"]
    assert (failure["examples"], failure["tensor"]) == ([], "the angle degrees")


def test_the_model_is_kept_with_its_normaliser_and_its_numbers_follow_from_the_records():
    study = finished()
    path = study.path("icecube-train")
    assert Normaliser.load(path / "model") == FIXED
    assert durable.read_json(path / "model" / "config.json")["features"] == list(FEATURES)
    rows = pq.read_table(path / "records.parquet").to_pylist()
    assert len(rows) == 60 and len({row["event_id"] for row in rows}) == 60
    best = min(row[ANGLE] for row in metric_rows(path / "metrics.jsonl") if ANGLE in row)
    assert np.mean([row[ANGLE] for row in rows]) == pytest.approx(best, abs=1e-3), "it is that of the best validation"
    trial = study.path("icecube-trial (normalise, seed 1)")
    last = [row[ANGLE] for row in metric_rows(trial / "metrics.jsonl") if ANGLE in row][-1]
    angles = pq.read_table(trial / "records.parquet")[ANGLE].to_numpy()
    assert angles.mean() == pytest.approx(last, abs=1e-9), "of a trial it is that of the last"


def test_stopped_and_continued_every_stage_has_the_same_bytes(tmp_path: Path):
    """Trials and training go in pieces of seven steps; a trial that fails fails again at the same step."""
    study = smoke("execution.max_steps_per_run=7")
    for _ in range(20):
        handles = run(tmp_path / "runs", study)
        if all(handle.finished for handle in handles.values()):
            break
    whole = finished()
    assert len(list(handles["icecube-train"].run.attempts.glob("*.json"))) > 2
    for label, handle in handles.items():
        if label != "icecube-report":  # it keeps the profile, in which the limit stands
            assert _results(handle) == _results(whole.handles[label]), label


def _results(handle: Handle) -> dict[str, bytes]:
    outputs = durable.read_json(handle.run.marker_file)["outputs"]
    of_run = files_of(handle.run.path)
    return {
        name: data
        for name, data in of_run.items()
        if any(name == output or name.startswith(f"{output}/") for output in outputs) and name != "stage.json"
    }


def test_without_a_recommendation_nothing_is_trained(tmp_path: Path):
    handles = run(tmp_path / "runs", smoke("take_recommended_rate=true", "rates.min_gain_degrees=80"))
    trained = handles["icecube-train"]
    assert trained.outcome and trained.outcome.end_state == "check_failed"
    assert "a learning rate is recommended for the training: measured none" in trained.outcome.text
    assert "0.001: not every seed gains 80" in trained.outcome.text
    assert all(handle.finished for label, handle in handles.items() if "trial" in label), "nothing else is lost"


@pytest.mark.parametrize("label", ["icecube-overfit", "icecube-rates (raw)"])
def test_events_that_are_looked_at_in_every_step_are_read_once(
    tmp_path: Path, label: str, monkeypatch: pytest.MonkeyPatch
):
    """Seen: a batch out of nine files, of which two were open, read all nine again in each of 150 steps."""
    study = finished()
    handle, read = study.handles[label], []
    monkeypatch.setattr(events, "read_pulses", lambda *given: read.append(given[1]) or read_pulses(*given))

    def fewer_open_than_there_are(folder: Path, ids: list[int], open_files: int, *more: object) -> EventFiles:
        return EventFiles(folder, ids, min(open_files, len(ids) - 1), *more)

    monkeypatch.setattr(pulses_module, "EventFiles", fewer_open_than_there_are)
    copy = RunDirectory(tmp_path, "copy", handle.run.stage, handle.run.fingerprint)
    given = {role: source.as_input() for role, source in handle.inputs.items()}
    assert attempt(handle.stage, handle.config, copy, given).end_state == "finished"
    tries = {"icecube-overfit": 1, "icecube-rates (raw)": 2 * 3}[label]
    assert 0 < len(read) <= tries * (4 + 2), "each try reads the four files of train and the two of validation once"


def test_a_network_that_cannot_fit_one_batch_is_not_trained(tmp_path: Path):
    handles = run(tmp_path / "runs", smoke("overfit.learning_rate=1e-9", "overfit.max_ratio=0.1"))
    overfit = handles["icecube-overfit"]
    assert overfit.outcome and overfit.outcome.end_state == "check_failed"
    assert "the model fits one batch: measured" in overfit.outcome.text
    assert not handles["icecube-train"].run.path.exists()


def test_outputs_that_have_collapsed_end_the_study(tmp_path: Path):
    report = run(tmp_path / "runs", smoke("min_spread_ratio=3.0"))["icecube-report"]
    assert report.outcome and report.outcome.end_state == "check_failed"
    assert "spread of the outputs, as a share of the truth's: measured" in report.outcome.text


def test_a_dead_layer_is_seen_although_padding_would_keep_it_alive():
    """The head that the recorded study found by hand: always the same direction, most units dead."""
    batches = Prepared.of(
        finished().handles["icecube-train"].config,
        *map(finished().input, ("icecube-pulses", "icecube-look")),
        "normalised",
    )
    make = batches.batches(batches.data.validation)
    torch.manual_seed(0)
    model = DirectionNetwork(16, 1, 2, 0.0).eval()
    model.encoder.layers[0].linear1.bias.data[:48] = -100.0
    model.head.weight.data.zero_()
    found = train.looked_at_again(model, make).outputs
    assert found.dead_shares["encoder.layers.0.linear1"] >= 0.75 and found.spread_ratio < 1e-6


def test_what_a_trial_changes_reaches_the_network_its_inputs_and_its_order():
    study = finished()
    inputs = [study.input(name) for name in ("icecube-pulses", "icecube-look")]
    config = study.handles["icecube-trial (normalise, seed 1)"].config

    def problem(**given: object) -> Problem:
        trained = Trained(**({"inputs": "raw", "shuffle": False} | given))
        return Prepared.of(config, *inputs, trained.inputs).problem(trained, config.budget, 1)

    plain, indices = problem(), np.arange(20)
    assert plain.model.norm is None and plain.model.encoder.layers[0].dropout.p == 0
    assert problem(batch_norm=True).model.norm is not None
    assert problem(dropout=0.1).model.encoder.layers[0].dropout.p == 0.1
    assert plain.batch(indices, 0).features.abs().max() > 5_000
    assert problem(inputs="normalised").batch(indices, 0).features.abs().max() < 20
    count = study.study.events.train_events
    assert plain.order(1, 0, indices, count).tolist() == indices.tolist()
    assert sorted(shuffled := problem(shuffle=True).order(1, 0, np.arange(count), count).tolist()) == [*range(count)]
    assert shuffled != sorted(shuffled)


def test_a_way_that_forgets_to_normalise_ends_the_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    plain = train._ways

    def forgetful(model, batches):
        raw = replace(batches, normaliser=Normaliser.none(FEATURES))
        return plain(model, batches) | {"in chunks": plain(model, raw)["in chunks"]}

    monkeypatch.setattr(train, "_ways", forgetful)
    trained = run(tmp_path / "runs", smoke())["icecube-train"]
    assert trained.outcome and "the same of an example in chunks as among others" in trained.outcome.text


# ------------------------------------------------------------------------------------------------ the trivial angle


@pytest.mark.parametrize("kind", ["isotropic", "from above", "around the seam", "three heaps"])
def test_no_constant_direction_is_better_than_the_best(kind: str):
    chance = np.random.default_rng(3)
    azimuth, cosine = chance.uniform(0, 2 * np.pi, 400), chance.uniform(-1, 1, 400)
    if kind == "from above":
        cosine = 1 - 0.2 * chance.uniform(0, 1, 400) ** 2
    if kind == "around the seam":
        azimuth = chance.normal(0, 0.2, 400) % (2 * np.pi)
    if kind == "three heaps":  # each is better than what lies around it, the largest is best
        azimuth = np.repeat([0.3, 0.3 + 2 * np.pi / 3, 0.3 + 4 * np.pi / 3], [110, 110, 180])
        cosine = chance.normal(0, 0.01, 400)
    zenith = np.arccos(cosine)
    found = best_constant(azimuth, zenith)
    truth = from_angles(torch.from_numpy(azimuth), torch.from_numpy(zenith))
    tried = from_angles(
        torch.rand(20_000, dtype=torch.float64) * 2 * np.pi, torch.rand(20_000).double().mul(2).sub(1).acos()
    )
    means = angle(tried[:, None], truth).mean(1).rad2deg()
    assert found.best_constant_degrees <= float(means.min()) + 1e-6
    claimed = from_angles(*torch.deg2rad(torch.tensor([found.azimuth_degrees, found.zenith_degrees]).double()))
    assert float(angle(claimed, truth).mean().rad2deg()) == pytest.approx(found.best_constant_degrees, abs=1e-6)
