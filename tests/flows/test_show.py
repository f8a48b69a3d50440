"""`ratchet show`: all about one run, from its run directory alone."""

import json
import re
import shutil

import pytest

from deployments.dag.walk import Handle
from flows import command
from storage import durable
from storage.locks import acquire
from tasks.training.unlearned import unlearned
from tests.flows.answers import Study, finished
from tests.tasks.resealed import seal


def shown(capsys: pytest.CaptureFixture[str], handle: Handle, *options: str) -> list[str]:
    assert command.ratchet(["show", str(handle.run.path), *options]) == 0
    return capsys.readouterr().out.splitlines()


def test_a_finished_run_says_what_came_out_and_where_and_what_it_read(tmp_path, capsys):
    count, answer = finished(tmp_path, Study(name="one"))
    lines = shown(capsys, answer)
    assert lines[0] == f"answer {answer.run.path.name}, of the study one"
    assert lines[1].startswith("  state    finished on 20") and re.search(r", after 0\.\d s$", lines[1])
    assert f"  folder   {answer.run.path}" in lines and "  result   10 words & more" in lines
    names = ["report.html", "table.md", "final_results.json", "result.json"]
    assert [line for line in lines if " read     " in line] == [
        f"  read     {answer.run.path / name}" for name in names
    ]
    assert f"  reads    counted: count {count.run.path.name}" in lines
    shutil.rmtree(count.run.path)
    assert f"  reads    counted: count {count.run.path.name}  (not there any more)" in shown(capsys, answer)


def test_what_a_stage_keeps_in_its_rows_alone_is_shown_of_them(tmp_path, capsys):
    """An empty result was what there was to read, and a training without trivial values had no best validation."""
    count, _ = finished(tmp_path, Study(name="one"))
    count.run.result_file.write_text("{}")
    (count.run.path / "records.parquet").touch()
    rows = [{"step": step, "validation_loss": loss} for step, loss in ((2, 5.5), (4, 5.25), (6, 5.75))]
    count.run.metrics_file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    seal(count.run.path)
    lines = shown(capsys, count)
    assert f"  read     {count.run.path / 'records.parquet'}" in lines
    assert "  result   best validation_loss 5.25 at step 4" in lines
    assert unlearned([count.run]) == "", "nothing stands beside it that learns nothing"


@pytest.mark.parametrize(
    ("attempts", "told"),
    [
        ("a0 b2", [2]),
        ("a0 a2", []),
        ("a0 b0", []),  # the first had kept nothing
        ("a0 b2 a2", []),  # the second added nothing
        ("a0 b2 a4", [2, 3]),
        ("a0 b2 b0", [2]),  # begun anew
    ],
)
def test_attempts_that_went_on_with_edited_files_are_told(tmp_path, capsys, attempts, told):
    """Each is the digest of a person's files, and the steps that were kept when it began."""
    count, _ = finished(tmp_path, Study(name="one"))
    first = durable.read_json(count.run.attempts / "0001.json")
    for number, (digest, steps) in enumerate(attempts.split(), 1):
        known = {"attempt": number, "source": {"own_digest": digest}, "began_at": [int(steps), 0]}
        durable.write_json(count.run.attempts / f"{number:04d}.json", first | known)
    lines = [line for line in shown(capsys, count) if " attempt " in line or "edited files" in line]
    assert [number for number, line in enumerate(lines) if "edited" in line] == [
        number + place for place, number in enumerate(told)
    ]


