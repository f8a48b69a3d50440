"""A time limit in which no job gains a step is refused before, as soon as attempts have shown what a start takes."""

from pathlib import Path
from typing import Any

import pytest

from deployments.slurm.cluster.site import Resources
from deployments.slurm.job.plan import Plan, time_problem
from storage import durable

SHORT = {"category": "time limit", "summary": "too short"}


def attempts(folder: Path, *records: dict[str, Any]) -> None:
    (folder / "attempts").mkdir(exist_ok=True)
    for number, record in enumerate(records, 1):
        durable.write_json(folder / "attempts" / f"{number:04d}.json", {"attempt": number} | record)


def problem(folder: Path, minutes: int, lead: float, automatic: bool = False) -> str:
    asked = Resources(time_limit_minutes=minutes, lead_seconds=lead)
    return time_problem(Plan("f", folder / "jobs", "toy", ["work"], folder, asked, automatic=automatic))


def test_before_any_attempt_nothing_is_known(tmp_path):
    assert problem(tmp_path, 1, 59) == ""


def test_a_limit_in_which_an_attempt_did_no_step_is_refused_with_what_would_do(tmp_path):
    attempts(tmp_path, {"start_seconds": 25.0, "diagnosis": SHORT})
    told = problem(tmp_path, 1, 20)
    assert "the start took 25 s, and of 60 s lead_seconds (20) leaves 40 s before the signal to save" in told
    assert "Set time_limit_minutes to at least 2 (site file, or execution.resources of the study)" in told
    assert problem(tmp_path, 2, 20) == "", "what was advised is taken"


def test_a_first_start_may_be_a_slow_one_so_the_worker_refuses_after_two(tmp_path):
    attempts(tmp_path, {"start_seconds": 25.0, "diagnosis": SHORT})
    assert problem(tmp_path, 1, 20, automatic=True) == ""
    attempts(tmp_path, *[{"start_seconds": 25.0, "diagnosis": SHORT}] * 2)
    assert "time_limit_minutes" in problem(tmp_path, 1, 20, automatic=True)
    attempts(tmp_path, {"start_seconds": 300.0, "diagnosis": SHORT}, {"start_seconds": 15.0, "diagnosis": None})
    assert problem(tmp_path, 2, 60, automatic=True) == "", "the second one gained steps"


@pytest.mark.parametrize(("minutes", "refused"), [(4, True), (5, True), (8, False)])
def test_a_limit_that_is_lowered_below_what_a_start_takes_is_refused(tmp_path, minutes, refused):
    attempts(tmp_path, {"start_seconds": 290.0, "diagnosis": None})
    assert bool(problem(tmp_path, minutes, 90)) == refused


def test_records_of_older_versions_and_half_ones_refuse_nothing(tmp_path):
    attempts(tmp_path, {"diagnosis": SHORT})
    assert problem(tmp_path, 1, 20) == ""
    (tmp_path / "attempts" / "0001.json").write_text("{")
    assert problem(tmp_path, 1, 20) == ""
