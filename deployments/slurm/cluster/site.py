"""A cluster: one file holds everything that belongs to it, so that moving to another cluster edits one file."""

from __future__ import annotations

import grp
import os
from collections.abc import Container
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model, field_validator
from pydantic.fields import FieldInfo

from deployments.slurm.cluster.resources import Line, Resources
from storage import durable, reading
from storage.errors import BadInput
from storage.permissions import Permissions
from tasks.stage.validation import listed, validated

SITES = Path(__file__).parents[2] / "sites"
VARIABLE = "RATCHET_SITE"
"""Names the site: a file, or the name of one in `deployments/sites/`."""
OWN = "cluster"
"""The site that is meant where none is named: a person makes it."""
ENVIRONMENT = "environment.json"


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
    """Whether this is set up for a cluster: a site is named, or the file that a person makes is there."""
    return bool(os.environ.get(VARIABLE)) or _file(OWN).exists()


def _file(name: str) -> Path:
    return Path(name) if name.endswith((".yaml", ".yml")) else SITES / f"{name}.yaml"


def read_site(name: str | None = None) -> Site:
    """The site of this name or file (else of `RATCHET_SITE`, else `cluster`). BadInput names what is wrong where."""
    file = _file(name or os.environ.get(VARIABLE) or OWN)
    try:
        values = reading.read_yaml(file)
    except FileNotFoundError:
        known = ", ".join(sorted(file.stem for file in SITES.glob("*.yaml")))
        raise BadInput(
            f"there is no site file {file}: copy {SITES / 'example.yaml'} to it and fill in what this cluster has, "
            f"or name another one in {VARIABLE} (known: {known})"
        ) from None
    except OSError as error:
        raise BadInput(f"{file} cannot be read as YAML: {error}") from None
    except ValueError as error:
        raise BadInput(str(error)) from None
    site = validated(Site, values, str(file))
    resources, *stages = overrides(
        {"resources": site.resources} | {f"stages.{name}": some for name, some in site.stages.items()}, f"{file}: "
    ).values()
    return site.model_copy(update={"resources": resources, "stages": dict(zip(site.stages, stages, strict=True))})


def overrides(groups: dict[str, Any], where: str) -> dict[str, dict[str, Any]]:
    """The resources that are set in each group; an empty key is left out. BadInput names each key that is wrong, after
    `where` and its group, and what is valid."""
    found, wrong = {}, []
    for name, given in groups.items():
        try:
            some = Overrides.model_validate(given).model_dump(exclude_unset=True)
        except ValidationError as error:
            wrong.append(f"{where}{name}: {'; '.join(listed(Overrides, error))}")
            continue
        if some.get("memory_gb", 0) is None:
            some["memory_gb"] = 0  # `memory_gb: null` says that none is asked for
        found[name] = {key: value for key, value in some.items() if value is not None}
    if wrong:
        raise BadInput("\n".join(wrong))
    return found


def folder_of_pool(site: Site, pool: str) -> Path:
    """Where a pool's worker keeps what is of no study."""
    return Path(site.root) / ".slurm" / pool


def note_environment(folder: Path) -> None:
    """Writes the names of this process's variables into the pool's folder, and no value: who starts a study looks
    before anything is submitted."""
    durable.write_json(folder / ENVIRONMENT, {"set": sorted(os.environ)})


def environment_of_worker(folder: Path) -> Container[str]:
    """Names of the variables of the worker that served the pool last; this process's where there was none yet."""
    try:
        return frozenset(durable.read_json(folder / ENVIRONMENT)["set"])
    except (OSError, ValueError, KeyError):
        return os.environ
