"""A command as the work of a stage: a script that somebody has already, with its own checkpoints."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from queue import SimpleQueue
from typing import IO, TYPE_CHECKING

from storage import durable
from storage.errors import BadInput, CheckFailed
from storage.external import file_manifest
from tasks.stage.configuration import Configuration, LocalPath, execution
from tasks.stage.progress import FOR_THE_TERMINAL
from tasks.stage.scratch import ScratchCheckpoints

if TYPE_CHECKING:
    from tasks.stage.run import StageRun

LOOK_EVERY_SECONDS, LAST_LINES = 0.5, 20
ENDED = ".copies.ended.json"
"""In `scratch`: what a command left that ended well, by the times of its files."""


class Script(Configuration):
    """A script of one's own. Where it lies does not count, its content does: an edited one is another run."""

    path: LocalPath = execution(description="The script, below the folder where the study is started.")
    reads: list[LocalPath] = execution([], description="Files and folders that it imports or reads, by content too.")

    def external_inputs(self) -> dict[str, object]:
        return {"script": file_manifest([self.path, *self.reads])}


def run_command(
    run: StageRun,
    command: Sequence[object],
    *,
    checkpoints: str,
    resume: Sequence[str],
    leaves: Sequence[str],
    progress: str,
    save_seconds: float,
) -> None:
    """`StageRun.command`."""
    arguments = [sys.executable if part == "python" else str(part) for part in command]
    own = _checkpoints(run, checkpoints) if checkpoints else None
    if own and (newest := own.newest()):
        arguments += [part.replace("{checkpoint}", str(newest)) for part in resume]
        told = newest.relative_to(run.scratch), own.step
        run.log.info("goes on from %s, kept when step %d was told", *told, extra=FOR_THE_TERMINAL)
    elif own and run.lock.number > 1:
        anew = "begins anew: no attempt before left a whole checkpoint %s"
        run.log.warning(anew, checkpoints, extra=FOR_THE_TERMINAL)
    save_seconds = run.stop.grant(save_seconds)
    with _started(arguments, run.scratch) as child:
        output = _Output(run, child, progress)
        while not output.ended(LOOK_EVERY_SECONDS):
            run.lock.check()
            if run.stop.requested:
                _stop(child, save_seconds)
            elif own:
                own.look()
    if own and child.returncode >= 0:  # a signal may have ended it within a checkpoint
        own.look(ended=True)
    if own and own.unlisted:
        run.log.warning("%s", own.unlisted, extra=FOR_THE_TERMINAL)
    run.stop.check_signals()
    what = " ".join(arguments[:2])
    if child.returncode:
        ended = f"signal {-child.returncode}" if child.returncode < 0 else f"exit code {child.returncode}"
        raise RuntimeError(f"{what} ended with {ended}; its last lines:\n" + "\n".join(output.last))
    _require_left(run, what, leaves, f", and no checkpoint {checkpoints} of this attempt" if own else "", own)
    for name in leaves:
        _publish(run, name)


def _checkpoints(run: StageRun, pattern: str) -> ScratchCheckpoints:
    run.begin_training()
    return ScratchCheckpoints(run.scratch, pattern, run.checkpoints, lambda: run.progress.step)


def _require_left(
    run: StageRun, what: str, leaves: Sequence[str], without: str, own: ScratchCheckpoints | None
) -> None:
    """CheckFailed unless `leaves` are there and, as far as can be told, are of work that ended well."""
    left = {name: _stats(run.scratch / name) for name in leaves}
    for name, files in left.items():
        if not any(file.st_size for file in files):
            there = ", ".join(sorted(path.name for path in run.scratch.glob("[!.]*"))) or "nothing"
            advice = "It ended before its work was done, or leaves it elsewhere: see `leaves` of run.command"
            raise CheckFailed(f"{what} leaves {name} in the scratch folder", f"exit code 0, and {there}", name, advice)
    # One that goes on may rightly keep the best.pt of an attempt before: so each by itself may be old. But where it
    # saved nothing either, nothing tells it from one that failed at once, as the first of a pipe may with exit code 0.
    stamps = {name: [file.st_ctime_ns for file in files] for name, files in left.items()}
    changed_at = max((stamp for of_files in stamps.values() for stamp in of_files), default=None)
    begun_at = (run.lock.directory / f"{run.lock.number}.json").stat().st_mtime_ns  # by the clock of the same disk
    is_known = (noted := run.scratch / ENDED).exists() and durable.read_json(noted) == stamps
    if changed_at and changed_at < begun_at and not (own and own.added) and not is_known:
        names = ", ".join(leaves)
        advice = (
            "See what it printed in the log: behind a pipe only the last exit code counts (set -o pipefail). If it had "
            "nothing left to do, `--fresh STAGE` does all of it again"
        )
        measured = f"exit code 0, {names} of an attempt before{without}"
        raise CheckFailed(f"{what} did its work", measured, f"{names} of this attempt", advice)
    durable.write_json(noted, stamps)  # a kill from here on costs nothing of its work


