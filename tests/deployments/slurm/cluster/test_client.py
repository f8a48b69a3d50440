"""How SLURM's commands are called and read: their odd lines, and which of their errors mean that nothing was done."""

import os
from pathlib import Path
from typing import Any

import pytest

from deployments.slurm.cluster import client
from deployments.slurm.cluster.client import Job, NotNow, Refused, SlurmCommands, Unreachable, Used, require_commands
from storage.errors import BadInput


@pytest.fixture
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes stand-ins for SLURM's commands; what they were given stands in `given`."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")

    def make(command: str, out: str = "", err: str = "", code: int = 0, body: str = "") -> None:
        (tmp_path / f"{command}.out").write_bytes(out.encode("utf-8", "surrogateescape"))
        (tmp_path / f"{command}.err").write_text(err)
        file = folder / command
        file.write_text(
            f'#!/bin/bash\nprintf "%s\\n" "$@" > {tmp_path}/{command}.arguments\ncat > {tmp_path}/{command}.given\n'
            f"env > {tmp_path}/{command}.environment\n{body}\ncat {tmp_path}/{command}.out\n"
            f"cat {tmp_path}/{command}.err >&2\nexit {code}\n"
        )
        file.chmod(0o755)

    make.folder = tmp_path
    return make


def line(id_: str = "7", state: str = "RUNNING", exit_: str = "0", reason: str = "None", name: str = "job.1") -> str:
    return f"{id_}|{state}|{exit_}|{reason}|n1|normal|lab|{name}|\n"


# ------------------------------------------------------------------------------------------------------------ squeue


def test_squeue_is_asked_once_for_all_jobs_of_this_user_ended_ones_too(commands):
    commands("squeue", line() + line("8", "FAILED", "768", "NonZeroExitCode", "other"))
    slurm = SlurmCommands()
    jobs = slurm.jobs()
    assert jobs["7"] == Job("7", "job.1", "RUNNING", "", 0, 0, "n1", qos="normal", account="lab")
    assert (jobs["8"].exit_code, jobs["8"].signal, jobs["8"].reason) == (3, 0, "NonZeroExitCode")
    asked = (commands.folder / "squeue.arguments").read_text().split()
    assert {"--me", "--all", "--states=all", "--noheader", "--array"} <= set(asked) and slurm.calls == {"squeue": 1}


@pytest.mark.parametrize(
    ("printed", "code", "signal"),
    [("0", 0, 0), ("768", 3, 0), ("9", 0, 9), ("19200", 75, 0), ("139", 0, 11), ("3:0", 3, 0), ("0:125", 0, 125),
     ("0:9", 0, 9), ("", 0, 0), ("N/A", 0, 0), (":", 0, 0), ("-1", 0, 0)],
)  # fmt: skip
def test_exit_codes_are_read_as_wait_status_or_as_code_and_signal(commands, printed, code, signal):
    commands("squeue", line(exit_=printed))
    job = SlurmCommands().jobs()["7"]
    assert (job.exit_code, job.signal) == (code, signal)


@pytest.mark.parametrize("name", ["a|b|c", "ends with a bar|", " two  words ", "é%x $(id)", "", "|"])
def test_a_name_may_hold_anything(commands, name):
    commands("squeue", line(name=name) + line("8"))
    jobs = SlurmCommands().jobs()
    assert jobs["7"].name == name and jobs["8"].name == "job.1"


def test_bytes_that_are_no_text_hide_no_other_job(commands):
    commands("squeue", line(name="caf\udce9") + line("8"))
    assert set(SlurmCommands().jobs()) == {"7", "8"}


def test_a_task_of_an_array_has_a_name_of_its_own(commands):
    commands("squeue", line("7_3", name="trains") + line("8_1", "PENDING", name="x|y") + line("9", name="a_1"))
    assert {job.id: job.name for job in SlurmCommands().jobs().values()} == {
        "7_3": "trains[3]",
        "8_1": "x|y[1]",
        "9": "a_1",
    }
    commands("sacct", "7_3|01:00||trains\n7_3.batch|01:00|3000|batch\n")
    assert SlurmCommands().used(["7_3"]) == {"7_3": Used("trains[3]", 60.0, 3000.0)}


