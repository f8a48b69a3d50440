"""`ratchet list`: what lies below a root, from the run directories alone."""

import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import pytest

from deployments.dag.walk import Dispatcher, Handle
from flows import command
from storage import durable
from storage.locks import acquire
from storage.run_directory import LATEST, find_runs
from tasks.stage.numerics import Numerics
from tasks.stage.run import Stage, StageInput, StageRun
from tasks.stage.study import StageConfiguration
from tests.flows.answers import ANSWER, COUNT, AnswerConfig, CountConfig, Study, finished


@pytest.fixture
def root(smoke_root: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(smoke_root, tmp_path / "runs", symlinks=True))


def listed(root: Path, capsys: pytest.CaptureFixture[str]) -> str:
    assert command.ratchet(["list", str(root)]) == 0
    return capsys.readouterr().out


def test_a_result_is_listed_with_its_seed_its_answer_and_its_place(root, capsys):
    number = len(find_runs(root))
    study, first, answer, place = listed(root, capsys).splitlines()
    (report,) = root.glob("smoke/aggregate/*/report.html")
    assert study == f"smoke ({number} of {number} begun stages are finished)"
    assert first.endswith("  aggregate, seed 42") and place.strip() == str(report)
    assert answer.strip() == durable.read_json(report.with_name("result.json"))["headline"] and "**" not in answer


def test_results_of_one_study_are_told_apart_by_what_was_configured(root, run_here, capsys):
    assert run_here("--root", root, "--set", "evaluation.confidence_level=0.9")[0] == 0
    lines = [line for line in listed(root, capsys).splitlines() if "  aggregate, " in line]
    assert [line[line.index("seed 42") :] for line in lines] == [
        f"seed 42, evaluation.confidence_level {level}" for level in (0.95, 0.9)
    ]


def test_what_is_not_finished_says_how_it_stands_and_what_runs_how_far(root, capsys):
    uat, base = (next(root.glob(f"smoke/{stage}/*")) for stage in ("uat", "base"))
    for run in (uat, base):
        (run / "COMPLETE.json").unlink()
    record = durable.read_json(uat / "attempts" / "0001.json")
    durable.write_json(uat / "attempts" / "0001.json", record | {"end_state": "interrupted"})
    durable.write_json(base / "progress.json", {"step": 12, "total": 40, "unit": "steps", "note": "training"})
    lock = acquire(base / "locks")
    said = listed(root, capsys)
    lock.release()
    assert f"  not finished {uat.parts[-2]} {uat.name}: interrupted" in said
    assert f"  running      base {base.name}: attempt 1: 12/40 steps, training" in said


def test_what_cannot_be_read_or_does_not_hold_says_so_and_an_export_is_as_finished_as_its_origin(root, capsys):
    assert command.ratchet(["export", str(root), str(root.parent / "copy")]) == 0
    number = len(find_runs(root))
    capsys.readouterr()
    assert f"smoke ({number} of {number} begun" in listed(root.parent / "copy", capsys)
    uat, order, evaluate = (next(root.glob(f"smoke/{stage}/*")) for stage in ("uat", "order", "evaluate"))
    (uat / "records.parquet").write_bytes(b"edited")
    (order / "stage.json").write_text("{")
    shutil.rmtree(evaluate)
    said = listed(root, capsys)
    assert f"  not finished uat {uat.name}: its marker does not hold: records.parquet" in said
    assert f"  unreadable   order {order.name}: " in said and "  aggregate, seed 42\n" in said


