"""A study on the real cluster by one command, without any server or worker that stands."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from uuid import uuid4

import pytest

from deployments.slurm.cluster.site import Site
from deployments.slurm.job.journal import Journal, jobs_folder
from deployments.slurm.study.follower import FollowerJob
from storage import durable
from storage.run_directory import RunDirectory
from tests.conftest import REPOSITORY, heed_ctrl_c
from tests.deployments.prefect.test_embedded import _gone
from tests.slurm import toy
from tests.slurm.harness import Bench, Cluster, until
from tests.tasks.tiny import Here

pytestmark = pytest.mark.slurm_long


class Command:
    """A command that a person gave, and what it said."""

    def __init__(self, words: list[str], out: Path, environment: dict[str, str]) -> None:
        self._out = out
        with out.open("wb") as file:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "flows", *words],
                cwd=REPOSITORY,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                preexec_fn=heed_ctrl_c,
            )

    def said(self) -> str:
        return self._out.read_text(errors="replace")

    def until(self, what: str, look: Callable[[], object], told: Callable[[], str]) -> None:
        """Waits for what comes while the command waits."""

        def looked() -> bool:
            found = bool(look())
            assert found or self.process.poll() is None, f"ended before: {what}\n{self.said()}\n{told()}"
            return found

        until(what, looked, told=lambda: f"{self.said()}\n{told()}")

    def end(self, with_signal: signal.Signals | None = None) -> tuple[int, str]:
        """Exit code and all that it said, when it has ended."""
        if with_signal:
            self.process.send_signal(with_signal)
        code = self.process.wait(600)
        assert "Traceback" not in self.said(), self.said()
        return code, self.said()


@dataclass
class Alone:
    """A person with a cluster, a site file, and nothing else."""

    cluster: Cluster
    folder: Path
    home: Path
    begun: list[Command] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.bench = Bench(self.cluster, "", self.folder)
        self.root, self.hold = self.folder / "runs", self.folder / "hold"
        self.hold.touch()
        self.name = f"alone-{uuid4().hex[:6]}"
        self.environment = {name: value for name, value in os.environ.items() if name != "PREFECT_API_URL"}
        self.environment |= self.bench.environment | {"PREFECT_HOME": str(self.home)}
        del self.environment["PREFECT_API_URL"]
        self.here = Here(self.folder / "here", self.name)
        toy.page(toy.Study(name=self.name), self.here)

    def command(self, name: str, *more: str) -> Command:
        """`ratchet NAME` of the toy, whose training rests while the file `hold` is there."""
        study = ("tests.slurm.toy", f"--set=name={self.name}", f"--set=training.pauses_while={self.hold}")
        out = self.folder / f"said-{len(self.begun)}"
        self.begun.append(Command([name, *study, *more], out, self.environment))
        return self.begun[-1]

    def wait(self, *more: str) -> Command:
        return self.command("run", "--dispatch=slurm", "--wait", *more)

    def run(self, stage: str) -> RunDirectory:
        """The run directory of a stage, whose fingerprint is that of a run here."""
        (handle,) = (one for one in self.here.handles if one.stage.name == stage)
        return RunDirectory(self.root, self.name, stage, handle.run.fingerprint)

    def jobs(self, *states: str) -> list[str]:
        """Jobs of the study, all of them or those in these states."""
        found = self.cluster.jobs(f"{self.name}-").items()
        return [job for job, state in found if not states or state in states]

    def trains(self) -> None:
        """Waits until a job of the command given last has a checkpoint."""

        def look() -> bool:
            return bool(self.jobs("RUNNING")) and any(self.training.checkpoints.glob("[0-9]*"))

        self.begun[-1].until("a checkpoint of a job that runs", look, self.told)

    @property
    def training(self) -> RunDirectory:
        return self.run("toy-training")

    def require_each_once(self) -> None:
        """Each stage came to what it came to here, by one job and one attempt."""
        for handle in self.here.handles:
            run = self.run(handle.stage.name)
            assert durable.read_json(run.result_file) == durable.read_json(handle.run.result_file)
            assert len(list(run.attempts.glob("*.json"))) == 1, self.told()
        assert len(self.jobs()) == len(self.here.handles) == 2, self.told()

    def told(self) -> str:
        logs = [*self.root.rglob("*.log"), *self.home.glob("*.log")]
        told = [f"--- {log}\n{log.read_text(errors='replace')[-1500:]}" for log in logs]
        return "\n".join([self.cluster.slurm("squeue", "-t", "all", "-o", "%i %T %r %N %j"), *told])


@pytest.fixture
def alone(_cluster: Cluster, own_prefect_home: Path, tmp_path: Path) -> Iterator[Alone]:
    alone = Alone(_cluster, tmp_path / "alone", own_prefect_home)
    yield alone
    for command in alone.begun:
        command.process.kill()
        command.process.wait()
    _cluster.put_right()


def test_a_command_that_waits_needs_no_services_and_killed_and_started_again_runs_no_stage_twice(alone: Alone) -> None:
    killed = alone.wait()
    alone.trains()
    killed.process.kill()
    assert _gone(alone.home, within_seconds=60), "its server and its worker end with it"
    assert len(alone.jobs("RUNNING")) == 1, "its job goes on"

    again = alone.wait()
    again.until("the job that runs is found", lambda: "under way: job" in again.said(), alone.told)
    alone.hold.unlink()
    code, said = again.end()
    assert code == 0 and "the study is finished: " in said, said + alone.told()
    assert _gone(alone.home, within_seconds=60)
    alone.require_each_once()


def test_interrupted_it_leaves_queued_jobs_and_says_so_and_a_cancelled_study_starts_again(alone: Alone) -> None:
    alone.cluster.hold()
    waits = alone.wait()
    waits.until("a job is queued", lambda: alone.jobs("PENDING"), alone.told)
    code, said = waits.end(signal.SIGINT)
    assert code == 130 and "Jobs that run or are queued go on" in said
    assert _gone(alone.home, within_seconds=60) and len(alone.jobs("PENDING")) == 1

    code, said = alone.command("cancel").end()
    assert code == 0 and "cancelled: 1 jobs" in said
    until("it is gone", lambda: not alone.jobs("PENDING"), told=alone.told)

    alone.cluster.release()
    waits = alone.wait()
    alone.trains()
    code, said = waits.end(signal.SIGTERM)
    assert code == 75 and "stopped by SIGTERM. Jobs that run" in said
    alone.hold.unlink()
    code, said = alone.wait().end()
    assert code == 0, said + alone.told()
    assert len(Journal(jobs_folder(alone.training)).all()) == 2, "the cancelled job and the one after it"


def test_who_cancels_from_elsewhere_ends_what_waits_for_a_place_too(alone: Alone) -> None:
    """The command that waits has a server that nobody else knows: what had no job yet got one after the cancel."""
    with alone.bench.site_with({"max_jobs": 1}):
        both = alone.command("sweep", "--over=training.seed=3,4", "--dispatch=slurm", "--wait")
        both.until("one waits for the other", lambda: "waits for a place" in both.said(), alone.told)
        assert alone.command("cancel", "--over=training.seed=3,4").end()[0] == 0
        code, said = both.end()
    assert code == 130 and "Cancelled: " in said, said + alone.told()
    assert len(alone.jobs()) == 1, alone.told()


def test_a_detached_study_goes_on_through_a_job_that_follows_it_and_the_one_that_comes_after(alone: Alone) -> None:
    code, said = alone.command("run", "--dispatch=slurm", "--detach").end()
    assert code == 75 and " follows the study, and submits its jobs" in said, said
    follower = FollowerJob(Site(root=str(alone.root)))

    def followers() -> dict[str, str]:
        return {
            job: state for job, state in alone.cluster.jobs(follower.name).items() if state in ("PENDING", "RUNNING")
        }

    def trains() -> bool:
        return "PENDING" in followers().values() and any(alone.training.checkpoints.glob("[0-9]*"))

    until("it trains, and a follower is queued behind the one that works", trains, told=alone.told)
    first = next(job for job, state in followers().items() if state == "RUNNING")
    code, said = alone.command("run", "--dispatch=slurm", "--detach").end()
    assert code == 75 and len(followers()) == 2, "one follower serves all, and it is told of both starts"
    alone.cluster.slurm("scancel", "--signal=KILL", "--full", first)
    until(
        "the next one has begun",
        lambda: "RUNNING" in followers().values() and first not in followers(),
        told=alone.told,
    )
    alone.hold.unlink()
    until("the study is finished", lambda: alone.run("toy-report").marker_file.exists(), told=alone.told)
    until("no follower is left", lambda: not followers(), told=alone.told)
    assert "Completed: " in follower.log.read_text() and not list(follower.entries())
    alone.require_each_once()


def test_the_doctor_finds_a_partition_that_is_not_there_and_a_root_that_nodes_do_not_see(alone: Alone) -> None:
    def looked() -> tuple[int, list[str]]:
        alone.begun.append(Command(["doctor"], alone.folder / f"doctor-{len(alone.begun)}", alone.environment))
        code, said = alone.begun[-1].end()
        return code, [line for line in said.splitlines() if not line.startswith("good  ")]

    alone.root.mkdir()
    assert looked() == (0, []), alone.told()
    with alone.bench.site_with(partition="cpuu"):
        code, bad = looked()
        assert code == 1 and "name one of cpu, gpu, low, high" in bad[0], bad
    with alone.bench.site_with(gpus=1, gpu_model="h100"):
        code, bad = looked()
        assert code == 1 and "its GPUs are not of this model: name one of a100" in bad[0], bad
    with alone.bench.site_with(gpus=1):
        code, bad = looked()
        assert code == 1 and len(bad) == 1 and "finds no GPU there" in bad[0], bad
    unseen = alone.folder / "python"
    unseen.write_text(
        f'#!/bin/bash\nunshare -m bash -c \'mount -t tmpfs none {alone.root} && exec {sys.executable} "$@"\' - "$@"\n'
    )
    unseen.chmod(0o755)
    with alone.bench.site_with({"python": str(unseen)}):
        code, bad = looked()
    assert code == 1 and len(bad) == 1 and "give a root on a disk that nodes share" in bad[0], bad
