"""Where a run lies, and what its fingerprint depends on."""

from __future__ import annotations

import pytest

from storage.run_directory import RunDirectory, find_runs, fingerprint
from tests.storage import runs

GIVEN = {
    "stage": "train",
    "version": 1,
    "scientific": {"seed": 1, "budget": {"epochs": 1.0}},
    "external": {"text": {"files": {"a.txt": "0" * 64}}},
    "inputs": {"setup": "a" * 64},
}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("stage", "base"),
        ("version", 2),
        ("scientific", {"seed": 2, "budget": {"epochs": 1.0}}),
        ("scientific", {"seed": 1, "budget": {"epochs": 1.0000000000000002}}),
        ("external", {"text": {"files": {"b.txt": "0" * 64}}}),
        ("external", {"text": {"files": {"a.txt": "1" * 64}}}),
        ("inputs", {"base": "a" * 64}),
        ("inputs", {"setup": "b" * 64}),
        ("inputs", {}),
    ],
)
def test_everything_that_determines_a_result_is_in_the_fingerprint(name, value):
    assert fingerprint(**{**GIVEN, name: value}) != fingerprint(**GIVEN)


def test_the_order_of_fields_is_not_in_the_fingerprint():
    shuffled = {**GIVEN, "scientific": {"budget": {"epochs": 1.0}, "seed": 1}}
    assert fingerprint(**shuffled) == fingerprint(**GIVEN)


def test_the_fingerprint_of_a_given_configuration_never_changes():
    """A change here would make every finished run of every user run again."""
    assert fingerprint(**GIVEN) == "0feebd0e1aa2eb50cc255d2265d8124815527738b5275d69afe24b4114285f59"


def test_everything_of_a_run_lies_in_its_directory(tmp_path):
    run = RunDirectory(tmp_path, "study", "train", "0123456789abcdef")
    assert run.path == tmp_path / "study" / "train" / "0123456789ab"
    names = [name for name in dir(type(run)) if name.endswith("_file") or name in ("attempts", "checkpoints")]
    assert len(names) == 9
    assert {getattr(run, name).parent for name in names} == {run.path}


def test_runs_are_found_by_their_stage_file_at_their_depth_only(tmp_path):
    expected = [runs.finished(tmp_path, stage, seed).path for stage in ("base", "train") for seed in (1, 2)]
    (tmp_path / "study" / "train" / "empty").mkdir()
    for stray in (tmp_path / "stage.json", tmp_path / "a" / "b" / "c" / "d" / "stage.json"):
        stray.parent.mkdir(parents=True, exist_ok=True)
        stray.write_text("{}")
    assert find_runs(tmp_path) == sorted(expected)
