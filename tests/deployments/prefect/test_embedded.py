"""The command with no server configured: it starts one, and leaves none behind, whatever ends it."""

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from prefect.settings import PREFECT_API_DATABASE_CONNECTION_URL, PREFECT_API_URL, PREFECT_HOME, temporary_settings

from deployments import ui, waits
from deployments.prefect import embedded
from storage.errors import BadInput
from tests.conftest import REPOSITORY


def _processes_of(home: Path) -> list[int]:
    """Processes that carry our PREFECT_HOME in their environment: those that this test started, and their children."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                environment = (folder / "environ").read_bytes().split(b"\0")
            except OSError:
                continue
            if f"PREFECT_HOME={home}".encode() in environment:
                found.append(int(folder.name))
    return found


def _start(home: Path, root: Path) -> subprocess.Popen[str]:
    environment = {name: value for name, value in os.environ.items() if name != "PREFECT_API_URL"}
    return subprocess.Popen(
        [sys.executable, "-m", "flows.robustness", "--prefect", "--profile", "smoke", "--root", str(root)],
        cwd=REPOSITORY,
        env=environment | {"PREFECT_HOME": str(home)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def _gone(home: Path, within_seconds: float) -> bool:
    deadline = time.monotonic() + within_seconds
    while _processes_of(home) and time.monotonic() < deadline:
        time.sleep(0.2)
    return not _processes_of(home)


def test_a_killed_command_leaves_no_process_and_the_next_one_finishes_with_its_own_server(
    own_prefect_home, smoke_root, tmp_path
):
    home, root = own_prefect_home, Path(shutil.copytree(smoke_root, tmp_path / "runs", symlinks=True))
    next(root.glob("smoke/aggregate/*/COMPLETE.json")).unlink()
    first = _start(home, root)
    assert first.stdout and any("Prefect API: http://127.0.0.1" in line for line in first.stdout)
    assert len(_processes_of(home)) >= 2, "the command and its server are there"
    first.send_signal(signal.SIGKILL)
    first.communicate()
    assert _gone(home, within_seconds=300), "the server outlived its killed parent"

    printed, _ = (second := _start(home, root)).communicate(timeout=120)
    assert second.returncode == 0 and "the study is finished" in printed, printed
    assert not _processes_of(home), "the command left a process behind"
    assert "Traceback" not in printed and "Unable to connect" not in printed


def database_in(home: Path) -> AbstractContextManager[object]:
    """No server is configured, and `home` is PREFECT_HOME, with its database."""
    url = f"sqlite+aiosqlite:///{home}/prefect.db"
    settings = {PREFECT_HOME: home, PREFECT_API_URL: None, PREFECT_API_DATABASE_CONNECTION_URL: url}
    return temporary_settings(settings)


HOLDER = """
import http.server, sys
class Hello(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
database = open(sys.argv[1])
server = http.server.HTTPServer(("127.0.0.1", 0), Hello) if sys.argv[2:] else None
print(server.server_port if server else 0, flush=True)
server.serve_forever() if server else sys.stdin.read()
"""


@pytest.mark.parametrize(
    ("held", "environment", "listens", "found"),
    [
        ("prefect.db", {}, ["yes"], True),
        ("of-another-home.db", {}, ["yes"], False),
        ("prefect.db", {embedded.EPHEMERAL: "1"}, ["yes"], False),
        ("prefect.db", {}, [], False),
    ],
    ids=["with our database", "with another database", "that ends with its command", "that is none"],
)
def test_a_command_uses_a_server(tmp_path, held, environment, listens, found):
    """A second one on the same SQLite file: "database is locked" eleven times in an hour."""
    for name in ("prefect.db", held):
        (tmp_path / name).touch()
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path / held), *listens],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=os.environ | {embedded.PASSWORD: "a:b"} | environment,
    )
    try:
        assert holder.stdout
        port = int(holder.stdout.readline())
        with database_in(tmp_path):
            here = embedded.server_here()
            assert here == (embedded.Server(f"http://127.0.0.1:{port}/api", "a:b") if found else None)
            if here:
                with pytest.raises(BadInput, match=f"{here.address} has the database of .* two would lock each other"):
                    ui.keep_ui([], tmp_path, None, print)
    finally:
        holder.kill()
        holder.communicate()


def test_a_command_without_a_configured_server_uses_the_one_of_its_prefect_home(prefect_server, monkeypatch):
    with database_in(Path(os.environ["PREFECT_HOME"])):
        monkeypatch.setattr(embedded, "started_server", None)  # no second one is started
        with embedded.prefect_server() as address:
            assert (address, PREFECT_API_URL.value()) == (prefect_server, prefect_server)


COMMAND = """
import sys
from pathlib import Path
from deployments.prefect.embedded import started_server
with started_server(Path(sys.argv[1])) as server:
    print(server.address, flush=True)
    sys.stdin.read()
"""


@pytest.mark.parametrize("killed", [False, True], ids=["ends", "is killed"])
def test_the_server_of_a_command_that(killed, own_prefect_home):
    """It stays for the other commands that use it, and no longer."""
    home = own_prefect_home
    (theirs := home / "deployments").mkdir()  # in the present folder, which may be a stranger's: it is not run
    (theirs / "__init__.py").write_text("raise SystemExit('this is not the server')")
    first = subprocess.Popen(
        [sys.executable, "-P", "-c", COMMAND, str(home / "log")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=home,
        env=os.environ | {"PREFECT_HOME": str(home)},
    )
    assert first.stdout
    address = first.stdout.readline().strip()
    with database_in(home):
        with embedded.prefect_server() as second:
            assert second == address
            if killed:
                first.kill()
            first.communicate(timeout=60)
            assert killed or first.returncode == 0, "it waits for no other command"
            with embedded.prefect_server() as third:
                assert third == address, "one may come as long as it is there"
        assert _gone(home, within_seconds=60) and not list(home.glob("*.users"))
        os.mkfifo(embedded._users_of(home / "prefect.db", 1))
        with ExitStack() as held:
            assert embedded._joined(held) is None and not list(home.glob("*.users")), "a killed server's"


def test_a_server_that_cannot_say_that_it_is_ready_ends(own_prefect_home):
    """The command that waits for its word would wait for ever."""
    code = "import deployments.prefect.embedded as e; e.ANSWER_SECONDS = 0.001; e.serve(0)"
    environment = os.environ | {"PREFECT_HOME": str(own_prefect_home), "PYTHONPATH": str(REPOSITORY)}
    with (log := own_prefect_home / "log").open("wb") as file:
        server = subprocess.Popen(
            [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=file, env=environment
        )
    try:
        assert server.wait(300) == 1 and "Timeout" in log.read_text()
    finally:
        server.kill()


@pytest.mark.parametrize(
    ("server", "sentence"),
    [
        ("exec sleep 1000", "does not answer after 0.01 minutes; its log is .*log. Start the same command again"),
        ("echo no space left >&2", "did not start .no space left.; its log is .*log"),
        ("echo 5; exec sleep 1000", ""),
    ],
)
def test_a_command_gives_up_on_a_server_that_never_answers_and_on_one_that_does_not_end(
    server, sentence, tmp_path, monkeypatch
):
    (python := tmp_path / "python").write_text(f"#!/bin/sh\necho $$ > {tmp_path}/pid\n{server}\n")
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    monkeypatch.setattr(embedded, "START_SECONDS", 0.6 if sentence else 60.0)
    monkeypatch.setattr(embedded, "STAYS_SECONDS", 0.2)
    monkeypatch.setattr(waits, "END_SECONDS", 0.2)
    gives_up = pytest.raises(BadInput, match=sentence) if sentence else nullcontext()
    with gives_up, embedded.started_server(tmp_path / "log") as begun:
        assert begun.address == "http://127.0.0.1:5/api"
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


@contextmanager
def answering(answers: list[Callable[[], int]]) -> Iterator[str]:
    """The address of a server that answers so, one request after the other."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(answers.pop(0)())
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Nothing on the terminal."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/api"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def silent() -> int:
    time.sleep(0.6)
    return 200


@pytest.mark.parametrize(
    ("answers", "error"),
    [
        ([lambda: 503, lambda: 429, lambda: 200], None),
        ([silent, lambda: 200], None),
        ([silent] * 4, "is busy .* nothing was started, .* start the same command again"),
        ([lambda: 503] * 4, "is busy .*503.* start the same command again"),
        ([lambda: 500], "does not answer .*500"),
        ([lambda: 401], "asks for a password"),
    ],
)
def test_a_busy_server_is_asked_again_before_a_command_gives_up(monkeypatch, answers, error):
    monkeypatch.setattr(embedded, "HELLO_SECONDS", 0.3)
    monkeypatch.setattr(embedded, "ASKED_AGAIN_AFTER_SECONDS", (0.0, 0.0, 0.0))
    left = list(answers)
    with answering(left) as address:
        server = embedded.Server(address, None)
        if error is None:
            embedded.require_answer(server)
        else:
            with pytest.raises(BadInput, match=error):
                embedded.require_answer(server)
    assert left == [], "asked as often as it takes"
