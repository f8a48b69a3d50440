"""What follows each end and each silence: DESIGN section 4 and "By cause" of section 6, a row for each."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from deployments.slurm.cluster import diagnosis
from deployments.slurm.cluster.client import Job
from deployments.slurm.job.journal import End, Submission
from deployments.slurm.pool.reconcile import (
    ASKED_AGAIN,
    BEFORE_THE_STAGE,
    Adopt,
    Attach,
    Cancel,
    Finish,
    Limits,
    Run,
    Seen,
    SetState,
    reconcile,
)
from tasks.stage.outcome import END_STATES, in_words, stops
from tasks.stage.progress import too_short

LIMITS = Limits()
NAME = "study-s42-train.3fa9c1.2"


def run(type_: str = "RUNNING", name: str = "", state_id: str = "s1", message: str = "") -> Run:
    return Run("flow-run", state_id, type_, name or type_.capitalize(), message, "/runs/study/train/3fa9/jobs")


def submission(**facts: Any) -> Submission:
    return replace(Submission(2, NAME, "flow-run", 0.0, True, 4.0, job_id="7"), **facts)


def earlier(number: int = 1, **end: Any) -> Submission:
    """A job of the same run that has ended before."""
    ended = End(**({"follows": "AwaitingRetry", "message": "went on"} | end))
    return submission(number=number, name=f"before.{number}", job_id=str(number), end=ended)


def job(state: str, exit_code: int = 0, signal: int = 0, **facts: Any) -> Job:
    return Job("7", NAME, state, facts.pop("reason", ""), exit_code, signal, facts.pop("node", "n1"), **facts)


def record(end_state: str | None, **facts: Any) -> dict[str, Any]:
    """The attempt's record that the job left; `end_state` None when it was killed."""
    found = None
    if stops(end_state):
        found = {
            "level": "error",
            "category": in_words(end_state or ""),
            "summary": "loss is not finite",
            "detail": "",
            "resolution": "Lower.",
        }
    return {"slurm_job_id": "7", "slurm_job_name": NAME, "end_state": end_state, "diagnosis": found} | facts


def decide(seen: Seen, *jobs: Job, accounted: tuple[Job, ...] = ()) -> Any:
    """The one action that follows, or None."""
    found = reconcile([seen], {one.id: one for one in jobs}, {one.id: one for one in accounted}, LIMITS)
    assert len(found) <= 1
    return found[0] if found else None


# ------------------------------------------------------------------------------------------------ how a job ended


@dataclass(frozen=True)
class Row:
    """An end of a job of a running flow run, and what must follow."""

    job: Job
    follows: str
    attempt: dict[str, Any] | None = None
    delay: float = 0.0
    category: str = ""
    message: str = ""
    seen: dict[str, Any] = field(default_factory=dict)
    exclude: tuple[str, ...] = ()
    memory_gb: float | None = None


