"""A command as the work of a stage: a script that somebody has already, with its own checkpoints."""

from __future__ import annotations

import math
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Sequence
from contextlib import closing, suppress
from pathlib import Path
from queue import Empty, Queue
from typing import TYPE_CHECKING

from storage import durable
from storage.errors import BadInput, CheckFailed
from storage.external import file_manifest
from storage.inside import parts
from tasks.stage.configuration import Configuration, LocalPath, execution
from tasks.stage.progress import FOR_THE_TERMINAL
from tasks.stage.scratch import ScratchCheckpoints

if TYPE_CHECKING:
    from tasks.stage.run import StageRun

LOOK_EVERY_SECONDS, LAST_LINES = 0.5, 20
LINE_BYTES, PIECES = 65536, 10_000
"""A line counts up to so many bytes; a command that printed so many pieces which are not told yet waits."""
END_SECONDS = 60.0
REPORTED = "reported"
"""In the state of a checkpoint: the last line before it that said how far the command was."""
METRIC = re.compile(r"([A-Za-z][\w./-]*) *[ =:] *([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)(?![\w.%/])")
OF_A_CLOCK = re.compile(r"^(of|in)$|time|sec|eta|elapsed|speed|mfu|mem|(^|[^a-z])(s|ms|it|gb|mb)($|[^a-z])", re.I)
"""Names of what the same work prints otherwise, and words that stand before a number and name none."""
GUARD = str(Path(__file__).with_name("guard.py"))
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
) -> dict[str, float]:
    """`StageRun.command`."""
    pattern = _pattern(progress)
    for name in [*leaves, *filter(None, [checkpoints])]:
        parts(name)  # Outside for one that is not below the scratch folder
    arguments = [sys.executable if part == "python" else str(part) for part in command]
    own = _checkpoints(run, checkpoints) if checkpoints else None
    if own and (newest := own.newest()):
        arguments += [part.replace("{checkpoint}", str(newest)) for part in resume]
        run.went_on("run.command", "its script was not rehearsed")
    elif run.lock.number > 1 and (own or any(run.scratch.iterdir())):
        run.went_on("run.command", "its script may find what an attempt before left")
        anew = "begins anew: no attempt before left a whole checkpoint %s"
        run.log.warning(anew, checkpoints or "(none are named)", extra=FOR_THE_TERMINAL)
    save_seconds = run.stop.grant(save_seconds)
    with closing(_Guarded(arguments, run.scratch)) as child:
        output = _Output(run, child, pattern)
        output.reported = own.state.get(REPORTED, "") if own else ""
        while not output.ended(LOOK_EVERY_SECONDS):
            run.lock.check()
            if run.stop.requested:
                child.terminate()
                if not output.ended(save_seconds):
                    child.close()
            elif own:
                own.kept_with = {REPORTED: output.reported}
                own.look()
    assert child.returncode is not None
    if own and child.returncode >= 0:  # a signal may have ended it within a checkpoint
        own.kept_with = {REPORTED: output.reported}
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
    named = [(name, float(number)) for name, number in METRIC.findall(output.reported)]
    return {name: value for name, value in named if math.isfinite(value) and not OF_A_CLOCK.search(name)}


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
    """Copies what the command left to an output of the same name, and what links in it lead to. CheckFailed for one
    that leads nowhere, or round in a circle."""
    left = run.scratch / name
    for link in filter(Path.is_symlink, left.rglob("*")):
        if not link.exists() or link.resolve() in link.parent.resolve().joinpath("_").parents:
            measured = f"{link.relative_to(run.scratch)} leads to {os.readlink(link)}"
            raise CheckFailed(f"{name} can be copied", measured, "links to files and folders beside them")
    if left.is_dir():
        with run.publish(name) as folder:
            shutil.copytree(left, folder, dirs_exist_ok=True)
    else:
        with run.publish_file(name) as file:
            shutil.copyfile(left, file)


