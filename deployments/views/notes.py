"""Notes for a person on a page's stages before they run: what begins anew, and whose work is not as it was.

Read from the run directories alone.
"""

from collections import Counter
from pathlib import Path
from typing import Any

from deployments.dag.walk import Handle
from storage.checkpoints import furthest, progress
from storage.lineage import Difference, asked_otherwise, differences
from storage.run_directory import read

SHOWN_KEYS = 4
"""Number shown of the keys in which unfinished work differs from what is asked for."""


_Unfinished = tuple[Path, int, dict[str, Any]]
"""A run directory with work that is saved and not finished, the step, and its version and scientific fields."""


def notes(handles: list[Handle]) -> list[str]:
    """One sentence for each stage that a person may take for another one, in page order."""
    own, beside = {handle.run.path for handle in handles}, dict[Path, list[_Unfinished]]()
    sentences = []
    for handle in handles:
        if not handle.finished and not handle.run.stage_file.exists():
            folder = handle.run.path.parent
            if folder not in beside:  # a sweep has hundreds of calls of one stage
                beside[folder] = _unfinished(folder, own)
            sentences.append(_begins_anew(handle, beside[folder]))
    return [*changed_work(handles), *filter(None, sentences)]


def _unfinished(folder: Path, own: set[Path]) -> list[_Unfinished]:
    """Runs that are saved and not finished in a stage's folder, but for the calls of the page itself."""
    runs = (path for path in sorted(folder.glob("*")) if path not in own and not (path / "COMPLETE.json").exists())
    return [
        (run, step, {"version": stage.get("version"), **stage.get("scientific", {})})
        for run in runs
        if (step := furthest(run / "checkpoints"))
        for stage in [read(run / "stage.json")]
    ]


def _begins_anew(handle: Handle, beside: list[_Unfinished]) -> str:
    """Names the unfinished work beside it that a person may have meant to continue; the one most like it."""
    if not beside:
        return ""
    ours = {"version": handle.stage.version, **handle.config.scientific()}
    differing, path, step = min(
        ((differences(fields, ours), path, step) for path, step, fields in beside),
        key=lambda pair: len(pair[0]),
    )
    keys = asked_otherwise(read(path / "study.json"), handle.origin)
    what = ("; ".join(differing) or "its inputs differ") + (f" (of the study's keys: {_keys(keys)})" if keys else "")
    return f"{handle.label} begins anew: {path}, which stands at step {step:,}, is another stage: {what}"


def _keys(different: list[Difference]) -> str:
    """The first keys with the value there and the one asked for."""
    shown = [f"{change.name}: {change.there!r} there, {change.here!r} here" for change in different[:SHOWN_KEYS]]
    more = len(different) - len(shown)
    return "; ".join(shown) + (f"; and {more} more" if more else "") if shown else "what it read"


def changed_work(handles: list[Handle]) -> list[str]:
    """The work modules of one's own that are not what they were when stages ran, whose results are kept all the same.

    The digest is over a module and what it imports, so it cannot tell which of the stages that share it has changed.
    """
    ran: dict[str, Counter[str]] = {}
    for handle in handles:
        if _made_by_other_sources(handle):
            ran.setdefault(handle.stage.work.partition(":")[0], Counter())[handle.stage.name] += 1
    return [
        f"old results of {', '.join(f'{name} x {count}' if count > 1 else name for name, count in stages.items())} are "
        f"kept, though {module.replace('.', '/')}.py, or what it imports, changed since: "
        + (f"`--fresh {next(iter(stages))}` runs it anew" if len(stages) == 1 else "`--fresh STAGE` runs one anew")
        for module, stages in ran.items()
    ]


def _made_by_other_sources(handle: Handle) -> bool:
    """True where an attempt that made what is finished or saved came from other sources."""
    if not handle.own_source:
        return False
    digest = handle.own_source["own_digest"]
    records = [read(file) for file in sorted(handle.run.attempts.glob("[0-9]*.json"))]
    reached = [record.get("began_at") for record in records[1:]] + [_reached(handle)]
    return any(
        (record.get("source") or {}).get("own_digest", digest) != digest
        and after != record.get("began_at")  # else it gained nothing
        for record, after in zip(records, reached, strict=False)
    )


def _reached(handle: Handle) -> list[int] | None:
    """How far the stage is, as its attempts write it; None when it is finished."""
    parts = (handle.run.path / "records").glob("*.json")
    return None if handle.finished else [progress(handle.run.checkpoints), sum(1 for _ in parts)]