ROWS = {
    "finished": Row(job("COMPLETED"), "Completed", record("finished")),
    "finished, and cancelled in the last second": Row(job("CANCELLED", signal=15), "Completed", record("finished")),
    "finished, and its node failed after": Row(job("NODE_FAIL"), "Completed", record("finished")),
    "found the stage finished, which leaves no record": Row(job("COMPLETED"), "Completed", seen={"marker": True}),
    "exit code 0 with neither record nor marker": Row(
        job("COMPLETED"), "AwaitingRetry", delay=LIMITS.crash_delay, message="before the stage began"
    ),
    "exit code 0, a record without an end and no marker": Row(
        job("COMPLETED"), "AwaitingRetry", record(None), LIMITS.crash_delay
    ),
    "out of time": Row(job("FAILED", 75), "AwaitingRetry", record("out_of_time"), message="saved and stopped in time"),
    "out of time, and TIMEOUT a moment later": Row(job("TIMEOUT"), "AwaitingRetry", record("out_of_time")),
    "SIGTERM at the time limit": Row(job("TIMEOUT"), "AwaitingRetry", record("sigterm")),
    "SIGTERM by preemption": Row(job("PREEMPTED", signal=9), "AwaitingRetry", record("sigterm")),
    "SIGTERM by scancel": Row(job("CANCELLED", signal=15), "Cancelled", record("sigterm")),
    "SIGTERM from elsewhere": Row(job("FAILED", 75), "AwaitingRetry", record("sigterm")),
    "SIGTERM from a node taken down": Row(job("NODE_FAIL"), "AwaitingRetry", record("sigterm"), exclude=("n1",)),
    "interrupted by SIGINT": Row(job("FAILED", 130), "Cancelled", record("interrupted")),
    "check failed": Row(job("FAILED", 1), "Failed", record("check_failed"), message="loss is not finite. Lower."),
    "not learning": Row(job("FAILED", 1), "Failed", record("not_learning"), message="loss is not finite"),
    "no progress": Row(job("FAILED", 1), "Failed", record("no_progress"), message="loss is not finite"),
    "not finite": Row(job("FAILED", 1), "Failed", record("numerical_failure"), message="loss is not finite"),
    "bad input": Row(job("FAILED", 2), "Failed", record("bad_input"), message="loss is not finite"),
    "check failed, without a diagnosis": Row(
        job("FAILED", 1),
        "Failed",
        record("check_failed", diagnosis=None),
        category="check failed",
        message="ended: check failed",
    ),
    "crashed": Row(job("FAILED", 1), "AwaitingRetry", record("crashed"), LIMITS.crash_delay),
    "killed": Row(job("FAILED", signal=9), "AwaitingRetry", record(None), LIMITS.crash_delay, "killed"),
    "the stage's process killed": Row(job("FAILED", 137), "AwaitingRetry", record(None), LIMITS.crash_delay, "crash"),
    "TIMEOUT, killed": Row(job("TIMEOUT", signal=9), "AwaitingRetry", record(None), category="time limit"),
    "TIMEOUT although the trap exited 0": Row(job("TIMEOUT"), "AwaitingRetry", record(None), category="time limit"),
    "TIMEOUT before its first step": Row(
        job("TIMEOUT"), "AwaitingRetry", record(None), category="time limit", message="Raise time_limit_minutes"
    ),
    "out of time before anything was gained": Row(
        job("FAILED", 75),
        "AwaitingRetry",
        record("out_of_time", diagnosis=vars(too_short(25, 0, 20, 60))),
        category="time limit",
        message="the start took 25 s",
    ),
    "TIMEOUT before the stage began": Row(
        job("TIMEOUT", signal=9), "AwaitingRetry", delay=LIMITS.crash_delay, message="before the stage began"
    ),
    "TIMEOUT in a setup line": Row(job("TIMEOUT", 71), "AwaitingRetry", delay=LIMITS.crash_delay),
    "PREEMPTED, killed": Row(job("PREEMPTED", signal=9), "AwaitingRetry", record(None), category="preempted"),
    "PREEMPTED before the stage began": Row(job("PREEMPTED", signal=9), "AwaitingRetry", category="preempted"),
    "NODE_FAIL": Row(job("NODE_FAIL"), "AwaitingRetry", record(None), category="node failure", exclude=("n1",)),
    "NODE_FAIL before the stage began": Row(job("NODE_FAIL"), "AwaitingRetry", exclude=("n1",)),
    "NODE_FAIL of an attempt that crashed": Row(job("NODE_FAIL"), "AwaitingRetry", record("crashed"), exclude=("n1",)),
    "BOOT_FAIL": Row(job("BOOT_FAIL"), "AwaitingRetry", delay=LIMITS.crash_delay, exclude=("n1",)),
    "LAUNCH_FAILED": Row(job("LAUNCH_FAILED"), "AwaitingRetry", delay=LIMITS.crash_delay, exclude=("n1",)),
    "NODE_FAIL on no node": Row(job("NODE_FAIL", node=""), "AwaitingRetry"),
    "OUT_OF_MEMORY": Row(
        job("OUT_OF_MEMORY", signal=125),
        "AwaitingRetry",
        record(None),
        category="out of memory",
        message="asks for 6 GB",
        memory_gb=6,
    ),
    "FAILED 0:9 with the memory text": Row(
        job("FAILED", signal=9),
        "AwaitingRetry",
        record(None),
        0.0,
        "out of memory",
        seen={"memory_exceeded": True},
        memory_gb=6,
    ),
    "FAILED 0:9 with the memory text, after SIGTERM": Row(
        job("FAILED", signal=9), "AwaitingRetry", record("sigterm"), seen={"memory_exceeded": True}, memory_gb=6
    ),
    "check failed, with the memory text of a child": Row(
        job("FAILED", 1), "Failed", record("check_failed"), seen={"memory_exceeded": True}
    ),
    "DEADLINE": Row(job("DEADLINE"), "Failed", record("sigterm"), category="deadline"),
    "REVOKED": Row(job("REVOKED", node=""), "Failed", category="revoked"),
    "CANCELLED while running": Row(job("CANCELLED", signal=15), "Cancelled", record(None), category="cancelled"),
    "CANCELLED while queued": Row(job("CANCELLED", node=""), "Cancelled", category="cancelled"),
    "a setup line failed": Row(job("FAILED", 71), "Failed", category="environment", message="correct setup_lines"),
    "the study file cannot be read": Row(job("FAILED", 2), "Failed", category="bad input"),
    "held by another process": Row(job("FAILED", 72), "AwaitingRetry", delay=LIMITS.held_delay, category="held"),
    "ended before the stage began": Row(
        job("FAILED", 70), "AwaitingRetry", delay=LIMITS.crash_delay, message="before the stage began"
    ),
    "no log could be opened": Row(job("FAILED", signal=53), "AwaitingRetry", None, LIMITS.crash_delay, "output folder"),
}


