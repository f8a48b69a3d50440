"""A real cluster, real workers and a real Prefect server in one hand: what the tests of this folder take hold of.

Everything is asked from outside: SLURM by its commands, Prefect by its HTTP interface, the stages by what lies in
their run directories. Whatever does not come in time fails with what each of the three says.
"""

from __future__ import annotations

import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any, TypeVar
from uuid import uuid4

import httpx
import psutil
import pytest
import yaml
from prefect.settings import PREFECT_API_URL, temporary_settings

from deployments.dag.page import Page, load_page
from deployments.dag.walk import Handle
from deployments.slurm.cluster.client import SlurmCommands
from deployments.slurm.cluster.site import Site, read_site
from deployments.slurm.job.journal import Journal, Submission, jobs_folder, run_of
from deployments.slurm.pool.records import Record, record_of
from deployments.slurm.study import study as study_file
from deployments.slurm.study.engine import Engine
from deployments.slurm.study.follow import entrust
from deployments.slurm.study.looks import Looks
from deployments.slurm.study.standings import Standings
from deployments.slurm.study.stop import cancel_jobs, mark_stopped
from deployments.slurm.study.study import SlurmStudy
from flows import command
from storage import attempts, durable
from storage.run_directory import RunDirectory
from tests.conftest import REPOSITORY, heed_ctrl_c
from tests.leftovers import CLUSTERS
from tests.side_by_side import COUNTED
from tests.slurm import toy
from tests.slurm.order import SUBMITTED

SCRIPT = Path(__file__).parent / "cluster.sh"
PREFECT = [Path(sys.executable).parent / "prefect", "--no-prompt"]
POLL_SECONDS = 0.5
READING, ASKED_AGAIN_SECONDS = ("squeue", "sinfo", "sstat", "sacct"), 120.0
"""Commands that change nothing, beside `scontrol show`."""
PATIENT_SECONDS = 600.0
"""A wait for what comes soon on an idle machine, and is not promised by when. A test names what is promised."""
PROMISED_SECONDS = 300.0
"""For what takes a minute at most where nothing else runs, such as a cancel."""
PORTS_OF_ONE = 20
ENDED = ("COMPLETED", "FAILED", "CRASHED", "CANCELLED")
Found = TypeVar("Found")


class NoCluster(Exception):
    """SLURM cannot be started here."""


