"""The audit before a report: some recorded numbers computed again, by a plain path that shares no engine with stages;
where a stage's own code asks, `how` says so.

What is drawn is a function of what is audited: of the digests of the stages that the audit reads. The first number that
does not agree ends the study, by name.
"""

import math
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np

from storage import durable
from storage.errors import BadInput, CheckFailed, require_equal
from storage.run_directory import RunDirectory, read
from tasks.findings.table import Table
from tasks.stage.reopened import reopen
from tasks.stage.result import Result
from tasks.stage.run import StageInput, StageRun

Row = TypeVar("Row")


class AuditedKind(Result):
    """Numbers of one kind: how many were computed again, of how many (None: not counted), and where the difference was
    largest, in `unit`."""

    kind: str
    asked: int
    of: int | None
    unit: str
    tolerance: float
    largest_difference: float
    largest_at: str

    @property
    def counted(self) -> list[str]:
        total = f"{self.of:,}" if self.of else "-"
        return [f"{self.asked:,}", total, f"{self.largest_difference:.1e} {self.unit}"]


class AuditResult(Result):
    """The numbers that were computed again, by kind, and how. `drawn_by`: what the sample is a function of."""

    how: str
    drawn_by: str
    kinds: list[AuditedKind]

    @property
    def numbers(self) -> dict[str, int]:
        return {each.kind: each.asked for each in self.kinds}

    @property
    def worst(self) -> AuditedKind:
        return max(self.kinds, key=lambda each: each.largest_difference / each.tolerance)

    @property
    def in_words(self) -> str:
        asked = ", ".join(f"{count:,} {kind}" for kind, count in self.numbers.items())
        worst = self.worst
        return (
            f"Audited: {sum(self.numbers.values()):,} recorded numbers were computed again by {self.how} "
            f"({asked}). The largest difference is {worst.largest_difference:.1e} {worst.unit} ({worst.largest_at}); "
            f"more than {worst.tolerance:g} would have ended the study."
        )

    @property
    def table(self) -> Table:
        return Table(
            f"What was computed again by {self.how}; the sample was drawn by {self.drawn_by}.",
            ["numbers", "asked", "of", "largest difference", "allowed", "where"],
            [[each.kind, *each.counted, f"{each.tolerance:g}", each.largest_at] for each in self.kinds],
        )


@dataclass(frozen=True)
class Again:
    """A recorded number and the computed one; the difference counts as a share of `scale`, and beyond `allowed`, by
    which the recorded number is known to be rounded."""

    where: str
    recorded: float
    computed: float
    scale: float = 1.0
    allowed: float = 0.0


@dataclass(frozen=True)
class Asked(Generic[Row]):
    """Recorded numbers of one kind: of `rows` so many as `count` (None: all) are computed again by `recompute`.

    `unit` and `tolerance` are of the differences.
    """

    kind: str
    rows: Sequence[Row]
    recompute: Callable[[Row], Iterable[Again]]
    unit: str
    tolerance: float
    count: int | None = None


