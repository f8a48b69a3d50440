"""Where a run lies, and what its fingerprint depends on."""

import os
import shutil

import pytest

from storage import durable
from storage.errors import BadInput
from storage.run_directory import LATEST, RunDirectory, find_run, find_runs, fingerprint, read
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
    assert len(names) == 10
    assert {getattr(run, name).parent for name in names} == {run.path}


def test_runs_are_found_by_their_stage_file_at_their_depth_only(tmp_path):
    expected = [runs.finished(tmp_path, stage, seed).path for stage in ("base", "train") for seed in (1, 2)]
    (tmp_path / "study" / "train" / "empty").mkdir()
    for stray in (tmp_path / "stage.json", tmp_path / "a" / "b" / "c" / "d" / "stage.json"):
        stray.parent.mkdir(parents=True, exist_ok=True)
        stray.write_text("{}")
    assert find_runs(tmp_path) == sorted(expected)


def test_the_link_to_the_newest_result_is_no_run(tmp_path):
    run = runs.finished(tmp_path)
    (run.path / "part").mkdir()
    (tmp_path / "study" / LATEST).symlink_to(run.path.relative_to(tmp_path / "study"))
    assert find_runs(tmp_path) == [run.path]


def test_a_run_is_named_by_its_folder_by_the_link_or_by_the_beginning_of_its_fingerprint(tmp_path, monkeypatch):
    run, other = runs.finished(tmp_path), runs.finished(tmp_path, seed=2)
    (tmp_path / "study" / LATEST).symlink_to(run.path.relative_to(tmp_path / "study"))
    elsewhere = tmp_path / "elsewhere"
    names = [str(run.path), f"study/train/{run.path.name}", f"study/{LATEST}", f"{tmp_path}/study/{LATEST}"]
    for name in [*names, run.fingerprint, run.path.name, run.path.name[:6]]:
        assert find_run(tmp_path, name) == run, name
    assert find_run(elsewhere, str(other.path)) == other, "its own folder says which root it has"
    monkeypatch.chdir(run.path.parent)
    assert find_run(elsewhere, run.path.name) == run


@pytest.mark.parametrize(
    ("named", "said", "listed"),
    [
        ("ab", "2 runs below {root} begin with 'ab'", 2),
        ("abc", "no run below {root} begins with 'abc'", 3),
        ("table", "no run below {root} begins with 'table'", 3),
        ("", "no run below {root} begins with ''", 3),
    ],
)
def test_a_name_that_is_not_one_run_lists_what_it_may_mean(tmp_path, named, said, listed):
    found = [RunDirectory(tmp_path, "study", "table", start + "0" * 62) for start in ("ab", "aba", "cd")]
    for run in found:
        run.path.mkdir(parents=True)
        durable.write_json(run.stage_file, {"fingerprint": run.fingerprint})
    with pytest.raises(BadInput) as caught:
        find_run(tmp_path, named)
    first, *lines = str(caught.value).splitlines()
    assert first.startswith(said.format(root=tmp_path))
    assert [line.strip() for line in lines] == sorted(str(run.path) for run in found[:listed])


@pytest.mark.parametrize("root", ["full", "nothing"])
@pytest.mark.parametrize("kind", ["folder", "file", "pipe", "below the root", "link to nothing"])
def test_what_exists_and_is_no_run_directory_is_called_so_whatever_lies_below_the_root(tmp_path, root, kind):
    runs.finished(tmp_path / "full")
    named = (tmp_path / root if kind == "below the root" else tmp_path) / "named"
    named.parent.mkdir(exist_ok=True)
    made = {"file": named.touch, "pipe": lambda: os.mkfifo(named), "link to nothing": lambda: named.symlink_to("gone")}
    made.get(kind, named.mkdir)()
    with pytest.raises(BadInput, match=rf"{named} is no run directory: it has no file stage\.json"):
        find_run(tmp_path / root, "named" if kind == "below the root" else str(named))


def test_a_slip_in_the_name_of_a_run_is_told_what_was_meant(tmp_path):
    run = runs.finished(tmp_path)
    place, begin = f"study/train/{run.path.name}", run.path.name[:8]
    (tmp_path / "study" / LATEST).symlink_to(run.path.relative_to(tmp_path / "study"))
    mistyped = {
        place: place.replace("train", "trian"),
        begin: begin[:3] + ("0" if begin[3] != "0" else "1") + begin[4:],
        f"study/{LATEST}": "stdy/latest",
    }
    for meant, typed in mistyped.items():
        with pytest.raises(BadInput, match=f"did you mean '{meant}'"):
            find_run(tmp_path, typed)


def test_a_fingerprint_that_goes_on_otherwise_is_another_run(tmp_path):
    run = runs.finished(tmp_path)
    with pytest.raises(BadInput, match=f"has the fingerprint {run.fingerprint}"):
        find_run(tmp_path, run.path.name + "0" * 52)


def test_a_root_without_runs_and_a_copied_run_directory_say_so(tmp_path):
    with pytest.raises(BadInput, match=rf"no runs below {tmp_path}: give --root"):
        find_run(tmp_path, "abc")
    run = runs.finished(tmp_path)
    copy = shutil.copytree(run.path, tmp_path / "results")
    with pytest.raises(BadInput, match=rf"{copy}/stage\.json cannot be believed: it is that of {run.path.name}"):
        find_run(tmp_path, str(copy))
    run.stage_file.write_text("[]")
    with pytest.raises(BadInput, match=r"stage\.json cannot be believed"):
        find_run(tmp_path, str(run.path))


def test_a_run_names_what_it_reads_and_a_file_that_tells_nothing_is_an_empty_object(tmp_path):
    run, other = runs.finished(tmp_path), runs.finished(tmp_path, "setup")
    given = {"text": {"stage": "setup", "fingerprint": other.fingerprint}}
    assert run.reads(given) == {"text": other} and run.reads({}) == {}
    assert read(run.result_file) == {"loss": 0.25, "seed": 1}
    for text in ("[1]", "{", "\ufeff{}"):
        run.result_file.write_text(text)
        assert read(run.result_file) == {}
    assert read(run.path / "not-there.json") == {}
