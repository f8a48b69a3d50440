"""Every file, place, key, setting and variable that the README and docs/ name exists."""

import fnmatch
import re
from pathlib import Path
from typing import get_args

import prefect.settings
import pytest
import yaml

from deployments.dag.page import load_page
from deployments.dag.sources import page_names
from deployments.slurm.cluster.site import Site, overrides
from tasks.language.configuration import LabelledText, Model, Text
from tasks.monotonic.arm import ARMS
from tasks.stage.keys import keys_of
from tests.conftest import REPOSITORY
from tests.docs.pages import PAGES, anchors, blocks, links, spans

WRITTEN = [(page, span) for page, text in PAGES.items() for span in spans(text)]
MADE_BY_THE_READER = {"deployments/sites/cluster.yaml"}
NO_KEYS = {"uat.parquet", "hotflip.parquet", "text.path", "text.result"}
"""Files, and attributes of a stage's input, that have the form of a key."""
KEYS = {key.path for name in page_names() for key in keys_of(load_page(name).model)}
GROUPS = {path.partition(".")[0] for path in KEYS}


@pytest.mark.parametrize(("page", "link"), [(page, link) for page, text in PAGES.items() for link in links(text)])
def test_every_link_leads_somewhere(page, link):
    place, _, anchor = link.partition("#")
    file = (REPOSITORY / page).parent / place if place else REPOSITORY / page
    assert file.exists(), f"{page}: {link}"
    assert not anchor or anchor in anchors(file), f"{page}: {file.name} has no heading for #{anchor}"


def places() -> list[tuple[str, str]]:
    """Code in a line that names a file or folder of the repository: a path, or a name with an ending at its top."""
    path = re.compile(
        r"(flows|tasks|storage|tests|deployments|docs|benchmarks|tools|\.ci)/[\w/.-]*|Makefile|[\w-]+\.(yaml|toml|cff)|constraints\.txt"
    )
    return [one for one in WRITTEN if path.fullmatch(one[1])]


@pytest.mark.parametrize(("page", "name"), places())
def test_every_place_exists(page, name):
    assert name in MADE_BY_THE_READER or (REPOSITORY / name).exists(), page


def test_the_table_of_pages_is_whole():
    assert "docs/README.md" in links(PAGES["README.md"])
    linked = {(Path("docs") / link).as_posix().removeprefix("docs/../") for link in links(PAGES["docs/README.md"])}
    assert set(PAGES) <= linked | {"docs/README.md"}


def keys() -> list[tuple[str, str]]:
    """Code in a line that has the form of a key: `budget.epochs`, `splits.*_documents`, `execution.device=cuda`."""
    form = re.compile(r"([a-z_]+(?:\.[a-z_*]+)+)(?:=.*|: .*)?")
    found = [(page, match[1]) for page, span in WRITTEN if (match := form.fullmatch(span))]
    return [(page, key) for page, key in found if key.partition(".")[0] in GROUPS and key not in NO_KEYS]


@pytest.mark.parametrize(("page", "key"), keys())
def test_every_key_exists(page, key):
    assert any(fnmatch.fnmatch(path, key) or path.startswith(f"{key}.") for path in KEYS), f"{page}: {key}"


@pytest.mark.parametrize(("page", "span"), [one for one in WRITTEN if one[1].startswith("{source: ")])
def test_every_choice_of_a_group_has_the_keys_that_are_shown(page, span):
    given = yaml.safe_load(re.sub(r", \.\.\.}", "}", span))
    options = [option for group in (Text, LabelledText, Model) for option in get_args(get_args(group)[0])]
    fields = [
        set(option.model_fields) for option in options if option.model_fields["source"].default == given["source"]
    ]
    assert any(given.keys() <= known for known in fields), page


def test_every_arm_and_nothing_else_is_described():
    table = PAGES["docs/study-robustness.md"].partition("| arm (`arms:`) |")[2].partition("\n\n")[0]
    assert set(re.findall(r"^\| `([\w-]+)` \|", table, re.MULTILINE)) == set(ARMS)


def variables() -> list[tuple[str, str]]:
    return sorted(
        {(page, name) for page, text in PAGES.items() for name in re.findall(r"\b(?:RATCHET|PREFECT)_\w+", text)}
    )


@pytest.mark.parametrize(("page", "name"), variables())
def test_every_variable_of_the_environment_is_read_by_somebody(page, name):
    if name.startswith("PREFECT_"):
        assert hasattr(prefect.settings, name), f"{page}: Prefect has no setting {name}"
    else:
        rooms = [REPOSITORY / room for room in ("storage", "tasks", "deployments", "flows")]
        assert any(f'"{name}"' in file.read_text() for room in rooms for file in room.rglob("*.py")), page


def test_every_piece_of_a_site_file_is_one(monkeypatch):
    monkeypatch.setenv("USER", "me")
    pieces = [yaml.safe_load(block.text) for block in blocks("yaml")]
    assert pieces
    for piece in pieces:
        Site.model_validate({"root": "/scratch/me/ratchet"} | piece)
        overrides({"resources": piece.get("resources") or {}}, "")


def test_the_citation_has_what_its_format_asks_for_and_this_version():
    """CFF 1.2.0: four keys are required, and a version is that of the package."""
    citation = yaml.safe_load((REPOSITORY / "CITATION.cff").read_text())
    assert citation.keys() >= {"cff-version", "message", "title", "authors"} and citation["cff-version"] == "1.2.0"
    assert citation.keys() <= {"cff-version", "message", "title", "authors", "abstract", "type", "version"}
    assert citation["authors"] == [{"name": "The Ratchet developers"}] and citation["type"] == "software"
    assert f'\nversion = "{citation["version"]}"\n' in (REPOSITORY / "pyproject.toml").read_text()
