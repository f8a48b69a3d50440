"""How far a study is, and how long it still takes."""

from pathlib import Path

import pytest

from deployments.dag.walk import Handle, Walk
from deployments.views.estimate import Estimate, estimate
from storage import durable
from tests.deployments.toy import ToyConfig, toy_stage


def _finish(handle: Handle, *seconds: float) -> None:
    """Attempts of so many seconds, the last of which finished it."""
    for number, took in enumerate(seconds, 1):
        _record(handle, number, started_at=100.0, ended_at=100.0 + took, end_state="finished")
    handle.verdict = type(handle.verdict)(True)


def _record(handle: Handle, number: int, **facts: object) -> None:
    handle.run.attempts.mkdir(parents=True, exist_ok=True)
    durable.write_json(handle.run.attempts / f"{number:04d}.json", {"attempt": number, **facts})


@pytest.fixture
def handles(tmp_path: Path) -> list[Handle]:
    """text -> two trainings -> table, nothing begun."""
    walk = Walk(tmp_path, "toy")
    text = walk(toy_stage("text"), ToyConfig(ends="finished"))
    trained = [walk(toy_stage("train"), ToyConfig(ends="finished", number=number), text=text) for number in (1, 2)]
    walk(toy_stage("table"), ToyConfig(ends="finished"), one=trained[0], other=trained[1])
    return walk.handles


def test_a_stage_takes_what_those_of_its_name_took_in_all_attempts(handles):
    assert estimate(handles) == Estimate(0, 4, 0.0, 4)
    assert estimate(handles).words == "0 of 4 stages", "nobody can say anything yet"
    _finish(handles[0], 5)
    _finish(handles[1], 40, 20)
    now = estimate(handles)
    assert now == Estimate(2, 4, 60.0, 1) and now.share == 50
    assert now.words == "2 of 4 stages", (
        "of the table nobody knows; seen: 10 s, 5 min 32 s, 6.8 s left, one after another"
    )


def test_a_stage_that_runs_says_itself_how_long(handles):
    _finish(handles[0], 5)
    _finish(handles[1], 60)
    _finish(handles[3], 7)  # of another start
    _record(handles[2], 1, started_at=100.0, ended_at=None, end_state=None)
    durable.write_json(handles[2].run.progress_file, {"eta_seconds": 12.0})
    assert estimate(handles).words == "3 of 4 stages, about 12 s left"
    _record(handles[2], 1, started_at=100.0, ended_at=130.0, end_state="sigterm")
    assert estimate(handles).seconds == 60, "it is not running any more"


def test_stages_side_by_side_take_the_longest_path(handles):
    for handle, seconds in zip(handles[:3], (7.0, 30.0, 90.0), strict=True):
        _record(handle, 1, started_at=100.0, ended_at=None, end_state=None)
        durable.write_json(handle.run.progress_file, {"eta_seconds": seconds})
    assert estimate(handles).seconds == 127
    assert estimate(handles, side_by_side=True) == Estimate(0, 4, 97.0, 1), "the trainings wait for the text"
