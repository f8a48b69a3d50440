"""Studies below a root: what came out of each, what is not finished; from the run directories alone.

Names, sizes and times are read, and small outputs whose times have changed: `ratchet verify` reads every byte.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any

from storage import attempts, durable, locks, markers
from storage.__main__ import MANIFEST
from storage.attempts import exactness
from storage.checkpoints import furthest
from storage.errors import MESSAGE_SHOWN, BadInput, cut
from storage.inside import inside
from storage.lineage import Lineages, asked, leaves
from storage.run_directory import LATEST, RunDirectory, find_runs, read, run_in
from tasks.stage.outcome import in_words
from tasks.stage.progress import described
from tasks.stage.result import NOTED_BY_THE_FRAME
from tasks.training.unlearned import unlearned

FEW_VALUES = 6
"""Number shown of the values of a result that has no headline."""
SHOWN_KEYS = 4
"""Number shown of the keys in which a result differs from the others of its study."""


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
    """Cells of a sweep."""
    configured: tuple[str, ...] = ()
    """`seed 42`, and what else tells it from the other results of its stage in its study."""

    @property
    def of(self) -> list[str]:
        """Differences from other results, as far as a line of a list has room."""
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
    """A study below a root; `begun` and `finished` count its stages, results stand oldest first."""

    name: str
    begun: int
    finished: int
    results: list[ListedResult]
    work: list[ListedWork]
    unlearned: str = ""
    """Its finished trainings that are no better than what needs no learning."""


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
                    of_run = list(_result(run))
                    run.reads(read(run.stage_file).get("inputs"))
                    lineages.values(lineages.of(run))
                    finished.append(run)
                    results += of_run
                else:
                    work.append(ListedWork(path, state, stands))
            except Exception as error:  # anybody may have written anything there, and the others are shown
                work.append(ListedWork(path, "unreadable", f"this directory is not readable, because {error}"))
        work += _gone(root / study, finished)
        if not results:
            begun = [item.path for item in work if item.state in ("running", "not finished")]
            under_way = [(asked(read(path / "study.json")), path.parts[-2]) for path in begun]
            for last in _last(finished):
                setting = asked(read(last.run.study_file))
                stages = [stage for other, stage in under_way if other == setting]
                results += [last] if not stages or last.run.stage in stages else []
        results.sort(key=lambda result: result.ended_at)
        results = [_told_apart(result, results, lineages) for result in results]
        yield ListedStudy(study, len(of_study), len(finished), results, work, unlearned(finished))


def standing(run: RunDirectory, verdict: markers.Verdict | None = None) -> tuple[str, str]:
    """(finished, running or not finished; how it stands) of a stage, from its run directory alone.

    `verdict` is that on its marker; without one the marker is glanced at, and of an exported copy its manifest is.
    """
    if verdict is None:
        verdict = markers.glance(run)
        if not verdict.holds and run.marker_file.is_file() and (run.root / MANIFEST).is_file():
            return "finished", "an exported copy: `ratchet verify` holds it against its manifest"
    if verdict.holds:
        return "finished", exactness(run)
    refused = f"its marker does not hold: {verdict.reason}; " if verdict.present else ""
    record, now = attempts.newest(run.attempts), read(run.progress_file)
    if locks.holder(run.path / "locks") is not None:
        attempt = f"attempt {record['attempt']}: " if record else ""
        return "running", f"{refused}{attempt}{described(now)}"
    if record is None:
        return "not finished", f"{refused}not started"
    if record.get("end_state") == "finished":
        return "not finished", f"{refused}the same command runs it again"
    parts = sum(1 for _ in (run.path / "records").glob("*.json"))
    return "not finished", refused + _stopped(record, now, furthest(run.checkpoints), parts)


def _stopped(record: attempts.AttemptRow, now: dict[str, Any], saved: int, parts: int) -> str:
    """How a stage stands whose newest attempt ended, or was killed; `saved`: the step of its newest checkpoint,
    `parts`: how many parts of its work are kept."""
    kept = f"; parts kept: {parts:,}" if parts else ""
    number, end_state, far = record["attempt"], record.get("end_state"), far_of(now)
    if end_state is None:  # progress.json was written now and then: what is saved may be further on
        total = f" of {now['total']:,}" if now.get("total") else ""
        where, step = ("", f" from step {saved:,}{total}") if saved else (f" at {far}" if far else "", "")
        return f"attempt {number} was killed{where}{kept}; the same command goes on{step}"
    words, summary = in_words(end_state), (record.get("diagnosis") or {}).get("summary", "")
    line = f"{words} in attempt {number}" + (f", {far}" if far else "")
    if summary:
        line += f": {summary.removeprefix(f'{words}: ')}"
    return line + (f"; step {saved:,} is saved" if saved else "") + kept


def far_of(now: dict[str, Any]) -> str:
    """How far progress.json says that a stage came, without what is left: nothing is under way."""
    return described({key: value for key, value in now.items() if key in ("step", "total", "unit")})


def ended_at(run: Path) -> float:
    """When a finished run directory's stage ended, seconds since 1970."""
    return (attempts.newest(run / "attempts") or {}).get("ended_at") or (run / "result.json").stat().st_mtime