@pytest.mark.parametrize("name", ROWS)
def test_of_an_end_follows(name: str) -> None:
    row = ROWS[name]
    action = decide(Seen(run(), [submission()], row.attempt, **row.seen), row.job)
    assert isinstance(action, Finish)
    end = action.end
    assert (end.follows, end.delay_seconds) == (row.follows, row.delay)
    assert (tuple(end.exclude), end.memory_gb) == (row.exclude, row.memory_gb)
    assert end.diagnosis.category == row.category or not row.category
    assert row.message in end.message and end.message
    assert end.before_stage == ("before the stage began" in end.message)
    assert end.over_state == "s1"
    assert action.state == SetState(
        action.run,
        {"Completed": "COMPLETED", "AwaitingRetry": "SCHEDULED", "Failed": "FAILED", "Cancelled": "CANCELLED"}[
            row.follows
        ],
        row.follows,
        end.message,
        row.delay,
    )


def test_every_end_state_of_a_stage_and_of_slurm_has_its_row() -> None:
    ends = {(row.attempt or {}).get("end_state") for row in ROWS.values()}
    assert set(END_STATES) - {"held"} <= ends, "an attempt that was held leaves no record"
    assert set(diagnosis.ENDS) - {"RECONFIG_FAIL"} <= {row.job.state for row in ROWS.values()}
    assert "RECONFIG_FAIL" in diagnosis.ON_THE_NODE


@pytest.mark.parametrize("end_state", [state for state in END_STATES if END_STATES[state].exit_code == 1])
def test_exit_code_one_alone_does_not_say_whether_the_work_goes_on(end_state: str) -> None:
    action = decide(Seen(run(), [submission()], record(end_state)), job("FAILED", 1))
    assert action.end.follows == ("AwaitingRetry" if end_state == "crashed" else "Failed")


def test_a_record_of_another_version_of_the_code_ends_its_stage_all_the_same() -> None:
    found = {"level": "error", "category": "a word of then", "summary": "loss is not finite", "hint": "Lower."}
    end = decide(Seen(run(), [submission()], record("check_failed", diagnosis=found)), job("FAILED", 1)).end
    assert (end.follows, end.diagnosis.category, end.message) == ("Failed", "other", "loss is not finite.")


# ---------------------------------------------------------------------------------------- what stays for later jobs


def test_excluded_nodes_and_more_memory_stay_for_all_later_jobs() -> None:
    before = earlier(exclude=["n9"], memory_gb=6.0)
    action = decide(Seen(run(), [before, submission()], record("out_of_time")), job("FAILED", 75))
    assert (action.end.exclude, action.end.memory_gb) == (["n9"], 6.0)
    action = decide(Seen(run(), [before, submission()], None), job("NODE_FAIL"))
    assert (action.end.exclude, action.end.memory_gb) == (["n1", "n9"], 6.0)


@pytest.mark.parametrize(
    ("asked", "cap", "more"),
    [(4.0, None, 6.0), (4.0, 5.0, 5.0), (5.0, None, 8.0), (4.0, 4.0, None), (4.0, 2.0, None)],
)
def test_a_job_out_of_memory_is_tried_once_more_with_half_as_much_again_up_to_the_cap(asked, cap, more) -> None:
    last = submission(memory_gb=asked, memory_cap_gb=cap)
    end = decide(Seen(run(), [last], record(None)), job("OUT_OF_MEMORY", signal=125)).end
    assert (end.follows, end.memory_gb) == (("AwaitingRetry", more) if more else ("Failed", None))
    assert f"{asked:g}" in end.message


