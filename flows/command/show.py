"""`ratchet show`: all that a person may ask of one run, from its run directory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.filesize import decimal

from deployments.views.listing import date, ended_at, shown_first, standing
from flows.command.again import again
from storage import attempts, locks
from storage.errors import BadInput
from storage.inside import inside
from storage.reading import last_lines
from storage.run_directory import RunDirectory, read
from tasks.stage.outcome import in_words
from tasks.stage.progress import duration

LAST_LINES = 10
"""Of the log of an attempt that did not finish."""
SHOWN_SIZES = 6


def shown(run: RunDirectory, page: str = "") -> Iterator[str]:
    """The lines for a person, who may name the `page` of the study."""
    about = read(run.stage_file)
    cell = about.get("configuration", {}).get("cell")
    records = {file: read(file) for file in sorted(run.attempts.glob("[0-9]*.json"))}
    state, stands = standing(run)
    finished = _when(run, len(records)) if state == "finished" else ""
    yield f"{run.stage} {run.path.name}" + (f" ({cell})" if cell else "") + f", of the study {run.study}"
    yield _line("state", state + finished + (f": {stands}" if stands else ""))
    yield _line("folder", str(run.path))
    if state == "finished":
        yield from _found(run)
    command, *notes = again(run, page)
    yield _line("again", command)
    yield from (_line("", f"   {note}") for note in notes)
    for role, source in run.reads(about.get("inputs", {})).items():
        gone = "" if source.stage_file.exists() else "  (not there any more)"
        yield _line("reads", f"{role}: {source.stage} {source.path.name}{gone}")
    at_work = next(reversed(records), None) if locks.holder(run.path / "locks") is not None else None
    for file, record in records.items():
        yield _line("attempt", _attempt(record, file == at_work) if record else f"{file} cannot be read")
        diagnosis = record.get("diagnosis") or {}
        yield from (_line("", f"   {diagnosis[key]}") for key in ("summary", "resolution") if diagnosis.get(key))
    stopped = [file for file, record in records.items() if record.get("end_state") != "finished" and file != at_work]
    yield from _logs(run, stopped[-1].with_suffix(".log") if stopped else None)
    yield _line("disk", _sizes(run.path))


def tables_of(run: RunDirectory) -> str:
    """All tables of a run's result, as Markdown. BadInput where it has none."""
    names = read(run.result_file).get("tables", [])
    if not names:
        raise BadInput(f"{run.path}: this run has no table")
    try:
        return "\n".join(inside(run.path, name).read_text() for name in names)
    except OSError as error:
        raise BadInput(f"{run.path}: its table cannot be read: {error}") from None


def _line(name: str, text: str) -> str:
    return f"  {name:<8} {text}"


def _when(run: RunDirectory, number: int) -> str:
    """When it was finished, and how long its attempts worked."""
    seconds = attempts.seconds_of(run.attempts)
    took = f"after {duration(seconds)}" if seconds is not None else "after a time that no attempt's record tells"
    return f" on {date(ended_at(run.path))}, {took}" + (f" in {number} attempts" if number > 1 else "")


def _found(run: RunDirectory) -> Iterator[str]:
    """What came out, and where it lies."""
    result = read(run.result_file)
    if headline := result.get("headline"):
        yield _line("result", headline)
    first = shown_first(result)
    tables = [name for name in result.get("tables", []) if name != first]
    names = [first, "attempts.html", *tables, "final_results.json", "result.json"]
    for name in filter(None, names):
        try:
            yield _line("read", str(inside(run.path, name)))
        except FileNotFoundError:
            pass
        except BadInput as error:
            yield _line("refused", str(error))


def _attempt(record: dict[str, Any], at_work: bool) -> str:
    """How an attempt went: when, where, how it ended, and what it used."""
    end_state, began, ended = record.get("end_state"), record.get("started_at"), record.get("ended_at")
    how = in_words(end_state) if end_state else "at work" if at_work else "was killed: it left no end"
    after = f" after {duration(ended - began)}" if ended and began else ""
    job = f", job {record['slurm_job_id']}" if record.get("slurm_job_id") else ""
    by = {"person": ", started by a person", "automatic": ", started by itself"}.get(record.get("started_by", ""), "")
    when = date(began) if began else "-"
    parts = [f"{record.get('attempt')}  {when}  {how}{after}, on {record.get('host')}{job}{by}"]
    if peak := record.get("peak_memory_bytes"):
        parts.append(f"{duration(record.get('cpu_seconds', 0))} of CPU, at most {decimal(peak)} of memory")
    source = record.get("source") or {}
    if commit := source.get("commit"):
        parts.append(f"commit {commit[:12]}" + (" with changes" if source.get("dirty_digest") else ""))
    return "; ".join(parts)


def _logs(run: RunDirectory, of_attempt: Path | None) -> Iterator[str]:
    """The end of the log of an attempt that did not finish, and where the newest job log is."""
    if of_attempt and of_attempt.is_file():
        yield _line("log", str(inside(run.path, f"{run.attempts.name}/{of_attempt.name}")))
        for line in last_lines(of_attempt, LAST_LINES):
            yield _line("", f"   {line}")
    for log in sorted((run.path / "jobs").glob("*.log"))[-1:]:
        yield _line("job log", str(log))


def _sizes(folder: Path) -> str:
    """Of the largest things in a run directory, and of all."""
    sizes = {path.name: _size(path) for path in folder.iterdir()}
    largest = sorted(sizes.items(), key=lambda one: -one[1])[:SHOWN_SIZES]
    rest = sum(sizes.values()) - sum(size for _, size in largest)
    parts = [f"{name} {decimal(size)}" for name, size in largest] + ([f"others {decimal(rest)}"] if rest else [])
    return f"{decimal(sum(sizes.values()))}: {', '.join(parts)}"


def _size(path: Path) -> int:
    files = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
    return sum(file.stat().st_size for file in files)
