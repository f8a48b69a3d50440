"""Markdown tables that read well as plain text too."""

import pytest

from tasks.findings.table import Link, Table, markdown_table, no_formula, visible


def test_numbers_stand_right_words_left_and_all_lines_are_equally_long():
    table = markdown_table(["model", "loss"], [["base", "1.5"], ["a longer name", "-1,000.25"]])
    assert table.splitlines() == [
        "| model         |      loss |",
        "| ------------- | --------: |",
        "| base          |       1.5 |",
        "| a longer name | -1,000.25 |",
    ]


def test_a_column_with_one_word_stands_left():
    table = markdown_table(["value"], [["1"], ["none yet"]])
    assert table.splitlines()[1] == "| -------- |"


def test_gaps_and_percentages_count_as_numbers():
    table = markdown_table(["share"], [["12.5 %"], ["-"], [""], ["+3"]])
    assert table.splitlines()[1] == "| -----: |"


def test_a_narrow_column_still_has_a_rule_that_markdown_knows():
    assert markdown_table(["n"], [[1], [2]]).splitlines() == ["|  n |", "| -: |", "|  1 |", "|  2 |"]
    assert markdown_table(["n"], [["a"]]).splitlines()[1] == "| -- |"


def test_a_table_without_rows_is_its_header():
    assert markdown_table(["model", "loss"], []).splitlines() == ["| model | loss |", "| ----- | ---- |"]


def test_percentages_stand_right_with_and_without_a_space():
    assert Table("", ["a", "b", "c"], [["12.5%", "+1.2 %", "1.0% to 2.0%"]]).right == [True, True, False]


def test_a_table_in_markdown_has_its_caption_as_a_paragraph():
    said = Table("What it shows.", ["n"], [[1]]).markdown()
    assert said == "What it shows.\n\n|  n |\n| -: |\n|  1 |"


@pytest.mark.parametrize("name", ["=HYPERLINK(A1)", "+1+cmd|' /C calc'!A0", "-2+3", "@SUM(A1)", "\t=1", "- b"])
def test_names_in_a_csv_file_were_run_as_formulas_by_a_spreadsheet(name):
    assert no_formula(name) == f"'{name}"


@pytest.mark.parametrize("before", [" ", "\n", "\0", "\ufeff", "\u200b", "\u00a0"])
@pytest.mark.parametrize("sign", "=+-@\uff1d")
def test_no_mark_before_it_hides_a_formula(before, sign):
    assert no_formula(f"{before}{sign}cmd") == f"'{before}{sign}cmd"
    assert no_formula(f"{before}word") == (f"'{before}word" if before == "\n" else f"{before}word")


@pytest.mark.parametrize("name", ["-0.02", "+3.1", "-1,234.5", "-5 %", "-1e-05", "-", "p 0.5"])
def test_numbers_in_a_csv_file_stay_numbers(name):
    assert no_formula(name) == name


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain é 漢", "plain é 漢"),
        ("a\nb\tc", r"a\nb\tc"),
        ("\x1b[31m", r"\x1b[31m"),
        ("\u202eevil", r"\u202eevil"),
        ("a\u00a0b\u200b", r"a\xa0b\u200b"),
        ("e\u0301", r"e\u0301"),
        ("\\n", r"\\n"),
        ("\ufffd", "\ufffd"),
    ],
)
def test_what_does_not_show_is_written_as_its_escape(text, shown):
    assert visible(text) == shown


def test_a_link_is_its_text_in_markdown():
    table = markdown_table(["report"], [[Link("the answer", "a/report.html")]])
    assert table.splitlines()[2] == "| the answer |"
