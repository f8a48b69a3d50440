"""Test losses in another precision than fp32: what that does to them is measured, shown and audited."""

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch
from pydantic import ValidationError
from transformers import AutoTokenizer

from storage import durable
from storage.errors import BadInput, CheckFailed
from tasks.findings.audit import AuditResult
from tasks.language.model import load
from tasks.robustness import evaluate as evaluation
from tasks.robustness import rounding
from tasks.robustness.aggregate import aggregate
from tasks.robustness.audit import audit
from tasks.robustness.final_results import FinalResults
from tasks.robustness.report import document
from tasks.robustness.rounding import compared_documents, rounded, rounding_allowed
from tasks.robustness.stages import AggregateConfig, AuditConfig, EvaluateConfig
from tasks.robustness.study import Study
from tests.tasks import resealed
from tests.tasks.resealed import Stages
from tests.tasks.robustness.test_evaluate import alone
from tests.tasks.tiny import FinishedStudy, Here, finished_study, handles_of, stage_run

BOTH = 3
"""Documents of the six that are evaluated in fp32 too."""


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> FinishedStudy:
    """The tiny study, evaluated in bf16; some documents only are in fp32 too, as of a larger study."""
    copied = finished_study().copy(tmp_path_factory.mktemp("bf16") / "runs")
    changed = copied.study.model_copy(update={"evaluation_precision": "bf16"})
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(rounding, "COMPARED_DOCUMENTS", BOTH)
        yield FinishedStudy(copied.root, changed, handles_of(copied.root, changed, Here))


def rows_of(study: FinishedStudy) -> list[dict[str, Any]]:
    return pq.read_table(study.path("evaluate") / "records.parquet").to_pylist()


def test_only_what_reads_the_evaluation_ran_anew(study: FinishedStudy) -> None:
    paths = {name: handle.run.path.name for name, handle in study.handles.items()}
    before = {name: handle.run.path.name for name, handle in finished_study().handles.items()}
    assert {name for name in paths if paths[name] != before[name]} == {"evaluate", "audit", "aggregate"}
    assert all(handle.finished for handle in study.handles.values())


def test_the_losses_are_by_autocast_and_those_beside_them_in_fp32(study: FinishedStudy) -> None:
    documents = pq.read_table(study.path("setup") / "text" / "test.parquet").to_pylist()
    tokenizer = AutoTokenizer.from_pretrained(study.path("setup") / "text" / "tokenizer")
    tokens = {row["example_id"]: tokenizer(row["text"])["input_ids"] for row in documents}
    model = load(study.path("train-monotonic") / "model").eval()
    rows = [row for row in rows_of(study) if row["model"] == "monotonic"]
    both = {row["example_id"] for row in rows if row["fp32_loss_sum_nats"] is not None}
    assert both == compared_documents([row["example_id"] for row in documents]) and len(both) == BOTH < len(documents)
    away = []
    for row in rows:
        exact = alone(model, tokens[row["example_id"]])
        with torch.autocast("cpu", torch.bfloat16):
            rough = alone(model, tokens[row["example_id"]])
        away.append(abs(row["loss_sum_nats"] - exact))
        assert row["loss_sum_nats"] == pytest.approx(rough, abs=1e-3)
        assert row["fp32_loss_sum_nats"] in (None, pytest.approx(exact, rel=1e-6))
    assert max(away) > 3e-3


def test_the_result_says_how_far_they_are_away(study: FinishedStudy) -> None:
    numbers, rows = durable.read_json(study.path("aggregate") / "final_results.json"), rows_of(study)
    assert numbers["evaluation_precision"] == "bf16" and list(numbers["rounded"]) == list(numbers["models"])[1:]
    for model, said in numbers["rounded"].items():
        own = [row for row in rows if row["model"] == model and row["fp32_loss_sum_nats"] is not None]
        away = [row["loss_sum_nats"] - row["fp32_loss_sum_nats"] for row in own]
        tokens = [row["tokens_scored"] for row in own]
        assert said["documents"] == BOTH
        assert said["mean_nats_per_token"] == pytest.approx(sum(away) / sum(tokens))
        largest = max(abs(nats) / count for nats, count in zip(away, tokens, strict=True))
        assert said["largest_nats_per_token"] == pytest.approx(largest) and 0 < largest < 0.02
    exact = durable.read_json(finished_study().path("aggregate") / "final_results.json")
    assert {"evaluation_precision", "rounded"}.isdisjoint(exact)


def test_the_audit_says_what_it_allowed(study: FinishedStudy) -> None:
    table = (study.path("aggregate") / "table.md").read_text()
    assert "in fp32 on cpu" in table and ", beyond what bf16 rounds test losses by" in table
    ours, exact = (AuditResult.read(of.input("audit")) for of in (study, finished_study()))
    assert ours.numbers["test losses"] > exact.numbers["test losses"] and ours.worst.tolerance == 1e-4


def test_differences_that_the_precision_may_decide_are_named(study: FinishedStudy) -> None:
    """A verdict hangs on it where the means of both models reach from an end of the interval to 0."""
    numbers = durable.read_json(study.path("aggregate") / "final_results.json")
    for row in numbers["differences"]:
        row["interval_nats_per_token"] = [0.30, 0.50]
    numbers["differences"][1]["interval_nats_per_token"] = [-0.50, -0.010]
    for model in numbers["rounded"].values():
        model["mean_nats_per_token"] = 0.0049
    assert "do not decide" not in document(FinalResults.model_validate(numbers)).markdown()
    numbers["rounded"]["monotonic"]["mean_nats_per_token"] = -0.0052
    said = document(FinalResults.model_validate(numbers)).markdown()
    assert "**Test losses in bf16 do not decide monotonic - baseline (1.0e-02):** it may" in said


