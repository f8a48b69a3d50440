"""Requests of Ratchet to SLURM, and the commands that make them: sbatch, squeue, sacct, scancel, scontrol.

The tests' fake and this one pass one shared contract test. One call of `jobs`
answers for every job of this user: nothing here is asked per job.
"""

import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from storage.errors import BadInput

CALL_SECONDS = 60.0
"""A frozen controller answers after about 10 s with an error, a dead one after 9 to 18 s."""
FIELDS = ("JobArrayID", "State", "exit_code", "Reason", "NodeList", "QOS", "Account", "Name")
ACCOUNTED = ("JobID", "State", "ExitCode", "Reason", "NodeList", "QOS", "Account", "JobName")
USED = ("JobID", "TotalCPU", "MaxRSS", "JobName")
SACCT_AT_ONCE = 200
UNCLEAR = re.compile(
    r"timed out|unable to (contact|process|establish)|connection|communication|send/recv|zero bytes|munge|"
    r"message (send|rec)|unexpected message|authentication|credential|standby|temporarily|try again|not responding|"
    r"shut ?down|broken pipe|i/o error|configuration (source|file)|unspecified error",
    re.I,
)
"""Output of sbatch when the controller did not hear it, or it did not hear the answer. Else it was refused."""
NOT_NOW = re.compile(r"(Max|Grp)Submit|inactive or drain")
"""Output of sbatch when it refuses a job that it takes later: one more than a person may have, a closed partition."""
NO_ARRAY = re.compile(r"job array")
"""Output of sbatch when it takes no array, or none so large."""
CLUSTERS = "SLURM_CLUSTERS"
"""Names the clusters that all of SLURM's commands speak to, in place of the one of this host."""
OVERRIDING = ("SBATCH_", "SQUEUE_", "SACCT_", "SCANCEL_", "SINFO_", CLUSTERS)


def other_clusters() -> list[str]:
    """Objection to every job where a person's environment sends SLURM's commands to other clusters."""
    if not (named := os.environ.get(CLUSTERS)):
        return []
    return [
        f"{CLUSTERS}={named} is set: Ratchet serves the cluster of the host that it runs on, and no other. Unset it, "
        "here and where studies are followed; for another cluster, work on a login node of that one"
    ]


def require_commands() -> None:
    """BadInput when SLURM's commands are missing, or would speak to other clusters: nothing would ever be submitted."""
    if elsewhere := other_clusters():
        raise BadInput(elsewhere[0])
    if missing := [command for command in ("sbatch", "squeue", "scancel", "scontrol") if not shutil.which(command)]:
        raise BadInput(
            f"{', '.join(missing)} not on PATH ({os.environ.get('PATH', '')}): start the worker where SLURM's commands "
            "are, or add their folder to PATH (for a systemd unit: Environment=PATH=...)"
        )


Done = subprocess.CompletedProcess[str]


class SlurmError(Exception):
    """SLURM did not do what was asked."""


class Refused(SlurmError):
    """SLURM read the request and refused it: nothing was queued."""


class NotNow(Refused):
    """SLURM does not take the job for the time being (too many of this person, a closed partition)."""


class NoArray(Refused):
    """SLURM does not take the job as an array, or as one so large."""


class Unreachable(SlurmError):
    """SLURM did not answer: what was asked may have been done."""


class NotInstalled(Unreachable):
    """The command is not there."""


@dataclass(frozen=True)
class Job:
    """Report of SLURM on one job."""

    id: str
    """`7`, or `7_3`: task 3 of the array 7."""
    name: str
    """For a task, the name of its array, and its number in brackets."""
    state: str
    reason: str = ""
    exit_code: int = 0
    signal: int = 0
    node: str = ""
    cancelled_by: str = ""
    """The uid of who cancelled it, where the accounting has one."""
    qos: str = ""
    account: str = ""


@dataclass(frozen=True)
class Used:
    """Resources that a job used, as the accounting measured them."""

    name: str
    cpu_seconds: float
    peak_memory_bytes: float
    """Maximum over the job's steps."""


