"""Configurations of studies and stages: strict, frozen, each field in one of two classes.

A *scientific* field is part of a stage's fingerprint: change it and the stage is another stage, with another run
directory. An *execution* field (device, micro-batch, intervals, limits) changes how the work is done, not what is
computed; it is recorded with each attempt and never reaches the fingerprint.

Only Literal, list, int, float, bool, str and nested configurations are used, so that one model takes YAML, the
JSON form of the Prefect UI, and Python.
"""

from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, ClassVar, TypeVar, Union, get_args, get_origin

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, GetJsonSchemaHandler, model_validator
from pydantic.fields import FieldInfo
from pydantic_core import CoreSchema

from storage.errors import BadInput
from storage.external import file_manifest

UNITS = (
    "seconds", "minutes", "gb", "bytes", "steps", "epochs", "tokens", "characters", "documents", "examples", "events",
    "pulses", "share", "ratio", "nats", "radians", "degrees",
)  # fmt: skip
"""Words that name a unit at the end of a key."""
LIMITS = {"ge": ">=", "gt": ">", "le": "<=", "lt": "<", "min_length": "length >=", "pattern": "matches"}


def _absolute(path: str) -> str:
    return str(Path(path).expanduser().absolute()) if path else path


LocalPath = Annotated[str, AfterValidator(_absolute)]
"""A file or folder; a relative one is below the folder where the study is started, wherever its stages run."""


Part = TypeVar("Part", bound="Configuration")


