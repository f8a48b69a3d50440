"""What all tests share: one Prefect server for the run, and the smoke study, run once by the real command."""

import tests.apart  # isort: skip  # before Prefect and others read what lies in the home

import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from prefect.settings import PREFECT_HOME, PREFECT_SERVER_ALLOW_EPHEMERAL_MODE, temporary_settings

from deployments.dag.page import load_page
from deployments.prefect.embedded import EPHEMERAL, send_what_waits
from flows import command
from storage import attempts
from tests.once import made_once

pytest_plugins = ["tests.side_by_side", "tests.share", "tests.forks", "tests.kill.summary", "tests.slurm.order"]
REPOSITORY = Path(__file__).parent.parent
ROBUSTNESS = load_page("robustness")
Command = Callable[..., subprocess.CompletedProcess[str]]
RunHere = Callable[..., tuple[int, str]]


@pytest.fixture(scope="session", autouse=True)
def _own_prefect_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """No test touches the user's Prefect, or has Prefect start a server of its own, which a busy machine is late with.

    Subprocesses inherit this; in process Prefect has read the environment of `make` when it was imported above.
    """
    before = dict(os.environ)
    home = tmp_path_factory.mktemp("prefect-home")
    os.environ["PREFECT_HOME"] = str(home)
    os.environ["MPLCONFIGDIR"] = str(tmp_path_factory.mktemp("matplotlib"))
    os.environ["PREFECT_SERVER_ANALYTICS_ENABLED"] = "false"
    os.environ["PREFECT_SERVER_ALLOW_EPHEMERAL_MODE"] = "false"
    os.environ.pop("PREFECT_API_URL", None)
    with temporary_settings({PREFECT_HOME: home, PREFECT_SERVER_ALLOW_EPHEMERAL_MODE: False}):
        yield
    os.environ.clear()
    os.environ.update(before)


@pytest.fixture(autouse=True)
def _apart() -> Iterator[None]:
    """No test, and nothing that it starts, looks at ./runs, .prefect or the home, which are a person's."""
    yield
    assert not (news := tests.apart.news()), f"tests looked at what a person uses:\n{news}"


@pytest.fixture(scope="session", autouse=True)
def _known_commit() -> None:
    """A process asks git once; it would keep no answer for all tests behind one whose PATH has no git."""
    attempts.source_version()


@pytest.fixture(autouse=True)
def _usual_umask() -> Iterator[None]:
    """For each test, whatever the one before set: `permissions` sets that of the process."""
    before = os.umask(0o022)
    yield
    os.umask(before)


@pytest.fixture(autouse=True)
def _one_thread_as_imported() -> None:
    """A stage that a test ran in this process leaves its number of threads, on which the last digits depend."""
    if torch := sys.modules.get("torch"):
        torch.set_num_threads(1)


@pytest.fixture(scope="session")
def prefect_server(_own_prefect_home: None) -> Iterator[str]:
    """The API address of one real server for the whole test run; it ends with this process, however that ends."""
    process = subprocess.Popen(
        [sys.executable, "-m", "deployments.prefect.embedded"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=os.environ | {EPHEMERAL: "1"},
        start_new_session=True,
        cwd=REPOSITORY,
    )
    assert process.stdin and process.stdout
    too_long = threading.Timer(600, process.kill)
    too_long.start()
    port = process.stdout.readline().strip()
    too_long.cancel()
    assert port, "the Prefect server did not start"
    _copy_database(Path(os.environ["PREFECT_HOME"], "prefect.db"), _empty_database())
    yield f"http://127.0.0.1:{int(port)}/api"
    send_what_waits()
    process.stdin.close()
    process.wait(300)


@pytest.fixture(scope="session")
def run_study(_own_prefect_home: None) -> Command:
    """Runs `python -m flows.robustness ...` as a person would where no Prefect server stands."""

    def run(*arguments: str | Path, timeout: float = 900, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "flows.robustness", *map(str, arguments)],
            cwd=REPOSITORY,
            env=os.environ | environment,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )

    return run


@pytest.fixture(scope="session")
def smoke_root(run_study: Command) -> Path:
    """The root of a finished smoke study. Read only: a test that changes something works on a copy."""

    def run(root: Path) -> None:
        done = run_study("--profile", "smoke", "--root", root)
        assert done.returncode == 0, done.stdout + done.stderr

    return made_once("smoke", run)


@pytest.fixture
def run_here(capsys: pytest.CaptureFixture[str]) -> RunHere:
    """The command's function in this process; returns (exit code, all output)."""

    def run(*arguments: str | Path, profile: str = "smoke", module: str = "flows.robustness") -> tuple[int, str]:
        code = command.main(module, ["--profile", profile, *map(str, arguments)])
        printed = capsys.readouterr()
        return code, printed.out + printed.err

    return run


@pytest.fixture
def new_root(smoke_root: Path, tmp_path: Path) -> Path:
    """A root where no study was run, whose text is in the cache: reading it takes most of a smoke study."""
    root = tmp_path / "runs"
    shutil.copytree(smoke_root / ".cache", root / ".cache")
    return root


@pytest.fixture
def own_prefect_home(prefect_server: str, tmp_path: Path) -> Path:
    """A PREFECT_HOME for one test."""
    return make_prefect_home(tmp_path / "prefect-home")


def make_prefect_home(home: Path) -> Path:
    """A PREFECT_HOME whose database has its tables and nothing in them: making them takes ten seconds."""
    home.mkdir()
    _copy_database(_empty_database(), home / "prefect.db")
    return home


def heed_ctrl_c() -> None:
    """A `preexec_fn`: tests that a shell started in the background ignore SIGINT, and so would what they start."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def _empty_database() -> Path:
    """A copy of the shared server's database, made before any test wrote in it."""
    return Path(os.environ["PREFECT_HOME"], "empty.db")


def _copy_database(source: Path, target: Path) -> None:
    with closing(sqlite3.connect(source)) as old, closing(sqlite3.connect(target)) as new:
        old.backup(new)