def test_what_was_read_or_shown_and_is_gone_says_so(root, capsys):
    """As a scratch disk leaves it that removes what is old: what is left was finished, and stands on nothing."""
    assert "  gone " not in listed(root, capsys)
    (evaluate,), (audit,), (aggregate,) = (
        list(root.glob(f"smoke/{stage}/*")) for stage in ("evaluate", "audit", "aggregate")
    )
    latest = root / "smoke" / LATEST
    durable.replace_link(latest, aggregate)
    shutil.rmtree(evaluate)
    said = listed(root, capsys)
    assert f"  gone         evaluate {evaluate.name}: read by aggregate, audit, which stay as they are" in said
    assert said.count("  gone ") == 1
    shutil.rmtree(aggregate)
    shutil.rmtree(audit)
    said = listed(root, capsys)
    assert f"  gone         aggregate {aggregate.name}: latest leads to it: run the study again" in said
    assert said.count("  gone ") == 1, "nothing that is there reads evaluate"


def test_a_folder_without_runs_is_bad_input(tmp_path, capsys):
    assert command.ratchet(["list", str(tmp_path)]) == 2
    assert f"there are no runs below {tmp_path}" in capsys.readouterr().err


class DoubleConfig(StageConfiguration):
    """double: twice as many."""

    numerics: ClassVar = Numerics(torch=False)


DOUBLE = Stage("double", DoubleConfig, "tests.flows.test_listing:double", needs="cpu")


def double(run: StageRun, config: DoubleConfig, counted: StageInput) -> dict[str, int]:
    return {"words": 2 * counted.result["words"]}


def test_a_study_whose_stages_name_nothing_to_read_is_listed_by_what_no_other_stage_reads(tmp_path, capsys):
    def page(study: Study, stage: Dispatcher) -> Handle:
        return stage(DOUBLE, DoubleConfig(), counted=stage(COUNT, CountConfig(words=study.words)))

    count, doubled = finished(tmp_path, Study(name="one"), page)
    lines = listed(tmp_path, capsys).splitlines()
    assert lines[0] == "one (2 of 2 begun stages are finished)"
    assert lines[1].endswith("  double") and lines[2:] == ["    words 20", f"    {doubled.run.result_file}"]
    count.run.marker_file.unlink()
    assert str(doubled.run.result_file) not in listed(tmp_path, capsys), "under way: what comes last is not known"
    for run, words in ((count.run, 11), (doubled.run, 10)):
        durable.write_json(run.study_file, {"page": "p", "study": {"words": words}, "over": {}})
    assert str(doubled.run.result_file) in listed(tmp_path, capsys), "what is under way is of another setting"
    root, counts = (
        tmp_path / "other",
        lambda study, stage: stage(COUNT, CountConfig(words=study.words, fails=study.fails)),
    )
    (count,) = finished(root, Study(name="one"), counts)
    (failed,) = finished(root, Study(name="one", words=3, fails=True), counts)
    said = listed(root, capsys)
    assert f"    {count.run.result_file}\n" in said and f"  not finished count {failed.run.path.name}" in said


def test_an_edited_result_is_not_listed_as_finished(tmp_path, capsys):
    _, answer = finished(tmp_path, Study(name="one"))
    assert "10 words & more" in listed(tmp_path, capsys)
    text = answer.run.result_file.read_text()
    answer.run.result_file.write_text(text.replace("10 words", "99 words"))
    said = listed(tmp_path, capsys)
    assert "99 words" not in said and "result.json was edited after the stage finished" in said
    answer.run.result_file.write_text(text)
    assert "10 words & more" in listed(tmp_path, capsys), "its bytes are those of before"


def raised(study: Study, stage: Dispatcher) -> Handle:
    counted = stage(COUNT, CountConfig(words=study.words))
    return stage(replace(ANSWER, version=2), AnswerConfig(seed=study.seed, level=study.level), counted=counted)


def test_reports_before_and_after_a_stage_changed_are_told_apart(tmp_path, capsys):
    finished(tmp_path, Study(name="one"))
    assert "version" not in listed(tmp_path, capsys)
    finished(tmp_path, Study(name="one"), raised)
    versions = re.findall("  answer, (.*)", listed(tmp_path, capsys))
    assert versions == ["seed 42, version 1", "seed 42, version 2"]
