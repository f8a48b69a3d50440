"""A cluster: one file holds everything that belongs to it, so that moving to another cluster edits one file; and what a
job may ask of it.

Every layer may set any of these resources; a later one wins: the pool, the deployment of the stage (`prefect.yaml`),
the site file, the study as it was started last. All are read anew for each job.
"""

import grp
import os
import re
import shlex
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, create_model, field_validator
from pydantic.fields import FieldInfo

from storage import reading
from storage.errors import BadInput
from storage.permissions import Permissions
from tasks.stage.validation import listed, validated

SITES = Path(__file__).parents[2] / "sites"
VARIABLE = "RATCHET_SITE"
"""Names the site: a file, or the name of one in `deployments/sites/`."""
OWN = "cluster"
"""The site that is meant where none is named: a person makes it."""
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
        words = shlex.split(value)  # same as sbatch: a space outside of quotes begins another option
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


def _optional(field: FieldInfo) -> Any:
    """The field's type with its limits, or None."""
    limited: Any = Annotated[(field.annotation, *field.metadata)] if field.metadata else field.annotation
    return limited | None


_FIELDS: dict[str, Any] = {name: (_optional(field), None) for name, field in Resources.model_fields.items()}
Overrides: type[BaseModel] = create_model("Overrides", __config__=ConfigDict(extra="forbid"), **_FIELDS)
"""Any of `Resources`; what is left out stays as the pool and the deployment have it."""


class Site(BaseModel):
    """One cluster. Relative paths are refused: login and compute nodes must see the same folders."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    root: str = Field(description="Folder of the run directories, on a disk that all nodes share and keep.")
    cache: str = Field("", description="Folder for extracted text and hub downloads; empty: .cache in root.")
    results: str = Field("", description="Folder that finished studies' reports are copied to; empty: nowhere.")
    python: str = Field("", description="Python of the jobs; empty: the one that submits.")
    job_name: Line = Field(
        "{study}-s{seed}-{stage}",
        description="Beginning of a job's name, as squeue shows it; a unique ending is added.",
    )
    strict_lead: bool = Field(
        True, description="Refuse a lead time of more than a third of the time limit; off only for tests."
    )
    max_jobs: int | None = Field(
        None,
        ge=1,
        description="So many jobs of the pool are queued or running at once; more wait in Prefect. Empty: as many as "
        "SLURM takes.",
    )
    array_tasks: int | None = Field(
        None,
        ge=1,
        description="The first jobs of a stage's cells that ask SLURM for the same are one job array, of which so many "
        "tasks run at once (sbatch --array=...%8). Empty: each is a job of its own.",
    )
    trust_group: str = Field(
        "",
        description="Group whose members share the root on purpose: what they may write there runs as the one who has "
        "the workers. Empty: what others may write is refused.",
    )
    notify: str = Field(
        "",
        description="Shell command that the worker runs when a study needs a person, with the diagnosis on its input "
        'and RATCHET_SUBJECT set, such as: mail -s "$RATCHET_SUBJECT" me@example.edu',
    )
    permissions: Permissions = Field(
        "umask",
        description="Who else may read run directories, scripts and logs: group, or nobody (private); umask: as this "
        "machine has it. Of this and execution.permissions of a study the stricter one holds.",
    )
    resources: dict[str, Any] = Field({}, description="Resources that all stages take here, such as the partition.")
    stages: dict[str, dict[str, Any]] = Field(
        {}, description="Resources by what stages need (training, gpu, cpu) or by stage name, where they differ here."
    )

    @field_validator("resources", "stages", mode="before")
    @classmethod
    def _of_no_lines(cls, value: Any) -> Any:
        """A key whose lines are all commented out holds nothing."""
        return {} if value is None else value

    @field_validator("root", "cache", "results", "python")
    @classmethod
    def _absolute(cls, value: str) -> str:
        value = os.path.expanduser(os.path.expandvars(value))
        if value and not os.path.isabs(value):
            raise ValueError("must be an absolute path")
        if "$" in value:
            raise ValueError(f"names a variable that is not set here: {value}")
        return value

    @field_validator("trust_group")
    @classmethod
    def _known(cls, value: str) -> str:
        try:
            return value and grp.getgrnam(value).gr_name
        except KeyError:
            raise ValueError(f"there is no group {value!r} here") from None

    @field_validator("job_name")
    @classmethod
    def _fillable(cls, value: str) -> str:
        try:
            for seed in (42, "all"):
                value.format(study="study", seed=seed, stage="stage")
        except (KeyError, IndexError, ValueError, AttributeError, TypeError) as error:
            raise ValueError(f"can hold {{study}}, {{seed}} and {{stage}} only, as they are ({error!r})") from None
        return value


def has_site() -> bool:
    """True where this is set up for a cluster: a site is named, or the file that a person makes is there."""
    return bool(os.environ.get(VARIABLE)) or _file(OWN).exists()


def _file(name: str) -> Path:
    return Path(name) if name.endswith((".yaml", ".yml")) else SITES / f"{name}.yaml"


def read_site(name: str | None = None) -> Site:
    """The site of this name or file (else of `RATCHET_SITE`, else `cluster`). BadInput names what is wrong where."""
    file = _file(name or os.environ.get(VARIABLE) or OWN)
    known = ", ".join(sorted(file.stem for file in SITES.glob("*.yaml")))
    missing = (
        f"there is no site file {file}: copy {SITES / 'example.yaml'} to it and fill in what this cluster has, "
        f"or name another one in {VARIABLE} (known: {known})"
    )
    site = validated(Site, reading.given_yaml(file, missing), str(file))
    resources, *stages = overrides(
        {"resources": site.resources} | {f"stages.{name}": some for name, some in site.stages.items()}, f"{file}: "
    ).values()
    return site.model_copy(update={"resources": resources, "stages": dict(zip(site.stages, stages, strict=True))})


def overrides(groups: dict[str, Any], where: str) -> dict[str, dict[str, Any]]:
    """The resources that are set in each group; an empty key is left out. BadInput names each key that is wrong, after
    `where` and its group, and what is valid."""
    values, wrong = {}, []
    for name, fields in groups.items():
        try:
            some = Overrides.model_validate(fields).model_dump(exclude_unset=True)
        except ValidationError as error:
            wrong.append(f"{where}{name}: {'; '.join(listed(Overrides, error))}")
            continue
        if some.get("memory_gb", 0) is None:
            some["memory_gb"] = 0  # `memory_gb: null` says that none is asked for
        values[name] = {key: value for key, value in some.items() if value is not None}
    if wrong:
        raise BadInput("\n".join(wrong))
    return values


def folder_below(site: Site, name: str) -> Path:
    """A folder below the root of what belongs to no study."""
    return Path(site.root) / ".slurm" / name


def folder_of_jobs(site: Site) -> Path:
    """Folder with the lock of who serves the root's jobs; of this name since a worker of the pool `gpu` did."""
    return folder_below(site, "gpu")
