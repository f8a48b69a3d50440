"""How an attempt is asked to stop (note, deadline, signals), and how it is ended when it hangs or gains nothing."""

import math
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor

import pytest

from deployments.slurm.job.journal import Journal, Submission, jobs_folder
from storage import attempts, durable, generations
from storage.checkpoints import Checkpoints
from tasks.stage import progress
from tasks.stage.progress import BEGAN, DEADLINE, JOB_LEAD, STOP_NOTE, StopRequest
from tasks.stage.run import StageRun
from tasks.training.__main__ import continue_run
from tests.conftest import REPOSITORY
from tests.tasks.tiny import HOOKS, SEEN, ToyConfig, toy_attempt, toy_directory, what_must_be_equal

TOY = ToyConfig()


@pytest.fixture
def automatic(monkeypatch):
    monkeypatch.setenv(attempts.STARTED_BY, "automatic")


def records(root):
    files = sorted(toy_directory(root, TOY).attempts.glob("*.json"))
    return [durable.read_json(file) for file in files]


# ------------------------------------------------------------------------------------ note and deadline


def test_a_stop_note_ends_the_attempt_at_the_next_step_as_out_of_time(tmp_path, monkeypatch, undisturbed):
    note = tmp_path / "stop"
    monkeypatch.setenv(STOP_NOTE, str(note))
    monkeypatch.setattr(progress, "NOTE_EVERY_SECONDS", 0.0)
    HOOKS["batch"] = lambda: note.touch() if len(SEEN) == 7 else None  # the first half of step 4
    outcome = toy_attempt(tmp_path, TOY)
    assert (outcome.end_state, outcome.exit_code) == ("out_of_time", 75)
    run = toy_directory(tmp_path, TOY)
    assert [folder.name for folder in run.checkpoints.iterdir()] == ["4"]
    note.unlink()
    assert toy_attempt(tmp_path, TOY).end_state == "finished"
    assert what_must_be_equal(run) == undisturbed


def test_a_deadline_that_is_no_number_is_bad_input_that_says_what_would_be_one(tmp_path, monkeypatch):
    monkeypatch.setenv(DEADLINE, "tomorrow")
    outcome = toy_attempt(tmp_path, TOY)
    assert (outcome.end_state, outcome.exit_code) == ("bad_input", 2)
    assert "RATCHET_DEADLINE is 'tomorrow': it must be seconds since 1970, such as $(date -d" in outcome.message
    assert [record["end_state"] for record in records(tmp_path)] == ["bad_input"]


def test_a_stop_says_after_which_step_and_what_asked_for_it(tmp_path, monkeypatch):
    """A note that somebody left ends every attempt: it must be named, or nobody finds it."""
    note = tmp_path / "stop"
    monkeypatch.setenv(STOP_NOTE, str(note))
    monkeypatch.setattr(progress, "NOTE_EVERY_SECONDS", 0.0)
    HOOKS["batch"] = lambda: note.touch() if len(SEEN) == 7 else None
    said = [toy_attempt(tmp_path, TOY).message]
    HOOKS.clear()
    note.unlink()
    monkeypatch.setenv(DEADLINE, str(time.time()))
    said.append(toy_attempt(tmp_path, TOY).message)
    monkeypatch.delenv(DEADLINE)
    said.append(toy_attempt(tmp_path, TOY, max_steps_per_run=2).message)
    HOOKS["batch"] = lambda: os.kill(os.getpid(), signal.SIGTERM)
    said.append(toy_attempt(tmp_path, TOY).message)
    assert said == [
        f"stopped after step 4 because {note} exists: remove it to go on",
        "stopped after step 4 because the time that RATCHET_DEADLINE names is nearly up",
        "stopped after step 6, this run's share (execution.max_steps_per_run)",
        "stopped after step 7 because of SIGTERM",
    ]


def test_the_note_is_asked_for_at_most_once_a_second(tmp_path, monkeypatch):
    monkeypatch.setenv(STOP_NOTE, str(tmp_path / "stop"))
    stop = StopRequest()
    assert not stop.requested
    (tmp_path / "stop").touch()
    assert not stop.requested
    monkeypatch.setattr(progress, "NOTE_EVERY_SECONDS", 0.0)
    assert stop.requested


