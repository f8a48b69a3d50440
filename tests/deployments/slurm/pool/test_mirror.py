"""What is shown of a run's jobs: log lines once each, where they are, and of a failure the cause and the log's end."""

import logging
import time
from datetime import UTC
from pathlib import Path
from threading import Event
from uuid import uuid4

from deployments.slurm.job.journal import End, Journal, Submission
from deployments.slurm.pool import mirror
from deployments.slurm.pool.mirror import Beside, Mirror, jobs_markdown
from deployments.slurm.pool.reconcile import Run, Seen
from tasks.stage.outcome import Diagnosis


class Client:
    """Keeps what would be sent."""

    def __init__(self) -> None:
        self.logs: list = []
        self.requests = 0
        self.away = False

    def create_logs(self, logs) -> None:
        if self.away:
            raise ConnectionError("the server is away")
        self.logs += logs
        self.requests += 1

    def create_artifact(self, artifact):
        raise ConnectionError("not needed here")


def a_run(folder: Path, end: End | None = None) -> Seen:
    flow_run = str(uuid4())
    entry = Journal(folder).write(Submission(1, "toy.1", flow_run, 0.0, True, 4.0, job_id="7", end=end))
    return Seen(Run(flow_run, "s", "RUNNING", "Running", "", str(folder)), [entry])


def test_each_line_is_sent_once_with_its_own_time_and_level_also_by_a_new_worker(tmp_path):
    seen, client = a_run(tmp_path / "toy/first/abc/jobs"), Client()
    log = Path(seen.run.folder) / "0001.log"
    log.write_text("ratchet: job 7 on n1\n2026-11-21 18:50:09.528+02:00 WARNING ratchet.first: slow disk\nhalf a li")
    Mirror(client).show([seen])
    assert [line.message for line in client.logs] == ["ratchet: job 7 on n1", "slow disk"]
    assert (client.logs[1].level, client.logs[1].name) == (logging.WARNING, "ratchet.first")
    assert client.logs[1].timestamp.astimezone(UTC).strftime("%H:%M:%S.%f") == "16:50:09.528000", "by the node's zone"
    with log.open("a") as more:
        more.write("ne\n")
    Mirror(client).show([seen])
    assert [line.message for line in client.logs[2:]] == ["half a line"]


def test_a_bar_that_is_drawn_over_and_over_holds_up_no_later_line(tmp_path):
    seen, client = a_run(tmp_path / "toy/first/abc/jobs"), Client()
    (Path(seen.run.folder) / "0001.log").write_text("\r50%" * mirror.AT_ONCE_BYTES + "\nand then\n")
    for _ in range(6):
        Mirror(client).show([seen])
    assert client.logs[-1].message == "and then"


def test_a_linked_log_was_sent_and_a_linked_mark_was_written_through(tmp_path):
    """Who may write in a root that a group shares had the worker show, or overwrite, what its owner alone may."""
    seen, client = a_run(tmp_path / "toy/first/abc/jobs"), Client()
    log, mark = (Path(seen.run.folder) / f"0001.{suffix}" for suffix in ("log", "shown"))
    (tmp_path / "secret").write_text("a secret\n")
    log.symlink_to(tmp_path / "secret")
    mark.symlink_to(tmp_path / "mine")
    Mirror(client).show([seen])
    assert not client.logs and "a secret" not in mirror.jobs_markdown(Journal(log.parent), seen.submissions)
    log.unlink()
    log.write_text("of the job\n")
    Mirror(client).show([seen])
    assert [line.message for line in client.logs] == ["of the job"]
    assert mark.read_text() == "11" and not (tmp_path / "mine").exists()


def test_of_a_job_that_ended_the_rest_of_the_log_is_shown_at_once(tmp_path, monkeypatch):
    """Nobody reads it again."""
    seen, client = a_run(tmp_path / "toy/first/abc/jobs"), Client()
    log = Path(seen.run.folder) / "0001.log"
    log.write_text("".join(f"line {number}\n" for number in range(20_000)) + "no newline")
    Mirror(client).show_end(seen, seen.submissions[0])
    assert [line.message for line in client.logs] == [*(f"line {number}" for number in range(20_000)), "no newline"]
    monkeypatch.setattr(mirror, "LAST_BYTES", 12)
    with log.open("a") as more:
        more.write("very much\nthe last\n")
    Mirror(client).show_end(seen, seen.submissions[0])
    assert [line.message for line in client.logs[20_001:]] == ["ch", "the last"]


def test_of_jobs_that_go_on_little_is_written_and_an_end_is_shown_at_once(tmp_path, monkeypatch):
    """With 8 trainings a server on SQLite said "database is locked" ten times."""
    client, now = Client(), [0.0]
    monkeypatch.setattr(mirror.time, "monotonic", lambda: now[0])
    runs = [a_run(tmp_path / f"toy/first/abc{number}/jobs") for number in range(8)]
    shows = Mirror(client)
    for now[0] in range(0, 60, 5):
        for one in runs:
            with (Path(one.run.folder) / "0001.log").open("a") as log:
                log.write(f"at {now[0]}\n")
        shows.show(runs)
    assert client.requests == 8 * 3
    before = client.requests
    shows.show_end(runs[0], runs[0].submissions[0])
    assert client.requests == before + 1 and client.logs[-1].message == "at 55"


def test_a_busy_server_holds_up_what_is_shown_and_not_the_poll():
    """Each request of the client is tried again for a minute: a stage was shown Pending for 129 s after its end."""
    free, began, shown = Event(), Event(), Event()

    class Slow:
        def show(self, seen: object) -> None:
            began.set()
            free.wait(60)

        def show_end(self, seen: object, ended: object) -> None:
            shown.set()

    beside = Beside(Slow())
    at = time.monotonic()
    beside.show([])
    assert began.wait(10)
    for _ in range(3):
        beside.show([])
    beside.show_end(None, None)
    assert not shown.is_set() and time.monotonic() - at < 30, "the poll goes on meanwhile"
    free.set()
    assert shown.wait(10)


def test_a_server_that_is_away_loses_no_line(tmp_path):
    seen, client = a_run(tmp_path / "toy/first/abc/jobs"), Client()
    (Path(seen.run.folder) / "0001.log").write_text("one\n")
    client.away = True
    Mirror(client).show([seen])
    client.away = False
    Mirror(client).show([seen])
    assert [line.message for line in client.logs] == ["one"]


def test_a_failure_shows_cause_remedy_and_the_end_of_the_log(tmp_path):
    found = Diagnosis("error", "check failed", "weights never moved", resolution="Raise the rate.")
    seen = a_run(tmp_path / "jobs", End("Failed", "weights never moved.", found))
    journal = Journal(tmp_path / "jobs")
    journal.log(seen.submissions[0]).write_text("".join(f"line {number}\n" for number in range(100)))
    shown = jobs_markdown(journal, seen.submissions, {"attempt": 3, "host": "n1", "numerics": {"device_model": "H100"}})
    assert shown.startswith("### check failed: weights never moved\n\nRaise the rate.")
    assert "Attempt 3 on n1, H100" in shown and f"tail -f {tmp_path}/jobs/0001.log" in shown
    assert "| 7 |" in shown and "line 99" in shown and "line 60\n" not in shown
