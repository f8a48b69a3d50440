"""What SLURM's states and reasons mean to a person: an entry for each, and what to do or that nothing is."""

import re

import pytest

from deployments.slurm.cluster import diagnosis
from deployments.slurm.cluster.client import Job
from tasks.stage.outcome import Diagnosis

SLURMS_ENDS = {
    "BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "LAUNCH_FAILED", "NODE_FAIL", "OUT_OF_MEMORY",
    "PREEMPTED", "RECONFIG_FAIL", "REVOKED", "TIMEOUT",
}  # fmt: skip
SLURMS_OTHER_STATES = {
    "CONFIGURING", "COMPLETING", "PENDING", "POWER_UP_NODE", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "RESIZING",
    "RESV_DEL_HOLD", "RUNNING", "SIGNALING", "SPECIAL_EXIT", "STAGE_OUT", "STOPPED", "SUSPENDED", "UPDATE_DB",
    "EXPEDITING",
}  # fmt: skip
"""squeue(1), JOB STATE CODES, of all versions."""


def test_exactly_slurms_end_states_end_a_job():
    assert set(diagnosis.ENDS) == SLURMS_ENDS
    assert not (diagnosis.QUEUED | diagnosis.STARTED) & SLURMS_ENDS
    assert SLURMS_OTHER_STATES >= diagnosis.QUEUED | diagnosis.STARTED
    assert not diagnosis.QUEUED & diagnosis.STARTED
    assert diagnosis.ON_THE_NODE < SLURMS_ENDS


@pytest.mark.parametrize("state", sorted(SLURMS_ENDS))
def test_every_end_comes_with_what_to_do(state):
    found = diagnosis.of_end(Job("7", "job", state, node="n3"))
    assert found.level in ("info", "warning", "error") and found.category and found.summary
    assert "job 7 on n3" in found.detail and state in found.detail
    assert found.resolution or state == "COMPLETED"
    assert ("Nothing to do" in found.resolution) == (state in {"TIMEOUT", "PREEMPTED"} | diagnosis.ON_THE_NODE)
    assert found.text.endswith(".") and ".." not in found.text and found.summary in found.text


@pytest.mark.parametrize(
    ("job", "category", "words"),
    [
        (Job("7", "j", "FAILED", "NonZeroExitCode", 3, 0, "n1"), "crash", ["exit code 3", "job's log"]),
        (Job("7", "j", "FAILED", "JobLaunchFailure", 0, 9, "n1"), "killed", ["signal 9", "Nothing to do"]),
        (Job("7", "j", "FAILED", "", 0, 53, "n1"), "output folder", ["0:53", "writable on the compute nodes"]),
        (Job("7", "j", "TIMEOUT", "TimeLimit", 0, 0, "n1"), "time limit", ["TimeLimit"]),
        (Job("7", "j", "CANCELLED"), "cancelled", ["job 7, CANCELLED", "Retry the run"]),
    ],
)
def test_a_failure_is_known_by_exit_code_and_signal(job, category, words):
    found = diagnosis.of_end(job)
    assert found.category == category
    for word in words:
        assert word in found.text
    assert "NonZeroExitCode" not in found.text


def test_a_diagnosis_is_what_an_attempts_record_holds():
    found = diagnosis.of_end(Job("7", "j", "TIMEOUT"))
    assert Diagnosis.read(found.as_dict()) == found
    assert set(found.as_dict()) == {"level", "category", "summary", "detail", "resolution"}


@pytest.mark.parametrize("reason", sorted(diagnosis.REASONS))
def test_every_pending_reason_is_in_plain_english_with_slurms_own_beside_them(reason):
    text = diagnosis.waiting(reason).text
    words, advice = diagnosis.REASONS[reason]
    assert text.startswith(f"queued: {words} ({reason})") and text.endswith(advice.text)
    assert re.fullmatch(r"[a-z][^.]*", words), "one clause"


def test_what_never_starts_by_itself_says_so():
    never = [reason for reason in diagnosis.REASONS if "not start by itself" in diagnosis.waiting(reason).text]
    assert {"BadConstraints", "PartitionTimeLimit", "InvalidQOS", "DependencyNeverSatisfied"} <= set(never)
    assert not {"Priority", "Resources", "Dependency", "QOSMaxJobsPerUserLimit"} & set(never)


def test_reasons_with_additions_and_unknown_ones_are_kept():
    text = diagnosis.waiting("ReqNodeNotAvail,_UnavailableNodes:n2").text
    assert "down, drained or reserved (ReqNodeNotAvail,_UnavailableNodes:n2)" in text
    assert diagnosis.waiting("SomethingNew").text == "queued (SomethingNew)"
    assert diagnosis.waiting("").text == "queued (not considered yet)"


@pytest.mark.parametrize(
    ("reason", "text", "person"),
    [
        ("launch_failed_requeued_held", "it is held", True),
        ("user_env_retrieval_failed_requeued_held", "it is held", True),
        ("AssocMaxCpuPerJobLimit", "a limit for one job is met", True),
        ("QOSMinGRES", "a limit for one job is met", True),
        ("QOSMaxWallDurationPerJobLimit", "the time limit is more than the QOS allows", True),
        ("JobHeldUser", "you hold it", True),
        ("AssocGrpJobsLimit", "a limit of the QOS or of your account is reached", False),
        ("QOSGrpMemLimit", "a limit of the QOS or of your account is reached", False),
        ("MaxCpuPerAccount", "a limit of the QOS or of your account is reached", False),
        (
            "Nodes required for job are DOWN, DRAINED or reserved for jobs in higher priority partitions",
            "down, drained or reserved",
            False,
        ),
        ("Priority", "jobs of higher priority are before it", False),
        ("SomethingNew", "queued (SomethingNew)", False),
    ],
)
def test_a_reason_is_in_plain_english_and_whether_somebody_must_act(reason, text, person):
    waiting = diagnosis.waiting(reason)
    assert text in waiting.text and reason in waiting.text
    assert waiting.needs_person is person
