"""Commands in processes of their own, forked from one that has imported what takes seconds: a pytest plugin."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parent.parent
PATIENCE = 300.0
SERVER = """
import json, os, signal, sys
import safetensors.torch, sklearn.linear_model, torch, transformers.models.gpt2
import tasks.findings.publish, tasks.training.on_tensors, tasks.training.transformers_trainer, tests.tasks.tiny
from flows import command

for line in sys.stdin:
    folder, said, environment, code, words = json.loads(line)
    if pid := os.fork():
        print(pid, flush=True)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
        continue
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.chdir(folder)
    os.environ.update(environment)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(os.open(said, os.O_CREAT | os.O_WRONLY | os.O_TRUNC), 1)
    os.dup2(1, 2)
    sys.stdout = os.fdopen(1, "w", buffering=1)
    exit_code = 1
    try:
        exec(code, {})
        exit_code = command.ratchet(words) if words else 0
    except SystemExit as end:
        exit_code = end.code
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stdout.flush()
        os._exit(exit_code)
"""
QUICK = """
from tasks.stage import command, progress, scratch
command.LOOK_EVERY_SECONDS, scratch.QUIET_SECONDS, progress.NOTE_EVERY_SECONDS = 0.02, {quiet}, 0.0
"""
"""A script's output and checkpoints are looked at often."""


class Forks:
    """The process that is forked."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", SERVER], cwd=REPOSITORY, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def run(
        self,
        folder: Path,
        *words: str | Path,
        first: str = "",
        strike: Callable[[], bool] = lambda: False,
        number: int = signal.SIGKILL,
    ) -> tuple[int, str]:
        """`ratchet WORDS` in this folder, after the code `first`; (exit code, all that it printed).

        It gets the signal once `strike` sees its moment.
        """
        assert self._process.stdin and self._process.stdout
        said = folder / "said.txt"
        self._process.stdin.write(json.dumps([str(folder), str(said), dict(os.environ), first, [*map(str, words)]]))
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        pid, deadline = int(self._process.stdout.readline()), time.monotonic() + PATIENCE
        while Path(f"/proc/{pid}").exists():
            if strike():
                os.kill(pid, number)
                break
            assert time.monotonic() < deadline, said.read_text()
            time.sleep(0.001)
        return int(self._process.stdout.readline()), said.read_text()

    def end(self) -> None:
        assert self._process.stdin
        self._process.stdin.close()
        self._process.wait()


@pytest.fixture(scope="session")
def forks(_own_prefect_home: None) -> Iterator[Forks]:
    forks = Forks()
    yield forks
    forks.end()