class _Guarded:
    """The command below a guard, which ends all that came of it, whatever session that is in: when the command has
    ended, when this is closed, and when this process is gone, even by SIGKILL. No second one must write beside the
    next attempt's."""

    def __init__(self, arguments: list[str], folder: Path) -> None:
        self._what = arguments[0]
        self.returncode: int | None = None
        status, writer = os.pipe()
        self._status = os.fdopen(status, "rb")
        try:
            self._guard = subprocess.Popen(
                [sys.executable, "-I", "-S", GUARD, str(writer), *arguments],
                cwd=folder, env=os.environ | {"PYTHONUNBUFFERED": "1"}, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT, start_new_session=True, pass_fds=[writer],
            )  # fmt: skip
        except (OSError, ValueError) as error:
            raise BadInput(f"{self._what} cannot be started: {getattr(error, 'strerror', None) or error}") from None
        finally:
            os.close(writer)
        assert self._guard.stdout
        self.output = self._guard.stdout

    def ended(self, seconds: float) -> bool:
        """Waits so long at most; true when nothing of the command is left. BadInput where it cannot be started."""
        if self.returncode is None and select.select([self._status], [], [], seconds)[0]:
            line = self._status.readline()
            if line.startswith(b"E"):
                raise BadInput(f"{self._what} cannot be started: {os.strerror(int(line[1:]))}")
            self.returncode = int(line[1:]) if line else -signal.SIGKILL
        return self.returncode is not None

    def terminate(self) -> None:
        """Asks all its processes to end."""
        assert self._guard.stdin
        with suppress(BrokenPipeError):
            self._guard.stdin.write(b"T")
            self._guard.stdin.flush()

    def close(self) -> None:
        """Ends all its processes. RuntimeError where one does not end, as on a disk that hangs."""
        assert self._guard.stdin
        with suppress(BrokenPipeError):
            self._guard.stdin.close()
        self._status.close()
        self.returncode = -signal.SIGKILL if self.returncode is None else self.returncode
        try:
            self._guard.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            raise RuntimeError(f"a process that {self._what} started does not end by SIGKILL") from None


class _Output:
    """What a command prints: into the attempt's log, and where a line says how far it is, into the progress.

    A thread reads it, and this one tells it: what shows the log of a stage knows its thread.
    """

    def __init__(self, run: StageRun, child: _Guarded, progress: re.Pattern[str] | None) -> None:
        self._run, self._child, self._progress = run, child, progress
        self._pieces: Queue[bytes | None] = Queue(PIECES)
        self._open = True
        self.last: deque[str] = deque(maxlen=LAST_LINES)
        self.reported = ""
        """The last line that said how far it is."""
        threading.Thread(target=self._read, daemon=True).start()

    def ended(self, seconds: float) -> bool:
        """Waits so long at most, and tells what was printed; true when nothing of the command is left."""
        until = time.monotonic() + seconds
        while self._open and (left := until - time.monotonic()) > 0:
            self._tell(left)
        ended = self._child.ended(0 if self._open else max(0, until - time.monotonic()))
        while ended and self._open and self._tell(seconds):
            pass  # not for ever: a process of another user may hold the output open
        return ended

    def _read(self) -> None:
        rest = b""
        while data := self._child.output.read1(LINE_BYTES):  # type: ignore[attr-defined]
            *lines, rest = re.split(rb"(?<=\n)|(?<=\r)(?!\n)", rest + data)
            if lines and not rest and lines[-1].endswith(b"\r"):
                rest = lines.pop()  # its \n may be under way
            for line in lines if len(rest) < LINE_BYTES else [*lines, rest]:
                self._pieces.put(line)
            rest = b"" if len(rest) >= LINE_BYTES else rest
        self._pieces.put(rest)
        self._pieces.put(None)

    def _tell(self, seconds: float) -> bool:
        """Tells what was printed next; false where nothing was, for so long."""
        try:
            line = self._pieces.get(timeout=seconds)
        except Empty:
            return False
        if line is None:
            self._open = False
            return True
        text = line.decode(errors="replace").rstrip()
        self._run.progress.touch()
        if self._progress and (match := self._progress.search(text)):
            done, total = (_whole(number) for number in (*match.groups(), "0")[:2])
            if done is not None:
                self._run.progress.update(done, total or 0, "steps")
                self.reported = text
        if text and not line.endswith(b"\r"):  # a bar that draws over itself
            self.last.append(text)
            self._run.log.info("%s", text)
        return True


def _pattern(progress: str) -> re.Pattern[str] | None:
    """BadInput for a pattern that says no steps."""
    try:
        pattern = re.compile(progress)
    except re.error as error:
        raise BadInput(f"progress={progress!r} of run.command is no regular expression: {error}") from None
    if progress and pattern.groups not in (1, 2):
        raise BadInput(
            f"progress={progress!r} of run.command has {pattern.groups} groups: put the steps done into one, and those "
            r"in all into a second, as in step (\d+) of (\d+); (?:...) groups without counting"
        )
    return pattern if progress else None


def _whole(text: str | None) -> int | None:
    """The whole number that a group says, with or without commas; None where it says none that could be a step."""
    digits = (text or "").replace(",", "") if re.fullmatch(r"\d{1,3}(,\d{3})+", text or "") else text or ""
    return int(digits) if digits.isascii() and digits.isdigit() and len(digits) <= 15 else None
