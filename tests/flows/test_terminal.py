"""What a person reads in a terminal: all of it, at the width of the window."""

import io
import math
import os
import pty
import re
import subprocess
import sys
import termios
from collections import Counter

import pytest
from rich.console import Console

from flows import command
from flows.command.terminal import show_markdown
from storage import durable
from tests.conftest import REPOSITORY
from tests.flows.answers import Study, finished

ESCAPES = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]|\x1b\][^\x07\x1b]*(\x07|\x1b\\)")


NOT_HERE = ("COLUMNS", "LINES", "NO_COLOR", "DO_NOT_TRACK", "PREFECT_SERVER_ANALYTICS_ENABLED")
"""Set by tests and make, and not in a person's terminal."""


def in_window(columns: int, *arguments: str, status: int = 0) -> list[str]:
    """The lines that `python ...` prints on a pseudo-terminal of so many columns."""
    outer, inner = pty.openpty()
    termios.tcsetwinsize(inner, (40, columns))
    environment = {key: value for key, value in os.environ.items() if key not in NOT_HERE}
    process = subprocess.Popen(
        [sys.executable, *arguments],
        stdin=inner,
        stdout=inner,
        stderr=inner,
        cwd=REPOSITORY,
        env=environment | {"TERM": "xterm-256color"},
    )
    os.close(inner)
    found = b""
    while True:
        try:
            part = os.read(outer, 65536)
        except OSError:  # Linux: the other end is closed
            break
        if not part:
            break
        found += part
    os.close(outer)
    assert process.wait(300) == status, found.decode()[-2000:]
    return ESCAPES.sub("", found.decode()).replace("\r\n", "\n").split("\n")


def words(text: str) -> Counter[str]:
    """The words and numbers of a text, with Markdown's marks or without."""
    return Counter(re.findall(r"[\w.%@]+", text.replace("\\", "")))


def lines_at(columns: int, printed: str) -> int:
    """The lines that a terminal of so many columns makes of what was printed."""
    return sum(max(1, math.ceil(len(line) / columns)) for line in printed.rstrip("\n").split("\n"))


def test_a_finished_study_ends_with_its_answer_in_at_most_15_lines_and_all_tables_by_a_command(smoke_root, capsys):
    printed = "\n".join(in_window(80, "-m", "flows.robustness", "--profile", "smoke", "--root", str(smoke_root)))
    (run,) = smoke_root.glob("smoke/aggregate/*")
    result = durable.read_json(run / "result.json")
    assert lines_at(80, printed) <= 15
    flat = " ".join(printed.split())
    parts = (*result["answer"], result["not_shown"][0][:100], str(run / "report.html"))
    shown = [flat.index(part) for part in parts]
    assert shown == sorted(shown)
    (named,) = re.findall(r"ratchet (show \S+ --table)", flat)
    assert command.ratchet(named.split()) == 0
    assert not words((run / "table.md").read_text()) - words(capsys.readouterr().out), "all tables"


@pytest.mark.parametrize("columns", [80, 120])
def test_no_word_of_the_tables_is_cut_off_at_the_edge_of_the_window(smoke_root, columns):
    table, shown = next(smoke_root.glob("smoke/aggregate/*/table.md")).read_text(), io.StringIO()
    show_markdown(Console(file=shown, width=columns, force_terminal=True, soft_wrap=True), table)
    lines = ESCAPES.sub("", shown.getvalue()).split("\n")
    assert not words(table) - words(" ".join(lines))
    assert len(lines) > 100 and max(map(len, lines)) <= columns


@pytest.mark.parametrize("columns", [20, 33, 80])
def test_words_that_are_wider_than_the_window_and_wide_characters_are_folded(columns):
    shown = io.StringIO()
    cells = ["controls/aggregate/0648babe3d6c" * 2, "漢字漢字漢字漢字漢字"]
    show_markdown(
        Console(file=shown, width=columns, force_terminal=True, soft_wrap=True),
        f"| run directory | of |\n| --- | --- |\n| {cells[0]} | {cells[1]} |\n\n| nothing |\n| --- |\n",
    )
    plain = re.sub(r"\s", "", ESCAPES.sub("", shown.getvalue()))
    assert "…" not in plain and "nothing" in plain
    for cell in cells:
        assert len(set(cell) - set(plain)) == 0 and plain.count(cell[-1]) >= cell.count(cell[-1])


def test_nothing_but_how_it_stands_is_said_of_a_study(tmp_path, monkeypatch):
    monkeypatch.setenv("PREFECT_HOME", str(tmp_path / "never-used"))  # Prefect's notice comes once in each
    lines = in_window(
        120, "-m", "flows.robustness", "--profile", "smoke", "--root", str(tmp_path), "--status", status=75
    )
    assert lines[0].startswith("setup ") and lines[0].endswith(" not started")
    assert "anonymous" not in " ".join(lines)


def test_a_pipe_gets_the_tables_as_text_without_escapes(smoke_root):
    table, shown = next(smoke_root.glob("smoke/aggregate/*/table.md")).read_text(), io.StringIO()
    show_markdown(Console(file=shown, soft_wrap=True, markup=False), table)
    assert not re.search(r"\\[_*\[\]<>]", shown.getvalue())
    assert not words(table) - words(shown.getvalue())


COMMANDS = """
import sys
from flows.command import ratchet
for line in {lines!r}:
    ratchet(line.split())
"""


@pytest.mark.parametrize("columns", [80, 60])
def test_every_line_wraps_between_words_in_a_terminal_and_stays_whole_in_a_pipe(columns, tmp_path):
    """What came: `robust|ness`, `-0|.0221`, `uat (b|aseline)`."""
    answers = [finished(tmp_path, Study(name="one", seed=seed, words=12))[-1].run.path for seed in (42, 43)]
    lines = [f"list {tmp_path}", f"show {answers[0]}", f"compare {answers[0]} {answers[1]} --all", f"verify {tmp_path}"]
    lines += [f"status robustness --profile smoke --root {tmp_path}", "run robustness --keys", "run robustnes"]
    lines += ["run robustness --profile smok", "run robustness --set budget.epoch=1"]
    code = COMMANDS.format(lines=lines)
    shown = in_window(columns, "-c", code)
    piped = subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    assert sorted(" ".join(shown).split()) == sorted((piped.stdout + piped.stderr).split()), "no word is broken or lost"
    wide = [line for line in shown if len(line) > columns and max(map(len, line.split())) <= columns]
    assert not wide
    assert max(map(len, piped.stdout.splitlines())) > 200 and any(line.startswith(" " * 17) for line in shown)
