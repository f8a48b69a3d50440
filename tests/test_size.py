"""How large the house is, floor by floor: numbers fall at a landing, and an issue alone raises a cap.

python -m tests.test_size     the ledger: floor, lines, limit, cap
"""

import ast
import functools
import sys
from pathlib import Path

import pytest

from tests.test_architecture import REPOSITORY, STUDIES, _imports, _sources

PRODUCT = ("flows", "deployments", "tasks", "storage", "ratchet")
FLOORS = {
    "core": ("storage", "tasks/stage", "tasks/training", "deployments/dag"),
    "findings": ("tasks/findings",),
    "slurm": ("deployments/slurm",),
    "face": ("flows/command", "deployments/views", "ratchet"),
    "prefect and here": ("deployments", "flows"),
}
"""A file is on the first floor whose folder it is in; files of `tasks` on no floor are a study's, or of subjects."""
CAPS = {
    "core": 11_000,
    "findings": 3_800,
    "slurm": 6_000,
    "face": 4_000,
    "prefect and here": 2_900,
    **dict.fromkeys(STUDIES, 1_800),
    **dict.fromkeys(("robustness", "icecube", "poison"), 2_300),
    "subjects": 9_500,
    "all": 47_500,
    "tests": 51_500,
}
"""Of issue 50. A study's lines are its room, its page, its report.md, and what only it uses of shared rooms."""
ABOVE: dict[str, int] = {"core": 11_568, "poison": 2_411}
"""Floors above their cap, and how many lines they may have until they are below: these numbers fall."""


def lines(*places: str) -> int:
    return sum(file.read_text().count("\n") for file in _sources(*places))


@functools.cache
def imports(file: Path) -> frozenset[Path]:
    """The files of tasks that a file imports, also inside functions, and those that it names as `module:function`."""
    texts = (node.value for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.Constant))
    works = {text.partition(":")[0] for text in texts if isinstance(text, str) and text.startswith("tasks.")}
    files = (
        REPOSITORY / f"{name.replace('.', '/')}.py" for name in _imports(file) | works if name.startswith("tasks.")
    )
    return frozenset(file for file in files if file.is_file())


def reached(file: Path) -> set[Path]:
    waiting, seen = [file], set[Path]()
    while waiting:
        if (here := waiting.pop()) not in seen:
            seen.add(here)
            waiting += imports(here)
    return seen


@functools.cache
def ledger() -> dict[str, int]:
    """Floor -> its lines."""
    rooms = {study: {*_sources(f"tasks/{study}"), REPOSITORY / f"flows/{study}.py"} for study in STUDIES}
    floor_of = {file: study for study, files in rooms.items() for file in files}
    for floor, places in FLOORS.items():
        floor_of |= {file: floor for file in _sources(*places) if file not in floor_of}
    used = {study: set().union(*map(reached, files)) for study, files in rooms.items()}
    for file in _sources("tasks"):
        by = [study for study in STUDIES if file in used[study]]
        floor_of.setdefault(file, by[0] if len(by) == 1 else "subjects")
    found = dict.fromkeys(CAPS, 0)
    for file, floor in floor_of.items():
        found[floor] += file.read_text().count("\n")
    for study in STUDIES:
        found[study] += sum(file.read_text().count("\n") for file in (REPOSITORY / f"tasks/{study}").glob("*.md"))
    return found | {"all": sum(found.values()), "tests": lines("tests")}


@pytest.mark.parametrize("floor", CAPS)
def test_a_floor_keeps_to_its_lines(floor):
    assert ledger()[floor] <= ABOVE.get(floor, CAPS[floor])


def test_every_file_is_on_one_floor_and_a_floor_below_its_cap_has_no_other_limit():
    counted = sum(ledger()[floor] for floor in CAPS if floor not in ("all", "tests"))
    prose = sum(file.read_text().count("\n") for file in REPOSITORY.glob("tasks/*/*.md"))
    assert counted == ledger()["all"] == lines(*PRODUCT) + prose
    assert not {floor for floor, limit in ABOVE.items() if limit <= CAPS[floor]}


if __name__ == "__main__":
    for floor, count in ledger().items():
        sys.stdout.write(f"| {floor} | {count:,} | {ABOVE.get(floor, CAPS[floor]):,} | {CAPS[floor]:,} |\n")
