"""`ratchet rehearse`: each stage is killed at its bad moments, and compared with an undisturbed run of it.

A stage runs until its third checkpoint or item, else to its end; then again, killed at its start, amid the write of its
second checkpoint, between its rows and that, after it, and before its end. What it reads must be finished: by a small
study, or below the root. The answer is kept for all runs of the same code.
"""

import argparse
import json
import math
import os
import shutil
import signal
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from deployments.dag.page import Page, load_page
from deployments.dag.walk import Handle, Walk
from flows.command import settings
from flows.command.terminal import show
from storage import durable
from storage.attempts import keep_answer
from storage.run_directory import RunDirectory, read
from tasks.stage import outcome
from tasks.stage.attempt import attempt

MARKS, EVERY_STEPS = 3, 3
FOLDER = ".rehearsal"
Strike = Callable[[str, Path, int], bool]
"""Of a moment of a durable write (`storage.durable.reached`), its path, and the marks that are made."""
STRIKES: dict[str, Strike] = {
    "at its start": lambda moment, path, marks: (moment, path.name) == ("renamed", "stage.json"),
    "as a checkpoint of its script appeared": lambda moment, path, marks: moment == "changed" and marks == 1,
    "between its rows and the second checkpoint or item": lambda moment, path, marks: (
        marks == 1 and (moment == ("begun" if path.parent.name == "checkpoints" else "written")) and _keeps(path)
    ),
    "amid the write of that": lambda moment, path, marks: (
        marks == 1 and (moment == ("written" if path.parent.name == "checkpoints" else "renamed")) and _keeps(path)
    ),
    "after it": lambda moment, path, marks: marks == 2,
    "before its end": lambda moment, path, marks: (moment, path.name) == ("renamed", "result.json"),
}
"""When a stage is killed, once each."""


def rehearse(options: argparse.Namespace) -> int:
    """Rehearses each stage of a study; returns 0 where all went on exactly, 1 where one did not, or was not shown."""
    page = load_page(options.study)
    small = [f"{key}={json.dumps(value)}" for key, value in (page.names.get("small") or {}).items()]
    often = [f"execution.checkpoint_every_steps={EVERY_STEPS}", "execution.checkpoint_every_seconds=1e6"]
    study = settings.read_study(page, options.profile, [*small, *options.changes, *often], options.seed)
    root = Path(settings.root_of(options)).expanduser().absolute()
    shutil.rmtree(folder := root / FOLDER, ignore_errors=True)
    walk = Walk(folder / "runs", study.name, study.execution)
    page.walk(study, walk)
    all_exact = True
    for handle in walk.handles:
        for parent in handle.inputs.values():
            parent.run.refresh()
            _take_over(parent.run, root)
            parent.check_marker()
        if waits := handle.waits_for:
            answer = f"not rehearsed: it reads {', '.join(waits)}, not finished. Give small= in @study"
        else:
            answer = _rehearsed(page, study, handle, folder)
        reply = answer
        if not answer.startswith("not "):
            keep_answer(handle.run, root, answer, [key.partition(".")[0] for key in page.names.get("small") or {}])
            reply = f"DIFFERS from an undisturbed run in {answer}" if answer else "went on as an undisturbed run"
        show(f"{handle.label}: {reply}")
        all_exact = all_exact and not answer
        handle.check_marker()
    shutil.rmtree(folder, ignore_errors=True)
    return 0 if all_exact else outcome.FAILED.exit_code


def _take_over(run: RunDirectory, root: Path) -> None:
    """Gives the rehearsal a finished run of the root, which stays as it is."""
    finished = RunDirectory(root, run.study, run.stage, run.fingerprint)
    if finished.marker_file.exists() and not run.path.exists():
        shutil.copytree(finished.path, run.path, ignore=shutil.ignore_patterns("locks", "checkpoints", "scratch"))


