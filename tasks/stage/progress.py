"""The progress of a running stage, requests to stop it, and the end of one that hangs."""

from __future__ import annotations

import faulthandler
import logging
import math
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, TextIO

from storage import durable
from storage.errors import BadInput, Stop
from tasks.stage.outcome import Diagnosis

LOG = logging.getLogger("ratchet.stop")
WRITE_EVERY_SECONDS = 1.0
LOG_EVERY_SECONDS = 60.0
"""Interval of the lines in the log, for whoever follows that of a job."""
NOTE_EVERY_SECONDS = 1.0
LEAD_SECONDS, SAFETY = 10.0, 2.0
STOP_NOTE, DEADLINE = "RATCHET_STOP_NOTE", "RATCHET_DEADLINE"
"""A batch script sets these: the file that it leaves when its time is nearly up, and its end (seconds since 1970)."""
BEGAN, JOB_LEAD = "RATCHET_BEGAN", "RATCHET_LEAD_SECONDS"
"""A job of ours sets these: its start (seconds since 1970), and how long before its limit it leaves its stop note."""
EARLY_SECONDS = 60.0
"""SLURM may send its signal to save this much earlier than requested."""

FOR_THE_TERMINAL = {"for_the_terminal": True}
"""The `extra` of a log line below a warning that a person at the terminal should see too."""


class Progress:
    """Keeps `progress.json` current: `alive_at` from a thread, the rest from the work. Logs it now and then."""

    def __init__(self, file: Path, log: logging.Logger) -> None:
        self._file, self._log = file, log
        self._logged_at = time.time()
        self._began: tuple[float, int] | None = None
        self._written_at = 0.0
        self._lock = threading.Lock()
        self.last_step_at: float | None = None
        self._now: dict[str, object] = {"note": "starting", "step": 0, "total": 0, "unit": "steps"}

    def update(self, step: int, total: int, unit: str, note: str = "", epoch: float | None = None) -> None:
        """`step` of `total` `unit`s are done. Writes at most once a second."""
        self.last_step_at = now = time.time()
        if self._began is None or note != self._now["note"]:
            self._began = (now, step)
        began_at, first_step = self._began
        rate = (step - first_step) / (now - began_at) if step > first_step and now > began_at else None
        self._now = {
            "step": step,
            "total": total,
            "unit": unit,
            "note": note,
            "epoch": epoch,
            "rate_per_second": rate,
            "eta_seconds": (total - step) / rate if rate else None,
        }
        if now - self._written_at >= WRITE_EVERY_SECONDS or step == total:
            self.beat()
        if now - self._logged_at >= LOG_EVERY_SECONDS:
            self._logged_at = now
            self._log.info("%s", described(self._now))

    @property
    def step(self) -> int:
        """The steps that were done when it was told last."""
        return int(str(self._now["step"]))

    def touch(self) -> None:
        """Reports that the work goes on although no step is done yet, as in a long validation."""
        self.last_step_at = time.time()

    def beat(self) -> None:
        """Writes progress.json; also called by the lock's heartbeat thread."""
        with self._lock:
            self._written_at = time.time()
            try:
                durable.replace_quickly(
                    self._file, {"alive_at": self._written_at, "last_step_at": self.last_step_at, **self._now}
                )
            except OSError:
                pass  # progress is for people: a full disk is reported where work is written


def described(progress: Mapping[str, Any]) -> str:
    """One line for a progress.json: how far, what, and the time left."""
    step, total, unit = progress.get("step", 0), progress.get("total", 0), progress.get("unit", "")
    parts = [f"{step:,}/{total:,} {unit}" if total else "", progress.get("note", "")]
    if eta := progress.get("eta_seconds"):
        parts.append(f"{duration(eta)} left")
    return ", ".join(part for part in parts if part)