def test_an_evaluation_that_was_killed_has_the_same_bytes(study: FinishedStudy, tmp_path: Path) -> None:
    copied = study.copy(tmp_path / "runs")
    folder = copied.path("evaluate")
    before = {name: (folder / name).read_bytes() for name in ("records.parquet", "result.json")}
    for name in ("records.parquet", "COMPLETE.json", "result.json", "records/monotonic-00000.json"):
        (folder / name).unlink()
    handles_of(copied.root, copied.study, Here)
    assert {name: (folder / name).read_bytes() for name in before} == before


# ------------------------------------------------------------------------------------------------ what is refused


def edited(study: FinishedStudy, folder: Path, edit: Callable[[Stages], Any]) -> dict[str, Any]:
    stages = resealed.contents(study.handles["aggregate"].inputs)
    edit(stages)
    return resealed.written(study.handles["aggregate"].inputs, folder, stages)


def audited(study: FinishedStudy, folder: Path, edit: Callable[[Stages], Any]) -> AuditResult:
    inputs = edited(study, folder, edit)
    given = {role: inputs[role] for role in study.handles["audit"].inputs}
    return audit(stage_run(folder / "audit"), AuditConfig.of(every_document(study)), **given)


def every_document(study: FinishedStudy) -> Study:
    return study.study.model_copy(update={"audit": study.study.audit.model_copy(update={"examples": 6})})


def moved(column: str, nats_per_token: float, compared: bool) -> Callable[[Stages], None]:
    """The losses of a model in a column, of those documents that have both or of the others."""

    def edit(stages: Stages) -> None:
        for row in stages["evaluation"]["rows"]:
            if row["model"] == "monotonic" and (row["fp32_loss_sum_nats"] is not None) == compared:
                row[column] += nats_per_token * row["tokens_scored"]

    return edit


def test_the_audit_allows_what_was_measured_and_no_more(study: FinishedStudy, tmp_path: Path) -> None:
    rows = rows_of(study)
    found = audited(study, tmp_path / "whole", lambda stages: None)
    assert found.worst.largest_difference < 1e-6 and found.numbers["test losses"] == 8 * 6 + 7 * BOTH
    least = min(rounding_allowed(rows, "monotonic", row["tokens_scored"]) for row in rows)
    assert 1e-4 < least < 0.05
    with pytest.raises(CheckFailed, match=r"evaluate, monotonic, document .* is what the audit computes"):
        audited(study, tmp_path / "other", moved("loss_sum_nats", 3 * least + 1e-3, compared=False))
    with pytest.raises(CheckFailed, match=r"evaluate, monotonic in fp32, document .* give or take 0.0001 nats"):
        audited(study, tmp_path / "exact", moved("fp32_loss_sum_nats", 2e-4, compared=True))


def drop_one(stages: Stages) -> None:
    next(row for row in stages["evaluation"]["rows"] if row["fp32_loss_sum_nats"])["fp32_loss_sum_nats"] = None


def test_the_gate_refuses_what_hides_it(study: FinishedStudy, tmp_path: Path) -> None:
    inputs = edited(study, tmp_path, drop_one)
    run = stage_run(tmp_path / "out")
    run.run = replace(run.run, root=tmp_path / "runs")
    with pytest.raises(CheckFailed, match="evaluate has losses in fp32 beside those in another precision"):
        aggregate(run, AggregateConfig.of(study.study), **inputs)


def test_tf32_without_a_gpu_is_refused_before_any_work(study: FinishedStudy, tmp_path: Path, monkeypatch: Any) -> None:
    fields = finished_study().study.model_dump() | {"evaluation_precision": "tf32"}
    with pytest.raises(ValidationError, match=r"tf32, which only a GPU has, and execution\.device is cpu"):
        Study.model_validate(fields)
    fields["execution"] |= {"device": "auto"}
    config = EvaluateConfig.of(Study.model_validate(fields))
    monkeypatch.setattr(evaluation, "packed_split", lambda *given: pytest.fail("something was read"))
    inputs = {role: handle.as_input() for role, handle in study.handles["evaluate"].inputs.items()}
    with pytest.raises(BadInput, match="evaluation_precision is tf32, which only a GPU has"):
        evaluation.evaluate(stage_run(tmp_path), config, **inputs)


def test_what_may_be_away_falls_with_the_root_of_the_length() -> None:
    rows = [
        {"model": "a", "tokens_scored": 100, "loss_sum_nats": 200.0, "fp32_loss_sum_nats": 200.5},
        {"model": "a", "tokens_scored": 25, "loss_sum_nats": 50.1, "fp32_loss_sum_nats": 50.0},
        {"model": "a", "tokens_scored": 9, "loss_sum_nats": 90.0, "fp32_loss_sum_nats": None},
        {"model": "unigram", "tokens_scored": 9, "loss_sum_nats": 90.0},
    ]
    assert rounding_allowed(rows, "a", 100) == pytest.approx(3 * 0.5 / 100)
    assert rounding_allowed(rows, "a", 25) == pytest.approx(3 * 0.5 / 10 / 5)
    assert rounding_allowed(rows, "unigram", 25) == 0.0 and list(rounded(rows)) == ["a"]
    assert math.isclose(rounded(rows)["a"].mean_nats_per_token, -0.4 / 125)
    assert rounded(rows)["a"].largest_nats_per_token == pytest.approx(0.005)
