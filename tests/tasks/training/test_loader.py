"""Micro-batches: the same ones in the same order with and without workers, from any step, and at no cost that grows."""

import json
import threading
import time
from itertools import islice

import numpy as np
import pytest

from tasks.training import loader
from tasks.training.budget import Budget
from tasks.training.loader import micro_batches
from tasks.training.order import example_at
from tasks.training.schedule import Schedule
from tests.tasks.tiny import HOOKS, SEEN, ToyConfig, toy_attempt, toy_directory, toy_to_the_end, what_must_be_equal

PLAN = Schedule(Budget(epochs=3.0, effective_batch_examples=8, learning_rate=1.0), 45)


def read(after_step=0, workers=0, size=4, batch=lambda indices, epoch: indices * 2 + 1000 * epoch):
    with micro_batches(batch, PLAN, example_at, 7, after_step, size, workers) as made:
        return [(indices.tolist(), value.tolist()) for indices, value in made]


@pytest.mark.parametrize("workers", [1, 2, 5])
def test_workers_change_nothing_in_what_is_read(workers):
    assert read(workers=workers) == read()


@pytest.mark.parametrize("at_once", [1, 2, 4, 64])
def test_windows_that_are_put_in_order_together_are_those_of_each_alone(at_once, monkeypatch):
    monkeypatch.setattr(loader, "WINDOWS_AT_ONCE", at_once)
    for step in (1, 5, 6, 7, 12, 18, 2):
        epoch, first, count = PLAN.window(step)
        alone = example_at(9, epoch, np.arange(first, first + count), PLAN.examples)
        assert loader.examples_of(PLAN, example_at, 9, step).tolist() == alone.tolist()


def test_a_continuation_reads_what_would_have_come_next():
    per_epoch = 5 * 2 + 2  # five windows of 4 + 4 and one of 4 + 1
    assert read(after_step=6, workers=2) == read()[per_epoch:]
    assert read(after_step=7) == read()[per_epoch + 2 :]


def test_workers_read_ahead_and_at_the_same_time():
    both = threading.Barrier(2, timeout=300)

    def batch(indices, _):
        both.wait()  # returns only when two are being made at once
        return indices

    with micro_batches(batch, PLAN, example_at, 7, 0, 4, 2) as made:
        assert len(list(islice(made, 4))) == 4
        both.abort()  # who reads ahead alone does not wait out the time


def test_what_was_read_ahead_is_dropped_when_training_stops_and_no_thread_stays():
    before = threading.active_count()
    with micro_batches(lambda indices, _: time.sleep(0.001) or indices, PLAN, example_at, 7, 0, 4, 3) as made:
        next(made)
    assert threading.active_count() == before


def test_an_error_in_a_worker_reaches_the_training():
    def batch(indices, _):
        raise OSError("the disk is gone")

    with micro_batches(batch, PLAN, example_at, 7, 0, 4, 2) as made, pytest.raises(OSError, match="the disk is gone"):
        next(made)


def test_the_place_of_a_late_step_is_computed_without_the_steps_before_it():
    plan = Schedule(Budget(epochs=1e6, effective_batch_examples=8, learning_rate=1.0), 45)
    read_indices = []

    def batch(indices, _):
        read_indices.append(indices)
        return indices

    with micro_batches(batch, plan, example_at, 7, 5_999_999, 8, 0) as made:
        next(made)
    assert len(read_indices) == 1 and np.all(read_indices[0] < 45)


@pytest.mark.parametrize("workers", [1, 3])
def test_a_training_with_workers_ends_with_the_same_bytes_in_pieces_too(tmp_path, workers):
    config = ToyConfig()
    toy_to_the_end(tmp_path / "none", config)
    toy_to_the_end(tmp_path / "some", config, max_steps_per_run=5, loader_workers=workers)
    SEEN.clear()
    expected = what_must_be_equal(toy_directory(tmp_path / "none", config))
    assert what_must_be_equal(toy_directory(tmp_path / "some", config)) == expected


@pytest.mark.parametrize("workers", [0, 1])
def test_the_time_that_a_step_waits_for_its_examples_is_its_own(tmp_path, workers):
    HOOKS["batch"] = lambda: time.sleep(0.01)
    toy_attempt(tmp_path, ToyConfig(), loader_workers=workers)
    run = toy_directory(tmp_path, ToyConfig())
    rows = [json.loads(line) for line in run.timing_file.read_text().splitlines()]
    steps = [row for row in rows if "load_seconds" in row]
    assert [row["step"] for row in steps] == list(range(1, 13))
    assert all(0 <= row["load_seconds"] <= row["seconds"] for row in steps)
    assert workers or all(row["load_seconds"] >= 0.02 for row in steps), "two micro-batches"