def duration(seconds: float) -> str:
    """A duration in words, such as "2 h 5 min" or "0.3 s"."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


class StopRequest:
    """A request to stop, by a signal, a note, or a deadline, which the work sees at its next safe point.

    Signals only set a flag. The deadline counts as reached `lead_seconds` before it: this class measures the time from
    one safe point to the next, the work sets the time of a save (`save_seconds`).
    """

    def __init__(self) -> None:
        self._cause, self._because, self._said = "", "", False
        self._note = os.environ.get(STOP_NOTE)
        self._deadline: float | None = None
        self._note_asked_at = 0.0
        self._asked_at: float | None = None
        self.longest_seconds = 0.0
        self.save_seconds = 0.0
        self._granted_seconds = 0.0
        self._began = float(os.environ.get(BEGAN) or 0)
        self.start_seconds = 0.0
        """The time from the start of the job to the first safe point; zero before, and outside of a job."""
        self.started: Callable[[float], None] = lambda seconds: None
        """Called with `start_seconds` once it is measured."""

    @property
    def lead_seconds(self) -> float:
        """The measured time, with a margin, that an attempt needs to stop before its end."""
        return LEAD_SECONDS + SAFETY * (self.longest_seconds + self.save_seconds) + self._granted_seconds

    def grant(self, seconds: float) -> float:
        """Leaves this time before the deadline to a command, which is ended after it; at most a third of the job's."""
        if self._deadline is not None:
            seconds = min(seconds, max(0.0, self._deadline - (self._began or time.time())) / 3)
        self._granted_seconds = max(self._granted_seconds, seconds)
        return seconds

    @property
    def requested(self) -> bool:
        now = time.monotonic()
        if self._asked_at is not None:
            self.longest_seconds = max(self.longest_seconds, now - self._asked_at)
        elif self._began:
            self.start_seconds = time.time() - self._began
            self.started(self.start_seconds)
        self._asked_at = now
        if not self._cause:
            noted = self._noted()
            if noted or self._late():
                self._cause, self._because = "out_of_time", self._why_out_of_time(noted)
        if self._cause and not self._said:
            self._said = True
            LOG.info("stops because %s: saving ...", self._because, extra=FOR_THE_TERMINAL)
        return bool(self._cause)

    def check(self, after: str = "") -> None:
        """Raises Stop when one is requested. Call it where nothing is half done; `after` names that point."""
        if self.requested:
            self.check_signals(after)

    @property
    def cause(self) -> str:
        """The end state that was asked for so far; empty where none was."""
        return self._cause

    def check_signals(self, after: str = "") -> None:
        """Raises Stop when one was seen already, without a look at clock or note: for the end of all work."""
        if self._cause:
            raise Stop(self._cause, f"stopped{after and ' after '}{after} because {self._because}")

    def too_short(self) -> Diagnosis | None:
        """Diagnoses the limit of a job that gained nothing; None before the first safe point, and where something else
        ended it."""
        if not self.start_seconds or not self._job_ends():
            return None
        assert self._deadline is not None
        return too_short(self.start_seconds, self.longest_seconds, _job_lead(), self._deadline - self._began)

    def _job_ends(self) -> bool:
        """True for a job of ours whose time is nearly up."""
        early = _job_lead() + 2 * EARLY_SECONDS
        return bool(self._began and self._deadline) and time.time() + early >= (self._deadline or 0)

    def _why_out_of_time(self, noted: bool) -> str:
        if self._job_ends():
            return "the time of its job is nearly up"
        if not noted:
            return f"the time that {DEADLINE} names is nearly up"
        return f"{self._note} exists" + ("" if self._began else ": remove it to go on")  # a next job has its own note

    def _noted(self) -> bool:
        """True if the stop note is there; looks once a second, since shared disks are slow."""
        if self._note is None or time.monotonic() - self._note_asked_at < NOTE_EVERY_SECONDS:
            return False
        self._note_asked_at = time.monotonic()
        return os.path.exists(self._note)

    def _late(self) -> bool:
        return self._deadline is not None and time.time() + self.lead_seconds >= self._deadline

    @contextmanager
    def listening(self) -> Iterator[StopRequest]:
        """Listens to SIGINT, SIGTERM, SIGHUP and SIGUSR1 while the block runs, in the main thread only.

        An ignored SIGHUP stays ignored: nohup means that a closed terminal ends nothing. The deadline is read here, so
        that the attempt's record can name its error: BadInput unless it is a number.
        """
        self._deadline = _deadline()
        if threading.current_thread() is not threading.main_thread():
            yield self
            return
        causes = {
            signal.SIGINT: ("interrupted", "of Ctrl-C (SIGINT)"),
            signal.SIGTERM: ("sigterm", "of SIGTERM"),
            signal.SIGHUP: ("sigterm", "the terminal was closed, or the connection to it lost (SIGHUP)"),
            signal.SIGUSR1: ("out_of_time", "of SIGUSR1"),
        }

        def note(number: int, _frame: FrameType | None) -> None:
            if number == signal.SIGINT and self._cause == "interrupted":
                raise KeyboardInterrupt  # the second Ctrl-C: the person does not want to wait for a safe point
            self._cause, self._because = causes[signal.Signals(number)]

        if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:
            del causes[signal.SIGHUP]
        previous = {number: signal.signal(number, note) for number in causes}
        try:
            yield self
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)


