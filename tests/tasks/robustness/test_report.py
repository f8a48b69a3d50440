"""The report shows every number with its run, and text that a model made as text."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from storage import durable
from tasks.report import provenance
from tests.tasks.report.test_page import Reader
from tests.tasks.robustness.synthetic import NUMERICS, TRIGGERS, aggregated, changed, contents, study, written

STUDY = study()
STAGES = contents(STUDY)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    return aggregated(folder / "out", written(folder, STAGES), STUDY)[1]


@pytest.fixture(scope="module")
def html(path: Path) -> str:
    return (path / "report.html").read_text()


@pytest.fixture(scope="module")
def numbers(path: Path) -> dict[str, Any]:
    return durable.read_json(path / "final_results.json")


def test_every_figure_stands_in_the_page(path: Path, html: str):
    files = sorted((path / "figures").glob("*.svg"))
    assert len(files) == 9 and all(file.read_text() in html for file in files)


def test_triggers_are_shown_as_text_with_visible_escapes(html: str):
    reader = Reader(html)
    assert not [tag for tag, _ in reader.tags if tag == "script"]
    assert r'"\u202enoisrev\n<script>alert(1)</script>"' in reader.text
    assert r'" self</td>\x1b[31m|"' in reader.text and '" *the* `array` &amp; café"' in reader.text
    for _, ids in TRIGGERS.values():
        assert " ".join(map(str, ids)) in reader.text
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e]", html)


def test_nothing_is_asked_from_outside(html: str):
    assert set(re.findall(r"https?://[^\"'<> ]*", html)) <= {
        "http://www.w3.org/2000/svg",
        "http://www.w3.org/1999/xlink",
    }


def test_every_table_of_the_table_file_is_in_the_report(path: Path, html: str):
    text = Reader(html).text
    cells = {
        cell.strip()
        for line in (path / "table.md").read_text().splitlines()
        if line.startswith("| ") and "---" not in line
        for cell in line.split("|")[1:-1]
    }
    assert len(cells) > 100 and not [cell for cell in cells if cell not in text]


def test_all_ids_of_the_page_are_different(html: str):
    ids = re.findall(r'\bid="([^"]+)"', html)
    assert len(ids) == len(set(ids)) > 50


def test_provenance_names_runs_fingerprints_commits_versions_numerics_and_configuration(html: str, numbers: Any):
    text = Reader(html).text
    for stage, place in numbers["runs"].items():
        assert place in text and numbers["provenance"][stage]["fingerprint"] in text
        assert numbers["provenance"][stage]["outputs_digest"] in text
    assert text.count("cbb315000000") >= 8 and "3.11.11" in text and "CPU with AVX2" in text
    assert '"trigger_tokens": 5' in text and '"success_relative_increase": 0.15' in text


def test_what_was_read_from_outside_is_shown_by_version(html: str):
    text = Reader(html).text
    assert "packages by version, files by digest" in text and "2.4.6" in text and "3.0.1" in text


def test_many_files_are_shown_by_one_digest():
    files = {f"{number}.txt": f"{number:064x}" for number in range(21)}
    assert provenance._named(files) == [["21 files", durable.sha256_json(files)[:12]]]
    assert provenance._named({"a.txt": "b" * 64}) == [["a.txt", "b" * 12]]


def test_numerics_that_differ_between_stages_are_shown_by_stage(tmp_path: Path):
    stages = changed(STAGES)
    stages["uat"]["numerics"] = NUMERICS | {"device_model": "NVIDIA H100"}
    _, path = aggregated(tmp_path / "out", written(tmp_path, stages), STUDY)
    rows = re.findall(
        r"<tr><td>device model</td><td>([^<]*)</td><td[^>]*>([^<]*)</td></tr>", (path / "report.html").read_text()
    )
    assert rows[1] == ("NVIDIA H100", "uat") and rows[0][0] == "CPU with AVX2" and "uat" not in rows[0][1].split(", ")


def test_the_limits_are_stated(html: str):
    text = Reader(html).text
    for limit in (
        "GELU and SiLU, the activations of GPT-NeoX and of Llama, are not monotone",
        "nothing is claimed about functions",
        "Only these two attacks were run",
    ):
        assert limit in text


def test_no_time_of_day_or_duration_is_shown(html: str):
    assert not re.search(r"started_at|\d\d:\d\d:\d\d|seconds\b(?!\":)", Reader(html).text.split("The configuration")[0])


def test_the_curves_and_distributions_are_those_of_the_stages(path: Path):
    last = [row for row in STAGES["train-monotonic"]["metrics"] if "validation_loss" in row][-1]["validation_loss"]
    arms = (path / "figures" / "training-arms.svg").read_text()
    assert f"monotonic ends at a validation loss of {last:.4f} nats per token" in arms
    rows = [row for row in STAGES["uat"]["rows"] if row["model"] == "baseline"]
    rises = sorted((row["loss_sum_nats"] - row["clean_loss_sum_nats"]) / row["tokens_scored"] for row in rows)
    assert (
        len(rises) == 60
        and f"baseline: median {(rises[29] + rises[30]) / 2:+.4f}" in (path / "figures" / "effects-uat.svg").read_text()
    )


def test_the_summary_is_plain_text_for_an_email(path: Path, numbers: Any):
    text = (path / "experiment_summary.txt").read_text()
    assert max(map(len, text.splitlines())) <= 78 and "**" not in text and "|" not in text.replace("m|", "")
    for place in numbers["runs"].values():
        assert place in text
    assert "+0." in text and "interval" in text and "report.html" in text
