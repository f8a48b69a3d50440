"""`ratchet show`: all that a person may ask of one run, from its run directory; and the command that makes it again.

That is of the study that began the run, which lies beside stage.json. Nothing is run for it: data name no code.
"""

import shlex
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from rich.filesize import decimal

from deployments.views.listing import date, ended_at, headline_of, shown_first, standing
from storage import attempts, locks, markers
from storage.errors import BadInput
from storage.inside import inside
from storage.reading import last_lines, read_text
from storage.run_directory import RunDirectory, read
from tasks.findings.again import as_argument
from tasks.stage import outcome
from tasks.stage.numerics import within
from tasks.stage.progress import duration
from tasks.training.unlearned import best_row

LAST_LINES = 10
"""Lines shown of the log of an attempt that did not finish."""
SHOWN_SIZES = 6
NOT_KEPT = "not known: an earlier version of Ratchet began this run, and kept no study.json with it"


def facts_of(run: RunDirectory) -> dict[str, Any]:
    """All that is known, for a person and for `--json`."""
    about = read(run.stage_file)
    records = {file: read(file) for file in sorted(run.attempts.glob("[0-9]*.json"))}
    edited = _edited(records)
    state, stands = standing(run)
    finished = state == "finished"
    at_work = next(reversed(records), None) if locks.holder(run.path / "locks") is not None else None
    log = next((file.with_suffix(".log") for file in reversed(records)), None)
    return {
        "study": run.study,
        "stage": run.stage,
        "fingerprint": run.fingerprint,
        "folder": run.path,
        "cell": about.get("configuration", {}).get("cell"),
        "state": state,
        "stands": stands,
        "ended_at": ended_at(run.path) if finished else None,
        "seconds": attempts.seconds_of(run.attempts) if finished else None,
        **(_found(run) if finished else {}),
        "again": again(run),
        "numerics": [
            f"{event} {', '.join(changed)} on"
            for key, event in (("micro_batch_examples", "memory ended: micro-batches of"), ("compile", "compiled"))
            if (changed := within(about.get("numerics_changes", []), key))
        ],
        "reads": [
            {"role": role, "stage": source.stage, "folder": source.path, "there": source.stage_file.exists()}
            for role, source in run.reads(about.get("inputs", {})).items()
        ],
        "attempts": [
            {"file": file, "at_work": file == at_work, "edited": file in edited, "record": record}
            for file, record in records.items()
        ],
        "log": inside(run.path, f"{run.attempts.name}/{log.name}") if log and log.is_file() else None,
        "job_log": next(iter(sorted((run.path / "jobs").glob("*.log"))[-1:]), None),
        "bytes": {path.name: _size(path) for path in run.path.iterdir()},
    }


def in_words(facts: dict[str, Any]) -> Iterator[str]:
    """The lines for a person."""
    cell = f" ({facts['cell']})" if facts["cell"] else ""
    yield f"{facts['stage']} {facts['folder'].name}{cell}, of the study {facts['study']}"
    when = _when(facts) if facts["ended_at"] else ""
    yield _line("state", facts["state"] + when + (f": {facts['stands']}" if facts["stands"] else ""))
    yield _line("folder", str(facts["folder"]))
    if facts.get("headline"):
        yield _line("result", facts["headline"])
    yield from (_line("read", str(file)) for file in facts.get("files", []))
    yield from (_line("refused", why) for why in facts.get("refused", []))
    command, *notes = facts["again"]
    yield _line("again", command)
    yield from (_line("", f"   {note}") for note in notes)
    yield from (_line("numerics", line) for line in facts["numerics"])
    for parent in facts["reads"]:
        gone = "" if parent["there"] else "  (not there any more)"
        yield _line("reads", f"{parent['role']}: {parent['stage']} {parent['folder'].name}{gone}")
    for attempt in facts["attempts"]:
        record = attempt["record"]
        yield _line("attempt", _attempt(record, attempt["at_work"]) if record else f"{attempt['file']} cannot be read")
        if attempt["edited"]:
            yield _line("", "   it went on with edited files: what was kept before it came from the files as they were")
        diagnosis = record.get("diagnosis") or {}
        yield from (_line("", f"   {diagnosis[key]}") for key in ("summary", "resolution") if diagnosis.get(key))
    if facts["log"]:
        yield _line("log", str(facts["log"]))
        shown = [] if facts["ended_at"] else last_lines(facts["log"], LAST_LINES)
        yield from (_line("", f"   {line}") for line in shown)
    if facts["job_log"]:
        yield _line("job log", str(facts["job_log"]))
    yield _line("disk", _sizes(facts["bytes"]))


def tables_of(run: RunDirectory) -> str:
    """All tables of a run's result, as Markdown. BadInput where it has none."""
    names = read(run.result_file).get("tables", [])
    if not names:
        raise BadInput(f"{run.path}: this run has no table")
    try:
        return "\n".join(read_text(markers.output(run, name)) for name in names)
    except (OSError, ValueError) as error:
        raise BadInput(f"{run.path}: its table cannot be read: {error}") from None


def _line(name: str, text: str) -> str:
    return f"  {name:<8} {text}"