def _rehearsed(page: Page, study: Any, handle: Handle, folder: Path) -> str:
    """In what a killed run of the stage differs from an undisturbed one; empty for nothing; `not ...`: not shown."""
    run, own = handle.run, folder / handle.run.stage / handle.run.path.name
    log, whole = own.with_suffix(".log"), own / "undisturbed"
    code = _start(page, study, handle, own / "whole", {}, log)
    if code not in (0, -signal.SIGKILL):
        return f"not rehearsed: undisturbed it ended with exit code {code}: see {_kept(log, folder)}"
    run.path.rename(whole)
    for _ in range(len(STRIKES) + 1):
        code = _start(page, study, handle, own / "killed", STRIKES, log)
        if code not in (0, -signal.SIGKILL):
            last = max(own.glob("killed/struck/*"), key=lambda file: file.stat().st_mtime_ns).name
            return f"killed {last}, its next start ended with exit code {code}: see {_kept(log, folder)}"
        if code == 0 or _marks(own / "killed") >= MARKS:
            break
    if not any((own / "killed" / "struck" / strike).exists() for strike in [*STRIKES][1:-1]):
        return "not shown: it kept nothing before its end, so that it began anew each time"

    return differences(whole, run.path)


def _kept(log: Path, folder: Path) -> Path:
    """The log where it stays when the folder of the rehearsal is removed."""
    return Path(shutil.move(log, folder.with_name(f"{FOLDER}-{log.name}")))


def _start(page: Page, study: Any, handle: Handle, noted: Path, strikes: Mapping[str, Strike], log: Path) -> int:
    """One start of the stage in a process of its own, which is killed at the next strike, and at its third mark."""
    (noted / "struck").mkdir(parents=True, exist_ok=True)
    if child := os.fork():
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    code = outcome.FAILED.exit_code
    try:
        with log.open("a") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        from tasks.stage import scratch

        scratch.LISTED = MARKS + len(STRIKES)  # so that both have some of the same steps
        durable.reached = _Strikes(noted, strikes)
        inputs = {role: parent.as_input() for role, parent in handle.inputs.items()}
        code = attempt(handle.stage, handle.config, handle.run, inputs, handle.own_source, handle.origin).exit_code
    finally:
        os._exit(code)


def _keeps(path: Path) -> bool:
    return path.parent.name == "checkpoints" or (path.parent.name == "records" and path.suffix == ".parquet")


def _marks(noted: Path) -> int:
    return sum(1 for path in noted.iterdir() if path.is_file())


class _Strikes:
    """Kills this process at each strike, once, and when it has kept enough; `noted` remembers that over starts."""

    def __init__(self, noted: Path, strikes: Mapping[str, Strike]) -> None:
        self._noted = noted
        self._strikes = {name: strike for name, strike in strikes.items() if not (noted / "struck" / name).exists()}

    def __call__(self, moment: str, path: Path) -> None:
        if (moment == "durable" and path.parent.name == "checkpoints" and _says_its_step(path)) or (
            moment == "renamed" and path.parent.name == "records" and path.suffix == ".json"
        ):
            (self._noted / path.name).touch()
        marks = _marks(self._noted)
        struck = [name for name, strike in self._strikes.items() if strike(moment, path, marks)]
        if struck:
            (self._noted / "struck" / struck[0]).touch()
        if struck or marks >= MARKS:
            os.kill(os.getpid(), signal.SIGKILL)


def _says_its_step(checkpoint: Path) -> bool:
    """False for one of a script whose name says no step: another run would have it at another."""
    place = durable.read_json(checkpoint / "state.json").get("scratch")
    return place is None or checkpoint.name in place.split("/", 2)[-1]


OF_THE_CLOCK = ("elapsed", "seconds", "log_history", "scratch", "files", "sha256", "metrics", "reported")
"""Names in the state of a checkpoint that say when it was made, or digests of what is compared itself."""
SHOWN = 3


def differences(whole: Path, killed: Path) -> str:
    """What differs, in words; empty for nothing, `not ...` where there is nothing to compare."""
    ends = [(run / "COMPLETE.json").exists() for run in (whole, killed)]
    if ends[0] != ends[1]:
        return f"{'the killed' if ends[0] else 'the undisturbed'} run was not finished, and the other one was"
    pairs = dict(_outputs(whole, killed) if all(ends) else _kept_on_the_way(whole, killed))
    if not pairs:
        return "not shown: it kept nothing to compare"
    differing = [
        f"{name} ({how})" for name, (first, other) in sorted(pairs.items()) if (how := _differing(first, other))
    ]
    more = f" and {len(differing) - SHOWN} more" if differing[SHOWN:] else ""
    return ", ".join(differing[:SHOWN]) + more


