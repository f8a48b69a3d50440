"""What is said of stages before they run: only what is so, and in every way of running."""

from pathlib import Path

from deployments.dag.walk import Handle, Walk
from deployments.views.notes import notes
from storage import attempts, durable
from storage.run_directory import RunDirectory
from tasks.stage.run import Stage
from tests.deployments.toy import ToyConfig


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