class SlurmCommands:
    """SLURM through its command line, as the user who runs this process."""

    def __init__(self) -> None:
        self.calls: dict[str, int] = {}
        """How often each command was run: what a cluster's operators count."""

    def submit(self, script: str) -> str:
        """Queues the script; the id of the job, or of the array.

        Raises Refused (NotNow: for now), or Unreachable if it may be queued."""
        # a job inherits nothing of the worker's environment but what the script's --export names
        done = self._run(["sbatch", "--parsable"], script)
        if done.returncode:
            raise _submit_error(done.stderr)
        printed = re.search(r"^(\d+)(;\S+)?\s*\Z", done.stdout, re.M)
        if printed and printed[2]:  # its number says nothing here, or names another job
            raise Refused(
                f"the job went to another cluster ({printed[0].strip()}), and is not followed: cancel it there"
            )
        if printed is None:
            raise Unreachable(f"sbatch printed no job id but {done.stdout.strip()!r}")
        return printed[1]

    def would_take(self, script: str) -> None:
        """Raises as `submit` does, and queues nothing. A job whose only nodes are down or drained is refused here,
        which `submit` queues."""
        done = self._run(["sbatch", "--test-only"], script)
        if done.returncode:
            raise _submit_error(done.stderr)

    def jobs(self) -> dict[str, Job]:
        """Every job of this user that the controller still knows, ended ones too, by id. Raises Unreachable."""
        form = ",".join(f"{field}:|" for field in FIELDS)
        # --all: a job in a partition that is hidden, or not for this group by now, would be taken for lost
        done = self._run(["squeue", "--noheader", "--me", "--all", "--states=all", "--array", f"--Format={form}"])
        if done.returncode:
            raise Unreachable(done.stderr.strip())
        return _read(done.stdout)

    def accounted(self, ids: Iterable[str]) -> dict[str, Job]:
        """The jobs among `ids` that the accounting knows; empty where there is none or where it does not answer."""
        return _read(self._sacct(ids, "-X", ACCOUNTED))

    def used(self, ids: Iterable[str]) -> dict[str, Used]:
        """Resources used by those of `ids` that the accounting measured, by id; empty where there is none."""
        return _read_used(self._sacct(ids, "--noconvert", USED))

    def _sacct(self, ids: Iterable[str], option: str, fields: Sequence[str]) -> str:
        """Lines of these fields, a bar between; none where there is no accounting, or where it does not answer."""
        wanted, output = sorted(ids), ""
        if not wanted or not shutil.which("sacct"):
            return output
        for first in range(0, len(wanted), SACCT_AT_ONCE):
            some = ",".join(wanted[first : first + SACCT_AT_ONCE])
            try:
                done = self._run(
                    ["sacct", option, "-n", "-P", "--delimiter=|", "-j", some, f"--format={','.join(fields)}"]
                )
            except Unreachable:
                return output
            if done.returncode == 0:
                output += done.stdout
        return output

    def largest_array(self) -> int:
        """How many tasks, numbered from one, an array may have here. Raises Unreachable."""
        done = self._run(["scontrol", "show", "config"])
        size = re.search(r"^MaxArraySize\s*=\s*(\d+)", done.stdout, re.M)
        if size is None:
            raise Unreachable(done.stderr.strip() or "scontrol show config shows no MaxArraySize")
        return int(size[1]) - 1  # it is the first number that no task may have

    def cancel(self, ids: Sequence[str]) -> None:
        """Ends jobs, queued or running; one that is gone already is no error. Raises Unreachable."""
        if not ids:
            return
        done = self._run(["scancel", *ids])
        gone = re.compile(r"invalid job id|already complet", re.I)
        problems = [line for line in done.stderr.splitlines() if not gone.search(line)]
        if done.returncode and (problems or not done.stderr):
            raise Unreachable("; ".join(problems))

    def _run(self, command: list[str], text: str | None = None) -> Done:
        self.calls[command[0]] = self.calls.get(command[0], 0) + 1
        return call(command, text)


def call(command: list[str], text: str | None = None, seconds: float | None = None) -> Done:
    """Output of one of SLURM's commands, and its exit code; nothing of a person's environment changes it. Raises
    Unreachable."""
    try:
        return subprocess.run(
            command,
            input=text,
            capture_output=True,
            encoding="utf-8",
            errors="replace",  # another job of this user may have any name
            timeout=seconds or CALL_SECONDS,
            check=False,
            env=_environment(),
        )
    except FileNotFoundError:
        raise NotInstalled(f"{command[0]} is not installed here, or not on PATH") from None
    except subprocess.TimeoutExpired:
        raise Unreachable(f"{command[0]} did not answer within {seconds or CALL_SECONDS:g} s") from None
    except OSError as error:
        raise Unreachable(f"{command[0]} cannot be run: {error}") from None