def test_an_attempt_stops_before_its_deadline_by_what_its_steps_and_saves_took(tmp_path, monkeypatch, undisturbed):
    """Steps of 0.2 s: it stops so early that twice a step still fits before the end."""
    monkeypatch.setattr(progress, "LEAD_SECONDS", 0.5)
    deadline = time.time() + 2.5
    monkeypatch.setenv(DEADLINE, str(deadline))
    HOOKS["batch"] = lambda: time.sleep(0.1)
    outcome = toy_attempt(tmp_path, TOY)
    left = deadline - time.time()
    assert (outcome.end_state, outcome.exit_code) == ("out_of_time", 75)
    assert 0.2 < left < 2.0
    trained = len(SEEN) // 2
    assert 2 <= trained <= 8
    assert max(int(folder.name) for folder in toy_directory(tmp_path, TOY).checkpoints.iterdir()) == trained
    monkeypatch.delenv(DEADLINE)
    HOOKS.clear()
    toy_attempt(tmp_path, TOY)
    assert what_must_be_equal(toy_directory(tmp_path, TOY)) == undisturbed


def test_work_that_is_done_is_not_thrown_away_because_its_deadline_is_near(tmp_path, monkeypatch):
    """The deadline comes while the model is published: all that is left is the marker."""
    publish = StageRun.publish

    def late(self, name):
        self.stop._deadline = time.time() - 1.0
        return publish(self, name)

    monkeypatch.setattr(StageRun, "publish", late)
    assert toy_attempt(tmp_path, TOY).end_state == "finished"


def test_the_lead_time_grows_with_the_longest_way_between_two_safe_points_and_with_the_save():
    stop = StopRequest()
    assert not stop.requested
    at_first = stop.lead_seconds
    time.sleep(0.1)
    assert not stop.requested
    assert stop.lead_seconds == pytest.approx(at_first + 2 * 0.1, abs=0.1)
    stop.save_seconds = 30.0
    assert stop.lead_seconds == pytest.approx(at_first + 2 * 30.1, abs=0.1)


def test_what_a_command_gets_to_save_leaves_it_two_thirds_of_a_short_job(monkeypatch):
    """Twice a minute before the end of a job of two minutes a script was asked to stop as soon as it began."""
    monkeypatch.setenv(BEGAN, str(time.time()))
    monkeypatch.setenv(DEADLINE, str(time.time() + 120))
    with StopRequest().listening() as stop:
        assert stop.grant(60.0) == pytest.approx(40, abs=1) and not stop.requested
        assert stop.lead_seconds == pytest.approx(10 + 40, abs=1)
        assert stop.grant(5.0) == 5.0
        stop._deadline = time.time() + 45
        assert stop.requested
    assert StopRequest().grant(60.0) == 60.0


# ------------------------------------------------------------------------ a limit that is too short for the machine


@pytest.fixture
def job_of_a_minute(tmp_path, monkeypatch):
    """A job whose start took 25 s of its minute, and whose shell left the stop note before that."""
    monkeypatch.setattr(progress, "NOTE_EVERY_SECONDS", 0.0)
    note, now = tmp_path / "0001.stop", time.time()
    note.touch()
    for name, value in ((STOP_NOTE, note), (BEGAN, now - 25), (DEADLINE, now + 35), (JOB_LEAD, 20)):
        monkeypatch.setenv(name, str(value))
    return note


def test_a_job_whose_limit_leaves_no_room_for_a_step_says_what_its_start_took_and_which_key_to_raise(
    tmp_path, automatic, job_of_a_minute
):
    for _ in range(3):
        outcome = toy_attempt(tmp_path, TOY)
        took = records(tmp_path)[-1]["start_seconds"]
        assert (outcome.end_state, outcome.exit_code) == ("out_of_time", 75) and took >= 25
        assert f"the start took {took:.0f} s, and of 60 s lead_seconds (20) leaves 40 s before the sig" in outcome.text
        least = math.ceil((took + 20 + 60) / 60)
        assert f"Set time_limit_minutes to at least {least} (site file" in outcome.text and "remove" not in outcome.text
    assert {record["diagnosis"]["category"] for record in records(tmp_path)} == {"time limit"}
    last = toy_attempt(tmp_path, TOY)
    assert last.end_state == "no_progress" and "the time limit is too short: the start took " in last.message


