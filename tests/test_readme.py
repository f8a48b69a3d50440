"""What the README shows is what runs."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import pytest

from deployments.page import load_page
from flows import command, settings
from tasks.stage.outcome import PRECEDENCE
from tests.conftest import REPOSITORY

README = (REPOSITORY / "README.md").read_text()
COMMANDS = re.findall(r"^    \.venv/bin/ratchet (.*?)(?: +#.*)?$", README, re.MULTILINE)
CHANGES = re.findall(r"`(--set [^`]*)`", README)
STORAGE = [words for words in COMMANDS if words.startswith(("list", "verify", "prune", "export"))]


def test_the_two_commands_are_targets_on_the_first_screen_and_can_be_pasted() -> None:
    makefile = (REPOSITORY / "Makefile").read_text()
    lines = [shlex.split(line, comments=True) for line in README.splitlines()[:25] if line.startswith("    make ")]
    assert lines == [["make", "study"], ["make", "test"]]
    assert all(f"\n{target}: .venv/installed" in makefile for _, target in lines)


@pytest.mark.parametrize("words", [words for words in COMMANDS if words not in STORAGE])
def test_every_study_command_is_valid(words: str) -> None:
    options = command.ratchet_parser().parse_args(shlex.split(words))
    profile = "quick" if options.profile == "my-study.yaml" else options.profile
    settings.read_study(load_page(options.study), profile, options.changes, options.seed)


@pytest.mark.parametrize("words", CHANGES)
def test_every_change_of_a_study_is_valid(words: str) -> None:
    changes = [word for word in shlex.split(words) if word != "--set"]
    settings.read_study(load_page("robustness"), "quick", changes, None)


@pytest.mark.parametrize("words", STORAGE)
def test_every_storage_command_is_valid(
    words: str, smoke_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(smoke_root, tmp_path / "runs", symlinks=True)
    monkeypatch.chdir(tmp_path)
    assert command.ratchet(shlex.split(words)) == 0


def test_all_commands_were_found() -> None:
    assert len(COMMANDS) >= 13 and len(STORAGE) == 4


def test_the_exit_codes_are_those_of_the_command() -> None:
    shown = {int(code) for code in re.findall(r"^\| (\d+) \|", README, re.MULTILINE)}
    assert shown == {state.exit_code for state in PRECEDENCE}


def test_the_tables_have_the_rows_and_columns_of_a_run(smoke_root: Path) -> None:
    (file,) = smoke_root.glob("smoke/aggregate/*/table.md")

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

    # the quick study has more arms than the smoke study: its tables have the rows of these, and further ones; transfer
    # has further columns too
    shown, made = (
        tables(re.sub(r"( \| +on (\*\*)?[\w@.-]+( \(dead\)\*\*)?)+", " | on each", text))
        for text in (README[README.index("**quick: ") : README.index("## Running a study")], file.read_text())
    )
    assert len(shown) >= 5
    for header, *rows in shown:
        assert any(header == there and set(names) <= set(rows) for there, *names in made), header


def test_every_named_file_exists() -> None:
    for name in re.findall(r"`((?:flows|tasks|storage|tests|deployments)/[\w/.-]*)`", README):
        yours = name == "deployments/sites/cluster.yaml"  # which the README says to make
        assert yours or (REPOSITORY / name).exists(), name
