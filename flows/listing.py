"""What lies below a root: its studies, what came out of each, what is not finished; from the run directories alone."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any

from storage import attempts, durable, locks, markers
from storage.__main__ import MANIFEST
from storage.differences import leaves
from storage.errors import BadInput
from storage.run_directory import RunDirectory, find_runs
from tasks.stage.outcome import in_words
from tasks.stage.progress import described

SHOWN_KEYS = 4
"""Of those in which a result differs from the others of its study."""


def listing(root: Path) -> Iterator[str]:
    """The lines for a person: each study with its results, newest last. BadInput where there is none."""
    paths = find_runs(root)
    if not paths:
        raise BadInput(f"there are no runs below {root}: give the folder that --root named")
    exported = (root / MANIFEST).is_file()  # it lacks weights and text: `ratchet verify` holds it against its manifest
    for study, of_study in groupby(paths, lambda path: path.parts[-3]):
        finished, lines = [], []
        for path in of_study:
            try:
                run = RunDirectory(root, study, path.parts[-2], str(_about(path)["fingerprint"]))
                verdict = markers.check_outputs(run, full=False)
                if verdict.holds or (exported and run.marker_file.is_file()):
                    finished.append(run)
                else:
                    lines.append(f"  {'running' if _running(run) else 'not finished':<12} {_stands(run, verdict)}")
            except (OSError, ValueError, KeyError, TypeError) as error:
                lines.append(f"  {'unreadable':<12} {path.parts[-2]} {path.name}: {error}")
        yield f"{study} ({len(finished)} of {len(finished) + len(lines)} begun stages are finished)"
        results = [run for run in finished if _shown(run)]
        for run in sorted(results, key=_ended_at):
            yield from _result(run, results)
        yield from lines


def _result(run: RunDirectory, results: Sequence[RunDirectory]) -> Iterator[str]:
    when = time.strftime("%Y-%m-%d %H:%M", time.localtime(_ended_at(run)))
    others = [_configured(other.path) for other in results if other.stage == run.stage and other != run]
    own = {
        key: values
        for key, values in _configured(run.path).items()
        if key == "seed" or any(other.get(key) != values for other in others)
    }
    single = {key: values for key, values in own.items() if len(values) == 1}
    of = [f"{key} {', '.join(sorted(values))}" for key, values in (single or own).items()]
    if cells := _about(run.path)["configuration"].get("cells"):
        of = [f"{len(cells)} cells: {'; '.join(cells)}"]
    yield f"  {when}  {', '.join([run.stage, *of[:SHOWN_KEYS], *(['...'] if of[SHOWN_KEYS:] else [])])}"
    if headline := durable.read_json(run.result_file).get("headline"):
        yield f"    {headline}"
    yield f"    {run.path / _shown(run)}"


def _shown(run: RunDirectory) -> str:
    """The file that a person reads first; empty for a stage that only others read."""
    result = durable.read_json(run.result_file)
    return result.get("report") or next(iter(result.get("tables", [])), "")


def _ended_at(run: RunDirectory) -> float:
    return (attempts.newest(run.attempts) or {}).get("ended_at") or run.result_file.stat().st_mtime


@cache
def _about(path: Path) -> dict[str, Any]:
    """What stage.json says. Raises OSError or ValueError where it cannot be read."""
    return durable.read_json(path / "stage.json")


@cache
def _configured(path: Path) -> dict[str, set[str]]:
    """Every scientific key of a run and of all that it reads -> its values there, as text; the run's own first.

    What it read may have been removed since.
    """
    found: dict[str, set[str]] = {}
    try:
        about = _about(path)
    except (OSError, ValueError):
        return found
    for key, value in leaves(about["scientific"]):
        found.setdefault(key, set()).add(str(value))
    for given in about["inputs"].values():
        read = RunDirectory(path.parents[2], path.parts[-3], given["stage"], given["fingerprint"])
        for key, values in _configured(read.path).items():
            found[key] = found.get(key, set()) | values
    return found


def _running(run: RunDirectory) -> bool:
    return locks.holder(run.path / "locks") is not None


def _stands(run: RunDirectory, verdict: markers.Verdict) -> str:
    """A stage that is not finished: how its newest attempt ended, or what is wrong with its marker."""
    record, name = attempts.newest(run.attempts), f"{run.stage} {run.path.name}: "
    now = durable.read_json(run.progress_file) if run.progress_file.exists() else {}
    if _running(run):
        return name + described(now)
    if verdict.present:
        return f"{name}its marker does not hold: {verdict.reason}"
    if record is None:
        return f"{name}not begun"
    end_state, summary = record.get("end_state"), (record.get("diagnosis") or {}).get("summary", "")
    ended = f"attempt {record['attempt']} was killed" if end_state is None else in_words(end_state)
    far = f" at {now['step']:,}/{now['total']:,} {now['unit']}" if now.get("total") else ""
    return f"{name}{ended}{far}" + (f": {summary}" if summary else "")
