"""Where the time of a training goes, and memory that grows on and on: written while it runs, and told."""

import json
import logging
import subprocess
import sys
import time
from itertools import count

import pytest

from flows.command.show import facts_of, in_words
from tasks.training.phases import STEEP_BYTES, Clock, rows_at_the_end, slope_bytes, told
from tests.tasks.tiny import HOOKS, ToyConfig, stage_run, toy_attempt, toy_directory

TOY = ToyConfig()
WAIT = 0.01


@pytest.mark.parametrize("workers", [0, 1])
def test_the_time_that_a_step_waits_for_its_examples_is_its_own(tmp_path, workers):
    HOOKS["batch"] = lambda: time.sleep(WAIT)
    toy_attempt(tmp_path, TOY, loader_workers=workers)
    run = toy_directory(tmp_path, TOY)
    rows = [json.loads(line) for line in run.timing_file.read_text().splitlines()]
    steps = [row for row in rows if "load_seconds" in row]
    assert [row["step"] for row in steps] == list(range(1, 13))
    assert all(0 <= row["load_seconds"] <= row["seconds"] for row in steps)
    assert workers or all(row["load_seconds"] >= 2 * WAIT for row in steps), "two micro-batches"
    assert [row["step"] for row in steps if "resident_bytes" in row] == [10]
    assert [line for line in in_words(facts_of(run)) if line.startswith("  time ")] == [
        f"  time     {line}" for line in told(rows)
    ]


def test_shares_are_of_all_phases_and_a_large_one_of_waiting_is_told_with_the_setting():
    rows = [
        {"step": 1, "seconds": 5.0, "load_seconds": 3.0},
        {"step": 2, "seconds": 1.0},  # of the version before
        {"validation": 2, "seconds": 2.0},
        {"checkpoint": 2, "write_seconds": 9.0, "copy_seconds": 0.5, "waited_seconds": 0.5, "slowed_seconds": 1.0},
    ]
    shares, advice = told(rows)
    assert shares == "load 30%, step 30%, validate 20%, save 20% of 10 s, in the steps from 1 to 2"
    assert "execution.loader_workers" in advice
    assert len(told([{"step": 1, "seconds": 5.0, "load_seconds": 0.9}])) == 1
    assert told(rows[1:]) == told([]) == []


def test_a_training_of_which_only_the_end_is_read_says_from_which_step(tmp_path, monkeypatch):
    monkeypatch.setattr("tasks.training.phases.READ_BYTES", 400)
    rows = [{"step": step, "seconds": 100.0, "load_seconds": 100.0 * (step < 80)} for step in range(1, 101)]
    (tmp_path / "timing.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    (shares,) = told(rows_at_the_end(tmp_path / "timing.jsonl"))
    first = 101 - 400 // (len(json.dumps(rows[-1])) + 1)
    assert "load 0%" in shares and shares.endswith(f"in the steps from {first} to 100")


def test_rows_that_others_wrote_stop_no_command(tmp_path):
    file = tmp_path / "timing.jsonl"
    assert rows_at_the_end(file) == []
    file.write_text('ds": 1}\n[]\n{"seconds": "long"}\n{"step": "a"}\n{"step": 1, "seconds": 1.5}\n{"step"')
    assert rows_at_the_end(file) == [{"step": 1, "seconds": 1.5}]


def test_the_memory_of_a_process_is_what_it_holds():
    script = (
        "from tasks.training.phases import resident_bytes\n"
        "before = resident_bytes()\nkept = b'x' * (300 << 20)\nprint(resident_bytes() - before, len(kept))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    grown, held = map(int, done.stdout.split())
    assert 0.9 * held < grown < 1.1 * held


@pytest.mark.parametrize("leak", [0, 2])
def test_memory_that_grows_on_and_on_is_told_and_a_plateau_is_not(tmp_path, monkeypatch, leak, caplog):
    # A curve, not this process's own memory: what other tests left in it is freed at any step.
    curve = (4 * STEEP_BYTES * (number % 10) + leak * STEEP_BYTES * number // 100 for number in count())
    monkeypatch.setattr("tasks.training.phases.resident_bytes", lambda: next(curve))
    run = stage_run(tmp_path)
    clock = Clock(run)
    with caplog.at_level(logging.WARNING, "ratchet"):
        for step in range(1, 2001):
            clock.stepped(step, 1.0)
    run.lock.release()
    grown = [message for message in caplog.messages if "memory of the process grew by 100 MiB" in message]
    assert caplog.messages == grown and len(grown) == bool(leak)
    rows = rows_at_the_end(run.run.timing_file)
    samples = [row["resident_bytes"] for row in rows if "resident_bytes" in row]
    assert slope_bytes(samples) == leak * STEEP_BYTES and bool(leak) == any("memory" in line for line in told(rows))
