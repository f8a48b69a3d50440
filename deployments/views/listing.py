"""What lies below a root: its studies, what came out of each, what is not finished; from the run directories alone.

Names, sizes and times are read, and small outputs whose times have changed: `ratchet verify` reads every byte.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any

from storage import attempts, durable, locks, markers
from storage.__main__ import MANIFEST
from storage.errors import MESSAGE_SHOWN, BadInput, cut
from storage.inside import inside
from storage.lineage import Lineages
from storage.run_directory import LATEST, RunDirectory, find_runs, read, run_in
from tasks.stage.outcome import in_words
from tasks.stage.progress import described
from tasks.training.unlearned import unlearned

SHOWN_KEYS = 4
"""Of those in which a result differs from the others of its study."""


@dataclass(frozen=True)
class ListedResult:
    """A finished stage that a person reads, and not only other stages."""

    run: RunDirectory
    ended_at: float
    """Seconds since 1970."""
    headline: str
    shown: Path
    """The file to read first."""
    cells: tuple[str, ...]
    """Of a sweep."""
    configured: tuple[str, ...] = ()
    """`seed 42`, and what else tells it from the other results of its stage in its study."""

    @property
    def of(self) -> list[str]:
        """What tells it from other results, as far as a line of a list has room."""
        if self.cells:
            return [f"{len(self.cells)} cells: {cut('; '.join(self.cells), MESSAGE_SHOWN)}"]
        return [*self.configured[:SHOWN_KEYS], *(["..."] if self.configured[SHOWN_KEYS:] else [])]


@dataclass(frozen=True)
class ListedWork:
    """A stage that was begun and is not finished, cannot be read, or is gone."""

    path: Path
    state: str
    """running, not finished, unreadable or gone"""
    stands: str

    @property
    def line(self) -> str:
        return cut(f"{self.path.parts[-2]} {self.path.name}: {self.stands}", MESSAGE_SHOWN)


@dataclass(frozen=True)
class ListedStudy:
    """A study below a root; `begun` and `finished` count its stages, `results` stand oldest first."""

    name: str
    begun: int
    finished: int
    results: list[ListedResult]
    work: list[ListedWork]
    unlearned: str = ""
    """Which of its finished trainings are no better than what needs no learning."""


def read_root(root: Path) -> Iterator[ListedStudy]:
    """Each study below `root`, by name. BadInput where there is none."""
    paths = find_runs(root)
    if not paths:
        raise BadInput(f"there are no runs below {root}: give the folder that --root named")
    lineages = Lineages()
    for study, runs in groupby(paths, lambda path: path.parts[-3]):
        of_study = list(runs)
        finished, results, work = list[RunDirectory](), list[ListedResult](), list[ListedWork]()
        for path in of_study:
            try:
                run = run_in(path)
                state, stands = standing(run)
                if state == "finished":
                    found = list(_result(run))
                    run.reads(read(run.stage_file).get("inputs"))
                    lineages.values(lineages.of(run))
                    finished.append(run)
                    results += found
                else:
                    work.append(ListedWork(path, state, stands))
            except Exception as error:  # anybody may have written anything there, and the others are shown
                work.append(ListedWork(path, "unreadable", f"this directory is not readable, because {error}"))
        work += _gone(root / study, finished)
        if not results and not work:
            results += _last(finished)
        results = [_told_apart(one, results, lineages) for one in sorted(results, key=lambda one: one.ended_at)]
        yield ListedStudy(study, len(of_study), len(finished), results, work, unlearned(finished))


def standing(run: RunDirectory) -> tuple[str, str]:
    """(finished, running or not finished; how it stands) of a stage that was begun."""
    verdict = markers.glance(run)
    if verdict.holds:
        return "finished", ""
    if run.marker_file.is_file() and (run.root / MANIFEST).is_file():
        return "finished", "an exported copy: `ratchet verify` holds it against its manifest"
    record = attempts.newest(run.attempts)
    now = read(run.progress_file)
    if locks.holder(run.path / "locks") is not None:
        return "running", described(now)
    if verdict.present:
        return "not finished", f"its marker does not hold: {verdict.reason}"
    if record is None:
        return "not finished", "not begun"
    end_state, summary = record.get("end_state"), (record.get("diagnosis") or {}).get("summary", "")
    ended = f"attempt {record['attempt']} was killed" if end_state is None else in_words(end_state)
    far = f" at {now['step']:,}/{now['total']:,} {now['unit']}" if now.get("total") else ""
    if summary.startswith(ended) and not far:  # an error that says itself that a check failed
        return "not finished", summary
    return "not finished", ended + far + (f": {summary}" if summary else "")


def ended_at(run: Path) -> float:
    """When a finished run directory's stage ended, seconds since 1970."""
    return (attempts.newest(run / "attempts") or {}).get("ended_at") or (run / "result.json").stat().st_mtime


def shown_first(result: dict[str, Any]) -> str:
    """The file that a person reads first, by what a stage returned; empty where only other stages read it."""
    return result.get("report") or next(iter(result.get("tables", [])), "")


def date(seconds: float) -> str:
    """Seconds since 1970 as day and minute, here."""
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds))


def _result(run: RunDirectory) -> Iterator[ListedResult]:
    """The stage as a result, where it is one."""
    result = durable.read_json(run.result_file)
    if shown := shown_first(result):
        cells = tuple(map(str, durable.read_json(run.stage_file)["configuration"].get("cells", ())))
        file = inside(run.path, shown)
        yield ListedResult(run, ended_at(run.path), cut(str(result.get("headline", "")), MESSAGE_SHOWN), file, cells)


def _gone(study: Path, finished: Sequence[RunDirectory]) -> Iterator[ListedWork]:
    """Run directories that are not there any more, though a finished stage read them or `latest` leads to one."""
    readers: dict[Path, list[str]] = {}
    for run in finished:
        for source in run.reads(read(run.stage_file).get("inputs", {})).values():
            readers.setdefault(source.path, []).append(run.stage)
    for path, stages in readers.items():
        if not path.exists():
            yield ListedWork(path, "gone", f"read by {', '.join(dict.fromkeys(stages))}, which stay as they are")
    latest = study / LATEST
    if latest.is_symlink() and not latest.exists() and (newest := latest.parent / latest.readlink()) not in readers:
        yield ListedWork(newest, "gone", f"{latest.name} leads to it: run the study again")


def _last(finished: Sequence[RunDirectory]) -> Iterator[ListedResult]:
    """The stages that no other reads, as the results of a study whose stages name nothing to read."""
    read_by_others = {given for run in finished for given in run.reads(read(run.stage_file).get("inputs", {})).values()}
    for run in finished:
        if run not in read_by_others:
            yield ListedResult(run, ended_at(run.path), "", run.result_file, ())


def _told_apart(result: ListedResult, results: Sequence[ListedResult], lineages: Lineages) -> ListedResult:
    """The result with its seed, and the keys in which it differs from others; first those that have one value."""
    run = result.run
    others = [one.run for one in results if one.run.stage == run.stage and one.run != run]
    of_others = [lineages.values(lineages.of(other)) for other in others]
    own = {
        key: values
        for key, values in lineages.values(lineages.of(run)).items()
        if key == "seed" or any(other.get(key) != values for other in of_others)
    }
    single = {key: values for key, values in own.items() if len(values) == 1}
    configured = [cut(f"{key} {', '.join(sorted(values))}") for key, values in (single or own).items()]
    if len({read(other.stage_file).get("version") for other in (run, *others)}) > 1:
        configured.append(f"version {read(run.stage_file).get('version')}")
    return replace(result, configured=tuple(configured))
