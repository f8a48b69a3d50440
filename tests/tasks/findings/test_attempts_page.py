"""attempts.html: when and where each stage worked, from its attempts' records; outside the outputs."""

import re
from pathlib import Path
from typing import Any

import pytest

from storage import durable
from storage.run_directory import RunDirectory
from tasks.findings.attempts_page import attempts_of, publish_attempts, seconds
from tasks.findings.dag import Dag
from tasks.stage.run import StageInput
from tests.tasks.findings.test_page import Reader
from tests.tasks.tiny import stage_run

BEGAN = 1_700_000_000.0


def record(run: RunDirectory, number: int, **fields: Any) -> None:
    values = {
        "attempt": number, "host": f"node-{number}", "slurm_job_id": None, "started_at": BEGAN + 100 * number,
        "ended_at": None, "end_state": None,
    }  # fmt: skip
    run.attempts.mkdir(parents=True, exist_ok=True)
    durable.write_json(run.attempts / f"{number:04d}.json", values | fields)


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    """Killed after 30 s, and finished by a second attempt after 60 s."""
    run = RunDirectory(tmp_path / "runs", "toy", "fit", "a" * 64)
    record(run, 1)
    (run.path / "locks").mkdir()
    durable.write_json(run.path / "locks" / "1.alive", {"at": BEGAN + 130})
    record(
        run, 2, ended_at=BEGAN + 260, end_state="finished", cpu_seconds=90.0, peak_memory_bytes=3 * 10**9,
        numerics={"device_model": "H200"}, slurm_job_id="4711",
    )  # fmt: skip
    durable.write_json(run.stage_file, {"configuration": {"cell": "<wide>"}, "inputs": {}})
    return run


def page_of(folder: Path, run: RunDirectory) -> tuple[str, Any]:
    work = stage_run(folder / "out")
    publish_attempts(work, Dag.of(work, [StageInput(run, "")]))
    return (work.directory / "attempts.html").read_text(), work


def rows(page: str) -> list[list[str]]:
    found = re.findall(r"<tr[^>]*>(.*?)</tr>", page, re.DOTALL)
    return [[Reader(cell).text for cell in re.findall(r"<td[^>]*>(.*?)</td>", row)] for row in found if "<td" in row]


def test_a_stage_has_the_time_of_all_its_attempts_and_a_killed_one_ended_at_its_last_sign_of_life(run):
    assert [*map(seconds, attempts_of(run.path))] == [30.0, 60.0]


def test_the_page_shows_dates_time_memory_host_and_device_of_each_attempt(tmp_path, run):
    page, _ = page_of(tmp_path, run)
    one = ["fit (<wide>)", "1", "2023-11-14 22:15:00", "0.50", "killed", "0.00", "0.00", "node-1", "-", "-", "a" * 12]
    used = ["2", "2023-11-14 22:16:40", "1.00", "finished", "1.50", "3.00", "node-2", "H200", "4711"]
    assert rows(page) == [one, ["fit (<wide>)", *used, "a" * 12]]
    assert "the last ended 2023-11-14 22:17:40" in page
    assert "2 attempts worked for 1 min 30 s together (processors: 1 min 30 s), on node-1, node-2." in page
    assert f"{'a' * 12} · 1 min 30 s" in page, "in the picture"


def test_it_is_no_output_so_no_digest_hangs_on_a_clock(tmp_path, run):
    _, work = page_of(tmp_path, run)
    assert work.outputs == ["stage.json", "result.json"]


def test_half_a_record_says_nothing_and_no_heartbeat_of_another_kind_is_believed(run):
    durable.write_json(run.path / "locks" / "1.alive", {"at": "soon"})
    assert [*map(seconds, attempts_of(run.path))] == [0.0, 60.0]
    (run.attempts / "0001.json").write_text("{")
    assert [one["attempt"] for one in attempts_of(run.path)] == [2]


def test_a_training_has_its_time_by_phase(run, tmp_path):
    assert "by phase" not in page_of(tmp_path / "before", run)[0]
    run.timing_file.write_text('{"step":1,"seconds":4.0,"load_seconds":3.0}\n')
    page, _ = page_of(tmp_path, run)
    (row,) = (row for row in rows(page) if "load 75%" in row[1])
    assert row[0] == "fit (<wide>)" and "execution.loader_workers" in row[1]
