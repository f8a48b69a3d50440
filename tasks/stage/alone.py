"""Computes items of a loop over `run.resume` again in a fresh process, without those before them.

What comes out must be what is kept, or a kill changes it without a word.

    python -m tasks.stage.alone RUN_DIRECTORY OWN_FOLDER ROWS PART...

Own folder: that of the code of a person's own stage, or empty. ROWS is the file for the rows of the parts.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from storage import durable, reading
from storage.errors import BadInput, CheckFailed
from storage.records import RecordParts, read_records
from storage.run_directory import read
from tasks.stage import numerics
from tasks.stage.loops import Loops
from tasks.stage.reopened import reopen

if TYPE_CHECKING:
    from tasks.stage.run import StageRun

Item = TypeVar("Item")
Rows = list[dict[str, Any]]
ITEMS = 3
SHARE, LEAST_SECONDS = 0.1, 60.0
"""The time that it may take: this share of the loop's, and in any case so long."""
IMPORTS_SECONDS = 10.0
"""How long a process may take until the stage's own function begins."""


def compared(run: StageRun, place: int, parts: Sequence[str], start_seconds: float) -> str:
    """Why a loop that went on after a kill is not shown to have the rows of an undisturbed one; empty where it is.

    Compared are the shortest items that were not the first of their attempt. CheckFailed where what is computed of an
    item depends on those before it.
    """
    took = {row["part"]: row for row in _timing(run) if row.get("part") in parts}
    later = sorted((row["seconds"], part) for part, row in took.items() if not row["first"])[:ITEMS]
    if not later:
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
    if not (other := _differing(kept, again)):
        return ""
    twice = _computed(run, asked, allowed)
    if isinstance(twice, str) or _differing(again, twice):
        return f"{_told(other, kept, again)}, and another value each time: a clock's, or of an unseeded generator"
    raise CheckFailed(
        "an item of run.resume has the same rows whatever was computed before it",
        _told(other, kept, again),
        "equal",
        "What the work on an item reads, the items before it changed, such as a sum, enumerate(run.resume(...)) or a "
        "file: a kill changes it. Compute it of the item alone, or write the loop by run.saved and run.save",
    )


def _timing(run: StageRun) -> Rows:
    file = run.run.timing_file
    lines = reading.read_bytes(file, None).splitlines() if file.exists() else []
    return [reading.json_value(line, file) for line in lines if line.startswith(b'{"first":') and line.endswith(b"}")]


def _computed(run: StageRun, parts: Sequence[str], seconds: float) -> dict[str, Rows] | str:
    """The rows of these parts as a fresh process computes them, or why there are none."""
    module, _, _ = read(run.run.stage_file).get("work", "").partition(":")
    file = getattr(sys.modules.get(module), "__file__", None)
    own = "" if not file or module.startswith("tasks.") else str(Path(file).parents[module.count(".")])
    code = str(Path(__file__).parents[2])
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, [code, os.environ.get("PYTHONPATH")]))}
    with tempfile.TemporaryDirectory(prefix="ratchet-alone-") as folder:
        rows = Path(folder) / "rows.json"
        command = [sys.executable, "-m", __name__, str(run.directory), own, str(rows), *parts]
        try:
            subprocess.run(
                command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, timeout=seconds, check=True
            )
            return read(rows)
        except subprocess.TimeoutExpired:
            return f"to compute an item again took more than {seconds:.0f} s"
        except subprocess.CalledProcessError as error:
            last = error.stderr.decode(errors="replace").strip().rpartition("\n")[2]
            return f"an item could not be computed again by itself: {last}"


def _comparable(rows: Iterable[dict[str, Any]]) -> Rows:
    """As JSON keeps them, with every bit of a number."""
    return [{name: value.hex() if isinstance(value, float) else value for name, value in row.items()} for row in rows]


def _differing(kept: dict[str, Rows], again: dict[str, Rows]) -> tuple[str, int, str] | None:
    """The first part, row and column in which they differ."""
    for part in kept:
        if len(kept[part]) != len(again[part]):
            return part, -1, ""
        for number, (one, other) in enumerate(zip(kept[part], again[part], strict=True)):
            for name in one:
                if one[name] != other[name]:
                    return part, number, name
    return None


def _told(place: tuple[str, int, str], kept: dict[str, Rows], again: dict[str, Rows]) -> str:
    part, number, name = place
    _, item, _ = part.split("-")
    if number < 0:
        return f"item {int(item)} has {len(kept[part])} rows after others, and {len(again[part])} alone"
    values = [_number(rows[part][number][name]) for rows in (kept, again)]
    return f"{name} of item {int(item)} is {values[0]} after others, and {values[1]} alone"


def _number(value: Any) -> Any:
    try:
        return float.fromhex(value) if isinstance(value, str) and "0x" in value else value
    except ValueError:
        return value


class _Done(BaseException):
    """All items were computed; no exception that a stage's work would catch."""


class _Alone(Loops):
    """Gives some items of the loop to which `parts` belong, in their order, and of those before it what is kept."""

    def __init__(self, run: StageRun, parts: Sequence[str]) -> None:
        super().__init__(run)
        self._asked, self.computed = parts, dict[str, Rows]()

    def resume(self, items: Iterable[Item], unit: str, name: str) -> Iterator[Item]:
        listed, parts = self.begin(items, name)
        for part in self._asked if {*self._asked} & {*parts} else ():
            number = parts.index(part)
            yield from self.work_on(len(self._begun), number, listed[number], len(listed), unit)
            self.computed[part] = _comparable(self.taken())
        if self.computed:
            raise _Done
        self.parts += parts


def _refuse_training() -> None:
    raise BadInput("its stage has a training or a script too, which would begin anew")


def main(path: str, own: str, rows: str, *parts: str) -> None:
    if own:
        sys.path.append(own)
    stage = reopen(Path(path), Path(own) if own else None)
    described = read(stage.run.stage_file)
    begun_with = [change for change in described["numerics_changes"] if not numerics.is_within(change)]
    config = stage.config.here((begun_with or [described["numerics"]])[-1])
    numerics.prepare(config.numerics, config.execution, config.own_seed or 0)
    with stage.elsewhere() as run:
        inputs = {role: source.outputs_digest for role, source in stage.inputs.items()}
        identity: dict[str, object] = {"fingerprint": stage.run.fingerprint, "inputs": inputs}
        vars(run)["records"] = RecordParts(Path(path) / "records", identity, run.lock)
        run.execution = config.execution
        vars(run)["loops"] = loops = _Alone(run, parts)
        vars(run)["begin_training"] = _refuse_training
        try:
            stage.stage.function()(run, config, **stage.inputs)
        except _Done:
            durable.write_json(Path(rows), loops.computed)
            return
    raise BadInput("the work came to no such item")


if __name__ == "__main__":
    main(*sys.argv[1:])
