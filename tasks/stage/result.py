"""Typed results: one stage writes a result and another reads it, so that a number can be followed.

A stage returns its result as an object; the frame of an attempt writes it as `result.json`. Readers name the same type,
so that an editor goes from the cell of a table to the line that computes the number.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from pydantic import BaseModel, ConfigDict, ValidationError

from storage import durable
from storage.errors import BadInput
from tasks.stage.configuration import Configuration
from tasks.stage.validation import said

if TYPE_CHECKING:
    from tasks.stage.run import StageInput

NOTED_BY_THE_FRAME = ("numerics_changes",)
"""The keys of `result.json` that `tasks.stage.attempt` adds."""


class Result(BaseModel):
    """A frozen result, or a part of one: a missing or an unknown field is an error, and "3" is not 3.

    A field with a default is left out of the JSON while it has it, so that a field that is added later leaves the
    results as they were. A field without a default that may be None is written as null.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    @classmethod
    def read(cls, stage: StageInput) -> Self:
        """Reads the result of a finished stage; BadInput names the file and the fields that another version wrote."""
        values = stage.result
        if isinstance(values, dict):
            values = {name: value for name, value in values.items() if name not in NOTED_BY_THE_FRAME}
        return cls._validated(values, stage.run.result_file)

    @classmethod
    def read_file(cls, file: Path) -> Self:
        """Reads a file beside `result.json`, such as `final_results.json`; BadInput as `read`."""
        return cls._validated(durable.read_json(file), file)

    @classmethod
    def _validated(cls, values: object, file: Path) -> Self:
        try:
            return cls.model_validate(values)
        except ValidationError as error:
            lines = [f"  {'.'.join(map(str, item['loc'])) or file.name}: {said(item)}" for item in error.errors()]
            raise BadInput(
                f"{file} was written by another version of Ratchet, this one does not understand it:\n"
                + "\n".join(lines)
                + f"\nUse the version that wrote it (attempts/ in {file.parent} names its commit), or move that folder "
                f"away and start the same command: the stage {file.parents[1].name} runs again"
            ) from None

    def as_json(self) -> dict[str, Any]:
        """The result as JSON values, in the order of its fields."""
        fields = type(self).model_fields
        return {
            name: as_json(value)
            for name, value in self
            if fields[name].is_required() or value != fields[name].get_default(call_default_factory=True)
        }


def require_json(value: object, place: str = "result") -> None:
    """Raises BadInput naming the first thing in `value` that `result.json` cannot hold, and what to return instead."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if not isinstance(key, str):
                raise BadInput(f"{place} has the key {key!r}, a {_kind(key)}: return text, such as str(...)")
            require_json(inner, f"{place}[{key!r}]")
    elif isinstance(value, list | tuple):
        for number, inner in enumerate(value):
            require_json(inner, f"{place}[{number}]")
    elif isinstance(value, float) and not math.isfinite(value):
        advice = "return None, which r.report tells as diverged, and say what happened under another key"
        raise BadInput(f"{place} is {value}, which JSON cannot hold: {advice}")
    elif not (value is None or isinstance(value, str | int | float)):
        raise BadInput(f"{place} is a {_kind(value)}: return a plain value, such as float(...), int(...) or .tolist()")


def _kind(value: object) -> str:
    return f"{type(value).__module__}.{type(value).__name__}".removeprefix("builtins.")


def as_json(value: Any) -> Any:
    """Converts a result, a configuration, or lists and dictionaries of them to JSON values; others stay as they are."""
    if isinstance(value, Result):
        return value.as_json()
    if isinstance(value, Configuration):
        return value.model_dump(mode="json")
    if isinstance(value, dict):
        return {key: as_json(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [as_json(inner) for inner in value]
    return value
