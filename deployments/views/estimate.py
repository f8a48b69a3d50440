"""How far a study is, and how long it still takes: by its stages that are finished, and by those that run."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from deployments.dag.walk import Handle
from storage import attempts
from storage.run_directory import read
from tasks.stage.progress import duration


@dataclass(frozen=True)
class Estimate:
    """A study: stages finished and in all, and the seconds that are known to be left."""

    finished: int
    stages: int
    seconds: float
    unknown: int
    """Stages of which nobody can say how long they take: none of their name is finished."""

    @property
    def share(self) -> float:
        return 100.0 * self.finished / self.stages

    @property
    def words(self) -> str:
        far = f"{self.finished} of {self.stages} stages"
        known = self.seconds and not self.unknown  # else any number would be far too small
        return f"{far}, about {duration(self.seconds)} left" if known else far


def estimate(handles: Sequence[Handle], side_by_side: bool = False) -> Estimate:
    """Estimate for stages that run one after the other; `side_by_side`: each as soon as what it reads is finished.

    Each stage is estimated by the median of its earlier runs. Time in a queue is not known, and not counted.
    """
    took: dict[str, list[float]] = {}
    for handle in handles:
        if handle.finished and (seconds := attempts.seconds_of(handle.run.attempts)) is not None:
            took.setdefault(handle.stage.name, []).append(seconds)
    left = {handle.run.fingerprint: _left(handle, took) for handle in handles}
    known = {print_: seconds or 0.0 for print_, seconds in left.items()}
    if side_by_side:
        ends: dict[str, float] = {}
        for handle in handles:  # in page order: what a stage reads comes before it
            begins = max((ends[parent.run.fingerprint] for parent in handle.inputs.values()), default=0.0)
            ends[handle.run.fingerprint] = begins + known[handle.run.fingerprint]
        seconds = max(ends.values())
    else:
        seconds = sum(known.values())
    unknown = sum(seconds is None for seconds in left.values())
    return Estimate(sum(handle.finished for handle in handles), len(handles), seconds, unknown)


def _left(handle: Handle, took: dict[str, list[float]]) -> float | None:
    """Seconds; None where nobody can say."""
    if handle.finished:
        return 0.0
    whole = statistics.median(took[handle.stage.name]) if handle.stage.name in took else None
    begun = attempts.newest(handle.run.attempts)
    if begun is None or begun.get("end_state") is not None:
        return whole
    now = read(handle.run.progress_file)
    return now["eta_seconds"] if now.get("eta_seconds") is not None else whole
