"""What is shown of a run's jobs: log lines once each, where they are, and of a failure the cause and the log's end."""

import logging
import time
from datetime import UTC
from pathlib import Path
from threading import Event
from typing import Any
from uuid import uuid4

import pytest

from deployments.slurm.job.journal import End, Journal, Submission, run_of
from deployments.slurm.study import mirror
from deployments.slurm.study.mirror import Mirror, jobs_markdown
from storage.run_directory import RunDirectory
from tasks.stage.outcome import Diagnosis

TASK = uuid4()


class Client:
    """Keeps what would be sent."""

    def __init__(self) -> None:
        self.logs: list = []
        self.requests = 0
        self.away = False

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def create_logs(self, logs) -> None:
        if self.away:
            raise ConnectionError("the server is away")
        assert {line.task_run_id for line in logs} == {TASK}
        self.logs += logs
        self.requests += 1

    def create_artifact(self, artifact):
        raise ConnectionError("not needed here")


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Client:
    made = Client()
    monkeypatch.setattr(mirror, "get_client", lambda sync_client: made)
    return made


def a_run(folder: Path, end: End | None = None) -> RunDirectory:
    Journal(folder).write(Submission(1, "toy.1", "f", 0.0, True, 4.0, job_id="7", end=end))
    return run_of(folder)


def show(*runs: RunDirectory) -> None:
    """What a new flow run shows of these."""
    shown = Mirror(str(uuid4()))
    shown.show([(run, TASK) for run in runs])
    shown.close(60)


def show_end(run: RunDirectory) -> None:
    shown = Mirror(str(uuid4()))
    shown._shown_at[run.path] = 0.0  # it was under way
    shown.show_end(run, TASK, finished=False)
    shown.close(60)


def test_each_line_is_sent_once_with_its_own_time_and_level_also_by_a_flow_run_that_is_retried(tmp_path, client):
    run = a_run(tmp_path / "toy/first/abc/jobs")
    log = run.path / "jobs/0001.log"
    log.write_text("ratchet: job 7 on n1\n2026-11-21 18:50:09.528+02:00 WARNING ratchet.first: slow disk\nhalf a li")
    show(run)
    assert [line.message for line in client.logs] == ["ratchet: job 7 on n1", "slow disk"]
    assert (client.logs[1].level, client.logs[1].name) == (logging.WARNING, "ratchet.first")
    assert client.logs[1].timestamp.astimezone(UTC).strftime("%H:%M:%S.%f") == "16:50:09.528000", "by the node's zone"
    with log.open("a") as more:
        more.write("ne\n")
    show(run)
    assert [line.message for line in client.logs[2:]] == ["half a line"]


def test_a_bar_that_is_drawn_over_and_over_holds_up_no_later_line(tmp_path, client):
    run = a_run(tmp_path / "toy/first/abc/jobs")
    (run.path / "jobs/0001.log").write_text("\r50%" * mirror.AT_ONCE_BYTES + "\nand then\n")
    for _ in range(6):
        show(run)
    assert client.logs[-1].message == "and then"


def test_a_linked_log_was_sent_and_a_linked_mark_was_written_through(tmp_path, client):
    """Who may write in a root that a group shares had the worker show, or overwrite, what its owner alone may."""
    run = a_run(tmp_path / "toy/first/abc/jobs")
    log, mark = (run.path / "jobs" / f"0001.{suffix}" for suffix in ("log", "shown"))
    (tmp_path / "secret").write_text("a secret\n")
    log.symlink_to(tmp_path / "secret")
    mark.symlink_to(tmp_path / "mine")
    show(run)
    assert not client.logs and "a secret" not in mirror.jobs_markdown(Journal(log.parent), Journal(log.parent).all())
    log.unlink()
    log.write_text("of the job\n")
    show(run)
    assert [line.message for line in client.logs] == ["of the job"]
    assert mark.read_text() == "11" and not (tmp_path / "mine").exists()


def test_of_a_job_that_ended_the_rest_of_the_log_is_shown_at_once(tmp_path, monkeypatch, client):
    """Nobody reads it again."""
    run = a_run(tmp_path / "toy/first/abc/jobs")
    log = run.path / "jobs/0001.log"
    log.write_text("".join(f"line {number}\n" for number in range(20_000)) + "no newline")
    show_end(run)
    assert [line.message for line in client.logs] == [*(f"line {number}" for number in range(20_000)), "no newline"]
    monkeypatch.setattr(mirror, "LAST_BYTES", 12)
    with log.open("a") as more:
        more.write("very much\nthe last\n")
    show_end(run)
    assert [line.message for line in client.logs[20_001:]] == ["ch", "the last"]


def test_of_jobs_that_go_on_little_is_written_and_an_end_is_shown_at_once(tmp_path, monkeypatch, client):
    """With 8 trainings a server on SQLite said "database is locked" ten times."""
    runs = [a_run(tmp_path / f"toy/first/abc{number}/jobs") for number in range(8)]
    shown, now = Mirror(str(uuid4())), [0.0]
    monkeypatch.setattr(mirror.time, "monotonic", lambda: now[0])
    for now[0] in range(0, 60, 5):
        for run in runs:
            with (run.path / "jobs/0001.log").open("a") as log:
                log.write(f"at {now[0]}\n")
        shown.show([(run, TASK) for run in runs])
        while not shown._due.empty():
            pass
    shown.show_end(runs[0], TASK, finished=False)
    shown.close(60)
    assert client.requests == 8 * 3 + 1 and client.logs[-1].message == "at 55"


def test_a_busy_server_holds_up_what_is_shown_and_not_who_follows(tmp_path, client):
    """Each request of the client is tried again for a minute: a stage was shown Pending for 129 s after its end."""
    run, free, began = a_run(tmp_path / "toy/first/abc/jobs"), Event(), Event()
    (run.path / "jobs/0001.log").write_text("one\n")
    create = client.create_logs

    def slow(logs: Any) -> None:
        began.set()
        free.wait(60)
        create(logs)

    client.create_logs = slow
    shown, at = Mirror(str(uuid4())), time.monotonic()
    shown.show([(run, TASK)])
    assert began.wait(10)
    for _ in range(3):
        shown.show([(run, TASK)])
    shown.show_end(run, TASK, finished=False)
    assert not client.logs and time.monotonic() - at < 30, "who follows goes on meanwhile"
    free.set()
    shown.close(60)
    assert [line.message for line in client.logs] == ["one"]


def test_a_server_that_is_away_loses_no_line(tmp_path, client):
    run = a_run(tmp_path / "toy/first/abc/jobs")
    (run.path / "jobs/0001.log").write_text("one\n")
    client.away = True
    show(run)
    client.away = False
    show(run)
    assert [line.message for line in client.logs] == ["one"]


def test_a_failure_shows_cause_remedy_and_the_end_of_the_log(tmp_path):
    found = Diagnosis("error", "check failed", "weights never moved", resolution="Raise the rate.")
    a_run(tmp_path / "toy/first/abc/jobs", End("Failed", "weights never moved.", found))
    journal = Journal(tmp_path / "toy/first/abc/jobs")
    journal.log(journal.all()[0]).write_text("".join(f"line {number}\n" for number in range(100)))
    shown = jobs_markdown(journal, journal.all(), {"attempt": 3, "host": "n1", "numerics": {"device_model": "H100"}})
    assert shown.startswith("### check failed: weights never moved\n\nRaise the rate.")
    assert "Attempt 3 on n1, H100" in shown and f"tail -f {journal.folder}/0001.log" in shown
    assert "| 7 |" in shown and "line 99" in shown and "line 60\n" not in shown