def test_a_second_job_out_of_memory_is_the_persons_turn_also_after_others_between() -> None:
    first = earlier(1, memory_gb=6.0)
    between = earlier(2, memory_gb=6.0)
    last = submission(memory_gb=6.0)
    end = decide(Seen(run(), [first, between, last], record(None)), job("OUT_OF_MEMORY", signal=125)).end
    assert end.follows == "Failed" and "Raise memory_gb" in end.message and "6 GB" in end.message


def test_after_a_persons_retry_memory_may_be_raised_once_more() -> None:
    seen = Seen(
        run(), [earlier(follows="Failed", memory_gb=6.0), submission(automatic=False, memory_gb=6.0)], record(None)
    )
    end = decide(seen, job("OUT_OF_MEMORY", signal=125)).end
    assert (end.follows, end.memory_gb) == ("AwaitingRetry", 9.0)


# -------------------------------------------------------------------------------------------- before the stage began


def early_end(**facts: Any) -> dict[str, Any]:
    return {"before_stage": True} | facts


def test_the_third_job_in_a_row_that_ends_before_the_stage_is_the_last() -> None:
    for number in range(BEFORE_THE_STAGE):
        entries = [*(earlier(index + 1, **early_end()) for index in range(number)), submission()]
        end = decide(Seen(run(), entries), job("FAILED", 1)).end
        assert end.follows == ("Failed" if number == BEFORE_THE_STAGE - 1 else "AwaitingRetry")
    assert "3 jobs in a row" in end.message and "log" in end.message


@pytest.mark.parametrize("state", ["FAILED", "TIMEOUT", "COMPLETED"])
def test_whatever_the_state_a_row_of_them_ends(state: str) -> None:
    entries = [earlier(1, **early_end()), earlier(2, **early_end()), submission()]
    assert decide(Seen(run(), entries), job(state)).end.follows == "Failed"


def test_a_job_between_that_began_its_stage_ends_the_row() -> None:
    entries = [earlier(1, **early_end()), earlier(2, **early_end()), earlier(3), submission()]
    assert decide(Seen(run(), entries), job("FAILED", 1)).end.follows == "AwaitingRetry"


def test_a_persons_retry_begins_a_new_row() -> None:
    before = [earlier(number, **early_end()) for number in (1, 2, 3)]
    assert decide(Seen(run(), [*before, submission(automatic=False)]), job("FAILED", 1)).end.follows == "AwaitingRetry"
    assert decide(Seen(run(), [*before, submission()]), job("FAILED", 1)).end.follows == "Failed"


def test_a_row_of_jobs_without_a_log_names_what_to_read() -> None:
    entries = [earlier(1, **early_end()), earlier(2, **early_end()), submission()]
    end = decide(Seen(run(), entries), job("FAILED", signal=53)).end
    assert end.follows == "Failed" and "writable on the compute nodes" in end.message


def test_what_a_message_says_counts_for_nothing() -> None:
    """Only the journal's own fact does: a stage may well write such words into its diagnosis."""
    words = {"message": "the job ended with an error, before the stage began. job 1 on n1"}
    entries = [earlier(1, **words), earlier(2, **words), submission()]
    assert decide(Seen(run(), entries), job("FAILED", 1)).end.follows == "AwaitingRetry"


def test_preemptions_and_dead_nodes_never_add_up() -> None:
    before = [earlier(number, **early_end()) for number in range(1, 6)]
    for state in ("PREEMPTED", "NODE_FAIL", "BOOT_FAIL"):
        assert decide(Seen(run(), [*before, submission()]), job(state)).end.follows == "AwaitingRetry"


# -------------------------------------------------------------------------------------------------- cancelled, retried


@pytest.mark.parametrize("type_", ["CANCELLING", "CANCELLED"])
@pytest.mark.parametrize("state", ["PENDING", "RUNNING", "COMPLETING", "A_NEW_STATE"])
def test_the_job_of_a_cancelled_run_is_ended_whatever_it_does(type_: str, state: str) -> None:
    assert decide(Seen(run(type_), [submission()]), job(state)) == Cancel(run(type_), submission())