def _when(facts: dict[str, Any]) -> str:
    """When it was finished, and how long its attempts worked."""
    seconds, number = facts["seconds"], len(facts["attempts"])
    took = f"after {duration(seconds)}" if seconds is not None else "after a time that no attempt's record tells"
    return f" on {date(facts['ended_at'])}, {took}" + (f" in {number} attempts" if number > 1 else "")


def _found(run: RunDirectory) -> dict[str, Any]:
    """What came out, the files to read, first the one for people, and why others are not to be read."""
    result, files, refused = read(run.result_file), list[Path](), list[str]()
    file = "result.json" if result else "records.parquet"
    names = [shown_first(result), *result.get("tables", []), "final_results.json", file]
    for name in dict.fromkeys(filter(None, names)):
        try:
            files.append(inside(run.path, name))
        except FileNotFoundError:
            pass
        except BadInput as error:
            refused.append(str(error))
    headline = headline_of(result)
    if not any(key == "training" or key.startswith("best_") for key in result):
        headline = "; ".join(filter(None, [*map(_best, best_row(run)), headline]))
    return {"headline": headline, "files": files, "refused": refused}


def _best(row: dict[str, Any]) -> str:
    """The best validation of a training whose result does not repeat it."""
    others = ("step", "trivial", "ratio_to_trivial", "higher_is_better")
    numbers = ", ".join(f"{name} {value:.6g}" for name, value in row.items() if name not in others)
    beside = f", {row['ratio_to_trivial']:.3g} of what needs no learning" if row.get("trivial") else ""
    return f"best {numbers} at step {row['step']}{beside}"


def _edited(records: Mapping[Path, dict[str, Any]]) -> set[Path]:
    """The attempts that added to what one with other sources of the person's own had kept."""
    edited, kept = set[Path](), ""
    for (file, record), (_, after) in pairwise([*records.items(), (Path(), dict[str, Any]())]):
        digest = (record.get("source") or {}).get("own_digest") or ""
        if not any(record.get("began_at") or []):
            kept = ""
        if record.get("began_at") != after.get("began_at"):  # else it gained nothing
            edited |= {file} if kept not in ("", digest) else set()
            kept = digest
    return edited


def _attempt(record: dict[str, Any], at_work: bool) -> str:
    """How an attempt went: when, where, how it ended, and what it used."""
    end_state, began, ended = record.get("end_state"), record.get("started_at"), record.get("ended_at")
    how = outcome.in_words(end_state) if end_state else "at work" if at_work else "was killed: it left no end"
    after = f" after {duration(ended - began)}" if ended and began else ""
    job = f", job {record['slurm_job_id']}" if record.get("slurm_job_id") else ""
    by = {"person": ", started by a person", "automatic": ", started by itself"}.get(record.get("started_by", ""), "")
    when = date(began) if began else "-"
    parts = [f"{record.get('attempt')}  {when}  {how}{after}, on {record.get('host')}{job}{by}"]
    if peak := record.get("peak_memory_bytes"):
        parts.append(f"{duration(record.get('cpu_seconds', 0))} of CPU, at most {decimal(peak)} of memory")
    parts += filter(None, [record.get("hardware")])
    parts += [f"{name} {commit}" for name, commit in attempts.commits_in(record.get("source") or {}).items()]
    return "; ".join(parts)


def _sizes(sizes: Mapping[str, int]) -> str:
    """Sizes of the largest things in a run directory, and of all."""
    largest = sorted(sizes.items(), key=lambda item: -item[1])[:SHOWN_SIZES]
    rest = sum(sizes.values()) - sum(size for _, size in largest)
    parts = [f"{name} {decimal(size)}" for name, size in largest] + ([f"others {decimal(rest)}"] if rest else [])
    return f"{decimal(sum(sizes.values()))}: {', '.join(parts)}"


def _size(path: Path) -> int:
    files = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
    return sum(file.stat().st_size for file in files)


def again(run: RunDirectory) -> list[str]:
    """The command, as it was written down, and what says whether it gives this run; or why there is none."""
    kept = read(run.study_file)
    try:
        place, over = str(kept["page"]), {key: [*varied] for key, varied in kept["over"].items()}
    except (KeyError, TypeError, ValueError, AttributeError):
        return [NOT_KEPT]
    note = f"with --dry-run it says whether what is here now gives the fingerprint {run.path.name}"
    return [_command(run, place, over), note]


def _command(run: RunDirectory, place: str, over: Mapping[str, Sequence[object]]) -> str:
    words = [_ratchet(), "sweep" if over else "run", place.removeprefix("flows."), "--profile", str(run.study_file)]
    for key, values in over.items():
        words += ["--over", f"{key}={as_argument(values)}"]
    return shlex.join([*words, *(["--root", str(run.root)] if run.root.resolve() != Path("runs").resolve() else [])])


def _ratchet() -> str:
    """The command as a person types it here: with its path, where the shell does not find it alone."""
    beside = Path(sys.executable).with_name("ratchet")
    if shutil.which("ratchet") or not beside.is_file():
        return "ratchet"
    return str(beside.relative_to(Path.cwd()) if beside.is_relative_to(Path.cwd()) else beside)
