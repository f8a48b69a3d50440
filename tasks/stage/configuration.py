"""How every study declares its configuration: strict, frozen, each field in one of two classes.

A *scientific* field is part of a stage's fingerprint: change it and the stage is another stage, with another run
directory. An *execution* field (device, micro-batch, intervals, limits) changes how the work is done, not what is
computed; it is recorded with each attempt and never reaches the fingerprint.

Only Literal, list, int, float, bool, str and nested configurations are used, so that one model takes YAML, the
JSON form of the Prefect UI, and Python.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, ClassVar, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, GetJsonSchemaHandler, model_validator
from pydantic.fields import FieldInfo
from pydantic_core import CoreSchema

UNITS = (
    "seconds", "minutes", "gb", "bytes", "steps", "epochs", "tokens", "characters", "documents", "examples", "events",
    "pulses", "share", "ratio", "nats", "radians", "degrees",
)  # fmt: skip
"""Words that name a unit at the end of a key."""
LIMITS = {"ge": ">=", "gt": ">", "le": "<=", "lt": "<", "min_length": "length >=", "pattern": "matches"}


def _absolute(path: str) -> str:
    return str(Path(path).expanduser().absolute()) if path else path


LocalPath = Annotated[str, AfterValidator(_absolute)]
"""A file or folder; a relative one is below the folder where the study is started, wherever its stages then run."""


Part = TypeVar("Part", bound="Configuration")


class Configuration(BaseModel):
    """A frozen configuration: unknown keys are errors, and "3" is not 3."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, validate_default=True)
    ALTERNATIVES: ClassVar[tuple[str, ...]] = ()
    """Keys of which exactly one is given."""
    REMOVED: ClassVar[dict[str, tuple[Any, str]]] = {}
    """Keys that a study had once: the default, which fingerprints still hold and kept studies may give, and what to do
    in place of another value."""

    @classmethod
    def __pydantic_init_subclass__(cls, **_: Any) -> None:
        for name, field in cls.model_fields.items():
            if _extra(field).get("class") not in ("scientific", "execution"):
                raise TypeError(f"{cls.__name__}.{name} must be declared with scientific(...) or execution(...)")

    @model_validator(mode="before")
    @classmethod
    def _groups_over_their_defaults(cls, values: Any) -> Any:
        """Who gives one key of a group (`budget.steps`) changes that key, and leaves the group's others as they are."""
        if not isinstance(values, dict):
            return values
        for name in values.keys() & cls.REMOVED.keys():
            default, instead = cls.REMOVED[name]
            if values[name] != default:
                raise ValueError(f"{name} is no key any more: {instead}")
        values = {name: value for name, value in values.items() if name not in cls.REMOVED}
        for name, field in cls.model_fields.items():
            default, given = field.default, values.get(name)
            if isinstance(given, dict) and isinstance(default, Configuration) and field.annotation is type(default):
                values = values | {name: default.changed(given)}
        return values

    def changed(self, given: dict[str, Any]) -> dict[str, Any]:
        """What was set here with `given` in its place; given one of ALTERNATIVES, the others are not set."""
        left_out = set(self.ALTERNATIVES) if given.keys() & set(self.ALTERNATIVES) else set()
        kept = {key: getattr(self, key) for key in self.model_fields_set - left_out}
        for key, value in given.items():
            inner = getattr(self, key, None)
            if isinstance(value, dict) and isinstance(inner, Configuration):
                fits = type(inner).model_fields.keys() >= value.keys()  # or it is another member of a union
                kept[key] = inner.changed(value) if fits else value
            else:
                kept[key] = value
        return kept

    @classmethod
    def __get_pydantic_json_schema__(cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        """The schema for a form: units and limits stand in the descriptions, and `anyOf` for `oneOf`.

        The Prefect UI shows a limit only where it is broken, and makes a text box for JSON of `oneOf`.
        """
        schema = handler(core_schema)
        for name, described in handler.resolve_ref_schema(schema).get("properties", {}).items():
            field = cls.model_fields[name]
            unit = "" if unit_of(name) in (field.description or "").lower() else f"in {unit_of(name)}"
            if facts := ", ".join(filter(None, [unit, limits_of(field)])):
                described["description"] = f"{field.description} ({facts})"
            if "oneOf" in described:
                described["anyOf"] = described.pop("oneOf")
                described.pop("discriminator", None)
        return schema

    def part(self, kind: type[Part]) -> Part:
        """The fields of `kind`, as they are here."""
        return kind(**{name: getattr(self, name) for name in kind.model_fields})

    def scientific(self) -> dict[str, Any]:
        """The scientific fields as JSON values: what the fingerprint is made of.

        A field declared with `added_later=True` is left out while it has its default, so that adding it leaves
        the fingerprints of finished stages as they were.
        """
        chosen: dict[str, Any] = {name: default for name, (default, _) in self.REMOVED.items()}
        for name, field in type(self).model_fields.items():
            value = getattr(self, name)
            if field_class(field) == "execution":
                continue
            if _extra(field).get("added_later") and value == field.get_default(call_default_factory=True):
                continue
            chosen[name] = _scientific_value(value)
        return chosen

    def external_inputs(self) -> dict[str, Any]:
        """What this configuration reads from outside, by content: file digests, package versions, commits.

        Asked while the page is walked, so a thing that is missing raises `storage.errors.BadInput` before any
        work. The default collects the answers of nested configurations.
        """
        found: dict[str, Any] = {}
        for name in type(self).model_fields:
            value = getattr(self, name)
            if isinstance(value, Configuration) and (external := value.external_inputs()):
                found[name] = external
        return found


def scientific(default: Any = ..., *, description: str, added_later: bool = False, **limits: Any) -> Any:
    """A field that is part of the fingerprint."""
    extra: dict[str, Any] = {"class": "scientific", "added_later": added_later}
    return Field(default, description=description, json_schema_extra=extra, **limits)


def execution(default: Any = ..., *, description: str, **limits: Any) -> Any:
    """A field that is recorded with each attempt and never part of the fingerprint."""
    return Field(default, description=description, json_schema_extra={"class": "execution"}, **limits)


def declared_again(field: FieldInfo) -> Any:
    """The same field for another class, which is always given it; limits are left to the first.

    A field that is not in every fingerprint keeps its default: what was kept before it was added can still be read.
    """
    optional = field_class(field) == "execution" or _extra(field).get("added_later")
    default = field.default if optional else ...
    return Field(default, description=field.description, json_schema_extra=field.json_schema_extra)


def field_class(field: FieldInfo) -> str:
    """`scientific` or `execution`; every class with a field that does not say is refused where it is defined."""
    return _extra(field)["class"]


def unit_of(name: str) -> str:
    """The unit that ends a key's name; empty where none does."""
    return next((word for word in UNITS if word == name.rpartition("_")[2]), "")


def limits_of(field: FieldInfo) -> str:
    """The limits of a field's value in words, such as `>= 1`; empty where there are none."""
    return ", ".join(
        f"{sign} {value!r}"
        for one in field.metadata
        for name, sign in LIMITS.items()
        if (value := getattr(one, name, None)) is not None
    )


def _extra(field: FieldInfo) -> dict[str, Any]:
    return field.json_schema_extra if isinstance(field.json_schema_extra, dict) else {}


def _scientific_value(value: Any) -> Any:
    if isinstance(value, Configuration):
        return value.scientific()
    if isinstance(value, list):
        return [_scientific_value(item) for item in value]
    return value