@pytest.mark.parametrize("odd", ["", "slurm_load_jobs: warning\n", "7|RUNNING|0\n", "\n\n", "|||\n"])
def test_odd_lines_are_passed_over(commands, odd):
    commands("squeue", odd + line("8"))
    assert list(SlurmCommands().jobs()) == ["8"]


@pytest.mark.parametrize(("printed", "reason"), [("None", ""), ("(null)", ""), ("N/A", ""), ("Priority", "Priority")])
def test_no_reason_is_none(commands, printed, reason):
    commands("squeue", line(reason=printed))
    assert SlurmCommands().jobs()["7"].reason == reason


def test_no_jobs_and_no_answer_are_not_the_same(commands):
    commands("squeue", "")
    assert SlurmCommands().jobs() == {}
    commands("squeue", "", "slurm_load_jobs error: Unable to contact slurm controller (connect failure)", 1)
    with pytest.raises(Unreachable, match="Unable to contact"):
        SlurmCommands().jobs()


# ------------------------------------------------------------------------------------------------------------- sacct


@pytest.mark.parametrize(
    ("cpu", "rss", "seconds", "peak"),
    [
        ("01:02.500", "2048K", 62.5, 2**21),
        ("1-02:03:04", "3000", 93784.0, 3000.0),
        ("00:00:07", "1.5G", 7.0, 1.5 * 2**30),
        ("", "1M", 0.0, 2**20),
    ],
)
def test_what_a_job_used_is_its_own_time_and_the_memory_of_its_greediest_step(commands, cpu, rss, seconds, peak):
    """Nothing is shown of one whose memory was not measured: it was not sampled yet, or nobody samples here."""
    commands(
        "sacct", f"7|{cpu}||job.1\n7.batch|00:01|{rss}|batch\n7.0|00:01|12|work\n8|00:09||job.2\n8.batch|00:09||batch\n"
    )
    assert SlurmCommands().used(["7", "8"]) == {"7": Used("job.1", seconds, peak)}


def test_sacct_is_read_as_it_writes(commands):
    rest = "n1|long|lab"
    commands(
        "sacct",
        f"7|CANCELLED by 1000|0:15|None|{rest}|job.1\n8|OUT_OF_MEMORY|0:125|None|{rest}|a|b\n"
        f"9|NODE_FAIL+|1:0|None|None assigned|||\n10|CANCELLED|0:0|None|{rest}|lost\n",
    )
    found = SlurmCommands().accounted(["8", "7", "9"])
    assert {job.state for job in found.values()} == {"CANCELLED", "OUT_OF_MEMORY", "NODE_FAIL"}
    assert (found["7"].cancelled_by, found["10"].cancelled_by) == ("1000", "")
    assert (found["7"].qos, found["7"].account) == ("long", "lab")
    assert (found["7"].signal, found["8"].signal, found["8"].name) == (15, 125, "a|b")
    asked = (commands.folder / "sacct.arguments").read_text().split("\n")
    assert asked[asked.index("-j") + 1] == "7,8,9"


def test_many_are_asked_for_in_parts_and_none_not_at_all(commands):
    commands("sacct")
    slurm = SlurmCommands()
    assert slurm.accounted([]) == {} and slurm.calls == {}
    slurm.accounted(map(str, range(client.SACCT_AT_ONCE + 1)))
    assert slurm.calls == {"sacct": 2}


def test_an_accounting_that_is_absent_or_down_says_nothing(commands):
    commands("sacct", "", "Slurm accounting storage is disabled", 1)
    assert SlurmCommands().accounted(["7"]) == {}
    (commands.folder / "bin" / "sacct").unlink()
    os.environ["PATH"] = str(commands.folder / "bin")
    assert SlurmCommands().accounted(["7"]) == {}


# ------------------------------------------------------------------------------------------------------------ sbatch


@pytest.mark.parametrize(("printed", "job_id"), [("7\n", "7"), ("Welcome to the cluster\n12\n", "12"), ("12 \n", "12")])
def test_sbatch_is_given_the_script_and_prints_the_id(commands, printed, job_id):
    commands("sbatch", printed)
    assert SlurmCommands().submit("#!/bin/bash\nexit 0\n") == job_id
    assert (commands.folder / "sbatch.given").read_text() == "#!/bin/bash\nexit 0\n"
    assert (commands.folder / "sbatch.arguments").read_text().split() == ["--parsable"]