def test_a_part_that_takes_longer_than_its_job_is_told_as_such(tmp_path, monkeypatch, job_of_a_minute):
    job_of_a_minute.unlink()
    stop = StopRequest()
    with stop.listening():
        assert not stop.requested
        stop._asked_at -= 90.0
        job_of_a_minute.touch()
        assert stop.requested
    found = stop.too_short()
    assert found is not None and " s and a step or part 9" in found.summary
    assert "time_limit_minutes to at least 4" in found.resolution


def test_a_job_that_gained_steps_before_its_limit_is_told_of_its_limit_and_nothing_is_wrong(
    tmp_path, monkeypatch, job_of_a_minute
):
    """ "Remove the stop note to go on" was told to people whose job had met its limit: the next one has its own."""
    job_of_a_minute.unlink()
    HOOKS["batch"] = lambda: job_of_a_minute.touch() if len(SEEN) == 7 else None
    outcome = toy_attempt(tmp_path, TOY)
    assert outcome.message == "stopped after step 4 because the time of its job is nearly up"
    assert outcome.diagnosis is None and records(tmp_path)[0]["start_seconds"] >= 25


def test_a_job_that_a_person_asks_to_stop_hours_before_its_limit_is_not_too_short(
    tmp_path, monkeypatch, job_of_a_minute
):
    monkeypatch.setenv(DEADLINE, str(time.time() + 7200))
    outcome = toy_attempt(tmp_path, TOY)
    assert outcome.message == f"stopped after step 0 because {job_of_a_minute} exists" and outcome.diagnosis is None


def _nap(seconds):
    time.sleep(seconds)
    os._exit(0)


def test_what_a_stage_forks_ends_by_sigterm_and_outlives_what_stops_the_stage(tmp_path, monkeypatch, undisturbed):
    """Seen: leaving the block of a Pool hung for ever, since its processes only noted the SIGTERM that ends them."""
    context = multiprocessing.get_context("fork")

    def forks():
        if len(SEEN) == 3:
            ended = context.Process(target=_nap, args=(600,))
            ended.start()
            ended.terminate()
            ended.join(5)
            codes.append(ended.exitcode)
            ended.kill()
            stays = context.Process(target=_nap, args=(0.5,))
            stays.start()
            time.sleep(0.2)
            os.kill(stays.pid, signal.SIGUSR1)
            stays.join()
            codes.append(stays.exitcode)

    codes = []
    HOOKS["batch"] = forks
    assert toy_attempt(tmp_path, TOY).end_state == "finished" and codes == [-signal.SIGTERM, 0]
    assert what_must_be_equal(toy_directory(tmp_path, TOY)) == undisturbed


def test_a_sigterm_that_ends_a_stage_s_workers_too_stops_it_and_is_no_crash(tmp_path, undisturbed):
    """A preemption signals the whole group: a pool is broken by it before the stage comes to its next step."""

    def broken_by_it():
        if len(SEEN) == 5:
            with ProcessPoolExecutor(1, multiprocessing.get_context("fork")) as pool:
                asleep = pool.submit(time.sleep, 600)
                pool.submit(int)  # the worker is there
                os.kill(next(iter(pool._processes)), signal.SIGTERM)
                os.kill(os.getpid(), signal.SIGTERM)
                asleep.result()

    HOOKS["batch"] = broken_by_it
    outcome = toy_attempt(tmp_path, TOY)
    assert outcome.end_state == "sigterm" and "BrokenProcessPool" in outcome.message
    HOOKS.clear()
    assert toy_attempt(tmp_path, TOY).end_state == "finished"
    assert what_must_be_equal(toy_directory(tmp_path, TOY)) == undisturbed