class Cluster:
    """One cluster of cluster.sh, with a folder and ports of its own, so that several can run at once."""

    def __init__(self, **settings: Any) -> None:
        """`settings` are those of cluster.sh, in lower case. Raises NoCluster saying why."""
        # not pytest's folder: sockets have short paths, and munge demands parents that others cannot write in
        self.root = Path(tempfile.mkdtemp(prefix=CLUSTERS))
        self.root.chmod(0o755)  # and that it may pass through
        asked = {f"CLUSTER_{name.upper()}": str(value) for name, value in settings.items()}
        self._asked = asked | {"CLUSTER_ROOT": str(self.root), "CLUSTER_PORT": str(_free_ports())}
        self.environment = {"SLURM_CONF": str(self.root / "etc" / "slurm.conf")}
        done = self._script("up")
        if done.returncode:
            self._script("wipe")
            raise NoCluster(done.stderr.strip())

    def script(self, *arguments: str) -> str:
        """A verb of cluster.sh."""
        done = self._script(*arguments)
        assert done.returncode == 0, f"cluster.sh {arguments}: {done.stderr}"
        return done.stdout.strip()

    def slurm(self, *command: str) -> str:
        """One of SLURM's commands, which must work; one that only reads is asked again, as of a busy controller."""
        end = time.monotonic() + (ASKED_AGAIN_SECONDS if command[0] in READING or command[1:2] == ("show",) else 0)
        while True:
            done = subprocess.run(
                command, env=os.environ | self.environment, capture_output=True, text=True, timeout=300, check=False
            )
            if done.returncode == 0:
                return done.stdout.strip()
            assert time.monotonic() < end, f"{command}: {done.stderr}"
            time.sleep(POLL_SECONDS)

    def jobs(self, name: str = "") -> dict[str, str]:
        """State by id of every job that SLURM remembers whose name begins with `name`."""
        lines = self.slurm("squeue", "-h", "--array", "-t", "all", "-o", "%i|%T|%j").splitlines()
        found = [line.split("|", 2) for line in lines]
        return {id_: state for id_, state, called in found if called.startswith(name)}

    def submitted(self) -> int:
        """How many jobs it was ever given, an array as one; ids are also counted up by `sbatch --test-only`."""
        return (self.root / "log" / "slurmctld.out").read_text().count("_slurm_rpc_submit_batch_job: JobId=")

    def hold(self) -> None:
        """From now on jobs are queued and not started: every node is reserved for somebody else."""
        given = ("starttime=now", "duration=60", "nodes=ALL", "users=nobody", "flags=ignore_jobs")
        self.slurm("scontrol", "create", "reservation", "reservationname=held", *given)

    def release(self) -> None:
        if "held" in self.slurm("scontrol", "show", "reservations", "-o"):
            self.slurm("scontrol", "delete", "reservationname=held")

    @contextmanager
    def frozen_controller(self) -> Iterator[None]:
        """The controller does not answer, and has every command in its ear when it wakes."""
        pid = int(self.script("pid", "slurmctld"))
        os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(pid, signal.SIGCONT)

    def put_right(self) -> None:
        """After a test: no jobs, all nodes back."""
        self.script("up")
        self.release()
        live = [job for job, state in self.jobs().items() if state in ("PENDING", "RUNNING", "SUSPENDED")]
        if live:
            self.slurm("scancel", *live)

    def wipe(self) -> None:
        """Ends it and counts what it was given."""
        with suppress(AssertionError, subprocess.TimeoutExpired):
            COUNTED[SUBMITTED] += self.submitted()
        self.script("wipe")

    def _script(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [SCRIPT, *arguments],
            env=os.environ | self._asked,
            capture_output=True,
            text=True,
            timeout=PATIENT_SECONDS,
            check=False,
        )


def _free_ports() -> int:
    """The first of a block of free ports, below those that the kernel gives away by itself."""
    for _ in range(100):
        first = random.SystemRandom().randrange(12000, 32000, PORTS_OF_ONE)
        if all(_is_free(port) for port in range(first, first + PORTS_OF_ONE)):
            return first
    raise NoCluster("no free ports")


def _is_free(port: int) -> bool:
    with socket.socket() as tried:
        tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            tried.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


class Busy(BaseHTTPRequestHandler):
    """Answers 503 to everything."""

    def do_GET(self) -> None:
        self.send_error(503)

    do_POST = do_PATCH = do_PUT = do_DELETE = do_GET

    def log_message(self, *_: Any) -> None:
        pass


