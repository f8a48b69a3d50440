"""Attempts: one record for each process's work on a stage, written when it starts and again when it ends.

Each that goes on notes by which way, and what nothing shows; `ratchet rehearse` keeps its answers beside the runs of
the study, by the digest of the code of a stage and of the files that it names.
"""

import hashlib
import importlib.metadata
import os
import platform
import re
import resource
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, cast

from storage import durable, locks
from storage.run_directory import RunDirectory, read

STARTED_BY = "RATCHET_STARTED_BY"
"""Whatever starts attempts by itself sets this to `automatic`; a person started everything else."""
ATTEMPTS_WITHOUT_PROGRESS = 3
ENDED_BY_A_PERSON = ("interrupted", "cancelled")

SPARE_BYTES = 32 * 1024
"""An attempt reserves this much disk while it works and frees it at the end, so that a full disk has room for its
record."""

DISTRIBUTION = "ratchet"
"""Our own package: results can depend on what it requires."""


class AttemptRow(locks.Identity, total=False):
    """The content of an attempt's record; a name that became known later may be missing. Times are seconds."""

    attempt: int
    source: dict[str, str | None]
    versions: dict[str, str]
    execution: dict[str, Any]
    numerics: dict[str, Any]
    hardware: str
    started_at: float
    started_by: str
    began_at: list[int]
    ended_at: float | None
    end_state: str | None
    exit_code: int | None
    diagnosis: dict[str, str] | None
    cpu_seconds: float
    start_seconds: float
    step_seconds: float
    save_seconds: float
    peak_memory_bytes: int
    went_on: dict[str, str]


class AttemptRecord:
    """`attempts/NNNN.json`; NNNN is the number of the attempt's lock."""

    def __init__(
        self,
        folder: Path,
        number: int,
        execution: dict[str, Any],
        began_at: list[int],
        own_source: dict[str, str | None] | None = None,
    ) -> None:
        """`began_at` is how far the stage was when this attempt began (see `without_progress`).

        `own_source` is for a study page outside our checkout: `own_page` is its file, `own_digest` that of its sources,
        `own_commit` and `own_dirty_digest` are of the repository in which it lies.
        """
        folder.mkdir(parents=True, exist_ok=True)
        self._file = folder / f"{number:04d}.json"
        self.log_file = folder / f"{number:04d}.log"
        self._cpu_seconds_before = _cpu_seconds()  # several attempts may work in one process, one after the other
        self._spare = folder / f"{durable.TEMPORARY_PREFIX}spare-{number:04d}"
        self._record = {
            "attempt": number,
            **locks.process_identity(),
            "source": source_version() | (own_source or {}),
            "versions": package_versions(),
            "execution": execution,
            "started_at": time.time(),
            "started_by": started_by(),
            "began_at": began_at,
            "ended_at": None,
            "end_state": None,
            "exit_code": None,
            "diagnosis": None,
        }
        durable.write_json(self._file, self._record)
        with suppress(OSError):  # the attempt can work without the reserve
            self._spare.write_bytes(os.urandom(SPARE_BYTES))

    def note(self, **facts: Any) -> None:
        """Adds facts that became known after the start, such as the numerics and the GPU."""
        self._record.update(facts)
        durable.write_json(self._file, self._record)

    def free_spare(self) -> None:
        """Frees the disk space that is reserved for the final record."""
        self._spare.unlink(missing_ok=True)

    def end(self, end_state: str, exit_code: int, diagnosis: dict[str, str] | None) -> None:
        """Records how the attempt ended, and what this process and those it waited for used of the machine.

        `peak_memory_bytes` is the peak of the whole process, earlier attempts included: the system keeps no other.
        """
        self.free_spare()
        self.note(
            ended_at=time.time(),
            end_state=end_state,
            exit_code=exit_code,
            diagnosis=diagnosis,
            cpu_seconds=_cpu_seconds() - self._cpu_seconds_before,
            peak_memory_bytes=1024 * max(usage.ru_maxrss for usage in _used()),
        )


def _used() -> list[resource.struct_rusage]:
    return [resource.getrusage(scope) for scope in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]


