"""Every command that the README and docs/ show can be pasted, and means something to the program that it calls."""

import re
import shlex
import shutil
import subprocess

import pytest

from deployments.dag.page import load_page
from flows import command
from flows.command import settings
from storage.errors import BadInput
from tests.conftest import REPOSITORY
from tests.docs.commands import names_of_commands, options_of_commands, problem
from tests.docs.pages import PAGES, Block, blocks, spans

BASH = blocks("bash", "console")
HERE_DOCUMENT = re.compile(r"<<'END'\n.*?^END$", re.MULTILINE | re.DOTALL)
OF_APPTAINER = {"--nv", "--bind"}
OF_PYTEST = {"--pdb"}
WRITTEN = [(page, span) for page, text in PAGES.items() for span in spans(text)]


def lines(block: Block) -> list[str]:
    """The commands of a block, each on a line; what stands in brackets is a script of its own."""
    text = re.sub(r"^\(.*?^\)$", "", HERE_DOCUMENT.sub("", block.text), flags=re.MULTILINE | re.DOTALL)
    return [line for line in text.splitlines() if line.strip()]


@pytest.mark.parametrize("block", BASH, ids=str)
def test_bash_reads_every_block(block):
    done = subprocess.run(["bash", "-n"], input=block.text, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(("block", "line"), [(block, line) for block in BASH for line in lines(block)], ids=str)
def test_every_command_of_a_block_is_one_that_its_program_takes(block, line):
    try:
        wrong = problem(line)
    except BadInput as error:
        wrong = str(error)
    assert not wrong, f"{block.page}: {line}: {wrong}"


PROGRAM = re.compile(r"(\.venv/bin/)?(ratchet|make|prefect|python) |PYTHONPATH=")


@pytest.mark.parametrize(("page", "span"), [one for one in WRITTEN if PROGRAM.match(one[1])])
def test_every_command_in_a_line_is_one_that_its_program_takes(page, span):
    assert not problem(span, whole=False), f"{page}: {span}: {problem(span, whole=False)}"


@pytest.mark.parametrize(("page", "span"), [one for one in WRITTEN if one[1].startswith("--")])
def test_every_option_exists(page, span):
    known = options_of_commands() | OF_APPTAINER | OF_PYTEST
    assert shlex.split(span)[0].partition("=")[0] in known, page


@pytest.mark.parametrize(("page", "span"), [one for one in WRITTEN if one[1].startswith("--set ")])
def test_every_change_of_a_study_is_valid(page, span):
    changes = [word for word in shlex.split(span) if word != "--set"]
    if changes == ["key=value"]:
        return
    settings.read_study(load_page("robustness"), "quick", changes, None)


STORAGE = [
    line for block in BASH for line in lines(block) if re.search(r"bin/ratchet (list|index|verify|prune|export)", line)
]


@pytest.mark.parametrize("line", sorted({line.partition("#")[0].strip() for line in STORAGE}))
def test_every_storage_command_runs(line, smoke_root, tmp_path, monkeypatch):
    shutil.copytree(smoke_root / "smoke", tmp_path / "runs" / "quick", symlinks=True)
    monkeypatch.chdir(tmp_path)
    assert command.ratchet(shlex.split(line)[1:]) == 0


def test_the_two_commands_are_targets_on_the_first_screen():
    shown = [
        shlex.split(line, comments=True) for line in PAGES["README.md"].splitlines()[:25] if line.startswith("    ")
    ]
    assert shown[-2:] == [["make", "study"], ["make", "test"]]
    makefile = (REPOSITORY / "Makefile").read_text()
    assert all(f"\n{target}: .venv/installed" in makefile for _, target in shown[-2:])


def test_every_command_of_ratchet_is_shown():
    shown = {
        words[1] for block in BASH for line in lines(block) if len(words := line.split()) > 1 and "ratchet" in words[0]
    }
    written = {span.split()[1] for _, span in WRITTEN if span.startswith("ratchet ")}
    assert set(names_of_commands()) <= shown | written


def test_blocks_and_commands_were_found():
    assert len(BASH) >= 25 and sum(len(lines(block)) for block in BASH) >= 60 and len(STORAGE) >= 4
    assert {block.page for block in BASH} >= {"README.md", "CONTRIBUTING.md", "docs/running.md", "docs/cluster.md"}
