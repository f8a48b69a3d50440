"""The base classes of studies and stage configurations: the fields that every study has. How inputs are named."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Self

from pydantic import field_validator

from storage.run_directory import LATEST
from tasks.stage.configuration import Configuration, execution, redeclare, scientific
from tasks.stage.execution import Execution
from tasks.stage.numerics import Numerics

if TYPE_CHECKING:
    from tasks.stage.run import StageInput


class StudyBase(Configuration):
    """One configured experiment, as a person writes it; a study adds its own fields."""

    name: str = execution(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", description="Names the folder of the runs.")
    seed: int = scientific(42, ge=0, description="Seed of all that is drawn at random.")
    sweep_seeds: list[int] = execution([], description="Seeds of a sweep that names nothing to vary.")
    execution: Execution = execution(Execution(), description="How the work is done on this machine.")

    @field_validator("name")
    @classmethod
    def _is_no_link(cls, name: str) -> str:
        if name == LATEST:
            raise ValueError(f"{LATEST} is what the link to the newest result is called: give another name")
        return name

    CHANGED_FIRST: ClassVar[tuple[str, ...]] = ()
    """The keys that the form in the Prefect UI shows, in its order, such as `budget.epochs`; empty: all.

    The others come from the deployment's profile; in the UI, *Use JSON input* shows them too.
    """


class StageConfiguration(Configuration):
    """The configuration of one stage, which can read nothing else; a stage adds fields, with `seed` if it has one.

    A field that `STUDY` has too is named by its type alone: its description, limits and class are declared there, once.
    `numerics` says on what the stage's bytes depend beside configuration and data: a continuation must have the same.
    """

    numerics: ClassVar[Numerics] = Numerics(fields=("micro_batch_examples",))
    STUDY: ClassVar[type[StudyBase]] = StudyBase

    cell: str = execution("", description="Tells this stage from others of its name, for people: `adversarial`.")
    execution: Execution = execution(Execution(), description="How the work is done; not given: as the study says.")

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        annotated = inspect.get_annotations(cls).keys() - cls.__dict__.keys()
        for name in annotated & cls.STUDY.model_fields.keys():
            setattr(cls, name, redeclare(cls.STUDY.model_fields[name]))

    @classmethod
    def of(cls, study: StudyBase, /, **more: Any) -> Self:
        """Takes the study's value of every field that both have; `more` sets or replaces fields."""
        shared = cls.model_fields.keys() & type(study).model_fields.keys()
        return cls(**{name: getattr(study, name) for name in shared} | more)

    @classmethod
    def __pydantic_init_subclass__(cls, **_: Any) -> None:
        super().__pydantic_init_subclass__()
        if cls.model_fields["cell"].annotation is not str:
            raise TypeError(
                f"{cls.__name__}.cell: the name is reserved for the text that tells stages of one name apart: rename it"
            )
        execution_type: Any = cls.model_fields["execution"].annotation
        if missing := [name for name in cls.numerics.fields if name not in execution_type.model_fields]:
            raise TypeError(f"{cls.__name__}.numerics names {', '.join(missing)}, which is no field of its execution")

    def require_input(self, role: str, stage: StageInput) -> None:
        """BadInput where a finished stage lacks what this one reads: it is asked before the others run."""

    @property
    def own_seed(self) -> int | None:
        """The seed of the stage, if it has one."""
        return getattr(self, "seed", None)


def nested(inputs: Mapping[str, Any]) -> Any:
    """What a study gave: `{"none-0": a, "none-1": b}` is `{"none": {0: a, 1: b}}`, `{"_0": a, "_1": b}` is `[a, b]`."""
    if inputs.keys() == {""}:
        return inputs[""]
    tree: dict[Any, dict[str, Any]] = {}
    for role, stage in inputs.items():
        text, number = re.fullmatch(r"_?(.*?)(-\d+)?", role).groups()  # type: ignore[union-attr]
        tree.setdefault(text or int((number or "-0")[1:]), {})[number or "" if text else ""] = stage
    several = {key: nested(rest) for key, rest in tree.items()}
    places = [str(place) for place in range(len(several))]
    return [several[place] for place in places] if places and several.keys() == {*places} else several