def _stats(left: Path) -> list[os.stat_result]:
    return [file.stat() for file in [left, *left.rglob("*")] if file.is_file()]


def _publish(run: StageRun, name: str) -> None:
    """Copies what the command left to an output of the same name."""
    if (left := run.scratch / name).is_dir():
        with run.publish(name) as folder:
            shutil.copytree(left, folder, dirs_exist_ok=True)
    else:
        with run.publish_file(name) as file:
            shutil.copyfile(left, file)


@contextmanager
def _started(arguments: list[str], folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """The command, in a group of processes that ends with the block, and with this process however that ends.

    A guard reads from a pipe that closes when this process is gone, even by SIGKILL, and then ends the group: no second
    one must write beside the next attempt's.
    """
    environment = os.environ | {"PYTHONUNBUFFERED": "1"}
    try:
        child = subprocess.Popen(
            arguments, cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
    except OSError as error:
        raise BadInput(f"{arguments[0]} cannot be started: {error.strerror or error}") from None
    guard = subprocess.Popen(
        ["/bin/sh", "-c", f"trap '' INT TERM HUP USR1; read _; kill -KILL -{child.pid}"],
        stdin=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    try:
        yield child
    finally:
        assert guard.stdin
        guard.stdin.close()
        guard.wait()
        child.wait()


def _stop(child: subprocess.Popen[bytes], save_seconds: float) -> None:
    """Asks the group to save and end, and ends it when it takes longer."""
    try:
        os.killpg(child.pid, signal.SIGTERM)
        child.wait(save_seconds)
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


class _Output:
    """What a command prints: into the attempt's log, and where a line says how far it is, into the progress.

    A thread reads it, and this one tells it: what shows the log of a stage knows its thread.
    """

    def __init__(self, run: StageRun, child: subprocess.Popen[bytes], progress: str) -> None:
        self._run, self._child, self._progress = run, child, re.compile(progress) if progress else None
        self._lines: SimpleQueue[bytes] = SimpleQueue()
        self.last: deque[str] = deque(maxlen=LAST_LINES)
        assert child.stdout
        self._thread = threading.Thread(target=self._read, args=(child.stdout,), daemon=True)
        self._thread.start()

    def ended(self, seconds: float) -> bool:
        """Waits so long at most, and tells what was printed; true when the command has ended."""
        with suppress(subprocess.TimeoutExpired):
            self._child.wait(seconds)
        if ended := self._child.returncode is not None:
            self._thread.join(seconds)  # not for ever: what the command started may hold its output open
        while not self._lines.empty():
            self._tell(self._lines.get())
        return ended

    def _read(self, output: IO[bytes]) -> None:
        rest = b""
        while data := output.read1(65536):  # type: ignore[attr-defined]
            *lines, rest = re.split(rb"(?<=[\r\n])", rest + data)
            for line in lines:
                self._lines.put(line)
        self._lines.put(rest)

    def _tell(self, line: bytes) -> None:
        text = line.decode(errors="replace").rstrip()
        self._run.progress.touch()
        if self._progress and (match := self._progress.search(text)):
            done, total = (int(number) for number in (*match.groups(), "0")[:2])
            self._run.progress.update(done, total, "steps")
        if text and not line.endswith(b"\r"):  # a bar that draws over itself
            self.last.append(text)
            self._run.log.info("%s", text)
