"""What a running stage says of itself while it works, and how it is asked to stop."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from storage import durable
from storage.errors import Stop

WRITE_EVERY_SECONDS = 1.0


class Progress:
    """Keeps `progress.json` current: `alive_at` from a thread, the rest from the work."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._began: tuple[float, int] | None = None
        self._written_at = 0.0
        self._lock = threading.Lock()
        self._now: dict[str, object] = {"note": "starting", "step": 0, "total": 0, "unit": "steps"}

    def update(self, step: int, total: int, unit: str, note: str = "", epoch: float | None = None) -> None:
        """`step` of `total` `unit`s are done. Writes at most once a second."""
        now = time.time()
        if self._began is None or note != self._now["note"]:
            self._began = (now, step)
        began, first = self._began
        rate = (step - first) / (now - began) if step > first and now > began else None
        self._now = {
            "last_step_at": now,
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

    def beat(self) -> None:
        """Writes progress.json; also called by the lock's heartbeat thread."""
        with self._lock:
            self._written_at = time.time()
            try:
                durable.replace_quickly(self._file, {"alive_at": self._written_at, **self._now})
            except OSError:
                pass  # progress is for people: a full disk is reported where work is written


def described(now: dict[str, Any]) -> str:
    """One line for a progress.json: how far, what, how long still."""
    step, total, unit = now.get("step", 0), now.get("total", 0), now.get("unit", "")
    parts = [f"{step:,}/{total:,} {unit}" if total else "", now.get("note", "")]
    if eta := now.get("eta_seconds"):
        parts.append(f"{_duration(eta)} left")
    return ", ".join(part for part in parts if part)


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


class StopRequest:
    """Signals only set a flag; the work sees it at its next safe point, saves, and stops."""

    def __init__(self) -> None:
        self._cause = ""

    @property
    def requested(self) -> bool:
        return bool(self._cause)

    def check(self) -> None:
        """Raises Stop when a stop was asked for. Call where nothing is half done."""
        if self._cause:
            raise Stop(self._cause, f"stopped at a safe point ({self._cause})")

    @contextmanager
    def listening(self) -> Iterator[StopRequest]:
        """Listens to SIGINT, SIGTERM, SIGHUP and SIGUSR1 while the block runs, in the main thread only.

        An ignored SIGHUP stays ignored: nohup means that a closed terminal ends nothing.
        """
        if threading.current_thread() is not threading.main_thread():
            yield self
            return
        causes = {
            signal.SIGINT: "interrupted",
            signal.SIGTERM: "sigterm",
            signal.SIGHUP: "sigterm",  # a terminal that was closed, an ssh that was lost
            signal.SIGUSR1: "out_of_time",
        }

        def note(number: int, _frame: FrameType | None) -> None:
            if number == signal.SIGINT and self._cause == "interrupted":
                raise KeyboardInterrupt  # asked twice: the person does not want to wait for the next safe point
            self._cause = causes[signal.Signals(number)]

        if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:
            del causes[signal.SIGHUP]
        before = {number: signal.signal(number, note) for number in causes}
        try:
            yield self
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