def test_a_fork_leaves_the_signals_blocked_that_were(tmp_path):
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    try:
        if (pid := os.fork()) == 0:
            os._exit(signal.SIGTERM not in signal.pthread_sigmask(signal.SIG_BLOCK, []))
        assert os.waitpid(pid, 0)[1] == 0 and signal.SIGTERM in signal.pthread_sigmask(signal.SIG_BLOCK, [])
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def test_a_second_sigterm_while_it_saves_does_no_harm(tmp_path, monkeypatch, undisturbed):
    save = Checkpoints.save

    def terminated_again(*arguments):
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGTERM)
        return save(*arguments)

    monkeypatch.setattr(Checkpoints, "save", terminated_again)
    HOOKS["batch"] = lambda: os.kill(os.getpid(), signal.SIGTERM) if len(SEEN) == 7 else None
    assert toy_attempt(tmp_path, TOY).end_state == "sigterm"
    HOOKS.clear()
    monkeypatch.undo()
    run = toy_directory(tmp_path, TOY)
    assert [folder.name for folder in run.checkpoints.iterdir()] == ["4"]
    assert toy_attempt(tmp_path, TOY).end_state == "finished"
    assert what_must_be_equal(run) == undisturbed


# --------------------------------------------------------------------------------------- the stall watchdog

HANGS = """
import sys, time
from pathlib import Path
from tests.tasks.tiny import HOOKS, SEEN, ToyConfig, toy_attempt
HOOKS["batch"] = lambda: time.sleep(600) if len(SEEN) == 9 else None
toy_attempt(Path(sys.argv[1]), ToyConfig(), checkpoint_every_steps=2, stall_minutes=float(sys.argv[2]))
"""
HANGS_IN_RESTORE = """
import sys, time
from pathlib import Path
from storage.checkpoints import Checkpoints
from tests.tasks.tiny import ToyConfig, toy_attempt
toy_attempt(Path(sys.argv[1]), ToyConfig(), checkpoint_every_steps=2, max_steps_per_run=4)
Checkpoints.verified = lambda *_: time.sleep(600)
toy_attempt(Path(sys.argv[1]), ToyConfig(), checkpoint_every_steps=2, stall_minutes=float(sys.argv[2]))
"""


@pytest.mark.parametrize("script", [HANGS, HANGS_IN_RESTORE])
def test_an_attempt_that_hangs_is_ended_with_the_stacks_in_its_log_and_goes_on(tmp_path, undisturbed, script):
    command = [sys.executable, "-c", script, str(tmp_path), "0.02"]
    done = subprocess.run(command, cwd=REPOSITORY, timeout=300, check=False, capture_output=True)
    assert done.returncode == 1, done.stderr
    record = records(tmp_path)[-1]
    assert (record["end_state"], record["exit_code"]) == ("crashed", 1)
    assert record["diagnosis"]["category"] == "stalled"
    assert "no step for 0.02" in record["diagnosis"]["summary"]
    log = (toy_directory(tmp_path, TOY).attempts / f"{record['attempt']:04d}.log").read_text()
    assert "Thread" in log and "in <lambda>" in log
    assert toy_attempt(tmp_path, TOY).end_state == "finished"
    assert what_must_be_equal(toy_directory(tmp_path, TOY)) == undisturbed


LAST_WORDS = """
import sys, time
from tasks.stage import progress
progress.LAST_WORDS_SECONDS = 0.5
def say(seconds):
    print("said", flush=True)
    {say}
with progress.ended_when_stalled(lambda: None, 0.2, say):
    time.sleep(3600)
"""


@pytest.mark.parametrize("say", ["raise OSError(28, 'no space')", "time.sleep(3600)"])
def test_an_attempt_that_hangs_is_ended_even_when_nothing_can_be_written_any_more(say):
    command = [sys.executable, "-c", LAST_WORDS.format(say=say)]
    done = subprocess.run(command, cwd=REPOSITORY, timeout=300, check=False, capture_output=True)
    assert (done.returncode, done.stdout) == (1, b"said\n")


def test_an_attempt_that_was_frozen_itself_is_not_taken_for_hung(tmp_path):
    """Steps of 0.1 s and a limit of 1.2 s: frozen for 3 s, it goes on where it stood."""
    slow = HANGS.replace("time.sleep(600) if len(SEEN) == 9 else None", "time.sleep(0.1)")
    process = subprocess.Popen([sys.executable, "-c", slow, str(tmp_path), "0.02"], cwd=REPOSITORY)
    timing = toy_directory(tmp_path, TOY).timing_file
    while not timing.exists() and process.poll() is None:
        time.sleep(0.02)
    process.send_signal(signal.SIGSTOP)
    time.sleep(3)
    process.send_signal(signal.SIGCONT)
    assert process.wait(300) == 0
    assert [record["end_state"] for record in records(tmp_path)] == ["finished"]