def _cpu_seconds() -> float:
    return sum(usage.ru_utime + usage.ru_stime for usage in _used())


def records(folder: Path) -> list[AttemptRow]:
    """The attempts' records, oldest first, without those that a dying process left unreadable."""
    return [cast(AttemptRow, record) for file in sorted(folder.glob("[0-9]*.json")) if (record := read(file))]


def newest(folder: Path) -> AttemptRow | None:
    """The newest attempt's record; None when there was no attempt or its record cannot be read."""
    files = sorted(folder.glob("[0-9]*.json"))
    return cast(AttemptRow, read(files[-1])) or None if files else None


def seconds_of(folder: Path) -> float | None:
    """The attempts' total time in seconds, of one that was killed to its last heartbeat; None when none is known."""
    times = [(record.get("started_at"), ended_at(folder, record)) for record in records(folder)]
    spans = [end - start for start, end in times if start and end]
    return sum(spans) if spans else None


def ended_at(folder: Path, record: AttemptRow) -> float | None:
    """When an attempt ended: one that was killed, at its last heartbeat; None where that is not known."""
    alive = folder.parent / "locks" / f"{record.get('attempt')}.alive"
    return record.get("ended_at") or read(alive).get("at")


def started_by() -> str:
    """The starter of this process: `automatic` or `person`."""
    return "automatic" if os.environ.get(STARTED_BY) == "automatic" else "person"


def without_progress(folder: Path, now_at: list[int]) -> list[AttemptRow]:
    """The newest attempts in a row, newest first, that were started automatically and took the stage no further.

    `now_at` is how far the stage is: numbers of which at least one grows with every progress (the steps made up to
    a checkpoint, the number of record parts). An attempt left no progress when the next one began where it had begun. A
    row ends at an attempt with progress or one that a person started, and at a job that a person asked for, though it
    died before its attempt had a record; an attempt that a person ended is passed over.
    """
    row: list[AttemptRow] = []
    jobs = [
        job for file in (folder.parent / "jobs").glob("[0-9]*.json") if (job := read(file)).get("automatic") is False
    ]
    asked_after = max((job.get("attempts_before") or 0 for job in jobs), default=0)
    for record in reversed(records(folder)):
        began_at = record.get("began_at") or [0] * len(now_at)
        by_person = record.get("started_by") != "automatic" or record["attempt"] <= asked_after
        if by_person or any(a > b for a, b in zip(now_at, began_at, strict=True)):
            return row
        if record.get("end_state") not in ENDED_BY_A_PERSON:
            row.append(record)
    return row


def package_versions() -> dict[str, str]:
    """Versions of Python and of every package that ours asks for, as installed here."""
    try:
        required = importlib.metadata.requires(DISTRIBUTION) or []
    except importlib.metadata.PackageNotFoundError:  # run from a bare copy of the source
        required = []
    names = [re.split(r"[^\w.-]", line, maxsplit=1)[0] for line in required if "extra ==" not in line]
    versions = {name: version for name in names if (version := version_of(name))}
    return {"python": platform.python_version(), **versions}


