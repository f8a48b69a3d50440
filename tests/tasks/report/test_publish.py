"""What is published, and what the result says of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from storage import durable
from tasks.report.publish import publish
from tasks.stage.result import Result
from tests.tasks.tiny import stage_run


class Numbers(Result):
    loss: float


def test_the_result_names_tables_report_and_figures_and_the_digest_of_the_numbers(tmp_path: Path):
    run, numbers = stage_run(tmp_path), Numbers(loss=1.5)
    texts = {"table.md": "| é |", "summary.txt": "s", "report.html": "<p>"}
    result = publish(run, numbers, texts, {"one": "<svg/>", "two": "<svg></svg>"})
    assert result.as_json() == {
        "tables": ["table.md"],
        "figures": ["figures/one.svg", "figures/two.svg"],
        "report": "report.html",
        "final_results_digest": durable.sha256_json({"loss": 1.5}),
    }
    assert durable.read_json(run.directory / "final_results.json") == {"loss": 1.5}
    for name, text in texts.items():
        assert (run.directory / name).read_bytes() == text.encode()
    assert (run.directory / "figures" / "one.svg").read_text() == "<svg/>"
    assert {"final_results.json", *texts, "figures"} <= set(run.outputs)


def test_without_a_report_and_figures_none_is_named(tmp_path: Path):
    result = publish(stage_run(tmp_path), Numbers(loss=1.5), {"table.md": ""})
    assert set(result.as_json()) == {"tables", "final_results_digest"}


def test_two_reports_are_one_too_many(tmp_path: Path):
    with pytest.raises(ValueError, match="too many"):
        publish(stage_run(tmp_path), Numbers(loss=1.5), {"a.html": "", "b.html": ""})
