"""The layout shows the architecture: imports go down only, and the mathematics knows no Prefect."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
from pydantic import BaseModel

from deployments.dag.page import load_page

REPOSITORY = Path(__file__).parent.parent
ALLOWED = {
    "storage": {"storage"},
    "tasks": {"tasks", "storage"},
    "deployments": {"deployments", "tasks", "storage"},
    "flows": {"flows", "deployments", "tasks", "storage"},
    "ratchet": {"ratchet", "deployments", "tasks", "storage"},
}
BESIDE = ("tools", "benchmarks", "tests")
"""What is no part of the product: it imports the rooms, and no room imports it."""
SPINE = ["tasks/training", "tasks/data", "tasks/findings", "tasks/stage", "deployments"]
STUDY_ROOMS = (
    "tasks.language",
    "tasks.monotonic",
    "tasks.attacks",
    "tasks.influence",
    "tasks.sensors",
    "tasks.robustness",
    "tasks.icecube",
    "tasks.inversion",
    "tasks.summarisation",
    "tasks.poison",
    "tasks.calorimeter",
)


def _imports(file: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def _sources(*places: str) -> list[Path]:
    paths = [REPOSITORY / place for place in places]
    return [file for path in paths for file in ([path] if path.is_file() else sorted(path.rglob("*.py")))]


SUBJECTS = ("language", "monotonic", "attacks", "influence", "sensors")
STUDIES = ("robustness", "icecube", "inversion", "summarisation", "poison", "calorimeter")
"""Rooms of one study each: nothing but their page imports them."""
ROOMS_IN_ORDER = {
    "deployments": ("dag", "views", "here", "prefect", "slurm"),
    "deployments/slurm": ("cluster", "job", "pool", "study"),
    "tasks/findings": ("statistics", "sweep"),
}
"""Each room may import those before it."""


def test_no_room_imports_a_study_s_room():
    for file in _sources("tasks", "storage", "deployments"):
        for study in STUDIES:
            if file.is_relative_to(REPOSITORY / "tasks" / study):
                continue
            found = {name for name in _imports(file) if name.startswith(f"tasks.{study}.")}
            assert not found, f"{file.relative_to(REPOSITORY)} imports {found}"


def test_subjects_import_one_another_in_one_direction():
    known = {
        (room, other)
        for room in SUBJECTS
        for file in _sources(f"tasks/{room}")
        for other in SUBJECTS
        if other != room and any(name.startswith(f"tasks.{other}") for name in _imports(file))
    }
    assert not {(other, room) for room, other in known} & known


@pytest.mark.parametrize("house", ROOMS_IN_ORDER)
def test_rooms_import_those_before_them(house):
    rooms = ROOMS_IN_ORDER[house]
    for place, room in enumerate(rooms):
        later = tuple(f"{house}/{other}".replace("/", ".") + "." for other in rooms[place + 1 :])
        for file in _sources(f"{house}/{room}"):
            assert not later or not [name for name in _imports(file) if name.startswith(later)], file


@pytest.mark.parametrize("room", ALLOWED)
def test_imports_go_down_only(room):
    for file in _sources(room):
        ours = {name.split(".")[0] for name in _imports(file)} & {*ALLOWED, *BESIDE}
        assert ours <= ALLOWED[room], f"{file.relative_to(REPOSITORY)} imports {ours - ALLOWED[room]}"


def test_the_work_of_stages_never_imports_prefect():
    for file in _sources("tasks", "storage"):
        found = {name.split(".")[0] for name in _imports(file)} & {"prefect", "prefect_shell"}
        assert not found, f"{file.relative_to(REPOSITORY)} imports {found}"


def test_the_spine_knows_no_study():
    for file in _sources(*SPINE):
        known = {name for name in _imports(file) if name.startswith(STUDY_ROOMS)}
        assert not known, f"{file.relative_to(REPOSITORY)} imports {known}"


def test_only_the_command_line_prints():
    for file in _sources(*ALLOWED):
        calls = [node for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.Call)]
        assert not [call for call in calls if getattr(call.func, "id", "") == "print"], file


NEW_KEYS = 30
KEY_CAPS = {"icecube": 45}


@pytest.mark.parametrize("study", STUDIES)
def test_a_study_keeps_to_its_budget_of_keys(study):
    keys = {*_own_keys(load_page(study).model, f"tasks.{study}.")} - {"seed"}
    assert len(keys) <= KEY_CAPS.get(study, NEW_KEYS), keys


def _own_keys(model: type[BaseModel], room: str) -> Iterator[str]:
    """Dotted keys that are declared in the room, and in no shared group."""
    for name, field in model.model_fields.items():
        groups = [*_groups(field.annotation)]
        declaring = next(kind for kind in model.__mro__ if name in vars(kind).get("__annotations__", {}))
        if not groups and declaring.__module__.startswith(room):
            yield name
        yield from (f"{name}.{key}" for group in groups for key in _own_keys(group, room))


def _groups(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for inner in get_args(annotation):
        yield from _groups(inner)


def test_every_benchmark_and_tool_finds_what_it_imports():
    """Three benchmarks named functions and results that were gone, and nothing ran them."""
    files = [file for room in ("benchmarks", "tools") for file in sorted((REPOSITORY / room).glob("*.py"))]
    code = "".join(f"import {file.parent.name}.{file.stem}\n" for file in files)
    done = subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, timeout=300)
    assert len(files) >= 20 and done.returncode == 0, done.stderr