@pytest.mark.parametrize("ended", [job("CANCELLED"), job("FAILED", 75), job("TIMEOUT"), job("NODE_FAIL")])
def test_a_job_that_ends_under_a_cancelled_run_goes_nowhere(ended: Job) -> None:
    attempt = record("out_of_time") if ended.exit_code else None
    found = decide(Seen(run("CANCELLING"), [submission()], attempt), ended)
    assert found.end.follows == "Cancelled" and found.state.type == "CANCELLED"
    quiet = decide(Seen(run("CANCELLED"), [submission()], attempt), ended)
    assert quiet.end.follows == "Cancelled" and quiet.state is None, "somebody set that already"


def test_a_run_that_is_cancelled_without_a_job_is_cancelled() -> None:
    for entries in ([], [earlier()]):
        action = decide(Seen(run("CANCELLING"), entries))
        assert isinstance(action, SetState) and action.type == "CANCELLED"


PENDING_AGAIN = run("PENDING", "Submitting", "s9")
ASKED = submission(state_id="s1")


def test_a_retry_while_the_job_lives_is_about_this_job_from_now_on() -> None:
    for state in ("PENDING", "RUNNING"):
        assert decide(Seen(PENDING_AGAIN, [ASKED]), job(state)) == Attach(PENDING_AGAIN, ASKED)
    assert decide(Seen(PENDING_AGAIN, [ASKED]), job("COMPLETING")) is None, (
        "one that is ending is not what was asked for"
    )
    attached = replace(ASKED, state_id="s9")
    assert decide(Seen(PENDING_AGAIN, [attached]), job("RUNNING")).name == "Running"


def test_a_retry_while_its_cancelled_job_dies_is_about_the_next_one() -> None:
    doomed = replace(ASKED, cancelled=True)
    assert decide(Seen(PENDING_AGAIN, [doomed]), job("COMPLETING")) == Cancel(PENDING_AGAIN, doomed)
    action = decide(Seen(PENDING_AGAIN, [doomed]), job("CANCELLED", signal=15))
    assert (action.end.follows, action.end.again, action.end.over_state) == ("Cancelled", True, "s9")
    assert action.state == SetState(PENDING_AGAIN, "SCHEDULED", "AwaitingRetry", ASKED_AGAIN, origin="person")


@pytest.mark.parametrize("type_", ["RUNNING", "CRASHED", "PENDING"])
def test_a_job_that_we_cancelled_for_an_older_wish_cancels_no_run(type_: str) -> None:
    action = decide(Seen(run(type_), [submission(cancelled=True)]), job("CANCELLED", signal=15))
    assert (action.state.name, action.state.origin) == ("AwaitingRetry", "person")


@pytest.mark.parametrize(
    ("ended", "attempt"),
    [(job("CANCELLED"), None), (job("FAILED", 1), record("check_failed")), (job("FAILED", 71), None)],
)
def test_a_late_end_is_not_shown_over_a_retry(ended: Job, attempt: Any) -> None:
    """The job had ended before the person retried, and no poll had found it."""
    action = decide(Seen(PENDING_AGAIN, [ASKED], attempt), ended)
    assert action.state == SetState(PENDING_AGAIN, "SCHEDULED", "AwaitingRetry", ASKED_AGAIN, origin="person")
    scheduled = decide(Seen(run("SCHEDULED"), [ASKED], attempt), ended)
    assert scheduled.state is None, "the worker submits the next job by itself"


def test_a_late_success_is_shown_over_a_retry() -> None:
    action = decide(Seen(PENDING_AGAIN, [ASKED], record("finished")), job("COMPLETED"))
    assert action.state.type == "COMPLETED"


def test_a_pending_state_of_our_own_name_is_no_retry() -> None:
    ours = run("PENDING", "InfrastructurePending", "s9")
    assert decide(Seen(ours, [ASKED]), job("CANCELLED")).state.type == "CANCELLED"
    assert decide(Seen(run("PENDING", "Pending", "s9"), [submission()]), job("CANCELLED")).state.type == "CANCELLED", (
        "a worker that does not know its state"
    )


@pytest.mark.parametrize("type_", ["SCHEDULED", "COMPLETED", "FAILED", "CANCELLED", "PAUSED"])
def test_what_somebody_set_meanwhile_is_never_overwritten(type_: str) -> None:
    for ended, attempt in ((job("FAILED", 1), record("check_failed")), (job("TIMEOUT"), record(None))):
        action = decide(Seen(run(type_), [submission()], attempt), ended)
        assert isinstance(action, Finish) and action.state is None


