"""Every key of a configuration, for people: type, unit, default, limits and description."""

import types
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import yaml
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from tasks.stage.configuration import Configuration, field_class, limits_of, unit_of


@dataclass(frozen=True)
class Key:
    """One key of a configuration."""

    path: str
    type: str
    unit: str
    default: str
    """The default as YAML; empty when the key has none and must be given."""
    limits: str
    description: str
    field_class: str
    """`scientific` (part of the fingerprint) or `execution`."""
    only_with: str = ""
    """The choice that has this key, such as `text.source=files`."""


def keys_of(model: type[Configuration], group: str = "") -> list[Key]:
    """Every key of `model` below `group` (empty: all), in declared order."""
    keys = list(_keys(model, "", "", None))
    return [key for key in keys if not group or key.path == group or key.path.startswith(f"{group}.")]


def _keys(model: type[Configuration], prefix: str, only_with: str, defaults: Configuration | None) -> Iterator[Key]:
    """Yields the keys of a group; `defaults` is the group's default value."""
    for name, field in model.model_fields.items():
        path = f"{prefix}{name}"
        default = getattr(defaults, name) if defaults else field.get_default(call_default_factory=True)
        options = [option for option in _options(field.annotation) if option is not type(None)]
        nested = [option for option in options if isinstance(option, type) and issubclass(option, Configuration)]
        if not nested:
            yield _key(path, field, default, only_with)
        for item in _items(options):
            yield from _keys(item, f"{path}.", f"{path}=[{{...}}]", None)
        for option in nested:
            choice = f"{path}.{tag}" if len(nested) > 1 and (tag := _tag(option)) else only_with
            yield from _keys(option, f"{path}.", choice, default if isinstance(default, option) else None)


def _key(path: str, field: FieldInfo, default: Any, only_with: str) -> Key:
    return Key(
        path,
        _type_name(field.annotation),
        unit_of(path.rpartition(".")[2]),
        "" if default is PydanticUndefined else _as_yaml(default),
        limits_of(field),
        field.description or "",
        field_class(field),
        only_with,
    )


def _items(options: list[Any]) -> list[type[Configuration]]:
    """The configurations in a key's list."""
    items = [inner for option in options if get_origin(option) is list for inner in get_args(option)]
    return [item for item in items if isinstance(item, type) and issubclass(item, Configuration)]


def _as_yaml(value: Any) -> str:
    if isinstance(value, list):
        value = [item.model_dump(exclude_unset=True) if isinstance(item, Configuration) else item for item in value]
    return yaml.safe_dump(value, default_flow_style=True, width=1000).removesuffix("\n...\n").strip()


def _options(annotation: Any) -> list[Any]:
    """The members of a union, without annotations."""
    if get_origin(annotation) is Annotated:
        return _options(get_args(annotation)[0])
    if get_origin(annotation) in (Union, types.UnionType):
        return [inner for option in get_args(annotation) for inner in _options(option)]
    return [annotation]


def _tag(option: type[Configuration]) -> str:
    """The key and value that choose this member of a union, such as `source=files`."""
    for name, field in option.model_fields.items():
        if get_origin(field.annotation) is Literal and len(get_args(field.annotation)) == 1:
            return f"{name}={get_args(field.annotation)[0]}"
    return ""


def _type_name(annotation: Any) -> str:
    names = []
    for option in _options(annotation):
        if option is type(None):
            names.append("null")
        elif get_origin(option) is Literal:
            names.append(" | ".join(map(str, get_args(option))))
        elif get_origin(option) is list:
            names.append(f"list of {'groups' if _items([option]) else _type_name(get_args(option)[0])}")
        elif get_origin(option) is dict:
            names.append("mapping")
        else:
            names.append(getattr(option, "__name__", str(option)))
    return " or ".join(dict.fromkeys(names))
