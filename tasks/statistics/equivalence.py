"""Whether two models differ, are equivalent within a margin, or neither can be said."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from tasks.stage.result import Result
from tasks.statistics.resampling import Estimate


class Answer(Result):
    """What a difference says about a margin that was named beforehand.

    differs: `interval` (two-sided, of the confidence level) excludes 0; equivalent: `equivalence_interval` lies within
    +-margin, which is two one-sided tests at 1 - confidence level (Schuirmann 1987); a sure difference that is smaller
    than the margin differs within it. An interval is None where documents of one source give none.
    """

    answer: Literal["differs", "equivalent", "differs within the margin", "undecided"]
    difference: float
    margin: float
    interval: list[float] | None
    equivalence_interval: list[float] | None
    confidence_level: float


def answer(difference: Callable[[float], Estimate], margin: float, confidence_level: float) -> Answer:
    """Answers with the difference's intervals at two levels, which must come from one distribution.

    `difference` gives the estimate at a confidence level, and is asked at `confidence_level` (1 - alpha) and at
    1 - 2 alpha. All intervals of this room draw the same resamples at every level. Raises ValueError for a margin that
    is not positive and for a level of 0.5 or less.
    """
    if not (margin > 0 and 0.5 < confidence_level < 1):
        raise ValueError(f"margin {margin} must be positive, confidence level {confidence_level} between 0.5 and 1")
    outer, inner = difference(confidence_level), difference(2 * confidence_level - 1)
    differs = outer.interval is not None and not outer.interval[0] <= 0 <= outer.interval[1]
    equivalent = inner.interval is not None and -margin < inner.interval[0] and inner.interval[1] < margin
    return Answer(
        answer=("differs within the margin" if differs else "equivalent")
        if equivalent
        else ("differs" if differs else "undecided"),
        difference=outer.value,
        margin=margin,
        interval=outer.interval,
        equivalence_interval=inner.interval,
        confidence_level=confidence_level,
    )
