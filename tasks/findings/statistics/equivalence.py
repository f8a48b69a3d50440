"""The answer whether two models differ, are equivalent within a margin, or neither can be told."""

from collections.abc import Callable
from typing import Literal

from tasks.findings.statistics.resampling import Estimate
from tasks.stage.result import Result


class Answer(Result):
    """The answer of a difference about a margin that was named beforehand.

    differs: `interval` (two-sided, of the confidence level) excludes 0, and `p_value`, where the difference has one, is
    at most 1 - confidence level; equivalent: `equivalence_interval` lies within +-margin, which is two one-sided tests
    at 1 - confidence level (Schuirmann 1987); a sure difference that is smaller than the margin differs within it. An
    interval is None where documents of one source give none. Where `least_p_value`, the lowest that so many sources
    can give, is above that level, nothing is decided: an interval from so few cannot be trusted either.
    `smallest_shown`: see `Estimate`.
    """

    answer: Literal["differs", "equivalent", "differs within the margin", "undecided"]
    difference: float
    margin: float
    interval: list[float] | None
    equivalence_interval: list[float] | None
    p_value: float | None
    least_p_value: float
    confidence_level: float
    smallest_shown: float | None = None

    @property
    def alpha(self) -> float:
        """The level of the tests."""
        return round(1 - self.confidence_level, 12)

    @property
    def too_few_sources(self) -> bool:
        return self.least_p_value > self.alpha


def answer(
    difference: Callable[[float], Estimate], margin: float, confidence_level: float, least_p_value: float = 0.0
) -> Answer:
    """Answers with the difference's intervals at two levels, which must come from one distribution.

    `difference` gives the estimate at a confidence level, and is asked at `confidence_level` (1 - alpha) and at
    1 - 2 alpha. All intervals of this room draw the same resamples at every level. `least_p_value` is the lowest that
    an exchange of its sources can give (`permutation.least_p_value`), 0 for a difference that is not tested so. Raises
    ValueError for a margin that is not positive and for a level of 0.5 or less.
    """
    if not (margin > 0 and 0.5 < confidence_level < 1):
        raise ValueError(f"margin {margin} must be positive, confidence level {confidence_level} between 0.5 and 1")
    outer, inner = difference(confidence_level), difference(2 * confidence_level - 1)
    undecided = Answer(
        answer="undecided",
        difference=outer.value,
        margin=margin,
        interval=outer.interval,
        equivalence_interval=inner.interval,
        p_value=outer.p_value,
        least_p_value=least_p_value,
        confidence_level=confidence_level,
        smallest_shown=outer.smallest_shown,
    )
    if undecided.too_few_sources or outer.interval is None or inner.interval is None:
        return undecided
    differs = not outer.interval[0] <= 0 <= outer.interval[1] and (outer.p_value or 0.0) <= undecided.alpha
    if -margin < inner.interval[0] and inner.interval[1] < margin:
        return undecided.model_copy(update={"answer": "differs within the margin" if differs else "equivalent"})
    return undecided.model_copy(update={"answer": "differs"}) if differs else undecided
