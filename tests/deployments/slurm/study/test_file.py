"""A study kept beside its runs: found by `advance` and the jobs, and stopped by a person only."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from deployments.page import load_page
from deployments.slurm.study import file as study_file
from storage.errors import BadInput
from tests.slurm import toy
from tests.slurm.harness import toy_study

TOY = load_page("tests.slurm.toy")


def test_the_same_study_has_the_same_file_and_is_read_back_as_it_was(tmp_path: Path) -> None:
    study = toy_study("kept", steps=12)
    file = study_file.keep(tmp_path, TOY, study)
    assert file == study_file.path(tmp_path, TOY, study) and file.parent == tmp_path / "kept" / "studies"
    page, again = study_file.read_unchanged(tmp_path, file)
    assert again == study and page == TOY
    assert study_file.path(tmp_path, TOY, toy_study("kept", steps=18)) != file


def test_a_sweep_has_a_file_of_its_own_with_what_it_varies(tmp_path: Path) -> None:
    study = toy_study("kept")
    swept = replace(TOY, over={"training.seed": [1, 2]})
    file = study_file.keep(tmp_path, swept, study)
    assert file.name.startswith("toy-sweep-") and file != study_file.keep(tmp_path, TOY, study)
    assert study_file.read_unchanged(tmp_path, file) == (swept, study)
    assert study_file.files_of(tmp_path, swept, study) == [file]


def test_the_same_study_with_other_execution_fields_takes_the_place_of_the_one_before(tmp_path: Path) -> None:
    """Two files of the same stages would each start them, one with the settings that a person has just corrected."""
    file = study_file.keep(tmp_path, TOY, toy_study("kept", memory_mb=1))
    corrected = toy_study("kept", memory_mb=2, resources={"memory_gb": 8})
    assert study_file.keep(tmp_path, TOY, corrected) == file
    assert study_file.active(tmp_path) == [file] and study_file.read(file)[1] == corrected


def test_a_study_whose_stages_changed_since_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = study_file.keep(tmp_path, TOY, toy_study("kept"))
    monkeypatch.setattr(toy, "TRAIN", replace(toy.TRAIN, version=2))
    with pytest.raises(BadInput, match="has changed since it was started"):
        study_file.read_unchanged(tmp_path, file)


def test_a_study_has_the_files_that_it_had_before_a_stage_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    once = study_file.keep(tmp_path, TOY, toy_study("kept"))
    other = study_file.keep(tmp_path, TOY, toy_study("kept", steps=18))
    (once.parent / "broken.yaml").write_bytes(b"\xff")
    monkeypatch.setattr(toy, "TRAIN", replace(toy.TRAIN, version=2))
    assert study_file.files_of(tmp_path, TOY, toy_study("kept")) == [once]
    now = study_file.keep(tmp_path, TOY, toy_study("kept"))
    assert study_file.files_of(tmp_path, TOY, toy_study("kept")) == [now, once]
    assert {file for file, _, _ in study_file.kept(tmp_path)} == {once, other, now}


def test_a_stopped_study_is_not_active_until_it_is_started_again(tmp_path: Path) -> None:
    first, second = (study_file.keep(tmp_path, TOY, toy_study(name)) for name in ("first", "second"))
    os.utime(second, (1, 1))
    assert study_file.active(tmp_path) == [second, first], "the oldest comes first"
    study_file.stopped(first).touch()
    assert study_file.active(tmp_path) == [second]
    study_file.keep(tmp_path, TOY, toy_study("first"))
    assert study_file.active(tmp_path) == [second, first]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[", "is not a study file"),
        ("page: tests.slurm.toy", "is not a study file"),
        ("page: no.such.page\nstudy: {}", "names 'no.such.page', which is not the page of a study"),
        ("page: storage.durable\nstudy: {}", "names 'storage.durable', which is not the page of a study"),
        ("page: tests.slurm.toy\nstudy: {seeed: 4}", "seeed"),
    ],
)
def test_what_is_no_study_file_is_bad_input_that_names_it(tmp_path: Path, text: str, told: str) -> None:
    file = tmp_path / "study.yaml"
    file.write_text(text)
    with pytest.raises(BadInput, match=told) as error:
        study_file.read(file)
    assert str(file) in str(error.value)
