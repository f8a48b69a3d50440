"""Validates values (of a file, a form, a command line) as a typed configuration, with errors that say what to do."""

import difflib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ValidationError

from storage.errors import BadInput, cut, did_you_mean
from tasks.stage.configuration import Configuration
from tasks.stage.keys import keys_of

SHOWN = 20
"""The most errors that a message lists: each takes some milliseconds, and a file may have thousands."""
WORDS: dict[str, str | Callable[[re.Match[str]], str]] = {
    r"^Value error, ": "",
    r"^Field required": "is missing",
    r"^String should match pattern '(.*)'": lambda one: "must be " + PATTERNS.get(one[1], f"what matches {one[1]}"),
    r"^\w+ should ": "must ",
    r"a valid integer.*": "a whole number",
    r"a valid number.*": "a number",
    r"a valid boolean.*": "true or false",
    r"a valid string": "text",
    r"a valid list": "a list",
    r"a valid dictionary.*": "a group of keys and values",
    r" after validation": "",
}
"""What stands in place of pydantic's words."""
PATTERNS: dict[str, str] = {
    "^[0-9a-f]{40}$": "40 hexadecimal digits of a commit, since a branch such as main moves",
    "^[A-Za-z0-9][A-Za-z0-9._-]*$": "letters, digits and . _ -, of which the first is a letter or a digit",
    "^[A-Za-z_][A-Za-z0-9_]*$": "letters, digits and _, of which the first is no digit",
    "^[a-z0-9]+(-[a-z0-9]+)*$": "small letters and digits, with - between them",
    "^[a-z0-9]+([.-][a-z0-9]+)*$": "small letters and digits, with . or - between them",
    r"\S": "text with more than spaces",
}
Typed = TypeVar("Typed", bound=BaseModel)
Groups = list[type[BaseModel]]


def validated(model: type[Typed], values: dict[str, Any], where: str) -> Typed:
    """Validates a study; BadInput lists every error with its key and the valid values."""
    try:
        return model.model_validate(values)
    except ValidationError as error:
        raise BadInput(f"{where} is not a valid {model.__name__}:\n  " + "\n  ".join(listed(model, error))) from None


def listed(model: type[BaseModel], error: ValidationError) -> list[str]:
    """One line for each error, with its key and the valid values."""
    errors = error.errors()
    lines = [_explain(model, item) for item in errors[:SHOWN]]
    return [*lines, f"and {len(errors) - SHOWN} more"] if errors[SHOWN:] else lines


def require_once(key: str, values: Sequence[Any], advice: str = "give each once") -> None:
    """Raises ValueError naming a value that a list has twice; for a validator."""
    if repeated := [value for place, value in enumerate(values) if value in values[:place]]:
        raise ValueError(f"{key} has {repeated[0]} twice: {advice}")


def require_different(kind: str, trainings: Mapping[str, Any]) -> None:
    """Raises ValueError naming two trainings that are one under two names."""
    names: dict[str, str] = {}
    for name, training in trainings.items():
        if (first := names.setdefault(repr(training), name)) != name:
            raise ValueError(f"the {kind} {first} and {name} are the same training: leave one of them out")


def require_at_most(key: str, value: float | None, limit: str, at_most: float | None, advice: str = "lower it") -> None:
    """Raises ValueError where a value is more than that of the key `limit`; None is unknown, and no limit."""
    if value is not None and at_most is not None and value > at_most:
        raise ValueError(f"{key} {value:g} is more than {limit} {at_most:g}: {advice}")


def said(error: Any) -> str:
    """The text of a pydantic error without the offending value."""
    message = str(error["msg"])
    for words, ours in WORDS.items():
        message = re.sub(words, ours, message)
    return message


def explain(error: ValidationError) -> str:
    """Describes an error of a configuration that code makes, such as a page, by class, key, message and value."""
    return "; ".join(
        f"{'.'.join([error.title, *map(str, item['loc'])])}: {said(item)}"
        + ("" if item["type"] in ("missing", "value_error") else f" (it is {cut(repr(item['input']))})")
        for item in error.errors()
    )


def set_key(values: dict[str, Any], path: str, value: Any, where: str) -> None:
    """Sets the key `group.key` of a study that is not yet validated; BadInput names `where` that was asked for."""
    *parents, last = path.split(".")
    for parent in parents:
        if values.get(parent) is None:
            values[parent] = {}
        values = values[parent]
        if not isinstance(values, dict):
            raise BadInput(f"{where}: {parent} is a value, not a group of keys")
    values[last] = value