class Configuration(BaseModel):
    """A frozen configuration: unknown keys are errors, and "3" is not 3."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, validate_default=True)
    ALTERNATIVES: ClassVar[tuple[str, ...]] = ()
    """Keys of which exactly one is given."""
    REMOVED: ClassVar[dict[str, tuple[Any, str]]] = {}
    """Removed keys: the default, which fingerprints still hold and kept studies may give, and the advice for any other
    value."""

    @classmethod
    def __pydantic_init_subclass__(cls, **_: Any) -> None:
        for name, field in cls.model_fields.items():
            if _extra(field).get("class") not in ("scientific", "execution"):
                raise TypeError(f"{cls.__name__}.{name} must be declared with scientific(...) or execution(...)")

    @model_validator(mode="before")
    @classmethod
    def _groups_over_their_defaults(cls, values: Any) -> Any:
        """Lets one key of a group (`budget.steps`) change, and leaves the group's other keys at their defaults."""
        if not isinstance(values, dict):
            return values
        for name in values.keys() & cls.REMOVED.keys():
            default, instead = cls.REMOVED[name]
            if values[name] != default:
                raise ValueError(f"{name} is no key any more: {instead}")
        values = {name: item for name, item in values.items() if name not in cls.REMOVED}
        for name, field in cls.model_fields.items():
            default, value = field.default, values.get(name)
            if isinstance(value, dict) and isinstance(default, Configuration) and field.annotation is type(default):
                values = values | {name: default.changed(value)}
        return values

    def changed(self, values: dict[str, Any]) -> dict[str, Any]:
        """The keys set here, changed by `values`; one of ALTERNATIVES among these unsets the others."""
        excluded = set(self.ALTERNATIVES) if values.keys() & set(self.ALTERNATIVES) else set()
        merged = {key: getattr(self, key) for key in self.model_fields_set - excluded}
        for key, value in values.items():
            inner = getattr(self, key, None)
            if isinstance(value, dict) and isinstance(inner, Configuration):
                fits = type(inner).model_fields.keys() >= value.keys()  # or it is another member of a union
                merged[key] = inner.changed(value) if fits else value
            else:
                merged[key] = value
        return merged

    @classmethod
    def __get_pydantic_json_schema__(cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        """The schema for a form: units and limits go into the descriptions, and `anyOf` replaces `oneOf`.

        The Prefect UI shows a limit only where it is broken, and a text box for JSON for `oneOf`.
        """
        schema = handler(core_schema)
        for name, property_ in handler.resolve_ref_schema(schema).get("properties", {}).items():
            field = cls.model_fields[name]
            unit = "" if unit_of(name) in (field.description or "").lower() else f"in {unit_of(name)}"
            if facts := ", ".join(filter(None, [unit, limits_of(field)])):
                property_["description"] = f"{field.description} ({facts})"
            if "oneOf" in property_:
                property_["anyOf"] = property_.pop("oneOf")
                property_.pop("discriminator", None)
        return schema

    def part(self, kind: type[Part]) -> Part:
        """This configuration's values of the fields of `kind`."""
        return kind(**{name: getattr(self, name) for name in kind.model_fields})

    def scientific(self) -> dict[str, Any]:
        """The scientific fields as JSON values, for the fingerprint.

        A field declared with `added_later=True` is left out while it has its default, so that adding it leaves
        the fingerprints of finished stages as they were.
        """
        fields: dict[str, Any] = {name: default for name, (default, _) in self.REMOVED.items()}
        for name, field in type(self).model_fields.items():
            value = getattr(self, name)
            if field_class(field) == "execution":
                continue
            if _extra(field).get("added_later") and value == field.get_default(call_default_factory=True):
                continue
            fields[name] = _scientific_value(value)
        return fields

    def external_inputs(self) -> dict[str, Any]:
        """The inputs from outside, by content: file digests, package versions, commits.

        The walk of a page calls this, so that a missing input raises `storage.errors.BadInput` before any work. The
        default collects those of nested configurations, in lists and dictionaries too, and the files of `contents`.
        """
        fields = type(self).model_fields.items()
        inputs = {name: _external(getattr(self, name), "contents" in _extra(field)) for name, field in fields}
        return {name: external for name, external in inputs.items() if external}


def key_of(config: Configuration, value: object) -> str:
    """The dotted key that has this value, alone or in a list; empty where none has."""
    for name in type(config).model_fields:
        held = getattr(config, name)
        if held == value or (isinstance(held, list) and value in held):
            return name
        if isinstance(held, Configuration) and (inner := key_of(held, value)):
            return f"{name}.{inner}"
    return ""


def scientific(default: Any = ..., *, description: str, added_later: bool = False, **limits: Any) -> Any:
    """A field that is part of the fingerprint."""
    extra: dict[str, Any] = {"class": "scientific", "added_later": added_later}
    return Field(default, description=description, json_schema_extra=extra, **limits)


def execution(default: Any = ..., *, description: str, **limits: Any) -> Any:
    """A field that is recorded with each attempt and never part of the fingerprint."""
    return Field(default, description=description, json_schema_extra={"class": "execution"}, **limits)


def contents(default: Any = ..., *, description: str, **limits: Any) -> Any:
    """A field with files or folders (`names_files`): what they hold is part of the fingerprint, their place is not."""
    extra: dict[str, Any] = {"class": "execution", "contents": True}
    return Field(default, description=description, json_schema_extra=extra, **limits)


def names_files(kind: Any) -> bool:
    """True for LocalPath, alone, or None, or in a list or dictionary. BadInput for another type that holds it."""
    origin, parts = get_origin(kind), get_args(kind)
    if kind == LocalPath or not any(map(names_files, parts)):
        return bool(kind == LocalPath)
    optional = origin in (Union, UnionType) and {*parts} == {LocalPath, NoneType}
    if not (optional or origin is list or (origin is dict and not names_files(parts[0]))):
        raise BadInput(f"files in {kind} would not count: use LocalPath, list[LocalPath] or dict[str, LocalPath]")
    return True


def redeclare(field: FieldInfo) -> Any:
    """Declares a study's field again for a stage, which always gets a value; limits are checked in the study.

    A field that is not in every fingerprint keeps its default, so that stages saved before it was added can be read.
    """
    optional = field_class(field) == "execution" or _extra(field).get("added_later")
    default = field.default if optional else ...
    return Field(default, description=field.description, json_schema_extra=field.json_schema_extra)


def field_class(field: FieldInfo) -> str:
    """The class of a field: `scientific` or `execution`."""
    return _extra(field)["class"]


def unit_of(name: str) -> str:
    """The unit that ends a key's name; empty where none does."""
    return next((word for word in UNITS if word == name.rpartition("_")[2]), "")


def limits_of(field: FieldInfo) -> str:
    """The limits of a field's value in words, such as `>= 1`; empty where there are none."""
    return ", ".join(
        f"{sign} {value!r}"
        for constraint in field.metadata
        for name, sign in LIMITS.items()
        if (value := getattr(constraint, name, None)) is not None
    )


def _extra(field: FieldInfo) -> dict[str, Any]:
    return field.json_schema_extra if isinstance(field.json_schema_extra, dict) else {}


def _scientific_value(value: Any) -> Any:
    if isinstance(value, Configuration):
        return value.scientific()
    if isinstance(value, list):
        return [_scientific_value(item) for item in value]
    if isinstance(value, dict):
        return {key: _scientific_value(item) for key, item in value.items()}
    return value


def _external(value: Any, contents: bool) -> Any:
    """The inputs from outside of a field's value; empty where there are none."""
    if isinstance(value, Configuration):
        return value.external_inputs()
    if isinstance(value, list):
        of_items = [_external(item, contents) for item in value]
        return of_items if any(of_items) else []
    if isinstance(value, dict):
        return {key: external for key, item in value.items() if (external := _external(item, contents))}
    return file_manifest([value]) if contents and value and isinstance(value, str) else {}
