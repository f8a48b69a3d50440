"""What is published, and what the result says of it."""

import pytest

from storage import durable
from tasks.findings.document import Document, Figure, Section
from tasks.findings.publish import publish, publish_report
from tasks.findings.table import Table
from tasks.stage.result import Result
from tests.tasks.tiny import stage_run


class Numbers(Result):
    loss: float


def test_the_result_names_tables_report_and_figures_and_the_digest_of_the_numbers(tmp_path):
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


def test_without_a_report_and_figures_none_is_named(tmp_path):
    result = publish(stage_run(tmp_path), Numbers(loss=1.5), {"table.md": ""})
    assert set(result.as_json()) == {"tables", "final_results_digest"}


def test_two_reports_are_one_too_many(tmp_path):
    with pytest.raises(ValueError, match="too many"):
        publish(stage_run(tmp_path), Numbers(loss=1.5), {"a.html": "", "b.html": ""})


LONG = "**so many words** that no line of an e-mail holds them all, " * 4


def test_a_document_is_said_once_and_published_in_every_form(tmp_path):
    run = stage_run(tmp_path)
    section = Section("One", texts=[LONG], figures=[Figure("two", "<svg/>", "c")], tables=[Table("c", ["x"], [["1"]])])
    said = Document(
        "what?", "Yes: it is.", LONG, ["a: 1", LONG], Figure("one", "<svg/>", "c"), [LONG, "b"], "asked", [LONG],
        [section],
    )  # fmt: skip
    result = publish_report(run, {}, Numbers(loss=1.5), said, tables={"rows": [{"x": 1}]})
    plain = LONG.replace("**", "")
    assert (result.answer, result.not_shown) == (["Yes: it is.", "a: 1", plain], [plain, "b"])
    assert (result.headline, result.report, result.tables) == ("Yes: it is. a: 1", "report.html", ["table.md"])
    assert result.figures == ["figures/one.svg", "figures/two.svg"]
    assert set(run.outputs) >= {"rows.parquet", "experiment_summary.txt", "final_results.json", "figures"}
    summary = (run.directory / "experiment_summary.txt").read_text()
    assert max(map(len, summary.splitlines())) <= 78 and "**" not in summary and "\n  " in summary
    assert summary.index("Yes: it is.") < summary.index("- a: 1") < summary.index("NOT SHOWN") < summary.index("asked")
    table = (run.directory / "table.md").read_text()
    assert table.startswith("# what?\n\n**Yes: it is.**\n") and "\n## One\n" in table and "\n## Provenance\n" in table
