"""The report shows every number with its run, and text that a model made as text."""

import re
from pathlib import Path
from typing import Any

import pytest

from storage import durable
from tasks.findings import provenance
from tests.tasks.findings.test_page import Reader
from tests.tasks.robustness.edited import aggregated, contents, written
from tests.tasks.tiny import finished_study


@pytest.fixture(scope="module")
def path() -> Path:
    return finished_study().path("aggregate")


@pytest.fixture(scope="module")
def html(path: Path) -> str:
    return (path / "report.html").read_text()


@pytest.fixture(scope="module")
def numbers(path: Path) -> dict[str, Any]:
    return durable.read_json(path / "final_results.json")


def test_every_table_of_the_table_file_is_in_the_report(path: Path, html: str):
    text = Reader(html).text
    cells = {
        re.sub(r"\\(.)", r"\1", cell.strip().replace("**", ""))
        for line in (path / "table.md").read_text().splitlines()
        if line.startswith("| ") and "---" not in line
        for cell in re.split(r"(?<!\\)\|", line)[1:-1]
    }
    assert len(cells) > 100 and not [cell for cell in cells if cell not in text]


def test_all_ids_of_the_page_are_different(html: str):
    ids = re.findall(r'\bid="([^"]+)"', html)
    assert len(ids) == len(set(ids)) > 50


def test_provenance_names_runs_fingerprints_and_digests(html: str, numbers: Any):
    text = Reader(html).text
    for stage, place in numbers["runs"].items():
        assert place in text and numbers["provenance"][stage]["fingerprint"] in text
        assert numbers["provenance"][stage]["outputs_digest"] in text


def test_many_files_are_shown_by_one_digest():
    files = {f"{number}.txt": f"{number:064x}" for number in range(21)}
    assert provenance._entries(files) == [["21 files", durable.sha256_json(files)[:12]]]
    assert provenance._entries({"a.txt": "b" * 64}) == [["a.txt", "b" * 12]]


def test_numerics_that_differ_between_stages_are_shown_by_stage_and_between_arms_in_bold(tmp_path: Path):
    stages = contents()
    for role in ("uat-base", "monotonic"):
        stages[role]["described"]["numerics"]["device_model"] = "NVIDIA H100"
    _, path = aggregated(tmp_path / "out", written(tmp_path, stages), finished_study().study)
    page = (path / "report.html").read_text()
    rows = dict(re.findall(r"<tr><td>device model</td><td>([^<]*)</td><td[^>]*>([^<]*)</td></tr>", page))
    assert rows.pop("NVIDIA H100").split(", ") == ["monotonic", "uat-base"]
    assert "<strong>The arms ran on different numerics</strong>" in page


def test_no_time_of_day_or_duration_is_shown(html: str):
    assert not re.search(r"started_at|\d\d:\d\d:\d\d|seconds\b(?!\":)", Reader(html).text)


def test_the_summary_is_plain_text_for_an_email_and_begins_with_the_answer(path: Path):
    text, said = (path / "experiment_summary.txt").read_text(), durable.read_json(path / "result.json")
    assert max(map(len, text.splitlines())) <= 78 and len(text.splitlines()) <= 60 and "**" not in text
    _, verdict, _, answer, heading, not_shown, *_ = [" ".join(block.split()) for block in text.split("\n\n")]
    assert verdict == said["answer"][0] and answer == " ".join(f"- {number}" for number in said["answer"][1:])
    assert heading == "NOT SHOWN" and not_shown == " ".join(f"- {point}" for point in said["not_shown"])
    assert said["headline"] == " ".join(said["answer"][:2]) and "report.html" in text


def test_a_row_s_run_leads_to_the_row_that_says_where_it_lies_and_this_to_the_run_directory(
    path: Path, html: str, numbers: Any
):
    places = {place.rsplit("/", 1)[1]: place for place in numbers["runs"].values()}
    linked = set(re.findall(r'<td[^>]*><a href="#run-([0-9a-f]{12})">\1</a></td>', html))
    assert {place.rsplit("/", 1)[1] for place in map(numbers["runs"].get, ("monotonic", "transfer"))} <= linked
    for name in linked:
        (row,) = re.findall(rf'<tr id="run-{name}">.*?</tr>', html)
        (target,) = re.findall(r'href="([^"]+)"', row)
        assert (path / target).resolve() == finished_study().root / places[name]


def test_what_is_said_to_lie_beside_the_page_lies_there(path: Path, html: str):
    (beside,) = re.findall(r"Beside this page: (.*?)</p>", html)
    names = re.findall(r'href="([^"]+)"', beside)
    assert len(names) == 4 and all((path / name).exists() for name in names)
