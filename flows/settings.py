"""From what a person writes (a profile, a file, `--set`) to a typed study, with errors that say what to do."""

from __future__ import annotations

import difflib
import re
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from storage.errors import BadInput
from tasks.configuration import Configuration

PROFILES = Path(__file__).parent / "profiles"
StudyType = TypeVar("StudyType", bound=Configuration)


class _Loader(yaml.SafeLoader):
    """YAML 1.2 numbers, since YAML 1.1 reads 1e-5 as text; and a key given twice is an error, not the second value."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        if twice := [key for key in keys if keys.count(key) > 1]:
            raise yaml.constructor.ConstructorError(None, None, f"the key {twice[0]!r} is given twice", node.start_mark)
        return super().construct_mapping(node, deep)


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(\d+(\.\d*)?|\.\d+)[eE][-+]?\d+$"),
    list("-+.0123456789"),
)


def read_study(model: type[StudyType], profile: str, changes: list[str], seed: int | None) -> StudyType:
    """The study of a profile (a name, or a .yaml file) with `key.path=value` changes; BadInput when it is wrong."""
    values = _read_profile(profile)
    for change in changes:
        _apply(values, change)
    if seed is not None:
        values["seed"] = seed
    return validated(model, values, profile)


def profile_names() -> list[str]:
    """Names of the profiles that come with Ratchet."""
    return sorted(file.stem for file in PROFILES.glob("*.yaml"))


def validated(model: type[StudyType], values: dict[str, Any], where: str) -> StudyType:
    """`values` as a typed study; BadInput listing every error with its key and what would be valid."""
    try:
        return model.model_validate(values)
    except ValidationError as error:
        lines = [_explained(model, item) for item in error.errors()]
        raise BadInput(f"{where} is not a valid {model.__name__}:\n  " + "\n  ".join(lines)) from None


def _read_profile(profile: str) -> dict[str, Any]:
    file = Path(profile)
    if file.suffix not in (".yaml", ".yml"):
        file = PROFILES / f"{profile}.yaml"
        if not file.is_file():
            raise BadInput(
                f"there is no profile {profile!r}. Profiles: {', '.join(profile_names())}; or give a .yaml file"
            )
    try:
        values = yaml.load(file.read_text(), _Loader)
    except FileNotFoundError:
        raise BadInput(f"there is no file {file}") from None
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise BadInput(f"{file} cannot be read as YAML: {error}") from None
    if not isinstance(values, dict):
        raise BadInput(f"{file} must hold keys and values, such as `name: my-study`")
    return {"name": file.stem} | values


def _apply(values: dict[str, Any], change: str) -> None:
    """Applies one `key.path=value`; the value is read as YAML, so numbers are numbers and [a, b] is a list."""
    path, equals, text = change.partition("=")
    if not equals or not path:
        raise BadInput(f"--set {change!r} is not KEY=VALUE, such as --set budget.epochs=0.5")
    *parents, last = path.split(".")
    target = values
    for parent in parents:
        target = target.setdefault(parent, {})
        if not isinstance(target, dict):
            raise BadInput(f"--set {path}: {parent} is a value, not a group of keys")
    try:
        target[last] = yaml.load(text, _Loader)
    except yaml.YAMLError as error:
        raise BadInput(f"--set {path}: {text!r} cannot be read as YAML: {error}") from None


def _explained(model: type[BaseModel], item: Any) -> str:
    """One validation error: key, what is wrong, what would be valid."""
    key = ".".join(str(part) for part in item["loc"] if part not in _tags(model))
    if item["type"] != "extra_forbidden":
        between_keys = item["type"] == "value_error" and isinstance(item["input"], dict)
        if between_keys:  # the message names them, and the input is the whole study
            return item["msg"].removeprefix("Value error, ")
        shown = "" if item["type"] == "missing" else f" (it is {item['input']!r})"
        if item["type"] == "list_type":
            shown += f": write a list, such as [{item['input']}]"
        return f"{key or model.__name__}: {item['msg']}{shown}"
    valid = sorted(_fields_at(model, item["loc"][:-1]))
    close = difflib.get_close_matches(str(item["loc"][-1]), valid, n=1) or _elsewhere(model, str(item["loc"][-1]))
    hint = f"did you mean {' or '.join(map(repr, close))}? " if close else ""
    return f"{key}: unknown key, which no stage reads; {hint}valid keys here: {', '.join(valid)}"


def _elsewhere(model: type[BaseModel], name: str) -> list[str]:
    """The keys with the name that is most like `name`, with their groups, wherever in the configuration they stand."""
    schema = model.model_json_schema()
    paths = sorted(_paths(schema, schema))
    alike = difflib.get_close_matches(name, {path.rpartition(".")[2] for path in paths}, n=1, cutoff=0.7)
    return [path for path in paths if path.rpartition(".")[2] in alike]


def _paths(place: dict[str, Any], schema: dict[str, Any], group: str = "") -> set[str]:
    """Every key below a place of the schema, as `group.key`."""
    properties = [item for option in _options(place, schema) for item in option.get("properties", {}).items()]
    below = [_paths(inner, schema, f"{group}{name}.") for name, inner in properties]
    return {group + name for name, _ in properties}.union(*below)


def _tags(model: type[BaseModel]) -> set[Any]:
    """The values of `source`, which pydantic puts into the place of an error and which are no keys."""
    kinds = model.model_json_schema()["$defs"].values()
    return {kind["properties"]["source"].get("const") for kind in kinds if "source" in kind.get("properties", {})}


def _fields_at(model: type[BaseModel], path: tuple[Any, ...]) -> set[str]:
    """Names of the fields that are valid at a place in the configuration, read from its JSON schema."""
    schema = model.model_json_schema()
    places = [schema]
    for part in path:
        places = [inner for place in places for inner in _step(_resolved(place, schema), part, schema)]
    return {name for place in places for option in _options(place, schema) for name in option.get("properties", {})}


def _step(place: dict[str, Any], part: Any, schema: dict[str, Any]) -> list[dict[str, Any]]:
    options = _options(place, schema)
    tagged = [
        option for option in options if option.get("properties", {}).get("source", {}).get("const") == part
    ]  # pydantic names the member of a union by its tag, which is no key
    return tagged or [option["properties"][part] for option in options if part in option.get("properties", {})]


def _options(place: dict[str, Any], schema: dict[str, Any]) -> list[dict[str, Any]]:
    place = _resolved(place, schema)
    return [_resolved(option, schema) for option in place.get("anyOf", [place])]


def _resolved(place: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any]:
    while "$ref" in place:
        place = schema["$defs"][place["$ref"].rsplit("/", 1)[-1]]
    return place
