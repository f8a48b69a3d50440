"""A person with a cluster, a site file, and nothing else: no server, no worker."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from uuid import uuid4

from storage import durable
from storage.run_directory import RunDirectory
from tests.conftest import REPOSITORY, heed_ctrl_c
from tests.slurm import toy
from tests.slurm.harness import Bench, Cluster, until
from tests.tasks.tiny import Here


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

    def begin(self, *words: str) -> Command:
        """`ratchet WORDS`."""
        self.begun.append(Command(list(words), self.folder / f"said-{len(self.begun)}", self.environment))
        return self.begun[-1]

    def told_of_jobs(self) -> list[list[str]]:
        """Stage, partition and limit of each job of the study, oldest first."""
        lines = self.cluster.slurm("squeue", "-h", "-t", "all", "--sort=i", "-o", "%j|%P|%l").splitlines()
        jobs = [line.split("|") for line in lines if line.startswith(f"{self.name}-")]
        return [[name.partition("toy-")[2].partition(".")[0], *asked] for name, *asked in jobs]

    def command(self, name: str, *more: str) -> Command:
        """`ratchet NAME` of the toy, whose training rests while the file `hold` is there."""
        study = ("tests.slurm.toy", f"--set=name={self.name}", f"--set=training.pauses_while={self.hold}")
        return self.begin(name, *study, *more)

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
