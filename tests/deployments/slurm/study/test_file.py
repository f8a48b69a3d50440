"""A study kept beside its runs: found by `advance` and the jobs, and stopped by a person only."""

import os
from dataclasses import replace

import pytest

from deployments.dag.page import load_page
from deployments.slurm.cluster.site import Site
from deployments.slurm.study import study as study_file
from deployments.slurm.study.study import SlurmStudy
from storage.errors import BadInput
from tests.slurm import toy
from tests.slurm.harness import kept_study, toy_study

TOY = load_page("tests.slurm.toy")
HERE = Site(root="/")


def test_the_same_study_has_the_same_file_and_is_read_back_as_it_was(tmp_path):
    study = toy_study("kept", steps=12)
    kept = kept_study(tmp_path, study)
    assert kept.file.parent == tmp_path / "kept" / "studies"
    again = SlurmStudy.kept(kept.file, kept.site, tmp_path)
    assert again.study == study and again.page == TOY
    assert kept_study(tmp_path, toy_study("kept", steps=18)).file != kept.file


def test_a_sweep_has_a_file_of_its_own_with_what_it_varies(tmp_path):
    study = toy_study("kept")
    swept = replace(TOY, over={"training.seed": [1, 2]})
    kept = kept_study(tmp_path, study, swept)
    assert kept.file.name.startswith("toy-sweep-") and kept.file != kept_study(tmp_path, study).file
    again = SlurmStudy.kept(kept.file, kept.site, tmp_path)
    assert (again.page, again.study) == (swept, study)


def test_the_same_study_with_other_execution_fields_takes_the_place_of_the_one_before(tmp_path):
    """Two files of the same stages would each start them, one with the settings that a person has just corrected."""
    file = kept_study(tmp_path, toy_study("kept", memory_mb=1)).file
    corrected = toy_study("kept", memory_mb=2, resources={"memory_gb": 8})
    assert kept_study(tmp_path, corrected).file == file
    assert study_file.active(tmp_path) == [file] and study_file.read(file, HERE)[1] == corrected


def test_a_study_whose_stages_changed_since_is_left_alone(tmp_path, monkeypatch):
    kept = kept_study(tmp_path, toy_study("kept"))
    monkeypatch.setattr(toy, "TRAIN", replace(toy.TRAIN, version=2))
    with pytest.raises(BadInput, match="has changed since it was started"):
        SlurmStudy.kept(kept.file, kept.site, tmp_path)


def test_a_study_that_cannot_be_read_is_passed_over_with_a_warning(tmp_path, caplog):
    kept = kept_study(tmp_path, toy_study("kept")).file
    broken = kept.with_name("broken.yaml")
    broken.write_bytes(b"\xff")
    assert [file for file, _, _ in study_file.readable(tmp_path, HERE)] == [kept]
    assert f"a study is passed over: {broken} is not a study file" in caplog.text


def test_a_stopped_study_is_not_active_until_it_is_started_again(tmp_path):
    first, second = (kept_study(tmp_path, toy_study(name)).file for name in ("first", "second"))
    os.utime(second, (1, 1))
    assert study_file.active(tmp_path) == [second, first], "the oldest comes first"
    study_file.stopped(first).touch()
    assert study_file.active(tmp_path) == [second]
    kept_study(tmp_path, toy_study("first"))
    assert study_file.active(tmp_path) == [second, first]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[", "is not a study file"),
        ("page: tests.slurm.toy", "is not a study file"),
        ("page: no.such.page\nstudy: {}", "names 'no.such.page', which is not the page of a study"),
        ("page: flows.sweep\nstudy: {}", "Start the study again .*`ratchet sweep`"),
        ("page: storage.durable\nstudy: {}", "names 'storage.durable', which is not the page of a study"),
        ("page: tests.slurm.toy\nstudy: {seeed: 4}", "seeed"),
    ],
)
def test_what_is_no_study_file_is_bad_input_that_names_it(tmp_path, text, message):
    file = tmp_path / "study.yaml"
    file.write_text(text)
    with pytest.raises(BadInput, match=message) as error:
        study_file.read(file, HERE)
    assert str(file) in str(error.value)
