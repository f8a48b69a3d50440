"""What is said of stages before they run: only what is so, and in every way of running."""

from pathlib import Path

import pytest

from deployments.dag.walk import Handle, Walk
from deployments.views.notes import finished_neighbours, notes
from flows import command
from storage import attempts, durable
from storage.run_directory import RunDirectory
from tasks.stage.run import Stage
from tests.deployments.toy import ToyConfig
from tests.flows import answers


def page(root: Path) -> list[Handle]:
    """A first stage and one that reads it; neither was started."""
    walk = Walk(root, "toy")
    first = walk(Stage("first", ToyConfig, "tests.deployments.toy:work"), ToyConfig(ends="finished"))
    walk(Stage("second", ToyConfig, "tests.deployments.toy:work"), ToyConfig(ends="finished"), first=first)
    return walk.handles


def unfinished(run: RunDirectory, number: int, step: int, version: int = 1) -> None:
    """Leaves work on a stage as an attempt does that was stopped."""
    checkpoint = run.checkpoints / str(step)
    checkpoint.mkdir(parents=True)
    durable.write_json(checkpoint / "manifest.json", {"files": {}, "identity": {}})
    durable.write_json(run.stage_file, {"version": version, "scientific": {"ends": "finished", "number": number}})


def test_a_stage_that_begins_anew_says_beside_which_unfinished_work_and_why(tmp_path):
    """Seen: it was said of each arm beside the other arm of the same page."""
    walk = Walk(tmp_path, "toy")
    train = Stage("train", ToyConfig, "tests.deployments.toy:work")
    plain, wide = (walk(train, ToyConfig(ends="finished", number=number, cell=f"arm {number}")) for number in (1, 2))
    unfinished(plain.run, 1, step=7)
    assert notes(walk.handles) == [], "the other arm is no former version of this one"
    former = RunDirectory(tmp_path, "toy", "train", "f" * 64)
    unfinished(former, 3, step=9)
    assert notes(walk.handles) == [
        f"train (arm 2) begins anew: {former.path}, which stands at step 9, is another stage: number: 3 there, 2 here"
    ]
    former.marker_file.write_text("{}")
    assert notes(walk.handles) == [], "what is finished was not to be continued"
    former.marker_file.unlink()
    raised = RunDirectory(tmp_path, "toy", "train", "e" * 64)
    unfinished(raised, 2, step=8, version=4)
    assert notes(walk.handles)[0].endswith(
        f"{raised.path}, which stands at step 8, is another stage: version: 4 there, 1 here"
    )
    unfinished(wide.run, 2, step=1)
    assert notes(walk.handles) == [], "it goes on"


def attempted(handle: Handle, number: int, digest: str, began_at: int) -> None:
    attempts.AttemptRecord(handle.run.attempts, number, {}, [began_at, 0], own_source={"own_digest": digest})


CHANGED = (
    "old results of {0} are kept, though tests/deployments/toy.py, or what it imports, changed since: `--fresh {0}` "
    "runs it anew"
)


def test_work_that_changed_since_what_is_kept_was_made_is_named(tmp_path):
    first, _ = handles = page(tmp_path)
    attempted(first, 1, "a", 0)
    first.own_source = {"own_digest": "b"}
    assert notes(handles) == [], "nothing is kept of it"
    unfinished(first.run, 0, step=7)
    assert notes(handles) == [CHANGED.format("first")]
    first.own_source = {"own_digest": "a"}
    assert notes(handles) == []
    attempts.AttemptRecord(first.run.attempts, 2, {}, [7, 0])
    assert notes(handles) == [], "a record of before says nothing of it"


def test_an_attempt_that_gained_nothing_made_nothing_of_what_is_kept(tmp_path):
    first, _ = handles = page(tmp_path)
    first.own_source = {"own_digest": "a"}
    attempted(first, 1, "a", 0)
    unfinished(first.run, 0, step=7)
    attempted(first, 2, "an edit that crashed, and was undone", 7)
    assert notes(handles) == []
    first.own_source = {"own_digest": "b"}
    assert notes(handles) == [CHANGED.format("first")]


