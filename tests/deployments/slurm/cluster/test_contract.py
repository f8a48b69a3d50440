"""The fake SLURM keeps the contract that the real one keeps, and the fake stage writes what the real one writes."""

import json
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from deployments.slurm.cluster.client import SlurmCommands
from storage import attempts, durable, locks
from tasks.stage.outcome import END_STATES
from tests.deployments.slurm.contract import Contract
from tests.deployments.slurm.fakes import Clock, FakeSlurm, FakeStage


class FakeBench:
    """The fake, and its time."""

    def __init__(self) -> None:
        self.slurm = FakeSlurm(Clock(), rng=random.Random(1), accounting=True)
        self.client: SlurmCommands = self.slurm

    def wait(self, until: Callable[[], bool]) -> None:
        for _ in range(100):
            if until():
                return
            self.slurm.advance(1.0)
        raise AssertionError("it did not come")

    @contextmanager
    def down(self) -> Iterator[None]:
        self.slurm.fall("down")
        yield
        self.slurm.wake()

    @contextmanager
    def frozen(self) -> Iterator[None]:
        self.slurm.fall("frozen")
        yield
        self.slurm.wake()


class TestFakeSlurm(Contract):
    @pytest.fixture
    def bench(self) -> FakeBench:
        return FakeBench()


@pytest.mark.parametrize("end_state", [state for state in END_STATES if state != "held"])
def test_the_fake_stage_leaves_what_a_real_attempt_leaves(end_state, tmp_path, monkeypatch):
    fake, real = tmp_path / "fake", tmp_path / "real"
    diagnosis = {"level": "error", "category": "crash", "summary": "s", "detail": "", "resolution": "r"}
    stage = FakeStage(fake, "7", "job.1", Clock())
    stage.begin()
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("SLURM_JOB_NAME", "job.1")
    lock = locks.acquire(real / "locks")
    record = attempts.AttemptRecord(real / "attempts", lock.number, {}, [0])
    assert locks.highest(fake / "locks") == lock.number
    assert _names(fake) == _names(real)

    stage.end(end_state, END_STATES[end_state].exit_code)
    record.end(
        end_state, END_STATES[end_state].exit_code, diagnosis if END_STATES[end_state].exit_code in (1, 2) else None
    )
    lock.release()
    assert _names(fake) - {"COMPLETE.json"} == _names(real)
    assert (fake / "COMPLETE.json").exists() == (end_state == "finished")
    written, wanted = (json.loads((folder / "attempts" / "0001.json").read_bytes()) for folder in (fake, real))
    assert set(written) <= set(wanted)
    for key in ("attempt", "slurm_job_id", "slurm_job_name", "end_state", "exit_code"):
        assert written[key] == wanted[key]
    assert set(written["diagnosis"] or {}) == set(wanted["diagnosis"] or {})


def _names(folder: Path) -> set[str]:
    """Every file but what is kept only until an attempt ends, which nobody reads."""
    return {
        file.relative_to(folder).as_posix()
        for file in folder.rglob("*")
        if file.is_file() and not file.name.startswith(durable.TEMPORARY_PREFIX)
    }
