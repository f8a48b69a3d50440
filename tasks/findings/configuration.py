"""A person's choices for the audit before a report, and for how results are summarised."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, ClassVar

from pydantic import ValidationError

from storage.errors import BadInput, did_you_mean
from tasks.stage.configuration import Configuration, scientific
from tasks.stage.numerics import Numerics
from tasks.stage.study import StageConfiguration

if TYPE_CHECKING:
    from tasks.stage.run import StageInput


class Audit(Configuration):
    """The audit: how much is computed again."""

    examples: int = scientific(
        2,
        ge=1,
        description="Examples of each split, drawn by the seed, of which every recorded number is computed again.",
    )


class Evaluation(Configuration):
    """The summary of results."""

    bootstrap_resamples: int = scientific(2000, ge=100, description="Resamples of the paired bootstrap.")
    confidence_level: float = scientific(0.95, gt=0.5, lt=1, description="Confidence level of every interval.")


class Metric(Configuration):
    """Numbers that are compared with each other, as who makes them declares."""

    higher: bool | None = scientific(description="Whether higher is better; None: nobody said.")
    pairs: list[list[str]] = scientific([], description="Arms and their references; none: each with the first.")
    unit: str = scientific("", description="Unit of the numbers.")


def metrics_of(values: Mapping[str, object]) -> dict[str, Metric]:
    """The metrics that a part of a result declares of its own numbers, by key: `metrics`; none: nothing is declared."""
    declared = values.get("metrics")
    if isinstance(declared, dict):
        try:
            return {name: Metric.model_validate(metric) for name, metric in declared.items()}
        except ValidationError:  # numbers that a study calls so
            return {}
    if "best_step" in values and isinstance(higher := values.get("higher", []), list):  # as trainings did before
        best = [key for key in values if key.startswith("best_") and key != "best_step"]
        return {key: Metric(higher=key.removeprefix("best_") in higher) for key in best}
    return {}


class ArmsConfig(StageConfiguration):
    """report: arms of a study of one's own side by side."""

    numerics: ClassVar = Numerics(torch=False)

    metric: str = scientific(description="Name of the number, as in the results of the arms.")
    arms: dict[str, list[str]] = scientific(description="Each arm, and what its stages are: `0`, `1`, `2`.")
    varied: str = scientific("seed", description="What differs between the stages of an arm, such as `fold`.")
    compare: list[str] = scientific([], max_length=2, description="An arm and its reference; none: all with the first.")
    higher_is_better: bool | None = scientific(None, description="None: as the arms' trainings say.")
    question: str = scientific("", description="What the report answers.")
    confidence_level: float = scientific(0.95, gt=0, lt=1, description="Of the intervals.")

    @property
    def pairs(self) -> list[tuple[str, str]]:
        """Each arm with its reference."""
        first, *others = self.arms
        return [(self.compare[0], self.compare[1])] if self.compare else [(other, first) for other in others]

    def require_input(self, role: str, stage: StageInput) -> None:
        """BadInput for a stage of an arm without the metric."""
        self.number_of(stage)

    def number_of(self, stage: StageInput) -> tuple[float | None, bool | None]:
        """The metric in a stage's result, by its dotted name or the last part of it, where `best_validation_` may be
        left out, None where it holds none; whether higher is better, where a training said so. BadInput where none is
        called so, or several."""
        every = {name: (_names(name), value, higher) for name, value, higher in _numbers(stage.result)}
        numbers = {name: entry for name, entry in every.items() if entry[1] is not None}
        if not any(self.metric in names for names, *_ in numbers.values()):  # it diverged, say
            numbers |= {name: entry for name, entry in every.items() if self.metric in entry[0]}
        holders = [name for name, (names, *_) in numbers.items() if self.metric in names]
        exact = [name for name in holders if self.metric in numbers[name][0][:2]] or holders
        if len(exact) != 1:
            hint = did_you_mean(self.metric, [other for names, *_ in numbers.values() for other in names])
            raise BadInput(
                f"{stage.run.stage} {stage.path.name} has {'several' if exact else 'no'} {self.metric!r} in its "
                f"result; {hint}give metric one of {', '.join(exact or numbers) or 'its numbers: it has none'}"
            )
        _, value, higher = numbers[exact[0]]
        return value, higher


def role_of(arm: str, varied: str, value: str) -> str:
    """How the stage of an arm is called as an input."""
    return f"{arm}, {varied} {value}"


def _names(name: str) -> tuple[str, str, str]:
    """What a number may be called by."""
    last = name.rpartition(".")[2]
    return name, last, last.removeprefix("best_").removeprefix("validation_")


def _numbers(values: object, name: str = "") -> Iterator[tuple[str, float | None, bool | None]]:
    if isinstance(values, dict):
        declared = metrics_of(values)
        for key, value in values.items():
            if isinstance(value, dict):
                yield from _numbers(value, f"{name}{key}.")
            elif value is None or (isinstance(value, int | float) and not isinstance(value, bool)):
                higher = declared[key].higher if key in declared else None
                yield f"{name}{key}", None if value is None else float(value), higher
