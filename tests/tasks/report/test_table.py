"""Markdown tables that read well as plain text too."""

from __future__ import annotations

from tasks.report.table import markdown_table


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
