"""Histories in which everything fails, and the same histories with one line of the code taken out.

A real Pool between a fake SLURM and fake records (histories.py has what must hold). A failure names its history N:
`python -m tests.deployments.slurm.histories N 1` plays it, and other numbers others.
"""

import inspect
import json
import logging
import subprocess
import sys
import tempfile
import textwrap
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from deployments.slurm.job import plan as job
from deployments.slurm.pool import reconcile
from deployments.slurm.pool.pool import Pool
from deployments.slurm.pool.submissions import Next, Submissions
from tests.conftest import REPOSITORY
from tests.deployments.slurm import histories

PROCESSES = 2
MUTANT_HISTORIES = 1500


@pytest.mark.parametrize("count", [500, pytest.param(10_000, marks=pytest.mark.long)])
def test_in_all_histories_nothing_is_lost_doubled_or_shown_wrong(count):
    each = count // PROCESSES
    played = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.deployments.slurm.histories", str(number * each), str(each)],
            cwd=REPOSITORY,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for number in range(PROCESSES)
    ]
    total = Counter[str]()
    for process in played:
        output, error = process.communicate()
        assert process.returncode == 0, error[-2000:]
        total += Counter(json.loads(output))
    for name in ("lost replies", "killed on the way", "state losses", "clock jumps", "server away", "started again"):
        assert total[name] >= count / 50, f"too few of these to prove anything: {name}"
    assert total["histories"] == count and min(total["workers"], total["submitted"]) >= 1.3 * count
    assert total["tasks"] >= count / 10, "too few arrays"
    assert {f"job: {name}" for name in histories.FATES} <= set(total), "some ends never came"


# -------------------------------------------------------------------------------------------- the fuzz has teeth

# what is taken out: the function, what stands there, what stands there instead, and a history that notices
MUTATIONS: dict[str, tuple[Callable[..., Any], str, str, int]] = {
    "a reused id is taken for ours whatever its name": (
        reconcile._of_run,
        "if job is None or job.name != last.name:  # an id",
        "if job is None:  # an id",
        218,
    ),
    "a job is submitted before the journal has it": (
        Submissions._write,
        "self.live[planned.plan.flow_run] = planned.journal.write(planned.entry)",
        "self.live[planned.plan.flow_run] = planned.entry",
        5,
    ),
    "a job is submitted though one of the run may live": (
        Submissions.submit,
        "if last and last.live:",
        "if last and last.live and last.job_id:",
        60,
    ),
    "a job that vanished is taken for ended at once": (
        reconcile._vanished,
        "if not ended and (seen.heartbeat or seen.absent_for <= patience):",
        "if not ended and False:",
        218,
    ),
    "the heartbeat of a job that vanished is not read": (
        reconcile._vanished,
        "seen.heartbeat or seen.absent_for <= patience",
        "seen.absent_for <= patience",
        2386,
    ),
    "the accounting is believed that a forgotten job runs": (
        reconcile._of_run,
        "or job.name != last.name or not diagnosis.accounted_end(job):",
        "or job.name != last.name:",
        268,
    ),
    "a cluster that lost its queue is taken for somebody who cancelled": (
        reconcile._of_run,
        "not diagnosis.accounted_end(job):",
        "job.state not in diagnosis.ENDS:",
        1618,
    ),
    "a job without an answer is not searched for by its name": (
        reconcile._unanswered,
        "if job := named.get(last.name):",
        "if job := named.get(''):",
        7,
    ),
    "a job without an answer is given no time to appear": (
        reconcile._unanswered,
        "seen.absent_for <= limits.submit_grace",
        "seen.absent_for < 0",
        7,
    ),
    "an end does not hold which state it was decided over": (reconcile._ended, "run.state_id,", '"",', 219),
    "what stands in the journal is not set again": (
        reconcile._without_job,
        "if last and end and run.type in OPEN and",
        "if False and",
        219,
    ),
    "a state that somebody set meanwhile is overwritten": (
        reconcile._ended,
        "_state_after(run, end) if run.type in OPEN else None",
        "_state_after(run, end)",
        6885,
    ),
    "a retry while the job lives is not distinguished from its start": (
        reconcile._asked_again,
        "doomed or (",
        "False and (",
        257,
    ),
    "a run whose worker died before it submitted stays Pending": (
        reconcile._without_job,
        'if run.type == "PENDING" and seen.in_state_for > limits.unsubmitted:',
        "if False:",
        14,
    ),
    "what the attempt wrote is not read": (reconcile._finish, "record = seen.attempt or {}", "record = {}", 104),
    "a finished stage's job that leaves no record is no success": (
        reconcile._finish,
        'or (job.state == "COMPLETED" and not end_state and seen.marker)',
        "",
        26,
    ),
    "a next job does not wait for those that may live": (
        job.known_before,
        "ids = [entry.job_id for entry in reversed(since) if entry.job_id and entry.live]",
        "return []",
        32,
    ),
    "another flow run's job without an answer is not waited for": (
        Submissions._jobs_before,
        "if entry.live and entry.job_id is None:",
        "if False:",
        74,
    ),
    "a task is taken for its array": (
        Next.id_in,
        "job_id if self.task is None else task_id(job_id, self.task)",
        "job_id",
        37,
    ),
    "an array is submitted before the journals have its tasks": (
        Submissions._submit_group,
        "self._write(planned, sbatch_text(planned.job))",
        "self.live[planned.plan.flow_run] = planned.entry",
        4,
    ),
    "who was gathered is submitted whatever became of the run": (
        Pool.poll,
        "asked = [plan for plan in gathered if states.get(plan.flow_run) == plan.state_id]",
        "asked = gathered",
        10,
    ),
    "a cancelled run's job lives on": (
        reconcile._of_run,
        'if run.type in ("CANCELLING", "CANCELLED") or',
        "if False or",
        32,
    ),
}


@pytest.fixture
def quiet(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder in memory, and no log."""
    logging.disable(logging.CRITICAL)
    with tempfile.TemporaryDirectory(dir=histories.MEMORY) as folder:
        yield Path(folder)
    logging.disable(logging.NOTSET)


def mutate(monkeypatch: pytest.MonkeyPatch, function: Any, old: str, new: str) -> None:
    """Replaces `old`, which stands in the function exactly once, for one test."""
    source = textwrap.dedent(inspect.getsource(function))
    assert source.count(old) == 1, f"{old!r} stands {source.count(old)} times in {function.__qualname__}"
    names = dict(function.__globals__)
    exec(compile(source.replace(old, new), function.__qualname__, "exec"), names)
    monkeypatch.setattr(function, "__code__", names[function.__name__].__code__)


@pytest.mark.parametrize("mutation", MUTATIONS)
def test_the_histories_notice_that(mutation, monkeypatch, quiet):
    function, old, new, noticed_in = MUTATIONS[mutation]
    mutate(monkeypatch, function, old, new)
    with pytest.raises(histories.Broken):
        for seed in (noticed_in, *range(MUTANT_HISTORIES)):
            histories.play(seed, quiet)
