"""Checkpoints in the background: what is written is the moment of the copy, and what it costs is measured."""

import json
import threading
import time

import pytest
import torch

from storage import durable
from storage.checkpoints import Checkpoints
from tasks.stage.execution import Execution
from tasks.training.saver import Saver
from tasks.training.state import Position, State
from tests.tasks.tiny import ToyConfig, stage_run, toy_attempt, toy_directory, toy_problem

TOY = ToyConfig()


@pytest.fixture
def run(tmp_path):
    run = stage_run(tmp_path)
    yield run
    run.lock.release()


@pytest.fixture
def state():
    problem = toy_problem(TOY)
    return State(problem.model, problem.optimizer, Position())


@pytest.fixture
def gate(monkeypatch):
    """Holds every write until it is opened."""
    opened, save = threading.Event(), Checkpoints.save
    monkeypatch.setattr(Checkpoints, "save", lambda *arguments: opened.wait(300) and save(*arguments))
    yield opened
    opened.set()


def settings(**changed):
    return Execution(**{"checkpoint_every_seconds": 1000.0} | changed)


def rows_of(run):
    return [json.loads(line) for line in run.run.timing_file.read_text().splitlines()]


def test_what_is_written_is_the_state_at_the_moment_of_the_copy(run, state, gate):
    with Saver(run, settings(), state) as saver:
        state.position.step = 1
        before = {name: tensor.clone() for name, tensor in state.model.state_dict().items()}
        saver.save()
        with torch.no_grad():
            for parameter in state.model.parameters():
                parameter.add_(1.0)
        state.position.step = 2
        torch.rand(5)
        gate.set()
    written = run.checkpoints.verified(1)
    assert written.state["position"]["step"] == 1
    assert all(torch.equal(written.tensors("model")[name], tensor) for name, tensor in before.items())


def test_training_goes_on_while_a_checkpoint_is_written_and_an_interval_of_seconds_waits_for_it(run, state, gate):
    with Saver(run, settings(checkpoint_every_seconds=1e-6), state) as saver:
        state.position.step = 1
        saver.save()
        assert not saver.due()  # one in flight
        gate.set()
        while run.checkpoints.progress() != 1:
            time.sleep(0.01)
        state.position.step = 2
        saver._thread.join()
        saver.stepped(0.01)
        assert saver._thread is None


def test_a_second_save_waits_for_the_first_and_says_how_long(run, state, gate):
    with Saver(run, settings(), state) as saver:
        for step in (1, 2):
            state.position.step = step
            threading.Timer(0.2, gate.set).start()
            saver.save()
    first, second = rows_of(run)
    assert (first["checkpoint"], second["checkpoint"]) == (1, 2)
    assert 0.1 < first["waited_seconds"] < 100
    assert first["bytes"] > 0 and first["copy_seconds"] > 0 and first["write_seconds"] >= 0.1


def test_the_interval_is_widened_to_the_share_that_checkpoints_may_cost(run, state, caplog):
    caplog.set_level("INFO", "ratchet")
    with Saver(run, settings(checkpoint_every_seconds=1.0, checkpoint_stall_share=0.01), state) as saver:
        state.position.step = 1
        saver.stepped(0.1)
        saver.save()
        saver.stepped(0.6)  # half a second slower than usual while the write is in flight
        saver._wait()
        assert not saver.due()
    (row,) = rows_of(run)
    cost = row["copy_seconds"] + row["waited_seconds"] + row["slowed_seconds"]
    assert saver._every_seconds == pytest.approx(100 * cost) and saver._every_seconds > 49
    assert row["slowed_seconds"] == pytest.approx(0.5)
    assert row["next_after_seconds"] == saver._every_seconds
    assert "to stay below 1.0 %" in caplog.text


def test_the_interval_is_the_configured_one_while_checkpoints_are_cheap(run, state):
    with Saver(run, settings(checkpoint_every_seconds=60.0), state) as saver:
        state.position.step = 1
        saver.save()
        saver._wait()
        assert saver._every_seconds == 60.0


def test_an_error_in_the_background_reaches_the_training(tmp_path, monkeypatch):
    def fails(*_):
        raise OSError(28, "No space left on device", "checkpoints/6")

    monkeypatch.setattr(Checkpoints, "save", fails)
    outcome = toy_attempt(tmp_path, TOY)
    assert (outcome.end_state, outcome.diagnosis.category) == ("crashed", "disk full")


def test_a_saver_ends_with_every_write_durable_even_when_an_error_is_on_its_way(run, state, gate):
    with pytest.raises(RuntimeError, match="something else"), Saver(run, settings(), state) as saver:
        state.position.step = 1
        saver.save()
        threading.Timer(0.1, gate.set).start()
        raise RuntimeError("something else")
    assert run.checkpoints.verified(1)


def test_how_long_a_step_and_a_save_take_stands_in_the_attempt_s_record_for_whoever_plans_the_next(tmp_path):
    toy_attempt(tmp_path, TOY)
    record = durable.read_json(toy_directory(tmp_path, TOY).attempts / "0001.json")
    assert record["step_seconds"] > 0 and record["save_seconds"] > 0


def test_a_disk_without_room_for_the_checkpoints_is_refused_before_the_first_step(tmp_path, monkeypatch):
    weights = sum(parameter.nbytes for parameter in toy_problem(TOY).model.parameters())
    asked = []
    monkeypatch.setattr("tasks.training.saver.require_disk", lambda folder, need: asked.append(need))
    toy_attempt(tmp_path, TOY, max_steps_per_run=1, keep_checkpoints=2)
    toy_attempt(tmp_path, TOY, max_steps_per_run=1, keep_checkpoints=2)
    generators = 5056  # torch's, on a CPU
    assert (
        asked[0] == (3 * weights + generators) * 6
    )  # two kept, what was best at each, the last that was read, the one being written
    written = sum(f.stat().st_size for f in (toy_directory(tmp_path, TOY).checkpoints / "1").iterdir())
    assert asked[1] == asked[0] - written