def test_a_run_called_crashed_by_others_goes_on_by_its_jobs_true_end() -> None:
    assert decide(Seen(run("CRASHED"), [submission()]), job("RUNNING")).name == "Running"
    assert decide(Seen(run("CRASHED"), [submission()], record(None)), job("TIMEOUT")).state.name == "AwaitingRetry"
    assert decide(Seen(run("CRASHED"), [submission()], record("finished")), job("COMPLETED")).state.type == "COMPLETED"
    assert decide(Seen(run("CRASHED"), [submission()], None), job("CANCELLED")).state.type == "CANCELLED"


# ------------------------------------------------------------------------------------------------------ jobs that live


@pytest.mark.parametrize(
    "state", ["CONFIGURING", "REQUEUED", "SPECIAL_EXIT", "SIGNALING", "SUSPENDED", "STAGE_OUT", "X"]
)
def test_a_state_that_is_no_end_ends_nothing(state: str) -> None:
    assert not isinstance(decide(Seen(run(), [submission()], record("out_of_time")), job(state)), Finish)


def test_a_queued_job_says_why_it_waits_and_only_when_that_changes() -> None:
    waits = decide(Seen(run("PENDING"), [submission()]), job("PENDING", reason="QOSMaxJobsPerUserLimit"))
    assert (waits.type, waits.name) == ("PENDING", "InfrastructurePending")
    assert "as many jobs as the QOS allows (QOSMaxJobsPerUserLimit)" in waits.message and "job 7" in waits.message
    assert (
        not waits.needs_person
        and decide(Seen(run("PENDING"), [submission()]), job("PENDING", reason="JobHeldUser")).needs_person
    )
    again = run("PENDING", "InfrastructurePending", message=waits.message)
    assert decide(Seen(again, [submission()]), job("PENDING", reason="QOSMaxJobsPerUserLimit")) is None
    assert decide(Seen(again, [submission()]), job("PENDING", reason="Priority")) is not None


def test_a_job_that_was_requeued_is_shown_as_waiting_and_then_as_running_again() -> None:
    """An operator may requeue any job; its run was shown Running for as long as it waited."""
    waits = decide(Seen(run("RUNNING"), [submission()], record(None)), job("PENDING", reason="BeginTime"))
    assert (waits.type, waits.name) == ("PENDING", "InfrastructurePending") and "job 7 queued" in waits.message
    shown = run("PENDING", "InfrastructurePending", "s2", waits.message)
    known = Seen(shown, [submission(state_id="s0")], record(None))
    assert decide(known, job("PENDING", reason="BeginTime")) is None
    assert decide(known, job("RUNNING", node="n3")).type == "RUNNING"
    assert decide(Seen(run("CANCELLING"), [submission()]), job("PENDING")) == Cancel(run("CANCELLING"), submission())


def test_a_started_job_says_where_it_runs() -> None:
    action = decide(Seen(run("PENDING"), [submission()]), job("RUNNING", node="n3"))
    assert (action.type, action.message) == ("RUNNING", "job 7 on n3")
    assert decide(Seen(run(), [submission()]), job("RUNNING")) is None


@pytest.mark.parametrize("type_", ["SCHEDULED", "COMPLETED", "FAILED"])
def test_a_job_that_lives_under_another_state_is_left_alone(type_: str) -> None:
    assert decide(Seen(run(type_), [submission()]), job("RUNNING")) is None


# ------------------------------------------------------------------------------------------- silence and lost replies

UNANSWERED = submission(job_id=None)
GRACE = LIMITS.submit_grace


def test_a_job_without_an_answer_is_found_by_its_name() -> None:
    assert decide(Seen(run("PENDING"), [UNANSWERED]), job("PENDING")) == Adopt(run("PENDING"), UNANSWERED, "7")
    ended = decide(Seen(run("PENDING"), [UNANSWERED]), job("FAILED", 1))
    assert isinstance(ended, Adopt), "also one that has ended already"


def test_a_job_without_an_answer_is_found_by_what_it_wrote() -> None:
    seen = Seen(run("PENDING"), [UNANSWERED], record(None), absent_for=GRACE + 1)
    assert decide(seen) == Adopt(run("PENDING"), UNANSWERED, "7")
    nameless = Seen(run("PENDING"), [UNANSWERED], record(None, slurm_job_id=None))
    assert decide(nameless) is None, "a record without a job id is no answer"