def least_minutes(start_seconds: float, step_seconds: float, lead_seconds: float) -> int:
    """The time limit in which a job whose start and longest step took so long does one step for certain."""
    return math.ceil((start_seconds + step_seconds + lead_seconds + EARLY_SECONDS) / 60)


def too_short(start_seconds: float, step_seconds: float, lead_seconds: float, limit_seconds: float) -> Diagnosis:
    """The diagnosis of a job that gained nothing before this limit."""
    least = least_minutes(start_seconds, step_seconds, lead_seconds)
    step = f" and a step or part {step_seconds:.0f} s" if step_seconds >= 1 else ""
    return Diagnosis(
        "warning",
        "time limit",
        f"the time limit is too short: the start took {start_seconds:.0f} s{step}, and of {limit_seconds:.0f} s "
        f"lead_seconds ({lead_seconds:.0f}) leaves {limit_seconds - lead_seconds:.0f} s before the signal to save, "
        "which SLURM may give up to a minute earlier",
        "",
        f"Set time_limit_minutes to at least {least} (site file, or execution.resources of the study), or lower "
        "lead_seconds: the next job has it.",
    )


def listening() -> bool:
    """True if a stage at work in this process hears a SIGTERM, and saves."""
    return getattr(signal.getsignal(signal.SIGTERM), "__module__", "") == __name__


MASKS: list[set[Any]] = []
"""Signal masks saved before each fork in progress."""


def _block_term() -> None:
    """Blocks SIGTERM until the child has its handler; an early signal would be lost."""
    MASKS.append(signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM}))


def _unblock_term() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, MASKS.pop())


def _begin_child() -> None:
    """Lets a SIGTERM end what a stage forks, as `multiprocessing` does: ours sets a flag that nobody reads there.
    Ctrl-C and the signal that a job's time is up it survives, since the stage needs it to save."""
    if listening():
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
    _unblock_term()


os.register_at_fork(before=_block_term, after_in_parent=_unblock_term, after_in_child=_begin_child)


def _job_lead() -> float:
    return float(os.environ.get(JOB_LEAD) or 0)


def _deadline() -> float | None:
    """The end of the attempt's time, in seconds since 1970; None without a limit."""
    text = os.environ.get(DEADLINE)
    try:
        return float(text) if text else None
    except ValueError:
        raise BadInput(
            f"{DEADLINE} is {text!r}: it must be seconds since 1970, such as $(date -d '+2 hours' +%s)"
        ) from None


TICK_SECONDS = 5.0
LAST_WORDS_SECONDS = 30.0
EXIT_CODE = 1


@contextmanager
def ended_when_stalled(
    last_step_at: Callable[[], float | None], limit_seconds: float, say: Callable[[float], TextIO]
) -> Iterator[None]:
    """Ends this process when `last_step_at()` has not changed for `limit_seconds` while the block runs.

    `say(seconds)` records the end and returns the open log, to which the stacks of all threads are written: they show
    where it hangs. Nothing gentler would work: a thread that waits inside the kernel or a driver sees no exception. A
    process that was frozen itself (SIGSTOP, a laptop's lid) does not count as hung: only time in which this thread ran
    counts.
    """
    ended = threading.Event()
    tick = min(TICK_SECONDS, limit_seconds / 10)

    def watch() -> None:
        known_step, stalled, asked_at = last_step_at(), 0.0, time.monotonic()
        while not ended.wait(tick):
            now, latest = time.monotonic(), last_step_at()
            stalled = stalled + min(now - asked_at, 2 * tick) if latest == known_step else 0.0
            known_step, asked_at = latest, now
            if stalled >= limit_seconds and not ended.is_set():
                threading.Timer(LAST_WORDS_SECONDS, os._exit, (EXIT_CODE,)).start()  # saying it may hang too
                try:
                    faulthandler.dump_traceback(say(stalled), all_threads=True)
                finally:
                    os._exit(EXIT_CODE)

    thread = threading.Thread(target=watch, name="stall-watchdog", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
