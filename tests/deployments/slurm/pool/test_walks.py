"""Which studies are walked when: one at a time, once for whatever ended meanwhile, again where a server was busy."""

import subprocess
from pathlib import Path

import pytest

from deployments.slurm.pool.walks import AGAIN_SECONDS, WALK_SECONDS, Walks
from tests.deployments.slurm.fakes import Clock

ROOT = Path("/runs")


class Begun:
    """Real processes in the place of walks: what was walked, and how each is to end."""

    def __init__(self) -> None:
        self.studies: list[tuple[Path, str]] = []
        self.processes: list[subprocess.Popen[bytes]] = []

    def __call__(self, root: Path, study: str) -> subprocess.Popen[bytes]:
        self.studies.append((root, study))
        self.processes.append(subprocess.Popen(["/bin/sh", "-c", "read code; exit $code"], stdin=subprocess.PIPE))
        return self.processes[-1]

    def end(self, code: int = 0) -> None:
        self.processes[-1].communicate(f"{code}\n".encode(), timeout=300)


@pytest.fixture
def begun() -> Begun:
    return Begun()


def test_one_walk_of_a_study_at_a_time_serves_all_that_ended_before_it_and_one_more_what_ended_meanwhile(begun):
    found = Walks(begun)
    for _ in range(300):
        found.ask(ROOT, "first")
    assert not found.look() and begun.studies == [(ROOT, "first")]
    for _ in range(300):
        found.ask(ROOT, "first")
    found.ask(ROOT, "second")
    assert not found.look() and len(begun.studies) == 1, "a walk is under way"
    begun.end()
    assert found.look(), "there may be stages to submit"
    begun.end()
    assert found.look()
    begun.end()
    assert found.look() and not found.look()
    assert begun.studies == [(ROOT, "first"), (ROOT, "first"), (ROOT, "second")]


@pytest.mark.parametrize(("code", "again"), [(75, True), (2, False), (1, False)])
def test_a_walk_that_a_busy_server_broke_off_comes_again_and_one_that_a_person_must_mend_does_not(begun, code, again):
    clock = Clock()
    found = Walks(begun, lambda: clock.now)
    found.ask(ROOT, "first")
    found.look()
    begun.end(code)
    assert found.look() and len(begun.studies) == 1
    clock.now += AGAIN_SECONDS
    found.look()
    assert len(begun.studies) == 1 + again
    found.stop()


def test_a_walk_that_hangs_is_ended_and_keeps_no_other_from_its_turn(begun):
    clock = Clock()
    found = Walks(begun, lambda: clock.now)
    found.ask(ROOT, "hangs")
    found.look()
    found.ask(ROOT, "waits")
    clock.now += WALK_SECONDS + 1
    assert found.look() and begun.studies[-1] == (ROOT, "waits")
    found.stop()
    assert all(process.returncode for process in begun.processes)
