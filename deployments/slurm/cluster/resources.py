"""What a job may ask of a cluster: the pool's form, a deployment's defaults, a site's and a study's overrides.

Every layer may set any of these; a later one wins: the pool, the deployment of the stage (`prefect.yaml`), the site
file, the study as it was started last. All are read anew for each job.
"""

from __future__ import annotations

import re
import shlex
from typing import Annotated

from pydantic import AfterValidator, BaseModel, Field

OURS = {
    "job-name", "output", "error", "open-mode", "signal", "requeue", "no-requeue", "dependency", "export",
    "export-file", "chdir", "parsable", "array", "wrap", "time", "partition", "account", "qos", "cpus-per-task",
    "mem", "gres", "gpus", "constraint", "exclude", "reservation", "nodes", "ntasks", "wait", "hold", "begin",
    "deadline", "time-min", "mail-type", "mail-user", "mem-per-cpu", "mem-per-gpu", "gpus-per-node", "gpus-per-task",
    "gpus-per-socket", "ntasks-per-node", "cpus-per-gpu", "tres-per-job", "no-shell", "tres-per-task", "clusters",
    "cluster", "test-only", "uid", "gid", "help", "usage", "version", "quiet", "ntasks-per-gpu", "ntasks-per-core",
    "ntasks-per-socket", "input",
}  # fmt: skip
"""sbatch options that have a field of their own, or that would break what Ratchet relies on."""

_WORD = re.compile(r"[A-Za-z0-9_.,:@%+/=&|()\[\]*!-]*")


def _word(value: str) -> str:
    if not _WORD.fullmatch(value):
        raise ValueError("one word of letters, digits and _.,:@%+/=&|()[]*!- as sbatch takes it, without spaces")
    return value


def _one_line(value: str) -> str:
    if len(value.splitlines()) > 1 or set(value) & set("\n\r\0"):
        raise ValueError("must be one line")
    return value


def _not_ours(value: str) -> str:
    _one_line(value)
    try:
        words = shlex.split(value)  # as sbatch does it: a space outside of quotes begins another option
    except ValueError as error:
        raise ValueError(f"{value!r}: {error}") from None
    option = re.fullmatch(r"--([A-Za-z][A-Za-z-]*)(=.*)?", words[0]) if len(words) == 1 else None
    if not option:
        raise ValueError(f"{value!r} is not one long sbatch option, such as --mem-bind=local or --comment='two words'")
    if taken := sorted(name for name in OURS if name.startswith(option[1])):  # sbatch takes any unique beginning
        raise ValueError(f"--{taken[0]} is set by Ratchet, from {', '.join(Resources.model_fields)}, or not at all")
    return value


def _not_prefect_s(name: str) -> str:
    if name.startswith("PREFECT_"):
        raise ValueError(f"{name} would let the job speak to the Prefect server, which jobs never do")
    return name


Word = Annotated[str, AfterValidator(_word)]
Line = Annotated[str, AfterValidator(_one_line)]
ExtraLine = Annotated[str, AfterValidator(_not_ours)]
Name = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$"), AfterValidator(_not_prefect_s)]


class Resources(BaseModel):
    """Resources of one job."""

    partition: Word = Field("", title="Partition", description="Empty: the cluster's default.")
    account: Word = Field("", title="Account", description="Empty: your default account.")
    qos: Word = Field("", title="QOS", description="Empty: the account's default.")
    time_limit_minutes: int = Field(
        60, ge=1, title="Time limit (minutes)", description="A training that meets it saves, and the next job goes on."
    )
    cpus: int = Field(1, ge=1, title="CPUs", description="CPU cores of the job.")
    memory_gb: float = Field(
        4.0,
        ge=0,
        title="Memory (GB)",
        description="Main memory of the job, 1024 MB a GB as sbatch counts. 0: none is asked for, where SLURM does not "
        "count memory (RealMemory 1).",
    )
    memory_cap_gb: float | None = Field(
        None,
        gt=0,
        title="Memory cap (GB)",
        description="A job that ran out of memory is tried once more with half as much again, at most this. "
        "Empty: no cap.",
    )
    gpus: int = Field(0, ge=0, title="GPUs", description="GPUs of the job.")
    gpu_model: Word = Field("", title="GPU model", description="As the cluster names it, such as a100. Empty: any.")
    constraint: Word = Field("", title="Constraint", description="Node features, such as a100&nvlink.")
    exclude: list[Word] = Field([], title="Excluded nodes", description="Nodes that the job must not run on.")
    reservation: Word = Field("", title="Reservation", description="Name of a reservation to run in.")
    setup_lines: list[Line] = Field(
        [],
        title="Setup lines",
        description="Shell lines that the job runs first, such as `module load cuda` or "
        "`source /envs/ratchet/bin/activate`. A line that fails ends the job.",
    )
    extra_sbatch_lines: list[ExtraLine] = Field(
        [], title="Extra sbatch options", description="Such as --mem-bind=local. None may replace a field above."
    )
    pass_environment: list[Name] = Field(
        [],
        title="Passed environment",
        description="Names of variables of the worker's environment that the job is given, such as HF_TOKEN: "
        "secrets pass so, and stand in no file.",
    )
    lead_seconds: float = Field(
        90.0,
        gt=0,
        title="Lead time (seconds)",
        description="How long before its time limit a job is signalled to save; measured saves and steps are added.",
    )
