"""The time of a training by phase, and the slope of its process's memory: written to timing.jsonl, and told from it."""

import os
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from storage.reading import NUMBER, end_of, fits, json_value
from tasks.stage.progress import duration
from tasks.stage.run import StageRun

STALLS = ("copy_seconds", "waited_seconds", "slowed_seconds")
MUCH_WAITING = 0.2
"""A larger share of the time spent on waiting for examples is told with the setting that helps."""
SAMPLED_EVERY, SLOPE_OVER_STEPS = 10, 1000
STEEP_BYTES = 50 << 20
"""A larger growth of memory in 1,000 steps is told: over days it ends a job."""
PHASES = {"seconds": "step", "load_seconds": "load"} | dict.fromkeys(STALLS, "save")
"""The phase of each number of seconds in a row; all those of a validation's are its own."""
READ_BYTES = 4 << 20
Batch = TypeVar("Batch")


class Clock:
    """Writes the row of each step of one attempt, and warns where the memory of the process grows on and on."""

    def __init__(self, run: StageRun) -> None:
        self._run, self._waited = run, 0.0
        self._samples: deque[int] = deque(maxlen=2 * SLOPE_OVER_STEPS // SAMPLED_EVERY)

    def waited_for(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        """Yields `batches`, and counts the time until each is there."""
        started = time.monotonic()
        for batch in batches:
            self._waited += time.monotonic() - started
            yield batch
            started = time.monotonic()

    def stepped(self, step: int, seconds: float) -> None:
        """Writes the row of a step, of which its micro-batches were waited for as counted."""
        row: dict[str, float] = {"step": step, "seconds": seconds, "load_seconds": self._waited, "at": time.time()}
        self._waited = 0.0
        if step % SAMPLED_EVERY == 0:
            self._samples.append(resident_bytes())
            row["resident_bytes"] = self._samples[-1]
            if step % SLOPE_OVER_STEPS == 0 and (slope := slope_bytes(self._samples)) > STEEP_BYTES:
                self._run.log.warning("%s", _steep(slope))
        self._run.timing.append(row)


def resident_bytes() -> int:
    """The memory of this process that is in RAM."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def slope_bytes(samples: Sequence[int]) -> int:
    """The growth in 1,000 steps: between the least of the newest samples and the least of as many before; else 0."""
    number, newest = SLOPE_OVER_STEPS // SAMPLED_EVERY, list(samples)
    return min(newest[-number:]) - min(newest[-2 * number : -number]) if len(newest) >= 2 * number else 0


def rows_at_the_end(file: Path) -> list[dict[str, float]]:
    """The newest rows of timing.jsonl, some fifty thousand; none where there is none to read."""
    rows = []
    with suppress(OSError, ValueError):
        for line in end_of(file, READ_BYTES).split(b"\n"):
            with suppress(ValueError):  # the first one may be cut, the last one not complete
                row = json_value(line, file)
                if fits(row, dict.fromkeys((*PHASES, "step", "resident_bytes"), NUMBER)):
                    rows.append(row)
    return rows


def told(rows: Sequence[Mapping[str, float]]) -> list[str]:
    """In words, the time by phase of these rows of timing.jsonl, and what is too much of it; none without a step."""
    steps = [row for row in rows if "load_seconds" in row]
    seconds = dict.fromkeys(("load", "step", "validate", "save"), 0.0)
    for row in rows:
        for name, phase in PHASES.items():
            seconds["validate" if "validation" in row else phase] += row.get(name, 0)
    seconds["step"] -= seconds["load"]
    whole = sum(seconds.values())
    if not steps or not whole > 0:
        return []
    shares = ", ".join(f"{phase} {value / whole:.0%}" for phase, value in seconds.items())
    numbers = [row["step"] for row in rows if "step" in row] or [0]
    lines = [f"{shares} of {duration(whole)}, in the steps from {min(numbers):,} to {max(numbers):,}"]
    if seconds["load"] > MUCH_WAITING * whole:
        lines.append("it waits for its examples: raise execution.loader_workers, within the cores of the job")
    slope = slope_bytes([int(row["resident_bytes"]) for row in steps if "resident_bytes" in row])
    return lines + ([_steep(slope)] if slope > STEEP_BYTES else [])


def _steep(slope: int) -> str:
    return f"memory of the process grew by {slope / 2**20:,.0f} MiB in the last {SLOPE_OVER_STEPS:,} steps"
