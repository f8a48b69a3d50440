"""docs/reference.md is made of the configuration, and says every key."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from deployments.dag.sources import page_names
from flows import command
from tasks.icecube.configuration import Trial
from tasks.robustness.study import Study
from tasks.stage.keys import keys_of
from tests.conftest import REPOSITORY
from tests.test_own_study import written

PAGE = (REPOSITORY / "docs" / "reference.md").read_text()


@pytest.mark.parametrize("study", page_names())
def test_the_page_is_what_the_command_makes(study: str, capsys: pytest.CaptureFixture[str]) -> None:
    """After a change of a key: `ratchet reference robustness > docs/reference.md`."""
    name = "reference.md" if study == "robustness" else f"reference-{study}.md"
    assert command.ratchet(["reference", study]) == 0
    assert capsys.readouterr().out == (REPOSITORY / "docs" / name).read_text()


def test_every_key_stands_there_once_with_all_that_is_known_of_it() -> None:
    rows = [line.strip("| ").replace(r"\|", "/") for line in PAGE.splitlines() if line.startswith("| `")]
    cells = [[cell.strip() for cell in row.split("|")] for row in rows]
    shown = {(path, meaning): facts for path, *facts, meaning in cells}
    keys = keys_of(Study)
    assert len(rows) == len(keys) and all(len(row) == 7 for row in cells)
    for key in keys:
        kind, unit, default, limits, new_run = shown[f"`{key.path}`", key.description.replace("|", "/")]
        assert (kind, unit) == (key.type.replace("|", "/"), key.unit)
        assert default == (f"`{key.default}`" if key.default else "required")
        assert limits == (f"`{key.limits}`" if key.limits else "")
        assert new_run == ("yes" if key.field_class == "scientific" else "no")


def test_keys_stand_below_their_group_and_the_choice_that_brings_them() -> None:
    files = PAGE.partition("With `text.source=files`:")[2].partition("With `")[0]
    assert re.findall(r"^\| `([\w.]+)`", files, re.MULTILINE) == [
        "text.source",
        "text.paths",
        "text.text_column",
        "text.skip_bad_rows",
    ]
    headings = re.findall(r"^## (.*)$", PAGE, re.MULTILINE)
    assert headings[0] == "Keys of the study itself" and headings[-1] == "`execution`"
    assert headings[1:] == [f"`{group}`" for group in dict.fromkeys(name.strip("`") for name in headings[1:])]


def test_the_keys_of_what_a_list_holds_stand_below_it() -> None:
    page = (REPOSITORY / "docs" / "reference-icecube.md").read_text()
    assert "| `trials` | list of groups |  | `[{name: as-found}, {learning_rate: 0.0001, name: learning-rate}, " in page
    of_each = page.partition("With `trials=[{...}]`:")[2].partition("\n## ")[0]
    assert re.findall(r"^\| `trials\.(\w+)` \|", of_each, re.MULTILINE) == [*Trial.model_fields]


def test_a_study_of_one_s_own_has_one_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.ratchet(["reference", str(written(tmp_path / "own"))]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("# Every key of the study letters\n") and "`ratchet run letters.py --keys`" in shown
    assert "| `dropouts` | list of float |  | `[0.0, 0.2]` | `length >= 2` | yes | " in shown