def shown_first(result: dict[str, Any]) -> str:
    """The file that a person reads first, by what a stage returned; empty where only other stages read it."""
    return result.get("report") or next(iter(result.get("tables", [])), "")


def first_values(result: dict[str, Any]) -> list[str]:
    """What a stage without a report returned, as far as there is room: a training's best first, its budget last."""
    returned = [(name, value) for name, value in leaves(result) if name not in NOTED_BY_THE_FRAME]
    returned.sort(key=lambda pair: ("best_" not in pair[0]) + ("budget." in pair[0]))
    values = [cut(f"{name} {value}") for name, value in returned]
    return values[:FEW_VALUES] + ([f"and {len(values) - FEW_VALUES} more"] if values[FEW_VALUES:] else [])


def headline_of(result: dict[str, Any]) -> str:
    """What came out of a stage in one line, by what it returned."""
    values = [] if shown_first(result) else first_values(result)
    return cut(str(result.get("headline") or ", ".join(values)), MESSAGE_SHOWN)


def date(seconds: float) -> str:
    """Seconds since 1970 as day and minute, here."""
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds))


def _result(run: RunDirectory) -> Iterator[ListedResult]:
    """The stage as a result, where it is one."""
    result = durable.read_json(run.result_file)
    if shown := shown_first(result):
        cells = tuple(map(str, durable.read_json(run.stage_file)["configuration"].get("cells", ())))
        file = inside(run.path, shown)
        yield ListedResult(run, ended_at(run.path), headline_of(result), file, cells)


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
    read_by_others = {other for run in finished for other in run.reads(read(run.stage_file).get("inputs", {})).values()}
    for run in finished:
        if run not in read_by_others:
            yield ListedResult(run, ended_at(run.path), headline_of(read(run.result_file)), run.result_file, ())


def _told_apart(result: ListedResult, results: Sequence[ListedResult], lineages: Lineages) -> ListedResult:
    """The result with its seed, and the keys in which it differs from others; of these, those that have one value."""
    run = result.run
    others = [listed.run for listed in results if listed.run.stage == run.stage and listed.run != run]
    of_others = [lineages.values(lineages.of(other)) for other in others]
    own = {
        key: values
        for key, values in lineages.values(lineages.of(run)).items()
        if key == "seed" or any(other.get(key) != values for other in of_others)
    }
    single = {key: values for key, values in own.items() if len(values) == 1}
    seed_first = sorted((single or own).items(), key=lambda item: item[0] != "seed")
    configured = [cut(f"{key} {', '.join(sorted(values))}") for key, values in seed_first]
    if len({read(other.stage_file).get("version") for other in (run, *others)}) > 1:
        configured.append(f"version {read(run.stage_file).get('version')}")
    return replace(result, configured=tuple(configured))
