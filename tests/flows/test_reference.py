"""docs/reference.md and the page of each study are made of the configuration, and say every key once."""

import re

import pytest

from deployments.dag.page import load_page
from deployments.dag.sources import page_names
from tasks.icecube.study import Trial
from tasks.stage.keys import Key, keys_of
from tests.conftest import REPOSITORY
from tools.reference import reference, shared_reference

DOCS = REPOSITORY / "docs"
PAGES = {name: (DOCS / f"reference-{name}.md").read_text() for name in page_names()}
SHARED = (DOCS / "reference.md").read_text()


@pytest.mark.parametrize("study", [*page_names(), ""])
def test_the_page_is_what_the_tool_makes(study):
    """After a change of a key: as CONTRIBUTING.md has it."""
    assert f"{reference(load_page(study)) if study else shared_reference()}\n" == (PAGES[study] if study else SHARED)


def cells_of(page: str) -> list[list[str]]:
    rows = [line.strip("| ").replace(r"\|", "/") for line in page.splitlines() if line.startswith("| `")]
    return [[cell.strip() for cell in row.split("|")] for row in rows]


def facts(key: Key) -> list[str]:
    return [
        f"`{key.path}`",
        key.type.replace("|", "/"),
        key.unit,
        f"`{key.default}`" if key.default else "required",
        f"`{key.limits}`" if key.limits else "",
        "yes" if key.field_class == "scientific" else "no",
        key.description.replace("|", "/"),
    ]


@pytest.mark.parametrize("study", page_names())
def test_every_key_stands_once_on_its_page_or_on_the_shared_one(study):
    own, shared = cells_of(PAGES[study]), cells_of(SHARED)
    of_it = [row[:-1] for row in shared if row[-1] == "all" or study in row[-1].split(", ")]
    assert sorted([*own, *of_it]) == sorted(facts(key) for key in dict.fromkeys(keys_of(load_page(study).model)))
    named = re.findall(r"`([\w.]+)`", " ".join(re.findall(r"^In \[reference.md\].*", PAGES[study], re.MULTILINE)))
    assert sorted(f"`{name}`" for name in named) == sorted({row[0] for row in of_it})


def test_keys_stand_below_their_group_and_the_choice_that_brings_them():
    files = SHARED.partition("With `text.source=files`:")[2].partition("With `")[0]
    assert re.findall(r"^\| `([\w.]+)`", files, re.MULTILINE)[:2] == ["text.source", "text.paths"]
    for page in (SHARED, *PAGES.values()):
        headings = re.findall(r"^## (.*)$", page, re.MULTILINE)
        assert headings[0] == "Keys of the study itself" and headings[-1] == "`execution`"
        assert len(headings) == len({*headings}) and all(name.startswith("`") for name in headings[1:])


def test_the_keys_of_what_a_list_holds_stand_below_it():
    page = PAGES["icecube"]
    assert "| `trials` | list of groups |  | required |" in page
    of_each = page.partition("With `trials=[{...}]`:")[2].partition("\n## ")[0]
    assert re.findall(r"^\| `trials\.(\w+)` \|", of_each, re.MULTILINE) == [*Trial.model_fields]