def _outputs(whole: Path, killed: Path) -> Iterator[tuple[str, tuple[Path, Path]]]:
    names = {name for run in (whole, killed) for name in read(run / "COMPLETE.json").get("outputs", {})}
    yield from ((name, (whole / name, killed / name)) for name in names - {"stage.json"})


def _kept_on_the_way(whole: Path, killed: Path) -> Iterator[tuple[str, tuple[Path, Path]]]:
    """Rows, parts of records, and the newest checkpoint of a step that both have."""
    for name in {file.name for run in (whole, killed) for file in run.glob("records/*.parquet")}:
        yield f"records/{name}", (whole / "records" / name, killed / "records" / name)
    steps = [{int(file.name) for file in run.glob("checkpoints/[0-9]*")} for run in (whole, killed)]
    if not (common := steps[0] & steps[1]):
        return
    places = [run / "checkpoints" / str(max(common)) for run in (whole, killed)]
    yield from _files("checkpoint", *places)
    states = [read(place / "state.json") for place in places]
    if all("scratch" in state for state in states):
        yield from _files(
            "checkpoint",
            *(run / "scratch" / state["scratch"] for run, state in zip((whole, killed), states, strict=True)),
        )
    lengths = [(state.get("metrics") or {}).get("length") for state in states]
    if all(lengths) and lengths[0] == lengths[1]:
        yield "metrics.jsonl", (whole / "metrics.jsonl", killed / "metrics.jsonl")


def _files(name: str, first: Path, other: Path) -> Iterator[tuple[str, tuple[Path, Path]]]:
    if not first.is_dir():
        yield f"{name}/{first.name}", (first, other)
        return
    names = {file.relative_to(place) for place in (first, other) for file in place.rglob("*") if file.is_file()}
    for file in names - {Path("manifest.json")}:
        yield f"{name}/{file}", (first / file, other / file)


def _differing(ours: Path, other: Path) -> str:
    """How two files differ; empty where they say the same."""
    if missing := next((path for path in (ours, other) if not path.exists()), None):
        return f"missing in the {'undisturbed' if missing == ours else 'killed'} run"
    first, second = ours.read_bytes(), other.read_bytes()
    length = min(len(first), len(second)) if ours.name == "metrics.jsonl" else max(len(first), len(second))
    if first[:length] == second[:length]:
        return ""
    if ours.suffix == ".json":
        return _place(_without_clock(durable.read_json(ours)), _without_clock(durable.read_json(other)), "")
    if zipfile.is_zipfile(ours) and zipfile.is_zipfile(other):
        members = [_members(file) for file in (ours, other)]
        names = [name for name in {**members[0], **members[1]} if members[0].get(name) != members[1].get(name)]
        return ", ".join(f"tensor {name[5:]}" if name.startswith("data/") else "values" for name in names[:SHOWN])
    return "bytes"


def _members(file: Path) -> dict[str, bytes]:
    """The tensors and the rest of a file of torch.save, which is a zip file; no pickle is loaded."""
    with zipfile.ZipFile(file) as archive:
        members = {name.partition("/")[2]: archive.read(name) for name in archive.namelist()}
    return {name: data for name, data in members.items() if not name.endswith("serialization_id")}


def _without_clock(value: Any) -> Any:
    if isinstance(value, dict):
        kept = {name: inner for name, inner in value.items() if not any(word in name for word in OF_THE_CLOCK)}
        return {name: _without_clock(inner) for name, inner in kept.items()}
    return [_without_clock(inner) for inner in value] if isinstance(value, list) else value


def _place(first: Any, other: Any, place: str) -> str:
    """The first place in which two values differ."""
    if isinstance(first, Mapping) and isinstance(other, Mapping):
        if first.keys() != other.keys():
            return f"{place}: names"
        return next((inner for name in first if (inner := _place(first[name], other[name], f"{place}[{name!r}]"))), "")
    if isinstance(first, list | tuple) and isinstance(other, list | tuple) and len(first) == len(other):
        pairs = enumerate(zip(first, other, strict=True))
        return next((inner for number, (a, b) in pairs if (inner := _place(a, b, f"{place}[{number}]"))), "")
    both_nan = isinstance(first, float) and isinstance(other, float) and math.isnan(first) and math.isnan(other)
    return "" if both_nan or (type(first) is type(other) and first == other) else f"{place}: {first} and {other}"