def _explain(model: type[BaseModel], item: Any) -> str:
    """One line for a validation error: key, message, valid values."""
    names, groups = _place(model, item["loc"])
    key = ".".join(map(str, names))
    if item["type"].startswith("union_tag"):
        return f"{key}.{_wrong_tag(groups, item)}"
    if item["type"] == "extra_forbidden":
        return f"{key}: {_unknown(model, names, _place(model, item['loc'][:-1])[1])}"
    message = said(item)
    if item["type"] == "value_error" and isinstance(item["input"], dict):  # the message names the keys of this group
        return f"{key}: {message}" if key else message
    suffix = "" if item["type"] == "missing" else f" (it is {cut(repr(item['input']))})"
    if item["type"] in ("literal_error", "enum"):
        hint = did_you_mean(str(item["input"]), re.findall("'([^']*)'", item["ctx"]["expected"]))
        suffix += f"; {hint}".rstrip()
    if item["type"] == "list_type":
        suffix += f": write a list, such as [{cut(str(item['input']))}]"
    crossed = item["type"].startswith(("greater", "less"))
    if crossed and issubclass(model, Configuration):  # pydantic names the one limit that was crossed
        of_key = next((f"; limits: {row.limits}" for row in keys_of(model, key) if row.path == key), "")
        suffix = f" (it is {cut(repr(item['input']))}{of_key})"
    return f"{key or model.__name__}: {message}{suffix}"


def _unknown(model: type[BaseModel], names: Sequence[Any], groups: Groups) -> str:
    """What is wrong with a key that the `groups` at its place have not, and what was perhaps meant."""
    valid = sorted({name for group in groups for name in group.model_fields})
    *parents, name = map(str, names)
    paths, place = sorted({*_paths([model])}), ".".join(parents)
    same = [path for path in paths if path.rpartition(".")[2] == name]
    if f"{place}.{name}" in same:  # the group has another `source`, whose keys are others
        return (
            f"a key of another {place}.source; valid keys here: {', '.join(valid)}. Give the group whole, "
            f"such as --set '{place}={{{', '.join(f'{option}: ...' for option in valid)}}}'"
        )
    close = same or difflib.get_close_matches(name, valid, n=1)
    if not close:
        similar = difflib.get_close_matches(name, {path.rpartition(".")[2] for path in paths}, n=1, cutoff=0.7)
        close = [path for path in paths if path.rpartition(".")[2] in similar]
    hint = f"did you mean {' or '.join(map(repr, close))}? " if close else ""
    return f"unknown key, which no stage reads; {hint}valid keys here: {', '.join(valid)}"


def _wrong_tag(groups: Groups, item: Any) -> str:
    """The error of a key, such as `source`, that chooses the keys of its group, and the valid values."""
    name = item["ctx"]["discriminator"].strip("'")
    valid = [str(group.model_fields[name].default) for group in groups]
    if name not in item["input"]:
        return f"{name} is missing: {', '.join(valid)}"
    value = item["input"][name]
    close = did_you_mean(str(value), valid)
    return f"{name}: {cut(repr(value))} is none of its values; {close}valid: {', '.join(valid)}"


def _place(model: type[BaseModel], loc: Sequence[Any]) -> tuple[list[Any], Groups]:
    """The keys that lead to a place, and the groups that may stand there: several, where `source` chooses one.

    pydantic names a member of such a union by its `source`, which is no key.
    """
    names: list[Any] = []
    groups: Groups = [model]
    for part in loc:
        if chosen := [group for group in groups if (tag := group.model_fields.get("source")) and tag.default == part]:
            groups = chosen
            continue
        names.append(part)
        if not isinstance(part, int):  # of a list
            fields = [group.model_fields[part] for group in groups if part in group.model_fields]
            groups = [inner for field in fields for inner in _groups(field.annotation)]
    return names, groups


def _groups(annotation: Any) -> Groups:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [group for inner in get_args(annotation) for group in _groups(inner)]


def _paths(groups: Groups, parent: str = "") -> Iterator[str]:
    """Every key of these groups and of those below, as `group.key`."""
    for name, field in (pair for group in groups for pair in group.model_fields.items()):
        yield parent + name
        yield from _paths(_groups(field.annotation), f"{parent}{name}.")