def test_every_attempt_says_when_where_how_and_why_it_ended_and_what_it_used(tmp_path, capsys):
    run = finished(tmp_path, Study(name="one", fails=True))[0].run
    of_cluster = {
        "host": "node7",
        "slurm_job_id": "4711",
        "started_by": "automatic",
        "started_at": 1e9,
        "ended_at": 1e9 + 90,
    }
    used = {
        "cpu_seconds": 7300.0,
        "peak_memory_bytes": 5_250_000_000,
        "hardware": "one GPU, torch",
        "source": {"commit": "c" * 40, "dirty_digest": "d"},
    }
    file = run.attempts / "0001.json"
    durable.write_json(file, durable.read_json(file) | of_cluster | used)
    assert command.ratchet(["show", run.path.name, "--root", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    first, *why = lines[next(number for number, line in enumerate(lines) if line.startswith("  attempt ")) :][:3]
    assert first.startswith("  attempt  1  2001-09-09 0") and first.endswith(
        "check failed after 1 min 30 s, on node7, job 4711, started by itself; 2 h 1 min of CPU, at most 5.2 GB of "
        "memory; one GPU, torch; commit cccccccccccc with changes"
    )
    assert "the words are there: measured 0, required 10" in why[0] and why[1].strip() == "Look at the text"
    log = lines.index(f"  log      {file.with_suffix('.log')}")
    tail = [line.split("ratchet.count: ")[-1] for line in lines[log + 1 : log + 11]]
    assert tail[0] == "counts line 3" and tail[-2] == "counts line 11" and "check failed" in tail[-1]
    durable.write_json(file, durable.read_json(file) | {"ended_at": None, "end_state": None})  # as a kill leaves it
    durable.write_json(run.path / "locks" / "1.alive", {"at": 1e9 + 90})
    lines = shown(capsys, finished(tmp_path, Study(name="one"))[0])
    assert sum(line.startswith("  attempt  ") for line in lines) == 2
    assert lines[1].startswith("  state    finished") and lines[1].endswith(", after 1 min 30 s in 2 attempts")
    assert [line for line in lines if ".log" in line] == [f"  log      {run.attempts / '0002.log'}"]


def test_an_attempt_at_work_and_one_that_was_killed_are_told_apart(tmp_path, capsys):
    handle = finished(tmp_path, Study(name="one", fails=True))[0]
    file = handle.run.attempts / "0001.json"
    durable.write_json(file, durable.read_json(file) | {"end_state": None, "ended_at": None, "diagnosis": None})
    lines = shown(capsys, handle)
    assert "was killed: it left no end, on " in "\n".join(lines) and any(line.startswith("  log  ") for line in lines)
    lock = acquire(handle.run.path / "locks")
    lines = shown(capsys, handle)
    lock.release()
    (handle.run.path / "jobs").mkdir()
    for number in (1, 2):
        (handle.run.path / "jobs" / f"000{number}.log").touch()
    assert f"  job log  {handle.run.path}/jobs/0002.log" in shown(capsys, handle)
    assert "  at work, on " in "\n".join(lines)
    assert lines[1].startswith("  state    running")


def test_sizes_are_those_on_disk_the_largest_first(tmp_path, capsys):
    count = finished(tmp_path, Study(name="one"))[0]
    for name, size in (("model/a/weights.safetensors", 30_000_000), ("checkpoints/1/state", 2_000_000)):
        (count.run.path / name).parent.mkdir(parents=True)
        (count.run.path / name).write_bytes(bytes(size))
    (disk,) = [line for line in shown(capsys, count) if line.startswith("  disk ")]
    assert disk.startswith("  disk     32.0 MB: model 30.0 MB, checkpoints 2.0 MB, ") and "others" in disk


def test_an_exported_copy_says_so_and_a_damaged_run_is_shown_as_far_as_it_can_be_read(tmp_path, capsys):
    count = finished(tmp_path / "runs", Study(name="one"))[0]
    assert command.ratchet(["export", str(tmp_path / "runs"), str(tmp_path / "copy")]) == 0
    capsys.readouterr()
    (tmp_path / "copy" / "one" / "count" / count.run.path.name / "result.json").write_text("{ }")
    assert command.ratchet(["show", count.run.path.name, "--root", str(tmp_path / "copy")]) == 0
    assert "an exported copy: `ratchet verify` holds it against its manifest" in capsys.readouterr().out
    (count.run.attempts / "0001.json").write_text("{")
    count.run.result_file.write_text("{")
    said = "\n".join(shown(capsys, count))
    assert "its marker does not hold: result.json has 1 bytes" in said
    assert f"{count.run.attempts / '0001.json'} cannot be read" in said


def test_a_duration_that_no_record_tells_is_not_made_up(tmp_path, capsys):
    count = finished(tmp_path, Study(name="one"))[0]
    shutil.rmtree(count.run.attempts)
    assert shown(capsys, count)[1].endswith(", after a time that no attempt's record tells")
