"""The record of a run: what is decided over an older state is not set, and who asked for a job is kept."""

import time
from pathlib import Path

import pytest

from deployments.dag.walk import Handle, Walk
from deployments.slurm.job.journal import jobs_folder
from deployments.slurm.pool.reconcile import SetState
from deployments.slurm.pool.records import FILE, Records, record_of
from storage import durable, generations
from tests.deployments.toy import ToyConfig, toy_stage


@pytest.fixture
def handle(tmp_path: Path) -> Handle:
    return Walk(tmp_path, "toy")(toy_stage("only"), ToyConfig(ends="finished"))


def started(records: Records, handle: Handle, person: bool = True) -> str:
    return records.make(handle, person, 0).id


def test_a_stage_has_one_run_in_a_generation_and_another_process_finds_it(handle):
    run = started(Records(), handle)
    others = Records()
    assert started(others, handle) == run and [each.id for each in others.waiting()] == [run]
    again = others.make(handle, True, 1)
    assert again.id != run and [each.id for each in others.waiting()] == [again.id]


def test_a_run_of_an_earlier_generation_is_not_the_present_one(handle):
    records = Records()
    run = started(records, handle)
    assert records.made_for(handle) and records.of(handle.run, run)
    durable.write_json(handle.run.generation_file, {"generation": 1, "history": []})
    assert generations.current(handle.run)["generation"] == 1
    assert records.made_for(handle) is None and records.of(handle.run, run), "its job may live"


@pytest.mark.parametrize("person", [True, False])
def test_what_puts_a_job_off_leaves_who_asked_for_it(handle, person):
    records = Records()
    run = started(records, handle, person)
    for origin, automatic in (("put off", not person), ("automatic", True), ("put off", True)):
        present = records.open(run)
        assert present and records.set_state(SetState(present, "SCHEDULED", "AwaitingRetry", "", 0.0, origin))
        assert records.asked_for_by(run)[0] == automatic
    assert records.asked_for_by(run)[1] == record_of(handle.run).state_id


def test_a_state_is_set_over_the_one_that_was_read_and_over_no_later_one(handle):
    records = Records()
    run = started(records, handle)
    read = records.open(run)
    assert read and records.set_state(SetState(read, "PENDING", "Pending", ""))
    assert not records.set_state(SetState(read, "FAILED", "Failed", "decided over the state before"))
    assert [each.name for each in records.watched([])] == ["Pending"] and not records.waiting()
    pending = records.open(run)
    assert pending and records.set_state(SetState(pending, "FAILED", "Failed", "refused"))
    assert records.open(run) is None and records.made_for(handle).over
    assert [each.name for each in records.watched([run])] == ["Failed"], "one that is asked for by its name"


def test_what_is_put_off_waits_and_what_goes_on_at_once_keeps_its_turn(tmp_path, monkeypatch):
    walk, records = Walk(tmp_path, "toy"), Records()
    first, second = (walk(toy_stage("only"), ToyConfig(ends="finished", number=number)) for number in (1, 2))
    runs = [started(records, each) for each in (first, second)]
    for delay, due in ((0.0, runs), (60.0, runs[1:])):
        present = records.open(runs[0])
        assert present and records.set_state(SetState(present, "SCHEDULED", "AwaitingRetry", "", delay))
        assert [each.id for each in records.waiting()] == due
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 61)
    assert [each.id for each in records.waiting()] == [runs[1], runs[0]]


@pytest.mark.parametrize("content", [None, {"id": "of another version"}, ["no", "record"]])
def test_a_record_that_is_damaged_or_another_version_s_is_none(handle, content):
    records = Records()
    run = started(records, handle)
    file = jobs_folder(handle.run) / FILE
    file.unlink() if content is None else file.write_bytes(durable.canonical_json(content))
    assert record_of(handle.run) is None and records.of(handle.run, run) is None and records.watched([run]) == []
    assert records.make(handle, True, 0).id != run