# ---------------------------------------------------------------------------------------- the progress ledger


def dies(*_):
    raise RuntimeError("the node died")


def test_three_automatic_attempts_without_progress_end_the_stage_and_name_what_happened(tmp_path, automatic):
    HOOKS["batch"] = dies
    for _ in range(3):
        assert toy_attempt(tmp_path, TOY).end_state == "crashed"
    HOOKS.clear()
    outcome = toy_attempt(tmp_path, TOY)
    assert (outcome.end_state, outcome.exit_code) == ("no_progress", 1)
    assert len(SEEN) == 3  # it trained nothing more
    assert "no progress in 3 attempts in a row" in outcome.message
    assert all(f"attempt {number} on " in outcome.message for number in (1, 2, 3))
    assert "RuntimeError: the node died" in outcome.message
    assert toy_attempt(tmp_path, TOY).end_state == "no_progress"  # and stays so until a person looks


def test_a_refusal_quotes_none_before_it_and_little_of_each_cause(tmp_path, automatic):
    HOOKS["batch"] = lambda *_: dies() if len(SEEN) > 1 else (_ for _ in ()).throw(RuntimeError("x" * 5000))
    for _ in range(3):
        assert toy_attempt(tmp_path, TOY).end_state == "crashed"
    HOOKS.clear()
    told = [toy_attempt(tmp_path, TOY) for _ in range(6)]
    assert {outcome.end_state for outcome in told} == {"no_progress"}
    assert max(len(outcome.message) for outcome in told) < 1_500 and "RuntimeError" in told[-1].message
    assert all(all(f"attempt {number} on " in outcome.message for number in (1, 2, 3)) for outcome in told)
    refused = sorted(toy_directory(tmp_path, TOY).attempts.glob("*.json"))[3:]
    assert len(refused) == 6 and max(file.stat().st_size for file in refused) < 8_000


def test_a_job_s_script_that_a_person_submits_again_is_a_person_s(tmp_path, automatic, monkeypatch):
    """Seen: it says RATCHET_STARTED_BY=automatic, so it could never start again."""
    HOOKS["batch"] = dies
    for job in ("11", "12", "13"):
        monkeypatch.setenv("SLURM_JOB_ID", job)
        monkeypatch.setenv("SLURM_JOB_NAME", f"train.{job}")
        assert toy_attempt(tmp_path, TOY).end_state == "crashed"
    HOOKS.clear()
    monkeypatch.setenv("SLURM_JOB_NAME", "train.14")
    assert toy_attempt(tmp_path, TOY).end_state == "no_progress", "the next one is the pool's"
    monkeypatch.setenv("SLURM_JOB_ID", "15")
    monkeypatch.setenv("SLURM_JOB_NAME", "train.13")
    assert toy_attempt(tmp_path, TOY).end_state == "finished"
    assert records(tmp_path)[-1]["started_by"] == "person"


def test_attempts_that_gain_a_step_are_not_limited(tmp_path, automatic, undisturbed):
    for _ in range(11):
        SEEN.clear()
        HOOKS["batch"] = lambda: dies() if len(SEEN) == 3 else None  # the first half of the second step
        assert toy_attempt(tmp_path, TOY, checkpoint_every_steps=1).end_state == "crashed"
    HOOKS.clear()
    assert toy_attempt(tmp_path, TOY).end_state == "finished"
    assert what_must_be_equal(toy_directory(tmp_path, TOY)) == undisturbed


def test_two_in_vain_one_with_progress_and_two_in_vain_are_not_three_in_a_row(tmp_path, automatic):
    for calls in (1, 1, 3, 1, 1):
        SEEN.clear()
        HOOKS["batch"] = lambda calls=calls: dies() if len(SEEN) == calls else None
        assert toy_attempt(tmp_path, TOY, checkpoint_every_steps=1).end_state == "crashed"
    HOOKS.clear()
    assert toy_attempt(tmp_path, TOY).end_state == "finished"


