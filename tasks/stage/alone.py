"""Computes items of a loop over `run.resume` again in a fresh process, without those before them.

What comes out must be what is kept, or a kill changes it without a word.

    python -m tasks.stage.alone RUN_DIRECTORY OWN_FOLDER ROWS PART...

Own folder: that of the code of a person's own stage, or empty. ROWS is the file for the rows of the parts.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import accumulate, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa

from storage import durable, reading
from storage.errors import BadInput, CheckFailed
from storage.lineage import differences
from storage.records import RecordParts, read_records
from storage.run_directory import read
from tasks.stage.guard import PR_SET_PDEATHSIG
from tasks.stage.loops import Loops
from tasks.stage.reopened import reopen
from tasks.stage.result import as_json

if TYPE_CHECKING:
    from tasks.stage.run import StageRun

Item = TypeVar("Item")
Rows = list[dict[str, Any]]
ITEMS = 10
SHARE, LEAST_SECONDS = 0.1, 60.0
"""The time that it may take: this share of the loop's, and in any case so long."""
IMPORTS_SECONDS = 10.0
"""How long a process may take until the stage's own function begins."""


def compared(run: StageRun, place: int, parts: Sequence[str], start_seconds: float) -> str:
    """Why a loop that went on after a kill is not shown to have the rows of an undisturbed one; empty where it is.

    Compared are the shortest items that were not the first of their attempt, those of this one first. CheckFailed where
    what it computed of an item depends on those before it; another attempt may have had another host.
    """
    took = {row["part"]: row for row in _timing(run) if row.get("part") in parts}
    of_this = {part for part, row in took.items() if row.get("attempt") == run.lock.number}
    of_all = sorted((part not in of_this, row["seconds"], part) for part, row in took.items() if not row["first"])
    if not (later := [(seconds, part) for _, seconds, part in of_all[:ITEMS]]):
        return "no item was computed after another one in its process"
    allowed = max(LEAST_SECONDS, SHARE * sum(row["seconds"] for row in took.values()))
    ends = accumulate((seconds for seconds, _ in later), initial=IMPORTS_SECONDS + start_seconds)
    asked = [part for (_, part), end in zip(later, islice(ends, 1, None), strict=True) if end < allowed]
    if not asked:
        return "to compute an item again would take more than a tenth of the loop's time"
    asked.sort(reverse=True)  # alone is the first of them: the one that had most before it
    kept = {part: _comparable(read_records(run.directory / "records" / f"{part}.parquet")) for part in asked}
    again = _computed(run, asked, allowed)
    if isinstance(again, str):
        return again
    if not (difference := _differing(kept, again)):
        return ""
    part, how = difference
    twice = _computed(run, asked, allowed)
    if isinstance(twice, str) or _differing(again, twice):
        return f"{how}, and another value each time: a clock's, or of an unseeded generator"
    if part not in of_this:
        return f"{how}; another attempt computed it, perhaps elsewhere"
    raise CheckFailed(
        "an item of run.resume has the same rows whatever was computed before it",
        how,
        "equal",
        "What the work on an item reads, the items before it changed, such as a sum, enumerate(run.resume(...)) or a "
        "file: a kill changes it. Compute it of the item alone, or write the loop by run.saved and run.save. What is "
        f"kept is not computed again: begin by --fresh {run.run.stage}",
    )


def compared_result(run: StageRun, result: dict[str, Any]) -> str:
    """Why what a stage returned is not shown to follow from the rows of its loops alone, as after a kill it must; empty
    where a fresh process returns the same of the rows that are kept. CheckFailed where it does not."""
    allowed = max(LEAST_SECONDS, SHARE * sum(row["seconds"] for row in _timing(run)))
    again = _computed(run, [], allowed) if allowed > IMPORTS_SECONDS else "it would take too long"
    if isinstance(again, str) or again == result:
        return again if isinstance(again, str) else ""
    differing = "; ".join(differences(result, again))
    twice = _computed(run, [], allowed)
    if twice != again:
        return f"what is returned has another value each time: {differing}"
    raise CheckFailed(
        "what a stage returns follows from the rows of its loops",
        f"{differing} (here, and computed of the rows alone)",
        "equal",
        "What the loop left in names, such as a list of results, lacks the items of attempts before: use run.rows()",
    )


def _timing(run: StageRun) -> Rows:
    file = run.run.timing_file
    lines = reading.read_bytes(file, None).splitlines() if file.exists() else []
    return [reading.json_value(line, file) for line in lines if line.startswith(b'{"attempt":') and line.endswith(b"}")]