def version_of(package: str) -> str | None:
    """The installed version of a package; None when it is not there."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


SOURCE_FILE = "source.json"
"""A staged copy of the source holds the version that it was copied from in this file, beside the rooms."""


@cache
def source_version() -> dict[str, str | None]:
    """The commit of our own checkout, and the digest of its uncommitted changes; in a copy, those noted there."""
    folder = Path(__file__).parent
    if (staged := folder.parent / SOURCE_FILE).is_file():
        return durable.read_json(staged)
    return _version(folder)


def own_version(folder: Path, files: Iterable[Path]) -> dict[str, str | None]:
    """The same of the repository in which a person's own `files` lie, below `folder`: one that it does not hold is a
    change too. Empty in a copy, where `source_version` has it."""
    if (Path(__file__).parents[1] / SOURCE_FILE).is_file():
        return {}
    return {f"own_{name}": value for name, value in _version(folder, *map(str, files)).items()}


def commits_in(source: Mapping[str, Any]) -> dict[str, str]:
    """What the `source` of a record says of commits, for people: Ratchet's, and that of a page of one's own."""

    def told(own: str, without: str) -> str:
        commit = str(source.get(f"{own}commit") or "")[:12]
        return commit + " with changes" * bool(source.get(f"{own}dirty_digest")) if commit else without

    of_ratchet, page = told("", ""), source.get("own_page")
    if not page:
        return {"commit": of_ratchet} if of_ratchet else {}
    unknown = "not in a git repository" if "own_commit" in source else "not known"
    return {"Ratchet's commit": of_ratchet or "not known", f"commit of {Path(page).name}": told("own_", unknown)}


def _version(folder: Path, *files: str) -> dict[str, str | None]:
    commit = _git(folder, "rev-parse", "HEAD")
    changes = (_git(folder, "diff", "HEAD", "--", *files) or "") if commit else ""
    if commit and files:
        changes += _git(folder, "ls-files", "--others", "--", *files) or ""
    return {
        "commit": commit.strip() if commit else None,
        "dirty_digest": hashlib.sha256(changes.encode("utf-8", "surrogateescape")).hexdigest() if changes else None,
    }


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        process = subprocess.run(["git", "-C", str(folder), *arguments], capture_output=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return process.stdout.decode("utf-8", "surrogateescape") if process.returncode == 0 else None  # whatever the locale


REHEARSED = "rehearsed.json"


def exactness(run: RunDirectory) -> str:
    """What is to be known of a run that went on, in words; empty where tests show that its way goes on exactly."""
    went_on = [record["went_on"] for record in records(run.attempts) if isinstance(record.get("went_on"), dict)]
    ways = {way: why for record in went_on for way, why in record.items()}
    if not any(ways.values()):
        return ""
    continued = f"continued {len(went_on)} time{'s' * (len(went_on) != 1)}"
    answer = _answer(run)
    if answer == "":
        return f"{continued}; a rehearsal of its code went on as an undisturbed one"
    reasons = "; ".join(f"{way}: {why}" for way, why in ways.items() if why)
    if answer:
        return f"{continued}; its rehearsal DIFFERED in {answer}: not shown to be exact, mend what it runs"
    shown = f"not shown to be exact ({reasons})"
    page = read(run.study_file).get("page", "STUDY")
    return f"{continued}; {shown}: ratchet rehearse {str(page).removeprefix('flows.')}"


def keep_answer(run: RunDirectory, root: Path, answer: str, small: Sequence[str]) -> None:
    """Keeps for the runs of a study in `root` in which bytes a rehearsal of their code differed (empty: in none).

    It holds for settings that differ in the keys `small` alone.
    """
    file = rehearsals(RunDirectory(root, run.study, run.stage, run.fingerprint))
    file.parent.mkdir(parents=True, exist_ok=True)
    settings = {key: value for key, value in _settings(run).items() if key not in small}
    others = [entry for entry in read(file).get(code_of(run), []) if entry["settings"] != settings]
    durable.write_json(file, read(file) | {code_of(run): [*others, {"settings": settings, "answer": answer}]})


def _answer(run: RunDirectory) -> str | None:
    settings = _settings(run)
    kept = read(rehearsals(run)).get(code_of(run), [])
    alike = [
        answer["answer"]
        for answer in kept
        if all(settings.get(key) == value for key, value in answer["settings"].items())
    ]
    return max(alike, default=None)  # one that differed before one that did not


def _settings(run: RunDirectory) -> dict[str, Any]:
    return read(run.stage_file).get("scientific", {})


def rehearsals(run: RunDirectory) -> Path:
    return run.root / run.study / REHEARSED


def code_of(run: RunDirectory) -> str:
    """The digest of a stage's code, and of the files that it names, such as a script."""
    about: dict[str, Any] = read(run.stage_file)
    record = newest(run.attempts) or {}
    source = record.get("source") or {}
    code = source.get("own_digest") or [about.get("work"), about.get("version")]
    return durable.sha256_json([about.get("stage"), code, about.get("external")])