def task_id(array_id: str, task: int) -> str:
    """The id of a task of an array, as every command of SLURM takes it."""
    return f"{array_id}_{task}"


def task_name(name: str, task: int | str) -> str:
    """The name of a task: SLURM gives all tasks of an array one name."""
    return f"{name}[{task}]"


def _environment() -> dict[str, str]:
    """Ours, without what would change a command behind its options (SBATCH_PARTITION overrides the script)."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(OVERRIDING)}
    return kept | {"LC_ALL": "C"}


def _submit_error(text: str) -> SlurmError:
    """The error for what sbatch printed: a refusal, unless the job may have been queued all the same."""
    lines = [re.sub(r"^(sbatch: error|allocation failure): ", "", line).strip() for line in text.splitlines()]
    message = " ".join(filter(None, lines))
    if UNCLEAR.search(message) or not message:
        return Unreachable(message)
    return (NotNow if NOT_NOW.search(message) else NoArray if NO_ARRAY.search(message) else Refused)(message)


def _read(text: str) -> dict[str, Job]:
    """Jobs from lines of `FIELDS`, a bar after each; the name is the last and may hold anything."""
    jobs = {}
    for line in text.splitlines():
        parts = line.split("|", len(FIELDS) - 1)
        if len(parts) < len(FIELDS):
            continue
        id_, state, exit_, reason, node, qos, account = (part.strip() for part in parts[:-1])
        code, signal = _exit(exit_)
        jobs[id_] = Job(
            id_,
            _name(parts[-1].removesuffix("|"), id_),
            state.split()[0].rstrip("+") if state else "",
            "" if reason in ("None", "(null)", "N/A") else reason,
            code,
            signal,
            node,
            cancelled_by=state.partition(" by ")[2],  # sacct: "CANCELLED by 1000"
            qos=qos,
            account=account,
        )
    return jobs


def _name(of_job: str, id_: str) -> str:
    task = id_.partition("_")[2]
    return task_name(of_job, task) if task else of_job


def _exit(text: str) -> tuple[int, int]:
    """(code, signal) from `3:0`, or from a raw wait status such as 768; zeros when it is neither."""
    first, colon, second = text.partition(":")
    code, signal = (int(part) if part.isdecimal() else 0 for part in (first, second))
    return (code, signal) if colon else (code >> 8, code & 0x7F)


def _read_used(text: str) -> dict[str, Used]:
    """CPU time, by job, of its own line, and the most memory of those of its steps (`7.batch`), which follow it."""
    of_jobs: dict[str, Used] = {}
    for line in text.splitlines():
        parts = line.split("|", len(USED) - 1)
        if len(parts) < len(USED):
            continue
        id_, _, step = parts[0].partition(".")
        if not step:
            of_jobs[id_] = Used(_name(parts[3], id_), _cpu_seconds(parts[1]), 0.0)
        elif id_ in of_jobs:
            peak = max(of_jobs[id_].peak_memory_bytes, _bytes(parts[2]))
            of_jobs[id_] = replace(of_jobs[id_], peak_memory_bytes=peak)
    return {id_: used for id_, used in of_jobs.items() if used.peak_memory_bytes}


def _cpu_seconds(text: str) -> float:
    """Seconds in `1-02:03:04` or `03:04.567`; zero for anything else."""
    days, _, clock = text.rpartition("-")
    try:
        parts = [float(part) for part in clock.split(":")]
        return sum(part * 60**place for place, part in enumerate(reversed(parts))) + 86400 * float(days or 0)
    except ValueError:
        return 0.0


def _bytes(text: str) -> float:
    """Number of bytes in `123456K`, or in plain bytes; zero for anything else."""
    unit = "KMGT".find(text[-1:]) + 1 if text[-1:] else 0
    try:
        return float(text[:-1] if unit else text) * 1024**unit
    except ValueError:
        return 0.0