class Server:
    """A Prefect server as `prefect server start` makes it, of one test's own: it can die and lose its database."""

    def __init__(self, home: Path) -> None:
        """`home` is its PREFECT_HOME, with its database."""
        self._home, self._port = home, _free_ports()
        self.address = f"http://127.0.0.1:{self._port}/api"

    def start(self) -> None:
        with (self._home / "server.log").open("ab") as told:
            self._process = subprocess.Popen(
                [*PREFECT, "server", "start", "--host", "127.0.0.1", "--port", str(self._port)],
                stdin=subprocess.DEVNULL,
                stdout=told,
                stderr=told,
                env=os.environ | {"PREFECT_HOME": str(self._home), "PREFECT_SERVER_ANALYTICS_ENABLED": "false"},
                start_new_session=True,
            )
        end = time.monotonic() + PATIENT_SECONDS
        while not self._answers():
            assert self._process.poll() is None and time.monotonic() < end, (self._home / "server.log").read_text(
                errors="replace"
            )[-3000:]
            time.sleep(POLL_SECONDS)

    @property
    def pid(self) -> int:
        return self._process.pid

    def kill(self) -> None:
        """SIGKILL of it and what it started."""
        below = _below(self._process.pid)
        self._process.kill()
        self._process.wait()
        _end_all(below)

    @contextmanager
    def away(self) -> Iterator[None]:
        self.kill()
        try:
            yield
        finally:
            self.start()

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """It takes requests and answers none."""
        every = [
            self._process.pid,
            *(child.pid for child in psutil.Process(self._process.pid).children(recursive=True)),
        ]
        for pid in every:
            os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            for pid in every:
                os.kill(pid, signal.SIGCONT)

    @contextmanager
    def answers_503(self) -> Iterator[None]:
        """As behind a proxy, while it is started again."""
        with self.away(), ThreadingHTTPServer(("127.0.0.1", self._port), Busy) as busy:
            Thread(target=busy.serve_forever, daemon=True).start()
            yield
            busy.shutdown()

    def lose_database(self) -> None:
        for file in self._home.glob("prefect.db*"):
            file.unlink()

    def _answers(self) -> bool:
        try:
            return httpx.get(f"{self.address}/health", timeout=60).is_success
        except httpx.HTTPError:
            return False


