"""The audit before a report: some recorded numbers computed again, by a plain path that shares no engine with stages.

What is drawn is a function of a seed. The first number that does not agree ends the study, by name.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from storage.errors import BadInput, CheckFailed, require_equal
from storage.run_directory import RunDirectory, read
from tasks.stage import numerics
from tasks.stage.reopened import reopen
from tasks.stage.result import Result
from tasks.stage.run import StageInput


class AuditResult(Result):
    """The numbers that were computed again: how many of each kind, how, and where the difference was largest."""

    numbers: dict[str, int]
    how: str
    unit: str
    largest_difference: float
    largest_at: str
    tolerance: float

    @property
    def in_words(self) -> str:
        kinds = ", ".join(f"{count:,} {kind}" for kind, count in self.numbers.items())
        return (
            f"Audited: {sum(self.numbers.values()):,} recorded numbers were computed again by {self.how} ({kinds}). "
            f"The largest difference is {self.largest_difference:.1e} {self.unit} ({self.largest_at}); more than "
            f"{self.tolerance:g} would have ended the study."
        )


class Audited:
    """Compares recorded numbers with computed ones, and counts them."""

    def __init__(self, how: str, unit: str, tolerance: float) -> None:
        self.how, self.unit, self.tolerance = how, unit, tolerance
        self.numbers: Counter[str] = Counter()
        self.largest, self.largest_at = 0.0, "all are equal"

    def compare(
        self, kind: str, where: str, recorded: float, computed: float, scale: float = 1.0, allowed: float = 0.0
    ) -> None:
        """CheckFailed where the difference over `scale` is more than the tolerance, also where one is no number.

        Only what is beyond `allowed` counts, by which the recorded number is known to be rounded.
        """
        self.numbers[kind] += 1
        difference = abs(recorded - computed) / scale - allowed
        if not difference <= self.tolerance:
            raise CheckFailed(
                f"{where} is what the audit computes",
                f"{recorded} in the records",
                f"{computed} by {self.how}, give or take {self.tolerance + allowed:g} {self.unit}",
                "What is kept was changed after it was computed, or was computed wrongly: find out which before any "
                "number of this study is believed",
            )
        if difference > self.largest:
            self.largest, self.largest_at = difference, where

    def result(self) -> AuditResult:
        return AuditResult(
            numbers=dict(self.numbers),
            how=self.how,
            unit=self.unit,
            largest_difference=self.largest,
            largest_at=self.largest_at,
            tolerance=self.tolerance,
        )


def require_audited(audit: StageInput, kinds: Iterable[str], tolerance: float) -> AuditResult:
    """The audit's result. CheckFailed unless it computed numbers of all `kinds` again, and all were near enough."""
    result = AuditResult.read(audit)
    computed = sorted(kind for kind, count in result.numbers.items() if count > 0)
    require_equal(f"the audit in {audit.path} computed numbers of every kind again", computed, sorted(kinds))
    require_equal(f"the audit in {audit.path} allowed what it always does", result.tolerance, tolerance)
    if not 0 <= result.largest_difference <= tolerance:
        raise CheckFailed(
            f"the largest difference of the audit in {audit.path} is one that it allows",
            f"{result.largest_difference:g} ({result.largest_at})",
            f"at most {tolerance:g}",
        )
    return result


def sample(seed: int, what: str, of: int, count: int) -> list[int]:
    """The places of so many of `of` examples, sorted; all where there are fewer."""
    return sorted(random.Random(f"{seed}, {what}").sample(range(of), min(count, of)))


def repeat_audit(run: RunDirectory, seed: int | None, own: Path | None = None) -> AuditResult:
    """The audit of a finished report, or a finished audit, once more; with another seed, of other examples.

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
    config = audit.config if seed is None else audit.config.model_copy(update={"seed": seed})
    numerics.prepare(config.numerics, config.execution, config.own_seed or 0)
    with audit.elsewhere() as work:
        return AuditResult.model_validate(audit.stage.function()(work, config, **audit.inputs))