def test_attempts_that_a_person_started_are_never_refused_and_do_not_count(tmp_path, monkeypatch):
    HOOKS["batch"] = dies
    for who in ("person", "person", "person", "person", "automatic", "automatic", "person", "automatic", "automatic"):
        monkeypatch.setenv(attempts.STARTED_BY, who)
        assert toy_attempt(tmp_path, TOY).end_state == "crashed", who
    HOOKS.clear()
    monkeypatch.setenv(attempts.STARTED_BY, "automatic")
    assert toy_attempt(tmp_path, TOY).end_state == "finished"


def test_a_person_s_retry_whose_job_died_before_its_attempt_begins_a_new_count(tmp_path, automatic):
    """Of two lanes that were killed as they started after a retry both failed at once, by attempts from before it."""
    HOOKS["batch"] = dies
    for _ in range(3):
        assert toy_attempt(tmp_path, TOY).end_state == "crashed"
    journal = Journal(jobs_folder(toy_directory(tmp_path, TOY)))
    journal.write(Submission(4, "toy.4", "f", 0.0, automatic=False, memory_gb=1.0, attempts_before=3))
    journal.write(Submission(5, "toy.5", "f", 0.0, automatic=True, memory_gb=1.0, attempts_before=3))
    for _ in range(3):
        assert toy_attempt(tmp_path, TOY).end_state == "crashed"
    assert toy_attempt(tmp_path, TOY).end_state == "no_progress"


def test_a_person_s_restart_after_no_progress_begins_a_generation_and_a_new_count(tmp_path, monkeypatch, automatic):
    HOOKS["batch"] = dies
    for _ in range(4):
        last = toy_attempt(tmp_path, TOY)
    assert last.end_state == "no_progress"
    monkeypatch.delenv(attempts.STARTED_BY)
    assert toy_attempt(tmp_path, TOY).end_state == "crashed"
    assert generations.current(toy_directory(tmp_path, TOY))["generation"] == 1
    monkeypatch.setenv(attempts.STARTED_BY, "automatic")
    for _ in range(3):
        assert toy_attempt(tmp_path, TOY).end_state == "crashed"
    assert toy_attempt(tmp_path, TOY).end_state == "no_progress"


def test_killed_attempts_count_although_they_left_no_end(tmp_path, automatic):
    for number in (1, 2, 3):
        attempts.AttemptRecord(tmp_path, number, {}, [0, 0])
    assert [record["attempt"] for record in attempts.without_progress(tmp_path, [0, 0])] == [3, 2, 1]
    assert attempts.without_progress(tmp_path, [7, 0]) == []
    assert attempts.without_progress(tmp_path, [0, 1]) == []


def test_an_attempt_that_a_person_ended_is_passed_over(tmp_path, automatic):
    for number, end in ((1, "crashed"), (2, "interrupted"), (3, "crashed")):
        attempts.AttemptRecord(tmp_path, number, {}, [5, 0]).end(end, 1, None)
    assert [record["attempt"] for record in attempts.without_progress(tmp_path, [5, 0])] == [3, 1]


# ------------------------------------------------------------------------------- resume is not another run


def test_a_checkpoint_of_another_configuration_is_passed_over_with_the_difference(tmp_path):
    longer = TOY.model_copy(update={"budget": TOY.budget.model_copy(update={"epochs": 3.0})})
    toy_attempt(tmp_path, longer, max_steps_per_run=7)
    run, other = toy_directory(tmp_path, TOY), toy_directory(tmp_path, longer)
    run.path.mkdir(parents=True)
    other.checkpoints.rename(run.checkpoints)
    assert toy_attempt(tmp_path, TOY).end_state == "finished"
    log = (run.attempts / "0001.log").read_text()
    assert "checkpoint 7 is passed over" in log and "configuration.budget.epochs: 3.0 there, 2.0 here" in log


# ------------------------------------------------------------------------------------------ the run directory's place


def test_a_copy_of_a_run_directory_is_not_continued_in_the_place_of_the_original(tmp_path):
    toy_attempt(tmp_path, TOY, max_steps_per_run=7)
    run = toy_directory(tmp_path, TOY)
    copy = run.path.parent.parent.parent / "backup" / "toy" / run.path.name
    shutil.copytree(run.path, copy)
    outcome = continue_run(copy, REPOSITORY)
    assert (outcome.end_state, outcome.exit_code) == ("bad_input", 2)
    assert f"{copy} is a copy of {run.path}" in outcome.message
    assert len(records(tmp_path)) == 1
