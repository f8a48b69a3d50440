"""How many jobs SLURM takes of a user, from what `sacctmgr` of a real cluster prints."""

import os
import pwd
import subprocess
from typing import Any

import pytest

from deployments.slurm.cluster.client import Job, NotInstalled, Unreachable
from deployments.slurm.pool.places import NoAnswer, SubmitLimit, submit_limit


def cluster(associations: str, qos: str) -> Any:
    """Answers as `sacctmgr -nP` does."""

    def run(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        assert command[:3] == ["sacctmgr", "-nP", "show"]
        said = {"associations": associations, "qos": qos}[command[3]]
        return subprocess.CompletedProcess(command, 0, said, "")

    return run


QOS = "normal|\nshort|20\nlong|4\n"


@pytest.mark.parametrize(
    ("associations", "account", "qos", "expected"),
    [
        ("lab|short|\n", "", "", SubmitLimit(20, "QOS", "short")),
        ("lab|short|7\n", "", "long", SubmitLimit(4, "QOS", "long")),
        ("lab||7\n", "", "", SubmitLimit(7, "account", "lab")),
        ("lab|normal|7\nother|normal|9\n", "", "", SubmitLimit(9, "account", "other")),
        ("lab|normal|7\nother|normal|9\n", "lab", "", SubmitLimit(7, "account", "lab")),
        ("lab|normal|7\nother|normal|\n", "", "", None),
        ("lab||\n", "", "", None),
        ("", "", "", None),
        ("", "", "long", SubmitLimit(4, "QOS", "long")),
    ],
)
def test_the_limit_is_the_qos_else_the_accounts(associations, account, qos, expected):
    assert submit_limit(account, qos, cluster(associations, QOS)) == expected


def test_it_is_asked_for_the_user_who_submits_whatever_logname_says(monkeypatch):
    """Where a login sets LOGNAME to another name than the user's, the limits of another user, or none, were read."""
    monkeypatch.setenv("LOGNAME", "somebody-else")
    me, answer = pwd.getpwuid(os.geteuid()).pw_name, cluster("lab||7\n", "")

    def run(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        assert command[3] == "qos" or f"user={me}" in command
        return answer(command)

    assert submit_limit(ask=run) == SubmitLimit(7, "account", "lab")


@pytest.mark.parametrize("said", ["sacctmgr: error: Problem talking to the database: Connection refused", ""])
def test_an_accounting_that_is_away_does_not_say_that_there_is_no_limit(said):
    def away(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(command, 1, "", said)

    def hangs(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        raise Unreachable("sacctmgr did not answer")

    for run in (away, hangs):
        with pytest.raises(NoAnswer):
            submit_limit(ask=run)


def test_slurm_counts_towards_a_limit_the_jobs_of_its_qos_or_of_its_account():
    job = Job("7", "job", "RUNNING", qos="gpu", account="lab")
    assert SubmitLimit(4, "QOS", "GPU").counts(job) and not SubmitLimit(4, "QOS", "normal").counts(job)
    assert SubmitLimit(4, "account", "lab").counts(job) and not SubmitLimit(4, "account", "other").counts(job)


def test_a_cluster_without_accounting_has_no_limit_and_says_nothing(caplog):
    def run(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(command, 1, "", "You are not running a supported accounting_storage plugin")

    def missing(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        raise NotInstalled(command[0])

    assert submit_limit(ask=run) is submit_limit(ask=missing) is None
    assert not caplog.records
