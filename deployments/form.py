"""The form of a study in the Prefect UI: what a person changes first, and nothing that belongs to the command line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import GetJsonSchemaHandler
from pydantic_core import CoreSchema

from tasks.stage.configuration import Configuration
from tasks.stage.study import StudyBase


class Form:
    """Annotates the type of a flow's parameter: the schema of that study shows its CHANGED_FIRST.

    The UI keeps what its form does not show. Whoever starts a study by a command gives every key, and they fit: the
    schema's top level is open, and a key that is none is named when the run begins.
    """

    def __init__(self, model: type[StudyBase]) -> None:
        self._model = model

    def __get_pydantic_json_schema__(self, core_schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        schema = handler(core_schema)
        resolved = handler.resolve_ref_schema(schema)
        all_others = [name for name in resolved["properties"] if name not in ("sweep_seeds", "execution")]
        keys = self._model.CHANGED_FIRST or [*all_others, "execution"]
        resolved["properties"] = _shown(resolved["properties"], keys, handler, self._groups())
        resolved.pop("additionalProperties", None)
        return schema

    def _groups(self) -> dict[str, Any]:
        """The study's own defaults of its groups: they differ from those of the group's class, which its schema has."""
        defaults = {name: field.default for name, field in self._model.model_fields.items()}
        return {name: one.model_dump(mode="json") for name, one in defaults.items() if isinstance(one, Configuration)}


def _shown(
    properties: dict[str, Any], keys: Sequence[str], handler: GetJsonSchemaHandler, defaults: Mapping[str, Any]
) -> dict[str, Any]:
    """The properties that `keys` name, with these defaults; of a group (`budget.epochs`) only those named."""
    found: dict[str, Any] = {}
    for key in keys:
        name, _, inner = key.partition(".")
        if not inner:
            found[name] = properties[name] | ({"default": defaults[name]} if name in defaults else {})
            continue
        group = {"type": "object", "title": name.capitalize(), "description": properties[name].get("description", "")}
        shown = found.setdefault(name, group | {"properties": {}})
        whole = handler.resolve_ref_schema(properties[name])["properties"]
        shown["properties"] |= _shown(whole, [inner], handler, defaults.get(name) or {})
    return found
