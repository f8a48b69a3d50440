"""What a person sees of a stage: how it stands, and the few log lines that matter at once."""

import io
import logging
import time
from pathlib import Path
from typing import Any

from deployments.dag.walk import Handle, Walk
from deployments.views.listing import standing
from flows.command import display
from flows.command.display import Display
from flows.command.study import stand_of
from flows.command.terminal import Terminal
from storage import attempts, durable
from tasks.stage.attempt import attempt
from tasks.stage.run import Stage
from tests.deployments.toy import ToyConfig


def page(root: Path) -> list[Handle]:
    """A first stage and one that reads it; neither was started."""
    walk = Walk(root, "toy")
    first = walk(Stage("first", ToyConfig, "tests.deployments.toy:work"), ToyConfig(ends="finished"))
    walk(Stage("second", ToyConfig, "tests.deployments.toy:work"), ToyConfig(ends="finished"), first=first)
    return walk.handles


def stands(handle: Handle, **record: Any) -> str:
    """How it stands after an attempt with this record."""
    handle.run.attempts.mkdir(parents=True, exist_ok=True)
    durable.write_json(handle.run.attempts / "0001.json", {"attempt": 1, "end_state": None} | record)
    return standing(handle.run, handle.verdict)[1]


def save(handle: Handle, step: int) -> Path:
    checkpoint = handle.run.checkpoints / str(step)
    checkpoint.mkdir(parents=True)
    durable.write_json(checkpoint / "manifest.json", {"files": {}, "identity": {}})
    return checkpoint


def test_a_stage_whose_input_is_refused_waits_for_it_whatever_it_did_before(tmp_path):
    _, second = page(tmp_path)
    for end_state in ("finished", "check_failed"):
        stands(second, end_state=end_state)
        assert stand_of(second)[1] == "waits for first"


def test_a_killed_attempt_is_shown_with_where_it_goes_on_and_not_with_a_progress_that_may_be_older(tmp_path):
    first, _ = page(tmp_path)
    checkpoint = save(first, 1215)
    now = {"step": 1276, "total": 1560, "unit": "steps", "note": "loss 4.1 at validation", "eta_seconds": 30}
    durable.write_json(first.run.progress_file, now)
    assert stands(first) == "attempt 1 was killed; the same command goes on from step 1,215 of 1,560"
    durable.remove_directory(checkpoint)
    assert stands(first) == "attempt 1 was killed at 1,276/1,560 steps; the same command goes on"
    (first.run.path / "records").mkdir()
    (first.run.path / "records" / "01-00000.json").touch()
    assert stands(first) == "attempt 1 was killed at 1,276/1,560 steps; parts kept: 1; the same command goes on"


def test_an_attempt_that_ended_before_its_first_step_is_shown_in_a_whole_sentence_with_what_is_saved(tmp_path):
    first, _ = page(tmp_path)
    save(first, 280)
    durable.write_json(first.run.progress_file, {"step": 0, "total": 0, "unit": "", "note": "starting"})
    assert stands(first) == "attempt 1 was killed; the same command goes on from step 280"
    refused = {"end_state": "bad_input", "diagnosis": {"summary": "16 was, is 8"}}
    assert stands(first, **refused) == "bad input in attempt 1: 16 was, is 8; step 280 is saved"


def test_end_states_are_shown_in_plain_words(tmp_path):
    first, _ = page(tmp_path)
    first.run.path.mkdir(parents=True)
    durable.write_json(first.run.progress_file, {"step": 3, "total": 9, "unit": "steps", "eta_seconds": 9})
    for end_state, words in (("out_of_time", "stopped at its limit"), ("bad_input", "bad input")):
        assert stands(first, end_state=end_state) == f"{words} in attempt 1, 3/9 steps"


def test_the_terminal_shows_warnings_and_what_is_meant_for_it(tmp_path):
    from tasks.stage.progress import FOR_THE_TERMINAL

    shown = io.StringIO()
    with Display(page(tmp_path), Terminal(file=shown, width=200)):
        log = logging.getLogger("ratchet.base")
        log.setLevel(logging.INFO)
        log.info("step 10: a detail")
        log.info("goes on from the checkpoint of step 10", extra=FOR_THE_TERMINAL)
        log.warning("a cache [x] was damaged")
        log.error("told at the end")
    assert shown.getvalue().splitlines() == [
        "base             goes on from the checkpoint of step 10",
        "base             a cache [x] was damaged",
    ]
    logging.getLogger("ratchet.base").warning("not shown any more")
    assert "any more" not in shown.getvalue()


def test_what_stays_in_the_terminal_is_how_far_the_study_came(tmp_path, monkeypatch):
    """Seen: "14 of 15 stages" below "finished", since the bar is drawn anew only now and then."""
    monkeypatch.setattr(display, "UPDATE_EVERY_SECONDS", 0.01)
    handles, shown = page(tmp_path), io.StringIO()
    with Display(handles, Terminal(file=shown, width=200, force_terminal=True)):
        while "0 of 2 stages" not in shown.getvalue():
            time.sleep(0.01)
        for handle in handles:
            inputs = {role: given.as_input() for role, given in handle.inputs.items()}
            attempt(handle.stage, handle.config, handle.run, inputs)
            handle.check_marker()
    assert "2 of 2 stages" in shown.getvalue().rpartition("the whole study")[2]


def test_a_stage_that_was_stopped_has_no_time_left(tmp_path, monkeypatch):
    monkeypatch.setattr(display, "UPDATE_EVERY_SECONDS", 0.01)
    (first, _), shown = page(tmp_path), io.StringIO()
    with Display([first], Terminal(file=shown, width=200, force_terminal=True)):
        working = attempts.AttemptRecord(first.run.attempts, 1, {}, [0, 0])
        durable.write_json(first.run.progress_file, {"step": 3, "total": 9, "unit": "steps", "eta_seconds": 60})
        while "1 min 0 s left" not in shown.getvalue():
            time.sleep(0.01)
        working.end("sigterm", 75, None)
    last = shown.getvalue().rpartition("3/9 steps")[2]
    assert last and "left" not in last


def test_a_line_of_the_log_stands_beside_the_stage_and_cell_that_is_worked_on_here(tmp_path):
    """Seen: "goes on from the checkpoint" twice, and nobody knew of which arm."""
    walk = Walk(tmp_path, "toy")
    train = Stage("train", ToyConfig, "tests.deployments.toy:work")
    plain, wide = (walk(train, ToyConfig(ends="finished", number=number, cell=f"arm {number}")) for number in (1, 2))
    shown = io.StringIO()
    with Display(walk.handles, Terminal(file=shown, width=200)):
        killed = attempts.AttemptRecord(plain.run.attempts, 1, {}, [0, 0])
        killed.note(pid=1)
        working = attempts.AttemptRecord(wide.run.attempts, 1, {}, [0, 0])
        logging.getLogger("ratchet.train").warning("goes on")
        working.end("out_of_time", 75, None)
        logging.getLogger("ratchet.train").warning("between two stages")
    assert shown.getvalue().splitlines() == ["train (arm 2)    goes on", "train            between two stages"]
