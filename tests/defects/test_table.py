"""The table of README.md: every number, and tests that are there."""

import ast
import re
from pathlib import Path

from tests.conftest import REPOSITORY

HERE = Path(__file__).parent
NUMBERS = range(1, 33)


def rows() -> dict[int, list[tuple[Path, str]]]:
    """Number -> file and name of each test in its row."""
    found = {}
    for line in (HERE / "README.md").read_text().splitlines():
        if row := re.match(r"\| D(\d+) \|", line):
            named = [tuple(test.split("::")) for test in re.findall(r"`([\w./]+::\w+)`", line)]
            assert int(row[1]) not in found, f"D{row[1]} stands there twice"
            found[int(row[1])] = [(REPOSITORY / file if "/" in file else HERE / file, test) for file, test in named]
    return found


def names_in(file: Path) -> set[str]:
    return {node.name for node in ast.parse(file.read_text()).body if isinstance(node, ast.FunctionDef)}


def test_the_table_names_every_defect_and_only_tests_that_exist():
    assert list(rows()) == list(NUMBERS)
    assert [number for number, tests in rows().items() if not tests] == []
    missing = [(file.name, test) for tests in rows().values() for file, test in tests if test not in names_in(file)]
    assert missing == []


def test_every_test_with_a_number_stands_in_the_row_of_its_number():
    numbered = {
        (int(number), test)
        for file in HERE.glob("test_*.py")
        for test in names_in(file)
        for number in re.findall(r"_d(\d\d)(?=_)", test)
    }
    assert numbered - {(number, test) for number, tests in rows().items() for _, test in tests} == set()
    assert len(numbered) > 15
