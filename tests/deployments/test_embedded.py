"""The command with no server configured: it starts one, and leaves none behind, whatever ends it."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from deployments import embedded
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
        [sys.executable, "-m", "flows.robustness", "--profile", "smoke", "--root", str(root)],
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
    own_prefect_home: Path, smoke_root: Path, tmp_path: Path
) -> None:
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
def test_a_busy_server_is_asked_again_before_a_command_gives_up(
    monkeypatch: pytest.MonkeyPatch, answers: list[Callable[[], int]], error: str | None
) -> None:
    monkeypatch.setattr(embedded, "HELLO_SECONDS", 0.3)
    monkeypatch.setattr(embedded, "ASKED_AGAIN_AFTER_SECONDS", (0.0, 0.0, 0.0))
    left = list(answers)
    with answering(left) as address:
        if error is None:
            embedded.require_answer(address)
        else:
            with pytest.raises(BadInput, match=error):
                embedded.require_answer(address)
    assert left == [], "asked as often as it takes"
