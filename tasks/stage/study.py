"""What a study and each of its stages are to the frame: the fields that every one has, whatever it studies."""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import GetJsonSchemaHandler
from pydantic_core import CoreSchema

from tasks.stage.configuration import Configuration, execution, scientific
from tasks.stage.execution import Execution
from tasks.stage.numerics import Numerics


class StudyBase(Configuration):
    """One configured experiment, as a person writes it; a study adds its own fields."""

    name: str = execution(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", description="Names the folder of the runs.")
    seed: int = scientific(42, ge=0, description="Seed of all that is drawn at random.")
    sweep_seeds: list[int] = execution([], description="Seeds of a sweep that names nothing to vary.")
    execution: Execution = execution(Execution(), description="How the work is done on this machine.")

    @classmethod
    def __get_pydantic_json_schema__(cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        """The schema with `execution` last: a form begins with what is studied; its `over` names a sweep's seeds.

        Whoever starts a study by a command gives the seeds of a sweep too, and they fit.
        """
        schema = super().__get_pydantic_json_schema__(core_schema, handler)
        resolved = handler.resolve_ref_schema(schema)
        properties = resolved["properties"]
        properties["execution"] = properties.pop("execution")
        del properties["sweep_seeds"]
        resolved.pop("additionalProperties", None)  # a key that is none is named when the run begins
        return schema


class StageConfiguration(Configuration):
    """What one stage is given; it can read nothing else. A stage adds its own fields, among them `seed` if it has one.

    `numerics` says on what the stage's bytes depend beside configuration and data: a continuation must have the same.
    """

    numerics: ClassVar[Numerics] = Numerics(fields=("micro_batch_examples",))

    cell: str = execution("", description="Tells this stage from others of its name, for people: `adversarial`.")
    execution: Execution = execution(Execution(), description="How the work is done; not given: as the study says.")

    @classmethod
    def __pydantic_init_subclass__(cls, **_: Any) -> None:
        super().__pydantic_init_subclass__()
        if cls.model_fields["cell"].annotation is not str:
            raise TypeError(
                f"{cls.__name__}.cell: the name is taken by what distinguishes stages of one name: rename it"
            )
        known: Any = cls.model_fields["execution"].annotation
        if unknown := [name for name in cls.numerics.fields if name not in known.model_fields]:
            raise TypeError(f"{cls.__name__}.numerics names {', '.join(unknown)}, which is no field of its execution")

    @property
    def own_seed(self) -> int | None:
        """The seed on which the stage depends, if it has one."""
        return getattr(self, "seed", None)
