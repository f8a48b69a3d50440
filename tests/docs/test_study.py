"""What the README and docs/ show of the robustness study is what a study gives."""

import re

import pytest

from deployments.dag.page import load_page
from deployments.dag.walk import Walk
from flows.command import settings
from tasks.stage.outcome import PRECEDENCE
from tests.docs.pages import PAGES, blocks

STUDY = PAGES["docs/study-robustness.md"]
SHOWN = STUDY[STUDY.index("> **") : STUDY.index("(abridged: ")]


def tables(text: str) -> list[list[str]]:
    """Of each table the header and what stands first in its rows."""
    found: list[list[str]] = []
    rows = re.findall(r"^(?:> )?(?:\| ([^|]*?) *\|(.*)\||.*)$", text, re.MULTILINE)
    for before, (name, rest) in zip([("", ""), *rows], rows, strict=False):
        if name and not before[0]:
            found.append([name + re.sub(" +", " ", rest)])
        elif name and "--" not in name:
            found[-1].append(name)
    return found


def test_the_tables_have_the_rows_and_columns_of_a_run(smoke_root):
    (file,) = smoke_root.glob("smoke/aggregate/*/table.md")
    # the quick study has more arms than the smoke study: its tables have the rows of these, and further ones; transfer
    # has further columns too
    shown, made = (
        tables(re.sub(r"( \| +on (\*\*)?[\w@.-]+( \(dead\)\*\*)?)+", " | on each", text))
        for text in (SHOWN, file.read_text())
    )
    assert len(shown) >= 2
    for header, *rows in shown:
        assert any(header == there and set(names) <= set(rows) for there, *names in made), header


def test_the_picture_is_the_DAG_of_the_study():
    """Its arrows are those of the page, without those that follow from others."""
    (picture,) = (block.text for block in blocks("mermaid") if block.page == "docs/study-robustness.md")
    names = dict(re.findall(r'^ +(\w+)\["([\w-]+)<br>', picture, re.MULTILINE))
    drawn = {
        (names[start], names[end])
        for starts, ends in re.findall(r"^ +([\w& ]+?) --> ([\w& ]+)$", picture, re.MULTILINE)
        for start in starts.split(" & ")
        for end in ends.split(" & ")
    }
    page = load_page("robustness")
    study = settings.read_study(page, "quick", [], None)
    walk = Walk("", study.name, study.execution)
    page.walk(study, walk)
    reads = {(given.stage.name, handle.stage.name) for handle in walk.handles for given in handle.inputs.values()}
    assert drawn == {arrow for arrow in reads if not _follows(arrow, reads)}


def _follows(arrow: tuple[str, str], arrows: set[tuple[str, str]]) -> bool:
    """Whether its end is reached from its start by way of another."""
    waiting = [end for start, end in arrows if start == arrow[0] and end != arrow[1]]
    seen: set[str] = set()
    while waiting:
        if (at := waiting.pop()) not in seen:
            seen.add(at)
            waiting += [end for start, end in arrows if start == at]
    return arrow[1] in seen


def test_the_exit_codes_are_those_of_the_command():
    shown = {int(code) for code in re.findall(r"^\| (\d+) \|", PAGES["docs/running.md"], re.MULTILINE)}
    assert shown == {state.exit_code for state in PRECEDENCE}


def test_every_profile_is_described():
    table = PAGES["docs/running.md"].partition("| profile | what |")[2].partition("\n\n")[0]
    first = " ".join(re.findall(r"^\| (.*?) \|", table, re.MULTILINE))
    assert set(re.findall(r"`([^`]+)`", first)) == set(settings.profile_names(load_page("robustness")))


def test_the_arms_and_profiles_of_the_inversion_study_are_described():
    text = PAGES["docs/study-inversion.md"]
    arms, profiles = (next(rows for rows in tables(text) if rows[0].startswith(head)) for head in ("arm", "profile"))
    study = settings.read_study(load_page("inversion"), "quick", [], None)
    assert arms[1:5] == [arm.name for arm in study.arms]
    assert {name.strip("`") for name in profiles[1:]} == set(settings.profile_names(load_page("inversion"))) - {"smoke"}


@pytest.mark.parametrize("study", ["calorimeter", "icecube", "inversion", "poison"])
def test_the_stages_of_a_study_are_described_in_their_order(study):
    page, walk = load_page(study), Walk("", study)
    page.walk(settings.read_study(page, "quick", [], None), walk)
    stages = re.findall(rf"^\| ({study}-[\w-]+) \|", PAGES[f"docs/study-{study}.md"], re.MULTILINE)
    assert stages == list(dict.fromkeys(handle.stage.name for handle in walk.handles))