def _computed(run: StageRun, parts: Sequence[str], seconds: float) -> dict[str, Any] | str:
    """The rows of these parts as a fresh process computes them, without any what the stage returns; or why not."""
    module, _, _ = read(run.run.stage_file).get("work", "").partition(":")
    file = getattr(sys.modules.get(module), "__file__", None)
    own = "" if not file or module.startswith("tasks.") else str(Path(file).parents[module.count(".")])
    code = str(Path(__file__).parents[2])
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, [code, os.environ.get("PYTHONPATH")]))}
    with tempfile.TemporaryDirectory(prefix="ratchet-alone-") as folder:
        rows = Path(folder) / "rows.json"
        output = Path(folder) / "said"
        command = [sys.executable, "-m", __name__, str(run.directory), own, str(rows), *parts]
        with output.open("wb") as file:
            process = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=file, stderr=file)
        until = time.monotonic() + seconds
        try:
            while process.poll() is None and time.monotonic() < until:
                run.stop.check()
                with suppress(subprocess.TimeoutExpired):
                    process.wait(0.2)
        finally:
            process.kill()
            process.wait()
        if process.returncode == 0:
            return durable.read_json(rows)
        last = output.read_text(errors="replace").strip().rpartition("\n")[2]
        took_long = f"it takes more than {seconds:.0f} s" if time.monotonic() > until else last
        return f"it could not be computed again by itself: {took_long}"


def _comparable(rows: Iterable[dict[str, Any]]) -> Rows:
    """Values as JSON keeps them, with every bit of a number."""
    return [{name: repr(value) if isinstance(value, float) else value for name, value in row.items()} for row in rows]


def _differing(kept: dict[str, Rows], again: dict[str, Rows]) -> tuple[str, str] | None:
    """The first part in which they differ, and how."""
    for part, rows in kept.items():
        item, others = f"item {int(part.split('-')[1])}", again[part]
        if len(rows) != len(others):
            return part, f"{item} has {len(rows)} rows after others, and {len(others)} alone"
        for row, other in zip(rows, others, strict=True):
            for name in {**row, **other}:
                if row.get(name) != other.get(name):
                    return part, f"{name} of {item} is {row.get(name)} after others, and {other.get(name)} alone"
    return None


class _Done(BaseException):
    """All items were computed; no exception that a stage's work would catch."""


class _Alone(Loops):
    """Gives some items of the loop to which `parts` belong, in their order, and of those before it what is kept."""

    def __init__(self, run: StageRun, parts: Sequence[str]) -> None:
        super().__init__(run)
        self._asked, self.computed, self._columns = parts, dict[str, Rows](), None
        if parts:
            self._columns = run.records.schema(parts, but=())
            self._schema = run.records.schema(parts)

    def resume(self, items: Iterable[Item], unit: str, name: str) -> Iterator[Item]:
        listed, parts = self.begin(items, name)
        for part in self._asked if {*self._asked} & {*parts} else ():
            number = parts.index(part)
            yield from self.work_on(len(self._begun), number, listed[number], len(listed), unit)
            rows = pa.Table.from_pylist(self.taken(), self._columns).to_pylist()
            self.computed[part] = _comparable(rows)
        if self.computed:
            raise _Done
        self.parts += parts


def _refuse_training() -> None:
    raise BadInput("its stage has a training or a script too, which would begin anew")


def main(path: str, own: str, rows: str, *parts: str) -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)  # with the stage that asks, however that ends
    if own:
        sys.path.append(own)
    stage = reopen(Path(path), Path(own) if own else None)
    with stage.elsewhere() as (run, config):
        inputs = {role: source.outputs_digest for role, source in stage.inputs.items()}
        identity: dict[str, object] = {"fingerprint": stage.run.fingerprint, "inputs": inputs}
        vars(run)["records"] = RecordParts(Path(path) / "records", identity, run.lock)
        vars(run)["loops"] = loops = _Alone(run, parts)
        vars(run)["begin_training"] = _refuse_training
        try:
            result = as_json(stage.stage.function()(run, config, **stage.inputs))
        except _Done:
            result = loops.computed
        if parts and not loops.computed:
            raise BadInput("the work came to no such item")
        durable.write_json(Path(rows), result)


if __name__ == "__main__":
    main(*sys.argv[1:])