class Audited:
    """Compares recorded numbers with computed ones, and counts them; draws which are asked."""

    def __init__(self, run: StageRun, how: str) -> None:
        self.how, self._draw = how, durable.sha256_json(run.identity)
        self._kinds: dict[str, AuditedKind] = {}

    def sample(self, what: str, total: int, count: int) -> list[int]:
        """The places of so many of `total` examples, sorted; all where there are fewer."""
        return sample(self._draw, what, total, count)

    def ask(self, asked: Asked[Row], where: str = "") -> None:
        """Computes the drawn rows again; `where` tells draws of one kind apart."""
        places: Sequence[int] = range(len(asked.rows))
        if asked.count is not None:
            places = self.sample(f"{asked.kind} {where}", len(asked.rows), asked.count)
        drawn = [again for place in places for again in asked.recompute(asked.rows[place])]
        for again in drawn:
            self._count(asked.kind, again, asked.unit, asked.tolerance)
        if drawn:
            so_far, total = self._kinds[asked.kind], len(drawn) * len(asked.rows) // len(places)
            self._kinds[asked.kind] = so_far.model_copy(update={"of": total + (so_far.of or 0)})

    def _count(self, kind: str, again: Again, unit: str, tolerance: float) -> None:
        scale = abs(again.scale)
        if not 0 < scale < math.inf:
            raise CheckFailed(f"{again.where} has a size to be held against", again.scale, "a finite one above 0")
        difference = abs(again.recorded - again.computed) / scale - again.allowed
        if not difference <= tolerance:
            raise CheckFailed(
                f"{again.where} is what the audit computes",
                f"{again.recorded} in the records",
                f"{again.computed} by {self.how}, give or take {tolerance + again.allowed:g} {unit}",
                "What is kept was changed after it was computed, or was computed wrongly: find out which before any "
                "number of this study is believed",
            )
        first: dict[str, Any] = {"kind": kind, "asked": 0, "of": None, "unit": unit, "tolerance": tolerance}
        so_far = self._kinds.get(kind) or AuditedKind(**first, largest_difference=0.0, largest_at="all are equal")
        more: dict[str, object] = {"asked": so_far.asked + 1}
        if difference > so_far.largest_difference:
            more |= {"largest_difference": difference, "largest_at": again.where}
        self._kinds[kind] = so_far.model_copy(update=more)

    def result(self) -> AuditResult:
        return AuditResult(how=self.how, drawn_by=self._draw[:12], kinds=list(self._kinds.values()))


def require_audited(audit: StageInput, kinds: Mapping[str, float]) -> AuditResult:
    """The audit's result. CheckFailed unless it computed numbers of all `kinds` (-> tolerance) again, and all were near
    enough."""
    result = AuditResult.read(audit)
    allowed = {each.kind: each.tolerance for each in result.kinds if each.asked > 0}
    require_equal(f"the audit in {audit.path} computed numbers of every kind again", sorted(allowed), sorted(kinds))
    require_equal(f"the audit in {audit.path} allowed what it always does", allowed, dict(kinds))
    for each in result.kinds:
        if not 0 <= each.largest_difference <= each.tolerance:
            raise CheckFailed(
                f"the largest difference of the audit in {audit.path} is one that it allows",
                f"{each.largest_difference:g} ({each.largest_at})",
                f"at most {each.tolerance:g}",
            )
    return result


def typical(values: np.ndarray, computed: float) -> float:
    """The size that a difference is held against: the median size of what is recorded, which one outlier does not
    move, or that of the computed number."""
    return max(float(np.median(np.abs(values))), abs(computed)) or 1.0


def sample(draw: object, what: str, total: int, count: int) -> list[int]:
    """The places of so many of `total` examples, sorted; all where there are fewer. A function of `draw` and `what`."""
    return sorted(random.Random(f"{draw}, {what}").sample(range(total), min(count, total)))


def repeat_audit(run: RunDirectory, entropy: int, own: Path | None = None) -> AuditResult:
    """The audit of a finished report, or a finished audit, once more, of examples drawn by `entropy`.

    `own` is the folder of a study of one's own, as for `reopen`. Nothing is written. CheckFailed names what does not
    agree, BadInput a run that has no audit.
    """
    described = read(run.stage_file)
    if not run.stage.endswith("audit"):
        reads = run.reads(described.get("inputs", {}))
        if "audit" not in reads:
            raise BadInput(f"{run.path} has no audit: give the run directory of a study's report, or of its audit")
        run = reads["audit"]
    audit = reopen(run.path, own)
    StageInput(run, "").configuration(type(audit.config))  # the one that the run directory is named by
    with audit.elsewhere({"entropy": entropy}) as (work, config):
        return AuditResult.model_validate(audit.stage.function()(work, config, **audit.inputs))
