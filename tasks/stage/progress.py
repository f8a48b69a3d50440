"""What a running stage says of itself while it works, and how it is asked to stop."""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from storage import durable
from storage.errors import BadInput, Stop
from tasks.stage.diagnosis import Diagnosis
from tasks.stage.limit import EARLY_SECONDS, too_short

LOG = logging.getLogger("ratchet.stop")
WRITE_EVERY_SECONDS = 1.0
LOG_EVERY_SECONDS = 60.0
"""A line for whoever follows a log, as of a job."""
NOTE_EVERY_SECONDS = 1.0
LEAD_SECONDS, SAFETY = 10.0, 2.0
STOP_NOTE, DEADLINE = "RATCHET_STOP_NOTE", "RATCHET_DEADLINE"
"""Set by a batch script: the file that it leaves when its time is nearly up, and when it ends (seconds since 1970)."""
BEGAN, JOB_LEAD = "RATCHET_BEGAN", "RATCHET_LEAD_SECONDS"
"""Set in a job of ours: when it began (seconds since 1970), and how long before its limit it leaves its stop note."""

FOR_THE_TERMINAL = {"for_the_terminal": True}
"""`extra` of a log line, below a warning, that a person at the terminal should see too."""


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
        began, first = self._began
        rate = (step - first) / (now - began) if step > first and now > began else None
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

    def touch(self) -> None:
        """Says that the work goes on although no step is done yet, as in a long validation."""
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


def described(now: dict[str, Any]) -> str:
    """One line for a progress.json: how far, what, how long still."""
    step, total, unit = now.get("step", 0), now.get("total", 0), now.get("unit", "")
    parts = [f"{step:,}/{total:,} {unit}" if total else "", now.get("note", "")]
    if eta := now.get("eta_seconds"):
        parts.append(f"{duration(eta)} left")
    return ", ".join(part for part in parts if part)


def duration(seconds: float) -> str:
    """In words, such as "2 h 5 min" or "0.3 s"."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


class StopRequest:
    """How the work is asked to stop: by a signal, a note, or a deadline. It sees that at its next safe point.

    Signals only set a flag. The deadline counts as reached `lead_seconds` before it: how long the work takes from one
    safe point to the next is measured here; the work sets how long a save takes (`save_seconds`).
    """

    def __init__(self) -> None:
        self._cause, self._because, self._said = "", "", False
        self._note = os.environ.get(STOP_NOTE)
        self._deadline: float | None = None
        self._note_asked_at = 0.0
        self._asked_at: float | None = None
        self.longest_seconds = 0.0
        self.save_seconds = 0.0
        self._began = float(os.environ.get(BEGAN) or 0)
        self.start_seconds = 0.0
        """From the beginning of the job to the first safe point; zero before, and outside of a job."""
        self.started: Callable[[float], None] = lambda seconds: None
        """Told `start_seconds` when it is known."""

    @property
    def lead_seconds(self) -> float:
        """How long before its end an attempt must begin to stop: measured, with a margin."""
        return LEAD_SECONDS + SAFETY * (self.longest_seconds + self.save_seconds)

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
        """Raises Stop when a stop was asked for. Call where nothing is half done; `after` says where that is."""
        if self.requested:
            self.check_signals(after)

    def check_signals(self, after: str = "") -> None:
        """Raises Stop when one was seen already; asks neither clock nor note: for the end, when all work is done."""
        if self._cause:
            raise Stop(self._cause, f"stopped{after and ' after '}{after} because {self._because}")

    def too_short(self) -> Diagnosis | None:
        """What is wrong with the limit of a job that gained nothing before it; None before its first safe point, and
        where something else than a job's limit ended it."""
        if not self.start_seconds or not self._job_ends():
            return None
        assert self._deadline is not None
        return too_short(self.start_seconds, self.longest_seconds, _job_lead(), self._deadline - self._began)

    def _job_ends(self) -> bool:
        """Whether this is a job of ours whose time is nearly up."""
        early = _job_lead() + 2 * EARLY_SECONDS
        return bool(self._began and self._deadline) and time.time() + early >= (self._deadline or 0)

    def _why_out_of_time(self, noted: bool) -> str:
        if self._job_ends():
            return "the time of its job is nearly up"
        if not noted:
            return f"the time that {DEADLINE} names is nearly up"
        return f"{self._note} exists" + ("" if self._began else ": remove it to go on")  # a next job has its own note

    def _noted(self) -> bool:
        """Whether the stop note is there; looked for once a second, since shared disks are slow to ask."""
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
        that the attempt's record can say what is wrong with it: BadInput unless it is a number.
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
                raise KeyboardInterrupt  # asked twice: the person does not want to wait for the next safe point
            self._cause, self._because = causes[signal.Signals(number)]

        if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:
            del causes[signal.SIGHUP]
        before = {number: signal.signal(number, note) for number in causes}
        try:
            yield self
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def listening() -> bool:
    """Whether a stage at work in this process hears a SIGTERM, and saves."""
    return getattr(signal.getsignal(signal.SIGTERM), "__module__", "") == __name__


def _job_lead() -> float:
    return float(os.environ.get(JOB_LEAD) or 0)


def _deadline() -> float | None:
    """When the attempt must have ended, in seconds since 1970; None when nothing says so."""
    given = os.environ.get(DEADLINE)
    try:
        return float(given) if given else None
    except ValueError:
        raise BadInput(
            f"{DEADLINE} is {given!r}: it must be seconds since 1970, such as $(date -d '+2 hours' +%s)"
        ) from None