@pytest.mark.parametrize("printed", ["", "Submitted batch job\n", "slurm 22.05.8\n"])
def test_without_an_id_the_job_may_have_been_queued(commands, printed):
    commands("sbatch", printed)
    with pytest.raises(Unreachable, match="no job id"):
        SlurmCommands().submit("#!/bin/bash\n")


REFUSALS = [
    "sbatch: error: invalid partition specified: nope\n"
    "sbatch: error: Batch job submission failed: Invalid partition name specified",
    "sbatch: error: Memory specification can not be satisfied\n"
    "sbatch: error: Batch job submission failed: Requested node configuration is not available",
    "sbatch: error: This does not look like a batch script.  The first\nsbatch: error: line must start with #!",
    "sbatch: error: Batch job submission failed: Pathname of a file, directory or other parameter too long",
    "sbatch: error: Batch job submission failed: Invalid account or account/partition combination specified",
    "sbatch: error: Batch job submission failed: Invalid qos specification",
    "sbatch: unrecognized option '--bogus=1'\nTry \"sbatch --help\" for more information",
    "sbatch: error: Invalid --signal specification",
    "sbatch: error: Batch job submission failed: Requested reservation is invalid",
    "sbatch: error: Batch job submission failed: Invalid feature specification",
    "sbatch: error: Batch job submission failed: Invalid node name specified",
]
NOT_HEARD = [
    "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation",
    "sbatch: error: Batch job submission failed: Unable to contact slurm controller (connect failure)",
    "sbatch: error: Batch job submission failed: Zero Bytes were transmitted or received",
    "sbatch: error: Batch job submission failed: Communication connection failure",
    "sbatch: error: Batch job submission failed: Message receive failure",
    "sbatch: error: Batch job submission failed: Transport endpoint is not connected, Communication shutdown failure",
    "sbatch: error: Slurm temporarily unable to accept job, sleeping and retrying\n"
    "sbatch: error: Batch job submission failed: Resource temporarily unavailable",
    "sbatch: error: Batch job submission failed: Slurm backup controller in standby mode",
    "sbatch: error: Munge encode failed: Failed to connect to \"/run/munge/munge.socket.2\"\n"
    "sbatch: error: Batch job submission failed: Protocol authentication error",
    "sbatch: error: Batch job submission failed: Invalid authentication credential",
    "sbatch: error: s_p_parse_file: cannot stat file /etc/slurm.conf, retrying in 1sec up to 60sec\n"
    "sbatch: fatal: Unable to process configuration file",
    "sbatch: error: resolve_ctls_from_dns_srv: res_nsearch error: Unknown host\n"
    "sbatch: error: fetch_config: DNS SRV lookup failed\n"
    "sbatch: fatal: Could not establish a configuration source",
    "sbatch: error: Batch job submission failed: Unspecified error",
    "",
]  # fmt: skip


@pytest.mark.parametrize("printed", REFUSALS)
def test_a_refusal_is_one_and_keeps_its_reason(commands, printed):
    commands("sbatch", "", printed, 1)
    with pytest.raises(Refused) as error:
        SlurmCommands().submit("#!/bin/bash\n")
    assert not isinstance(error.value, NotNow)
    assert printed.splitlines()[-1].removeprefix("sbatch: error: ") in str(error.value)
    assert "\n" not in str(error.value) and "sbatch: error" not in str(error.value)


@pytest.mark.parametrize(
    "limit",
    ["QOSMaxSubmitJobPerUserLimit", "QOSGrpSubmitJobsLimit", "AssocMaxSubmitJobLimit", "AssocGrpSubmitJobsLimit"],
)
def test_one_job_too_many_is_refused_for_now(commands, limit):
    policy = "Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)"
    commands("sbatch", "", f"sbatch: error: {limit}\nsbatch: error: Batch job submission failed: {policy}", 1)
    with pytest.raises(NotNow, match=limit):
        SlurmCommands().submit("#!/bin/bash\n")


@pytest.mark.parametrize("printed", NOT_HEARD)
def test_without_an_answer_nothing_is_taken_for_refused(commands, printed):
    commands("sbatch", "", printed, 1)
    with pytest.raises(Unreachable):
        SlurmCommands().submit("#!/bin/bash\n")


