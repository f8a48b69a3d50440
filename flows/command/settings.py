"""From what a person writes (a profile, a file, `--set`) to a typed study, with errors that say what to do."""

import argparse
import re
from collections.abc import Hashable
from pathlib import Path
from typing import Any

import yaml

from deployments.dag.page import Page
from storage import reading
from storage.errors import BadInput, cut, did_you_mean
from storage.run_directory import read
from tasks.stage.validation import set_key, validated

DEFAULT_PROFILE = "quick"
KEPT = "study.json"
"""The file beside each run that has the study which began it: it is a profile too."""


def root_of(options: argparse.Namespace) -> str:
    """The folder of the run directories. BadInput when it is a file."""
    root = options.root or "runs"
    if options.dispatch == "slurm" and not options.root:
        from deployments.slurm.cluster.site import read_site

        root = read_site().root
    if Path(root).expanduser().is_file():
        raise BadInput(f"--root {root} is a file: name the folder of the run directories, which may be a new one")
    return root


class _Loader(reading.Loader):
    """YAML 1.2 numbers, since YAML 1.1 reads 1e-5 as text; and a key given twice is an error, not the second value."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys: set[Any] = set()
        for place, _ in node.value:
            key = self.construct_object(place, deep=True)
            if not isinstance(key, Hashable):
                break  # the constructor below says so
            if key in keys:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {cut(repr(key))} is given twice", place.start_mark
                )
            keys.add(key)
        return super().construct_mapping(node, deep)


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(\d+(\.\d*)?|\.\d+)[eE][-+]?\d+$"),
    list("-+.0123456789"),
)


def read_study(page: Page, profile: str | None, changes: list[str], seed: int | None) -> Any:
    """The study of a profile (a name, or a .yaml file) with `key.path=value` changes; BadInput when it is wrong.

    Without a profile it is that of DEFAULT_PROFILE, or, where the study has none, what the defaults of its keys say.
    """
    if profile is None and DEFAULT_PROFILE in profile_names(page):
        profile = DEFAULT_PROFILE
    values: dict[str, Any] = profile_values(page, profile) if profile else {"name": page.name}
    for change in changes:
        _apply(values, change)
    if seed is not None:
        values["seed"] = seed
    return validated(page.model, values, profile or page.name)


def profile_names(page: Page) -> list[str]:
    """Names of the profiles in the study's folder of them."""
    return sorted(file.stem for file in page.profiles.glob("*.yaml"))


def profile_file(page: Page, profile: str) -> Path:
    """The file of a profile. BadInput when there is none of this name."""
    file = Path(profile)
    if file.suffix in (".yaml", ".yml") or file.name == KEPT:
        return file
    file = page.profiles / f"{profile}.yaml"
    if not file.is_file():
        names = profile_names(page)
        close, known = did_you_mean(profile, names), ", ".join(names) or "none"
        raise BadInput(f"{page.name} has no profile {profile!r}; {close}its profiles: {known}; or give a .yaml file")
    return file


def profile_values(page: Page, profile: str) -> dict[str, Any]:
    """Values of a profile (a name, a .yaml file, a run's study.json), not yet validated. BadInput when it cannot be
    read."""
    file = profile_file(page, profile)
    kept = file.name == KEPT
    values = read(file).get("study") if kept else reading.given_yaml(file, f"there is no file {file}", _Loader)
    if not isinstance(values, dict):
        raise BadInput(f"{file} {'holds no study' if kept else 'must hold keys and values, such as `name: my-study`'}")
    return {"name": file.stem} | values


def read_over(options: list[str]) -> dict[str, list[Any]]:
    """Values by key of each `key.path=value,value`. Each value is read as YAML. BadInput for what cannot be read."""
    over: dict[str, list[Any]] = {}
    for option in options:
        key, equals, text = option.partition("=")
        if not equals or not key or not text:
            raise BadInput(f"--over {option!r} is not KEY=VALUE,VALUE, such as --over seed=42,1337")
        if key in over:
            raise BadInput(f"--over {key} is given twice: give all its values at once, such as --over {key}=1,2")
        try:
            over[key] = reading.yaml_value(f"[{text}]", f"--over {key}: {cut(repr(text))}", _Loader)
        except ValueError as error:
            raise BadInput(str(error)) from None
    return over


def _apply(values: dict[str, Any], change: str) -> None:
    """Applies one `key.path=value`; the value is read as YAML, so numbers are numbers and [a, b] is a list."""
    path, equals, text = change.partition("=")
    if not equals or not path:
        raise BadInput(f"--set {change!r} is not KEY=VALUE, such as --set budget.epochs=0.5")
    try:
        value = reading.yaml_value(text, f"--set {path}: {cut(repr(text))}", _Loader)
    except ValueError as error:
        raise BadInput(str(error)) from None
    set_key(values, path, value, f"--set {path}")
