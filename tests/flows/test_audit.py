"""`ratchet audit`: a finished study asked again, of other examples; what does not agree is named, with exit code 1."""

import pytest

from flows import command
from storage import durable
from tests.tasks.resealed import seal
from tests.tasks.robustness.edited import as_measured, written
from tests.tasks.tiny import finished_study


@pytest.mark.parametrize("stage", ["aggregate", "audit"])
def test_a_report_and_its_audit_are_asked_again(stage, capsys):
    path = finished_study().path(stage)
    before = sorted(path.rglob("*"))
    assert command.ratchet(["audit", str(path), "--seed", "7"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("Audited: ") and "recorded numbers were computed again by transformers' own forward" in said
    assert sorted(path.rglob("*")) == before


def test_a_number_that_does_not_agree_is_named(tmp_path, capsys):
    stages = as_measured()
    for row in stages["evaluation"]["rows"]:
        row["loss_sum_nats"] *= 1.01
    inputs = written(tmp_path, stages)
    assert command.ratchet(["audit", str(inputs["audit"].path)]) == 1
    said = capsys.readouterr().out
    assert said.startswith("check failed: evaluate, base, document ") and "is what the audit computes: measured" in said


def test_a_run_without_an_audit_is_bad_input(capsys):
    assert command.ratchet(["audit", str(finished_study().path("evaluate"))]) == 2
    assert "has no audit: give the run directory of a study's report" in capsys.readouterr().err


def test_verify_says_where_nothing_was_asked_again(tmp_path, capsys):
    written(tmp_path, {"text": as_measured()["text"]})
    assert command.ratchet(["verify", str(tmp_path / "runs"), "--audit"]) == 0
    assert "nothing was asked again: no study here has a finished audit" in capsys.readouterr().out


@pytest.mark.parametrize("moved", [{"work": "tasks.gone:audit"}, {"configuration_type": "tasks.gone:AuditConfig"}])
def test_a_run_of_a_source_that_is_gone_says_to_start_the_study_again(moved, tmp_path, capsys):
    path = written(tmp_path, as_measured())["audit"].path
    durable.write_json(path / "stage.json", durable.read_json(path / "stage.json") | moved)
    seal(path)
    assert command.ratchet(["audit", str(path)]) == 2
    assert "was begun by another version of its source" in capsys.readouterr().err