def test_a_job_without_an_answer_is_submitted_again_only_after_a_while() -> None:
    other = Job("8", "somebody-elses", "RUNNING")
    assert decide(Seen(run("PENDING"), [UNANSWERED], absent_for=GRACE), other) is None
    action = decide(Seen(run("PENDING"), [UNANSWERED], absent_for=GRACE + 1), other)
    assert action.end.follows == "AwaitingRetry" and "did not take the job" in action.end.message
    cancelled = decide(Seen(run("CANCELLING"), [UNANSWERED], absent_for=GRACE + 1))
    assert cancelled.end.follows == "Cancelled" and cancelled.state.type == "CANCELLED"


def test_a_reused_id_is_known_by_its_name() -> None:
    other = replace(job("COMPLETED"), name="somebody-elses")
    assert decide(Seen(run(), [submission()], absent_for=10), other) is None
    lost = decide(Seen(run(), [submission()], absent_for=LIMITS.vanished + 1), other, accounted=(other,))
    assert lost.end.diagnosis.category == "lost"


def test_what_the_controller_forgot_the_accounting_may_know() -> None:
    action = decide(Seen(run(), [submission()], record(None), absent_for=1), accounted=(job("TIMEOUT", signal=9),))
    assert action.end.diagnosis.category == "time limit"


@pytest.mark.parametrize("state", ["RUNNING", "PENDING", "REQUEUED"])
def test_the_accounting_is_not_believed_that_a_forgotten_job_lives(state: str) -> None:
    seen = Seen(run(), [submission()], absent_for=LIMITS.vanished + 1)
    assert decide(seen, accounted=(job(state),)).end.diagnosis.category == "lost"


def test_a_cancel_by_somebody_is_told_from_a_cluster_that_lost_its_queue() -> None:
    """A controller that starts without its state leaves its jobs as CANCELLED in the accounting, by nobody."""
    seen = Seen(run(), [submission()], absent_for=1)
    assert decide(seen, accounted=(job("CANCELLED", cancelled_by="0"),)).end.follows == "Cancelled"
    assert decide(seen, accounted=(job("CANCELLED"),)) is None, "its processes may live"
    later = replace(seen, absent_for=LIMITS.lost_queue + 1)
    assert decide(replace(later, heartbeat=True), accounted=(job("CANCELLED"),)) is None
    assert decide(later, accounted=(replace(job("CANCELLED"), name="another"),)) is None, "the id was given again"
    end = decide(later, accounted=(job("CANCELLED"),)).end
    assert (end.follows, end.diagnosis.category) == ("AwaitingRetry", "lost")
    asked = Seen(run("CANCELLING"), [submission()], absent_for=LIMITS.vanished + 1)
    assert decide(asked, accounted=(job("CANCELLED"),)).end.follows == "Cancelled"


def test_of_a_job_that_vanished_the_stages_marker_is_believed_at_once_whoever_wrote_it() -> None:
    action = decide(Seen(run(), [submission()], marker=True, absent_for=1))
    assert action.end.follows == "Completed"
    assert decide(Seen(run(), [submission()], marker=True, heartbeat=True, absent_for=1)) is None
    checked = decide(Seen(run(), [submission()], record("check_failed"), marker=True, absent_for=1))
    assert checked.end.follows == "Failed", "what this job wrote is newer"


def test_a_disk_that_was_full_is_named_although_no_record_could_be_written() -> None:
    full = job("FAILED", 73)
    first = decide(Seen(run(), [submission()]), full).end
    assert (first.follows, first.diagnosis.category) == ("AwaitingRetry", "disk full")
    assert "no room on the disk" in first.message and "Free space or raise the quota" in first.message
    row = [earlier(1, before_stage=True), earlier(2, before_stage=True), submission(number=3)]
    third = decide(Seen(run(), row), full).end
    assert third.follows == "Failed" and "3 jobs in a row ended so. Free space" in third.message
    begun = decide(Seen(run(), [submission()], record(None)), full).end
    assert (begun.follows, begun.diagnosis.category, begun.before_stage) == ("AwaitingRetry", "disk full", False)
    told = decide(Seen(run(), [submission()], record("crashed")), full).end
    assert told.diagnosis.category != "disk full", "the attempt's own record says more"