def test_a_command_that_hangs_is_ended_and_may_have_been_heard(commands, monkeypatch):
    monkeypatch.setattr(client, "CALL_SECONDS", 0.2)
    commands("sbatch", "7\n", body="exec sleep 20")
    with pytest.raises(Unreachable, match=r"sbatch did not answer within 0\.2 s"):
        SlurmCommands().submit("#!/bin/bash\n")


def test_a_command_that_is_not_there_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Unreachable, match="squeue is not installed here"):
        SlurmCommands().jobs()


def test_a_job_that_went_to_another_cluster_is_not_taken_for_one_here(commands):
    """The number is that of another job here, or of none: it would be followed, and cancelled."""
    commands("sbatch", "1;test\n")
    with pytest.raises(Refused, match=r"another cluster \(1;test\).*cancel it there"):
        SlurmCommands().submit("#!/bin/bash\n")


def test_other_clusters_are_refused_before_anything_is_asked_of_them(monkeypatch):
    assert client.other_clusters() == []
    monkeypatch.setenv("SLURM_CLUSTERS", "gpus")
    with pytest.raises(BadInput, match=r"SLURM_CLUSTERS=gpus is set: .*Unset it"):
        require_commands()
    assert len(client.other_clusters()) == 1 and "SLURM_CLUSTERS" not in client._environment()


def test_no_variable_of_ours_changes_a_command_behind_its_options(commands, monkeypatch):
    """SBATCH_JOB_NAME takes the place of a script's --job-name: the job would never be found again."""
    for name in ("SBATCH_JOB_NAME", "SBATCH_PARTITION", "SQUEUE_STATES", "SACCT_FORMAT", "SCANCEL_NAME"):
        monkeypatch.setenv(name, "x")
    monkeypatch.setenv("SLURM_CONF", "/etc/slurm/slurm.conf")
    monkeypatch.setenv("HF_TOKEN", "secret")
    for command, call in {
        "sbatch": lambda: SlurmCommands().submit("#!/bin/bash\n"),
        "squeue": SlurmCommands().jobs,
        "sacct": lambda: SlurmCommands().accounted(["7"]),
        "scancel": lambda: SlurmCommands().cancel(["7"]),
    }.items():
        commands(command, "7\n")
        call()
        seen = dict(
            line.split("=", 1)
            for line in (commands.folder / f"{command}.environment").read_text().splitlines()
            if "=" in line
        )
        assert not [name for name in seen if name.startswith(client.OVERRIDING)], command
        assert (seen["LC_ALL"], seen["SLURM_CONF"], seen["HF_TOKEN"]) == ("C", "/etc/slurm/slurm.conf", "secret")


# ----------------------------------------------------------------------------------------------------------- scancel


def test_several_are_cancelled_by_one_call_and_none_by_none(commands):
    commands("scancel")
    slurm = SlurmCommands()
    slurm.cancel([])
    assert slurm.calls == {}
    slurm.cancel(["7", "8"])
    assert (commands.folder / "scancel.arguments").read_text().split() == ["7", "8"]


@pytest.mark.parametrize(
    "printed",
    [
        "scancel: error: Kill job error on job id 7: Invalid job id specified",
        "scancel: error: Kill job error on job id 7: Job/step already completing or completed",
    ],
)
def test_a_job_that_is_gone_is_no_error(commands, printed):
    commands("scancel", "", printed, 1)
    SlurmCommands().cancel(["7"])


@pytest.mark.parametrize(
    ("printed", "code"),
    [
        ("scancel: error: Kill job error on job id 7: Invalid job id specified\n"
         "scancel: error: slurm_kill_job2() failed Unable to contact slurm controller (connect failure)", 8),
        ("scancel: error: Kill job error on job id 7: Access/permission denied", 210),
        ("", 1),
    ],
)  # fmt: skip
def test_a_cancel_that_was_not_done_is_an_error(commands, printed, code):
    commands("scancel", "", printed, code)
    with pytest.raises(Unreachable):
        SlurmCommands().cancel(["7", "8"])


def test_nothing_is_followed_where_slurm_s_commands_are_not(tmp_path, monkeypatch):
    for command in ("sbatch", "squeue", "scontrol"):
        (tmp_path / command).touch(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BadInput, match=rf"scancel not on PATH \({tmp_path}\)"):
        require_commands()
    (tmp_path / "scancel").touch(0o755)
    require_commands()
