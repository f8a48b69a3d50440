"""`ratchet compare FILE.csv`: what it shows, and what it refuses."""

from __future__ import annotations

from pathlib import Path

import pytest

from flows import command

HEAD = "arm,seed,mse\n"
ROWS = (
    "none,0,0.0096\nnone,1,0.0097\nnone,2,0.0095\nadversarial,0,0.0099\nadversarial,1,0.0101\nadversarial,2,0.00985\n"
)


@pytest.fixture
def table(tmp_path: Path) -> Path:
    file = tmp_path / "table.csv"
    file.write_text(HEAD + ROWS)
    return file


def compare(file: Path, *options: str) -> int:
    return command.ratchet(["compare", str(file), *options])


def test_a_table_of_arms_and_seeds_is_compared(table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert compare(table, "--by", "arm", "--pair", "seed") == 0
    said = capsys.readouterr().out
    assert "**adversarial is worse than none**: +3.65% of the mean of none" in said
    assert "| none        |     3 |  0.0096 | 0.00935159 to 0.00984841 |" in said


def test_with_too_few_seeds_nothing_is_called_better(table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert compare(table, "--min-seeds", "5") == 0
    said = capsys.readouterr().out
    assert "3 seeds are too few to call anything better" in said and "worse than" not in said


def test_every_two_arms_are_compared_or_each_with_the_reference(
    table: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table.write_text(table.read_text() + "random,0,0.00961\nrandom,1,0.00969\nrandom,2,0.00951\n")
    assert compare(table) == 0
    assert "over the 3 comparisons" in capsys.readouterr().out
    assert compare(table, "--reference", "random") == 0
    said = capsys.readouterr().out
    assert "over the 2 comparisons" in said and "adversarial is worse than random" in said


def test_what_should_be_high_and_may_be_equal_is_compared_when_that_is_said(
    table: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table.write_text("arm,seed,accuracy\n" + ROWS.replace("none,1,0.0097", "none,1,0.0096"))
    assert compare(table) == 2
    assert "--allow-equal" in capsys.readouterr().err
    assert compare(table, "--allow-equal", "--higher-is-better") == 0
    said = capsys.readouterr().out
    assert "**adversarial is better than none**" in said and "above 0 the arm is better" in said
    assert "Higher is better." in said


@pytest.mark.parametrize(
    ("text", "options", "said"),
    [
        (HEAD.replace(",", ";") + ROWS.replace(",", ";"), [], "separated by semicolons: save it with commas"),
        (HEAD + ROWS + "none,0,0.5\n", [], "line 8: arm none, seed 0 is there twice"),
        (HEAD + ROWS.replace("none,1,0.0097\n", ""), [], "no value of none, seed 1"),
        (HEAD + ROWS.replace("0.0101", "0.0099"), [], "have the same value, 0.0099"),
        (HEAD + ROWS.replace("0.0101", "much"), [], "line 6: mse is 'much', and not a number"),
        (HEAD + ROWS.replace("0.0101", "nan"), [], "adversarial, seed 1 is nan"),
        (HEAD + ROWS + "none,3\n", [], "line 8: 3 columns are wanted"),
        (HEAD, [], "has no rows"),
        (HEAD + "none,0,1\nnone,1,2\n", [], "1 arm: two or more are compared"),
        (HEAD + ROWS, ["--by", "army"], "no column 'army' (--by): it has arm, seed, mse"),
        (HEAD + ROWS, ["--reference", "nobody"], "no arm 'nobody' (--reference)"),
        ("arm,seed,mse,loss\nnone,0,1,2\n", [], "say with --value which column is compared: mse, loss"),
        (HEAD + ROWS, ["another"], "leave out another"),
    ],
)
def test_a_table_that_cannot_be_compared_is_refused_with_the_place(
    table: Path, capsys: pytest.CaptureFixture[str], text: str, options: list[str], said: str
) -> None:
    table.write_text(text)
    assert compare(table, *options) == 2
    assert said in capsys.readouterr().err


def test_one_run_alone_is_not_compared(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.ratchet(["compare", "abcdef"]) == 2
    assert "two runs, or one table FILE.csv" in capsys.readouterr().err