def test_a_job_that_vanished_is_waited_for_and_then_lost() -> None:
    entries = [submission()]
    assert decide(Seen(run(), entries, absent_for=LIMITS.vanished)) is None
    assert decide(Seen(run(), entries, record(None), absent_for=LIMITS.vanished)) is None
    assert decide(Seen(run(), entries, heartbeat=True, absent_for=100 * LIMITS.vanished)) is None
    end = decide(Seen(run(), entries, record(None), absent_for=LIMITS.vanished + 1)).end
    assert (end.follows, end.diagnosis.category) == ("AwaitingRetry", "lost")


@pytest.mark.parametrize(
    ("end_state", "follows"),
    [
        ("finished", "Completed"),
        ("check_failed", "Failed"),
        ("out_of_time", "AwaitingRetry"),
        ("interrupted", "Cancelled"),
    ],
)
def test_of_a_job_that_vanished_what_it_wrote_is_believed_at_once(end_state: str, follows: str) -> None:
    action = decide(Seen(run(), [submission()], record(end_state), heartbeat=True))
    assert action.end.follows == follows


def test_a_scancel_of_a_job_that_vanished_stands_in_its_log() -> None:
    seen = Seen(run(), [submission()], record(None), cancel_logged=True)
    assert decide(seen).end.follows == "Cancelled"
    assert decide(replace(seen, attempt=record("sigterm"))).end.follows == "Cancelled"
    assert decide(replace(seen, heartbeat=True)) is None, "its processes may still be saving"


# -------------------------------------------------------------------------------- a worker that died between two lines


@pytest.mark.parametrize("follows", ["Completed", "AwaitingRetry", "Failed", "Cancelled"])
@pytest.mark.parametrize("type_", ["PENDING", "RUNNING", "CANCELLING", "CRASHED"])
def test_an_end_that_stands_in_the_journal_only_is_set_in_prefect(follows: str, type_: str) -> None:
    entries = [earlier(follows=follows, message="so it ended", delay_seconds=30.0, over_state="s1")]
    action = decide(Seen(run(type_), entries))
    assert action.submission == entries[0] and action.end == entries[0].end, (
        "what follows an end is shown, and a person notified"
    )
    state = action.state
    assert (state.name, state.message, state.delay_seconds) == (follows, "so it ended", 30.0)


@pytest.mark.parametrize("follows", ["AwaitingRetry", "Failed", "Cancelled"])
def test_an_end_that_was_older_than_a_retry_is_taken_as_such_also_by_the_next_worker(follows: str) -> None:
    for type_ in ("PENDING", "CRASHED"):
        action = decide(Seen(run(type_), [earlier(follows=follows, over_state="s1", again=True)]))
        assert action.state == SetState(run(type_), "SCHEDULED", "AwaitingRetry", ASKED_AGAIN, origin="person")


@pytest.mark.parametrize("type_", ["PENDING", "CRASHED", "SCHEDULED", "CANCELLED", "FAILED", "COMPLETED"])
def test_an_end_is_not_set_over_a_state_that_came_after_it(type_: str) -> None:
    assert decide(Seen(run(type_, state_id="s2"), [earlier(over_state="s1")])) is None


def test_a_run_whose_worker_died_before_it_wrote_anything_is_scheduled_again() -> None:
    for entries in ([], [earlier(over_state="s0")]):
        pending = Seen(run("PENDING"), entries, in_state_for=LIMITS.unsubmitted)
        assert decide(pending) is None
        action = decide(replace(pending, in_state_for=LIMITS.unsubmitted + 1))
        assert (action.type, action.name, action.origin) == ("SCHEDULED", "AwaitingRetry", "put off")
    assert decide(Seen(run("RUNNING"), [], in_state_for=1e9)) is None


def test_one_poll_serves_all_runs() -> None:
    runs = [replace(run(), id=str(number)) for number in range(3)]
    entries = [submission(name=f"job.{number}", job_id=str(number), flow_run=str(number)) for number in range(3)]
    jobs = {
        str(number): Job(str(number), f"job.{number}", state) for number, state in enumerate(["RUNNING", "TIMEOUT"])
    }
    seen = [Seen(one, [entry], record(None)) for one, entry in zip(runs, entries, strict=True)]
    actions = reconcile(seen, jobs, {}, LIMITS)
    assert [(action.run.id, type(action)) for action in actions] == [("1", Finish)]