class Worker:
    """A process that serves: a worker as `prefect worker start` makes it, or one that follows the site's studies."""

    def __init__(self, pool: str, log: Path, environment: dict[str, str]) -> None:
        """Without a pool it follows the studies."""
        self.pool, self.log, self._begins_at = pool, log, log.stat().st_size if log.exists() else 0
        serve = [sys.executable, "-m", "tests.slurm.serve"]
        with log.open("ab") as file:
            self._process = subprocess.Popen(
                [*PREFECT, "worker", "start", "--pool", pool] if pool else serve,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                cwd=REPOSITORY,
                env=os.environ | environment,
                start_new_session=True,
                preexec_fn=heed_ctrl_c,  # Prefect turns SIGTERM into SIGINT
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    @property
    def started(self) -> bool:
        assert self.alive, f"the worker {self.pool} ended: {self.told()}"
        return "started!" in self.told()

    def told(self) -> str:
        """What this process, and not one before it, said."""
        with self.log.open("rb") as file:
            file.seek(self._begins_at)
            return file.read().decode(errors="replace")

    def kill(self) -> None:
        """SIGKILL of the worker alone: what it started lives on."""
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        """Ends it and everything that it started."""
        below = _below(self._process.pid)
        self._process.terminate()
        try:
            self._process.wait(120)
        except subprocess.TimeoutExpired:
            self.kill()
        _end_all(below)

    @contextmanager
    def frozen(self) -> Iterator[None]:
        self._process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self._process.send_signal(signal.SIGCONT)


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def processes_of(job: str, keepers: bool = False) -> list[int]:
    """The processes of a job: its shell, srun and the stage; with `keepers` those of SLURM that keep them, too."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if (command := (folder / "cmdline").read_bytes()).startswith(b"slurmstepd"):
                ours = keepers and command.startswith(f"slurmstepd: [{job}.".encode())
            else:
                ours = f"SLURM_JOB_ID={job}".encode() in (folder / "environ").read_bytes().split(b"\0")
            if ours:
                found.append(int(folder.name))
    return found


def _below(pid: int) -> list[int]:
    """Handles of all processes that descend from this one: a handle never means another process that came later."""
    parents: dict[int, int] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError, IndexError, ValueError):
            parents[int(folder.name)] = parent(int(folder.name))
    found = [pid]
    for one in found:
        found += [child for child, parent in parents.items() if parent == one]
    handles = []
    for child in found[1:]:
        with suppress(ProcessLookupError):
            handles.append(os.pidfd_open(child))
    return handles


def _end_all(handles: list[int]) -> None:
    for handle in handles:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(handle, signal.SIGKILL)
        os.close(handle)


def until(
    what: str, look: Callable[[], Found | None], seconds: float = PATIENT_SECONDS, told: Callable[[], str] = str
) -> Found:
    """What `look` finds, as soon as it finds something."""
    end = time.monotonic() + seconds
    while True:
        if found := look():
            return found
        if time.monotonic() > end:
            raise AssertionError(f"not within {seconds:g} s: {what}\n{told()}")
        time.sleep(POLL_SECONDS)


@dataclass
class Run:
    """A flow run as the server shows it."""

    bench: Bench
    id: str

    def read(self) -> dict[str, Any]:
        return self.bench.api("GET", f"/flow_runs/{self.id}")

    @property
    def state(self) -> str:
        return self.read()["state"]["name"]

    @property
    def message(self) -> str:
        return self.read()["state"]["message"] or ""

    def history(self) -> list[str]:
        """Names of all its states, oldest first."""
        states = self.bench.api("GET", f"/flow_run_states/?flow_run_id={self.id}")
        return [state["name"] for state in sorted(states, key=lambda state: state["timestamp"])]

    def wait(self, *names: str, seconds: float = PATIENT_SECONDS) -> str:
        """The first of these states that it comes to; fails at any other end."""

        def look() -> str | None:
            now = self.read()["state"]
            assert now["name"] in names or now["type"] not in ENDED, (
                f"the run is {now['name']} and not {' or '.join(names)}: {now['message']}\n"
                f"{self.history()}\n{self.bench.told()}"
            )
            return now["name"] if now["name"] in names else None

        return self.bench.until(f"flow run {self.id} is {' or '.join(names)}", look, seconds)

    def set_state(self, type_: str, name: str, force: bool = False) -> None:
        given = {"state": {"type": type_, "name": name}, "force": force}
        self.bench.api("POST", f"/flow_runs/{self.id}/set_state", given)

    def cancel(self) -> None:
        """As the Cancel button does."""
        self.set_state("CANCELLING", "Cancelling")

    def retry(self) -> None:
        """As a person does."""
        self.bench.prefect("flow-run", "retry", self.id)


def state_of(run: RunDirectory) -> str:
    """Name of the state of a stage's run, by its record."""
    record = record_of(run)
    return record.name if record else ""


@dataclass
class StageRun:
    """The run of a toy's training, as its record shows it."""

    one: Dispatched

    def read(self) -> Record | None:
        return record_of(self.one.training.run)

    @property
    def state(self) -> str:
        return state_of(self.one.training.run)

    @property
    def message(self) -> str:
        record = self.read()
        return record.message if record else ""

    def history(self) -> list[str]:
        """What followed each of its jobs, and how it stands."""
        return [*(entry.end.follows for entry in self.one.submissions() if entry.end), self.state]

    def wait(self, *names: str, seconds: float = PATIENT_SECONDS) -> str:
        """The first of these states that it comes to; fails at any other end."""

        def look() -> str | None:
            now, bench = self.read(), self.one.bench
            assert now is None or now.name in names or now.type not in ENDED, (
                f"the run is {now.name} and not {' or '.join(names)}: {now.message}\n{self.history()}\n{bench.told()}"
            )
            return now.name if now and now.name in names else None

        return self.one.bench.until(f"the training is {' or '.join(names)}", look, seconds)

    def cancel(self) -> None:
        """As `ratchet cancel` does."""
        assert mark_stopped(self.one.slurm)
        cancel_jobs(self.one.slurm, SlurmCommands())

    def retry(self) -> None:
        """As a person does who starts the study again."""
        before = self.read()
        entrust(self.one.slurm, self.one.follower)
        self.one.bench.until("it is started again", lambda: self.read() != before or None)

    def come_due(self) -> None:
        """From now on its next job is due."""
        record = self.read()
        assert record and record.type == "SCHEDULED"
        durable.write_json(jobs_folder(self.one.training.run) / "run.json", vars(record) | {"due_at": 0.0})


@dataclass
class Dispatched:
    """A toy study that was started."""

    bench: Bench
    study: toy.Study
    root: Path
    training: Handle
    pause: Path

    @property
    def run(self) -> StageRun:
        return StageRun(self)

    @property
    def slurm(self) -> SlurmStudy:
        return SlurmStudy.at_site(load_page("tests.slurm.toy"), self.study, str(self.root))

    @property
    def follower(self) -> Looks:
        return Looks(self.slurm.site)

    def go_on(self) -> None:
        """Ends the pause that it was dispatched with."""
        self.pause.unlink()

    @property
    def folder(self) -> Path:
        return self.training.run.path

    def look(self) -> Standings:
        """How its stages stand."""
        slurm = self.slurm
        return Engine(slurm.site).standings(slurm)

    def submissions(self) -> list[Submission]:
        """The journal's entries, oldest first."""
        return Journal(jobs_folder(self.training.run)).all()

    def jobs(self) -> dict[str, str]:
        """State by id of all jobs of the training, by SLURM's own word."""
        return self.bench.cluster.jobs(f"{self.study.name}-s{self.study.seed}-toy-training.")

    def job(self, *states: str, seconds: float = PATIENT_SECONDS, number: int = 1) -> str:
        """The id of the `number`th job when it is known and, if some are given, in one of these states."""

        def look() -> str | None:
            entries = self.submissions()
            job = entries[number - 1].job_id if len(entries) >= number else None
            now = self.jobs().get(job) if job else None
            return job if job and (not states or now in states) else None

        return self.bench.until(f"job {number} is {' or '.join(states) or 'known'}", look, seconds)

    def training_began(self) -> int:
        """Waits until a checkpoint is there; its step."""
        return self.bench.until("a first checkpoint", lambda: self.step() or None)

    def step(self) -> int:
        """The newest checkpoint's."""
        return max((int(found.name) for found in self.training.run.checkpoints.glob("[0-9]*")), default=0)

    def record(self) -> dict[str, Any]:
        """The newest attempt's."""
        return attempts.newest(self.training.run.attempts) or {}

    def records(self) -> list[dict[str, Any]]:
        return [durable.read_json(file) for file in sorted(self.training.run.attempts.glob("*.json"))]

    @property
    def digest(self) -> str:
        return durable.read_json(self.training.run.result_file)["weights_digest"]


@dataclass
class Bench:
    """One cluster, the pools of one Prefect server, and the workers that join them."""

    cluster: Cluster
    address: str
    folder: Path
    resources: dict[str, Any] = field(default_factory=dict)
    workers: dict[str, Worker] = field(default_factory=dict)
    dispatched: list[Dispatched] = field(default_factory=list)
    _client: httpx.Client = field(default_factory=lambda: httpx.Client(timeout=120))
    """One for all that is asked: to make it takes as long as a hundred questions."""

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.site = self.folder / "site.yaml"
        resources = {"partition": "cpu", "cpus": 1, "memory_gb": 2, "gpus": 0, "gpu_model": "", "lead_seconds": 60}
        # limits of two minutes, of which a real site could not spare one for saving
        site = {"root": str(self.folder / "runs"), "strict_lead": False, "resources": resources | self.resources}
        # toys are no part of the source that a job is given: they are found here, and nothing else of the checkout is
        (self.folder / "path").mkdir(exist_ok=True)
        for beside in ("tests", "benchmarks"):
            (self.folder / "path" / beside).symlink_to(REPOSITORY / beside)
        site["resources"]["pass_environment"] = ["PYTHONPATH"]
        self.site.write_text(yaml.safe_dump(site))
        self.environment = self.cluster.environment | {
            "PREFECT_API_URL": self.address,
            "RATCHET_SITE": str(self.site),
            "PYTHONPATH": str(self.folder / "path"),
            "PREFECT_WORKER_QUERY_SECONDS": "2",
            "DO_NOT_TRACK": "1",
        }

    @contextmanager
    def site_with(self, keys: Mapping[str, Any] = {}, **resources: Any) -> Iterator[None]:
        """Meanwhile somebody has edited the site file."""
        before = self.site.read_text()
        values = yaml.safe_load(before)
        self.site.write_text(yaml.safe_dump(values | {"resources": values["resources"] | resources} | dict(keys)))
        try:
            yield
        finally:
            self.site.write_text(before)

    # ------------------------------------------------------------------------------------------------- Prefect

    def prefect(self, *arguments: str) -> str:
        """The command `prefect ...`, which must work."""
        done = subprocess.run(
            [*PREFECT, *arguments],
            cwd=REPOSITORY,
            env=os.environ | self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PATIENT_SECONDS,
            check=False,
        )
        assert done.returncode == 0, f"prefect {' '.join(arguments)}: {done.stdout}{done.stderr}"
        return done.stdout

    def deploy(self, *names: str) -> None:
        """The pools and the deployments that `ratchet deploy` makes of these names; without any, those of the toy."""
        with temporary_settings({PREFECT_API_URL: self.address}):
            assert command.ratchet(["deploy", *(names or ["tests.slurm.toy"])]) == 0

    def run_deployment(self, name: str, **parameters: Any) -> Run:
        """`prefect deployment run`; the flow run that it made."""
        given = [word for key, value in parameters.items() for word in ("--param", f"{key}={json.dumps(value)}")]
        said = self.prefect("deployment", "run", name, *given)
        return self.run_told(said)

    def run_told(self, said: str) -> Run:
        """The flow run that a command told of."""
        found = re.search(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", said)
        assert found, said
        return Run(self, found[0])

    def api(self, method: str, path: str, given: Any = None) -> Any:
        answer = self._client.request(method, f"{self.address}{path}", json=given)
        answer.raise_for_status()
        return answer.json() if answer.content else None

    # ------------------------------------------------------------------------------------------------- workers

    def start_worker(self, pool: str = "", key: str = "") -> Worker:
        """One more process that serves; `key` names it where there are two."""
        key = key or pool or "server"
        worker = self.workers[key] = Worker(pool, self.folder / f"worker-{key}.log", self.environment)
        self.until(f"the worker {key} started", lambda: worker.started)
        return worker

    def ensure_worker(self, pool: str = "") -> Worker:
        worker = self.workers.get(pool or "server")
        return worker if worker and worker.alive else self.start_worker(pool)

    def stop_workers(self, *keys: str) -> None:
        for key in keys or list(self.workers):
            if worker := self.workers.pop(key, None):
                worker.stop()

    # --------------------------------------------------------------------------------------------------- toys

    def dispatch(
        self, root: Path, name: str = "", resources: dict[str, Any] | None = None, pauses: bool = False, **fields: Any
    ) -> Dispatched:
        """Starts a toy study below `root`; `fields` are those of its training, `resources` what its jobs ask for.

        With `pauses` each job takes one step and rests, until `go_on`: however slow this machine is, it still trains.
        """
        pause = root.with_name(f"{root.name}.pauses")
        if pauses:
            pause.touch()
            fields["pauses_while"] = str(pause)
        study = toy_study(name or f"toy-{uuid4().hex[:6]}", resources, **fields)  # benches share clusters and servers
        slurm = SlurmStudy.at_site(load_page("tests.slurm.toy"), study, str(root))
        entrust(slurm, Looks(slurm.site))
        self.dispatched.append(Dispatched(self, study, root, slurm.handles[0], pause))
        return self.dispatched[-1]

    def start_flow(self, name: str, folder: Path) -> tuple[Run, Path, Path]:
        """The flow run of a toy, which follows it by itself and has a checkpoint; its root; and a file: it trains until
        that is removed."""
        self.stop_workers("server")
        self.ensure_worker("ratchet")
        root, pause = folder / name, folder / f"pause-{name}"
        pause.touch()
        study = toy_study(name, pauses_while=str(pause)).model_dump(mode="json")
        flow = self.run_deployment("toy/toy", study=study, root=str(root))
        self.trains(root)
        return flow, root, pause

    # -------------------------------------------------------------------------------------------------- waiting

    def trains(self, root: Path, number: int = 1) -> list[RunDirectory]:
        """The run directories of the toys' trainings below the root, when so many have a checkpoint."""

        def look() -> list[RunDirectory] | None:
            paths = {file.parents[1] for file in root.glob("*/toy-training/*/checkpoints/[0-9]*")}
            runs = [run_of(path / "jobs") for path in sorted(paths)]
            return runs if len(runs) == number else None

        return self.until(f"{number} trainings have a checkpoint", look)

    def until(self, what: str, look: Callable[[], Found | None], seconds: float = PATIENT_SECONDS) -> Found:
        """As `until`; a failure says how everything stands."""
        return until(what, look, seconds, self.told)

    def told(self) -> str:
        """What SLURM, the workers, the flow runs and the jobs say, for the message of a failure."""
        parts = []
        with suppress(AssertionError, subprocess.TimeoutExpired):
            parts.append(self.cluster.slurm("squeue", "-t", "all", "-o", "%i %T %r %N %j"))
            parts.append(self.cluster.slurm("sinfo", "-N", "-o", "%N %T %P"))
        for one in self.dispatched[-2:]:
            with suppress(httpx.HTTPError):
                parts.append(f"--- {one.study.name}: {one.run.history()}, {one.run.read()}")
            logs = [*sorted(jobs_folder(one.training.run).glob("*.log"))[-2:]]
            parts += [f"--- {log}\n{_end(log.read_text(errors='replace'))}" for log in logs]
        for key, worker in self.workers.items():
            parts.append(f"--- worker {key}, {'alive' if worker.alive else 'dead'}\n{_end(worker.told())}")
        return "\n".join(parts)

    # ------------------------------------------------------------------------------------------------- tidying

    @contextmanager
    def at_hand(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        """This process sees the bench too; afterwards all is put right."""
        for name, value in self.environment.items():
            monkeypatch.setenv(name, value)
        with temporary_settings({PREFECT_API_URL: self.address}):
            try:
                yield
            finally:
                self.put_right()

    def put_right(self) -> None:
        """After a test, however it ended: no study or run goes on, no job is left, all nodes are there."""
        for file in {file for one in self.dispatched for file in study_file.active(one.root)}:
            study_file.stopped(file).touch()  # or the worker starts what the last stage's end made ready
        job = Looks(read_site(str(self.site)))
        for entry in job.entries():
            job.remove(entry)
        self.dispatched.clear()
        self.cluster.put_right()


def _end(text: str, lines: int = 14) -> str:
    return "\n".join(text.splitlines()[-lines:])


def kept_study(root: Path, study: Any, page: Page | None = None) -> SlurmStudy:
    """A study as a person's start leaves it, without any job."""
    slurm = SlurmStudy(page or load_page("tests.slurm.toy"), study, Site(root=str(root)), root)
    slurm.keep()
    return slurm


def toy_study(name: str = "toy", resources: dict[str, Any] | None = None, **fields: Any) -> toy.Study:
    """A toy; `steps` is how many its training has, the other `fields` are those of its configuration."""
    steps = fields.pop("steps", toy.STEPS_PER_EPOCH)
    training = toy.TrainingConfig()
    budget = training.budget.model_copy(update={"epochs": steps / toy.STEPS_PER_EPOCH})
    training = toy.TrainingConfig.model_validate(training.model_copy(update={"budget": budget} | fields))
    asked = toy.HOW.model_copy(update={"resources": {"all": resources} if resources else {}})
    return toy.Study(name=name, training=training, execution=asked)
