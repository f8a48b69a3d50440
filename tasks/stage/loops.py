"""Loops over items of which each is kept by itself: a kill costs one, and the rows are those of an undisturbed loop."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from storage import durable
from storage.errors import BadInput
from storage.records import KEYS, fitting, read_records
from storage.rows import Position
from storage.run_directory import read
from tasks.stage.bound import BoundGenerators, frames
from tasks.stage.numerics import seed_generators
from tasks.stage.progress import FOR_THE_TERMINAL

if TYPE_CHECKING:
    from tasks.stage.run import StageRun

Item = TypeVar("Item")
POSITIONS = "metrics.positions"
"""Beside the parts: how far `metrics.jsonl` had come after each of the newest two items."""


class Loops:
    """The loops of one attempt; `StageRun.resume`, `row` and `rows` are its methods."""

    def __init__(self, run: StageRun) -> None:
        self.run = run
        self._begun: list[str] = []
        self.parts: list[str] = []
        """Of the loops that came to their end."""
        self.kept = False
        """Whether an attempt before did some of them."""
        self._published, self._unfinished = 0, ""
        self._rows: list[dict[str, Any]] | None = None
        self._place: dict[str, int] = {}
        self._schema: Any = None
        self._worked, self._began_at = False, time.monotonic()

    def resume(self, items: Iterable[Item], unit: str, name: str) -> Iterator[Item]:
        run = self.run
        items, parts = self.begin(items, name)
        place = len(self._begun)
        if others := run.records.others(f"{place:02d}-", parts):
            raise BadInput(
                f"loop {place} over run.resume has other items, or another name, than when the stage was begun: "
                f"{len(others)} that are kept of it ({others[0]}) are none of the {len(items)} {unit} of now. Give "
                "each start the same, in the same order (sort a set, draw from the configuration), or begin by --fresh"
            )
        kept = [part for part in parts if run.records.has(part)]
        start_seconds = time.monotonic() - self._began_at
        if kept:
            self._schema = run.records.schema(kept)
            run.log.info("%d of %d %s are kept", len(kept), len(items), unit, extra=FOR_THE_TERMINAL)
        way, left = f"run.resume, loop {place}", "what the loop before it left in names was not compared"
        if goes_on := 0 < len(kept) < len(items):
            run.went_on(way, "the loop did not come to its end")
        self._cut_back_metrics()
        generators = None
        for number, (part, item) in enumerate(zip(parts, items, strict=True)):
            if not run.records.has(part):
                run.step(number, len(items), unit)
                generators = generators or BoundGenerators(frames())
                began_at = time.monotonic()
                yield from self.work_on(place, number, item, len(items), unit)
                if changed := generators.changed():
                    raise BadInput(
                        f"{changed} was made before the loop over run.resume and drew in it: after a kill it would "
                        f"draw for {item!r} what another item drew. Make it in the loop, of the configuration and the "
                        "item: rng = numpy.random.default_rng([seed, number])"
                    )
                self._keep(part)
                seconds = time.monotonic() - began_at
                row = {"part": part, "seconds": seconds, "first": not self._worked, "attempt": run.lock.number}
                run.timing.append(row)
                self._worked = True
        run.step(len(items), len(items), unit)
        if goes_on:
            from tasks.stage.alone import compared

            run.went_on(way, compared(run, place, parts, start_seconds) or left * self.kept)
        elif self.kept and len(kept) < len(items):
            run.went_on(way, left)
        self.kept = self.kept or bool(kept)
        self.parts += parts

    def begin(self, items: Iterable[Item], name: str) -> tuple[list[Item], list[str]]:
        """The items of the next loop and the names of their parts. BadInput for items that nothing tells apart."""
        self._require_end()
        items = list(items)
        for number, item in enumerate(items):
            if not isinstance(item, str) and re.search(r" at 0x[0-9a-f]{6}", repr(item)):
                raise BadInput(
                    f"item {number} of run.resume is {item!r}, known by a place in memory, which each start changes: "
                    "loop over names or numbers, and look up in the loop what they stand for"
                )
        loop = durable.sha256_json([name, *map(repr, items)])[:12]
        if items and loop in self._begun:
            raise BadInput(
                f"two loops over run.resume have the same {len(items)} items: after a kill nothing would tell them "
                "apart. Give each a name: run.resume(items, name=...), the same in each start"
            )
        self._begun.append(loop)
        return items, [f"{len(self._begun):02d}-{number:05d}-{loop}" for number in range(len(items))]

    def work_on(self, place: int, number: int, item: Item, total: int, unit: str) -> Iterator[Item]:
        """Yields the item, with the generators that are its own; BadInput where nothing is told of it, and for a loop
        that is left there."""
        self._rows, self._place = [], {"loop": place, "item": number}
        drawn_by = [self.run.run.fingerprint, f"{place:02d}-{number:05d}-{durable.sha256_json(repr(item))[:8]}"]
        seed_generators(int(durable.sha256_json(drawn_by)[:12], 16))
        self._unfinished = (
            f"the loop over run.resume is at {item!r}: another one, or run.rows, has no place within it. Loop "
            "once over both, for a, b in run.resume(itertools.product(...)), and ask for the rows after it"
        )
        try:
            yield item
        except GeneratorExit:
            self._rows = None
            self._unfinished = (
                f"the loop over run.resume was left at {item!r}, {number + 1} of {total} {unit}: after a "
                "kill, kept items are not given again, so it would not be left there. Go through all items, or "
                "write a loop by run.saved and run.save"
            )
            raise
        if not self._rows:
            raise BadInput(f"the work on {item!r} told run.row nothing, so nothing of it would be kept")

    def row(self, row: dict[str, Any]) -> None:
        if self._rows is None:
            raise BadInput("run.row belongs into a loop over run.resume(items): it says what came out of an item")
        if own := row.keys() & KEYS:
            raise BadInput(f"run.row: {min(own)!r} is a column of Ratchet's own: give yours another name")
        self._schema, row = fitting(row, self._schema)
        self._rows.append({**self._place, "row": len(self._rows), **row})

    def taken(self) -> list[dict[str, Any]]:
        """The rows of the item that was worked on, which are forgotten here."""
        rows, self._rows, self._unfinished = self._rows or [], None, ""
        return rows

    def rows(self) -> list[dict[str, Any]]:
        self._require_end()
        if not self.parts:
            raise BadInput("run.rows has none to give: no loop over run.resume came before it, or none had an item")
        self._publish()
        return list(read_records(self.run.directory / "records.parquet"))

    def end(self, result: dict[str, Any]) -> None:
        """After the work: rows that it did not ask for are an output too. BadInput for a loop that was left.

        CheckFailed where the result does not follow from the rows.
        """
        self._require_end()
        own = "records.parquet" in self.run.outputs and not self._published
        if len(self.parts) > self._published and not own:
            self._publish()
        if self.kept and result:
            from tasks.stage.alone import compared_result

            self.run.went_on("run.resume, what is returned", compared_result(self.run, result))

    def _publish(self) -> None:
        self.run.merge_records(self.parts, KEYS)
        self._published = len(self.parts)

    def _require_end(self) -> None:
        if self._unfinished:
            raise BadInput(self._unfinished)

    def _keep(self, part: str) -> None:
        """Makes the item's rows durable, and before them where those of `metrics.jsonl` end, if it has any."""
        if "metrics" in vars(self.run):
            self.run.metrics.sync()
            before = [*self._positions().items()][-1:]
            self._positions_file.parent.mkdir(exist_ok=True)
            durable.write_json(self._positions_file, dict(before) | {part: self.run.metrics.position()})
        self.run.records.write(part, self.taken())

    def _cut_back_metrics(self) -> None:
        """Cuts `metrics.jsonl` to where it was after the newest item that is kept: what is done now writes the rest."""
        if (position := self.position()) and not self._worked:
            self.run.metrics.cut_back(position)

    def position(self) -> Position | None:
        """How far `metrics.jsonl` had come after the newest item that is kept."""
        kept = [position for part, position in self._positions().items() if self.run.records.has(part)]
        return kept[-1] if kept else None

    @property
    def _positions_file(self) -> Path:
        return self.run.directory / "records" / POSITIONS

    def _positions(self) -> dict[str, Position]:
        return read(self._positions_file)
