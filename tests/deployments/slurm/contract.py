"""What the fake SLURM and the real one have in common, as far as the pool relies on it.

A test module makes a subclass of `Contract` with a fixture `bench`; `test_contract.py` does so for the fake.
"""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol

import pytest

from deployments.slurm.cluster import diagnosis
from deployments.slurm.cluster.client import Job, NoArray, Refused, SlurmCommands, Unreachable
from deployments.slurm.job.script import _quoted

HOSTILE_NAMES = (
    "study-s42-train.3fa9c1.1",
    "two words.1",
    "a|b,c;d.1",
    'it\'s "quoted" \\ here.1',
    "$(touch /tmp/expanded) `id` $HOME #comment.1",
    "%j %x é \N{SNOWMAN}.1",
    " begins with a space.1",
    "a-very-long-name-" + "x" * 180 + ".1",
)


class Bench(Protocol):
    """A SLURM under test."""

    client: SlurmCommands

    def wait(self, until: Callable[[], bool]) -> None:
        """Lets time pass until it holds; fails when it does not within some seconds."""

    def down(self) -> AbstractContextManager[None]:
        """The controller is away inside."""

    def frozen(self) -> AbstractContextManager[None]:
        """The controller does not answer inside, and has every request in its ear when it wakes."""


def script(name: str, last_line: str, **options: str) -> str:
    """A script whose last line says what the job does: `exit 3` or `sleep 600`."""
    given = {"job-name": name, "output": "/dev/null", "time": "20", "no-requeue": ""} | options
    lines = [f"#SBATCH --{key}={_quoted(value)}" if value else f"#SBATCH --{key}" for key, value in given.items()]
    return "\n".join(["#!/bin/bash", *lines, last_line, ""])