def test_every_attempt_that_made_a_part_counts_and_not_the_newest_alone(tmp_path):
    """Results of mixed sources looked clean as soon as the newest attempt had the present ones."""
    first, _ = handles = page(tmp_path)
    first.own_source = {"own_digest": "b"}
    attempted(first, 1, "a", 0)
    attempted(first, 2, "c", 3)
    unfinished(first.run, 0, step=7)
    attempted(first, 3, "b", 7)
    assert notes(handles) == [CHANGED.format("first")]


def test_of_many_calls_beside_many_old_runs_each_folder_is_read_once(tmp_path, monkeypatch):
    walk, read = Walk(tmp_path, "toy"), list[Path]()
    train = Stage("train", ToyConfig, "tests.deployments.toy:work")
    for number in range(20):
        walk(train, ToyConfig(ends="finished", number=number, cell=f"arm {number}"))
        unfinished(RunDirectory(tmp_path, "toy", "train", f"{number:02d}" * 32), 100 + number, step=1)
    monkeypatch.setattr("deployments.views.notes.furthest", lambda folder: read.append(folder) or 1)
    assert len(notes(walk.handles)) == 20 and len(read) == 20


def asked(root: Path, **fields: object) -> list[Handle]:
    """The stage calls of a study of `tests.flows.answers`, of which nothing is run."""
    study = answers.Study.model_validate({"name": "one"} | fields)
    walk = Walk(root, study.name)
    answers.page(study, walk)
    return walk.handles


def finished(root: Path, **fields: object) -> Path:
    return answers.finished(root, answers.Study.model_validate({"name": "one"} | fields))[-1].run.path


def test_finished_neighbours_of_what_is_asked_for_are_named_with_what_differs_also_upstream(tmp_path):
    other, words = finished(tmp_path, words=20, level=0.9), finished(tmp_path, words=20)
    assert finished_neighbours(asked(tmp_path)) == [
        f"{words} is a finished answer of this study, and differs in words: 20 there, 10 here",
        f"{other} is a finished answer of this study, and differs in level: 0.9 there, 0.95 here; words: 20 there, 10 "
        "here",
    ]
    assert finished_neighbours(asked(tmp_path, words=20)) == [], "what was asked for is finished"
    assert finished_neighbours(asked(tmp_path, name="two")) == [], "another study is no neighbour"


def test_what_a_neighbour_differs_in_is_named_by_the_keys_that_a_person_sets(tmp_path):
    """A stage's own field was named, which `--set` does not take."""
    other, handles = finished(tmp_path, words=20), asked(tmp_path)
    durable.write_json(other / "study.json", {"page": "p", "study": {"text": {"length": 20}, "seed": 42}, "over": {}})
    handles[-1].origin = {"page": "p", "study": {"text": {"length": 10}, "seed": 42}, "over": {}}
    assert finished_neighbours(handles) == [
        f"{other} is a finished answer of this study, and differs in text.length: 20 there, 10 here"
    ]


def test_what_is_not_finished_or_not_there_is_no_neighbour(tmp_path):
    assert finished_neighbours(asked(tmp_path)) == []
    cut, damaged = finished(tmp_path, words=20), finished(tmp_path, words=30)
    (cut / "table.md").write_text("")
    (damaged / "stage.json").write_text("{")
    answers.finished(tmp_path, answers.Study(name="one", words=40, fails=True))
    assert finished_neighbours(asked(tmp_path)) == []


def test_of_many_neighbours_those_most_alike_are_named_and_the_others_counted(tmp_path):
    far = [finished(tmp_path, words=words, level=0.5) for words in (1, 2)]
    near = [finished(tmp_path, words=words) for words in (3, 4)]
    *named, counted = finished_neighbours(asked(tmp_path))
    assert [Path(line.split()[0]) for line in named[:2]] == sorted(near) and Path(named[2].split()[0]) in far
    assert len(named) == 3 and counted == f"and 1 more: `ratchet list {tmp_path}` shows them"


@pytest.mark.parametrize("view", ["--status", "--dry-run"])
def test_status_and_a_dry_run_name_them(view, tmp_path, capsys):
    there, study = finished(tmp_path, words=20), ["run", "tests.flows.answers", "--root", str(tmp_path), view]
    command.ratchet([*study, "--set", "name=one"])
    assert f"{there} is a finished answer of this study, and differs in words: 20 there" in capsys.readouterr().out
    assert command.ratchet([*study, "--set", "name=one", "--set", "words=20"]) == 0
    assert "of this study" not in capsys.readouterr().out