class Contract:
    """The tests; each makes jobs of its own, so that a cluster may serve all of them."""

    _numbers = itertools.count(1)

    @pytest.fixture
    def name(self) -> str:
        return f"contract.{uuid.uuid4().hex[:6]}.{next(self._numbers)}"

    def test_a_submitted_job_is_there_at_once_under_its_name(self, bench: Bench, name: str) -> None:
        job_id = bench.client.submit(script(name, "sleep 600"))
        job = bench.client.jobs()[job_id]
        assert (job.id, job.name) == (job_id, name)
        assert job.state in diagnosis.QUEUED | diagnosis.STARTED
        bench.client.cancel([job_id])

    @pytest.mark.parametrize("hostile", HOSTILE_NAMES)
    def test_names_are_kept_exactly(self, bench: Bench, name: str, hostile: str) -> None:
        job_id = bench.client.submit(script(hostile + name, "exit 0"))
        assert bench.client.jobs()[job_id].name == hostile + name

    def test_jobs_have_ids_of_their_own(self, bench: Bench, name: str) -> None:
        ids = [bench.client.submit(script(f"{name}.{number}", "exit 0")) for number in range(3)]
        assert len(set(ids)) == 3 and all(job_id.isdigit() for job_id in ids)
        jobs = bench.client.jobs()
        assert [jobs[job_id].name for job_id in ids] == [f"{name}.{number}" for number in range(3)]

    def test_tasks_of_an_array_are_jobs(self, bench: Bench, name: str) -> None:
        """Each has an id and a name of its own, is ended alone, and waits while as many run as may."""
        array_id = bench.client.submit(script(name, "sleep 600", array="1,2,5%2"))
        ids = [f"{array_id}_{task}" for task in (1, 2, 5)]

        def states() -> list[str]:
            jobs = bench.client.jobs()
            assert [jobs[task].name for task in ids] == [f"{name}[1]", f"{name}[2]", f"{name}[5]"]
            return [jobs[task].state for task in ids]

        bench.wait(lambda: sorted(states()) == ["PENDING", "RUNNING", "RUNNING"])
        first, second, last = sorted(ids, key=lambda task: bench.client.jobs()[task].state == "PENDING")
        bench.wait(lambda: bench.client.jobs()[last].reason == "JobArrayTaskLimit")
        bench.client.cancel([first])
        assert _ended(bench, first).state == "CANCELLED"
        bench.wait(lambda: bench.client.jobs()[last].state == "RUNNING")
        assert bench.client.jobs()[second].state == "RUNNING"
        follows = bench.client.submit(script(f"{name}.follows", "exit 0", dependency=f"afterany:{second}"))
        assert bench.client.jobs()[follows].state in diagnosis.QUEUED
        bench.client.cancel([second, last])
        assert [_ended(bench, task).name for task in (second, last)] == [
            f"{name}[{task[-1]}]" for task in (second, last)
        ]
        assert _ended(bench, follows).state == "COMPLETED"
        bench.wait(lambda: set(bench.client.accounted(ids)) in (set(), set(ids)))
        assert {job.name for job in bench.client.accounted(ids).values()} <= {f"{name}[{task}]" for task in (1, 2, 5)}

    def test_an_array_that_is_larger_than_the_cluster_takes_is_known_before_and_refused_as_one(
        self, bench: Bench, name: str
    ) -> None:
        most = bench.client.largest_array()
        with pytest.raises(NoArray):
            bench.client.submit(script(name, "exit 0", array=f"{most},{most + 1}%2"))
        array_id = bench.client.submit(script(name, "exit 0", array=f"{most}%2"))
        assert bench.client.jobs()[f"{array_id}_{most}"].name == f"{name}[{most}]"

    @pytest.mark.parametrize(("code", "state"), [(0, "COMPLETED"), (1, "FAILED"), (75, "FAILED"), (71, "FAILED")])
    def test_an_ended_job_keeps_its_state_and_exit_code(self, bench: Bench, name: str, code: int, state: str) -> None:
        job = _ended(bench, bench.client.submit(script(name, f"exit {code}")))
        assert (job.state, job.exit_code, job.signal, job.name) == (state, code, 0, name)
        assert job.node

    def test_a_running_job_is_ended(self, bench: Bench, name: str) -> None:
        job_id = _running(bench, name)
        bench.client.cancel([job_id])
        assert _ended(bench, job_id).state == "CANCELLED"

    def test_a_queued_job_is_ended_and_never_starts(self, bench: Bench, name: str) -> None:
        before = _running(bench, f"{name}.before")
        job_id = bench.client.submit(script(name, "sleep 600", dependency=f"afterany:{before}"))
        waits = bench.client.jobs()[job_id]
        assert waits.state in diagnosis.QUEUED
        bench.client.cancel([job_id])
        job = _ended(bench, job_id)
        assert (job.state, job.node) == ("CANCELLED", "")
        bench.client.cancel([before])

    def test_several_are_ended_at_once_and_what_is_gone_is_no_error(self, bench: Bench, name: str) -> None:
        ended = bench.client.submit(script(f"{name}.ended", "exit 0"))
        _ended(bench, ended)
        lives = bench.client.submit(script(f"{name}.lives", "sleep 600"))
        bench.client.cancel([ended, "9999999", lives])
        assert _ended(bench, lives).state == "CANCELLED"
        assert bench.client.jobs()[ended].state == "COMPLETED"
        bench.client.cancel(["9999999"])
        bench.client.cancel([])

    @pytest.mark.parametrize("end", ["exit 0", "exit 1", "sleep 600"])
    def test_a_dependency_waits_for_the_end_however_it_is(self, bench: Bench, name: str, end: str) -> None:
        before = bench.client.submit(script(f"{name}.before", end))
        job_id = bench.client.submit(script(name, "exit 0", dependency=f"afterany:{before}"))
        if end.startswith("sleep"):
            bench.wait(lambda: bench.client.jobs()[before].state == "RUNNING")
            assert bench.client.jobs()[job_id].state in diagnosis.QUEUED
            bench.client.cancel([before])
        assert _ended(bench, job_id).state == "COMPLETED"
        assert bench.client.jobs()[before].state in diagnosis.ENDS

    def test_a_dependency_on_a_job_that_nobody_knows_is_satisfied(self, bench: Bench, name: str) -> None:
        job_id = bench.client.submit(script(name, "exit 0", dependency="afterany:9999998:9999999"))
        assert _ended(bench, job_id).state == "COMPLETED"

    @pytest.mark.parametrize(
        "refused",
        [{"partition": "no-such-partition"}, {"exclude": "no-such-node"}, {"mem": "9000000G"}, {"gres": "gpu:h900:1"}],
    )
    def test_what_is_refused_is_not_queued(self, bench: Bench, name: str, refused: dict[str, str]) -> None:
        with pytest.raises(Refused) as told:
            bench.client.submit(script(name, "exit 0", **refused))
        assert str(told.value)
        left = [job for job in bench.client.jobs().values() if job.name == name]
        assert all(job.state in diagnosis.ENDS and not job.node for job in left), "at most one that has failed already"

    def test_what_is_no_script_is_refused(self, bench: Bench) -> None:
        with pytest.raises(Refused, match="batch script"):
            bench.client.submit("echo hello\n")

    def test_the_accounting_says_nothing_of_what_it_does_not_know(self, bench: Bench) -> None:
        assert bench.client.accounted(["9999999"]) == {}
        assert bench.client.accounted([]) == {}

    def test_a_controller_that_is_away_differs_from_one_without_jobs(self, bench: Bench, name: str) -> None:
        with bench.down():
            with pytest.raises(Unreachable):
                bench.client.jobs()
            with pytest.raises(Unreachable):
                bench.client.submit(script(name, "exit 0"))
            with pytest.raises(Unreachable):
                bench.client.cancel(["9999999"])
        bench.wait(lambda: _answers(bench))
        assert all(job.name != name for job in bench.client.jobs().values())

    def test_a_submit_whose_answer_was_lost_may_have_been_heard(self, bench: Bench, name: str) -> None:
        with bench.frozen(), pytest.raises(Unreachable):
            bench.client.submit(script(name, "exit 0"))
        bench.wait(lambda: _answers(bench) and any(job.name == name for job in bench.client.jobs().values()))
        found = [job.id for job in bench.client.jobs().values() if job.name == name]
        assert len(found) == 1
        assert _ended(bench, found[0]).state == "COMPLETED"


def _running(bench: Bench, name: str) -> str:
    job_id = bench.client.submit(script(name, "sleep 600"))
    bench.wait(lambda: bench.client.jobs()[job_id].state == "RUNNING")
    return job_id


def _ended(bench: Bench, job_id: str) -> Job:
    bench.wait(lambda: bench.client.jobs()[job_id].state in diagnosis.ENDS)
    return bench.client.jobs()[job_id]


def _answers(bench: Bench) -> bool:
    try:
        bench.client.jobs()
    except Unreachable:
        return False
    return True
