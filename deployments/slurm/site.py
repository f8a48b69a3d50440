"""A cluster: one file says everything that belongs to it, so that moving to another cluster edits one file."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model, field_validator

from deployments.slurm.resources import Line, Resources
from storage.errors import BadInput

SITES = Path(__file__).parent.parent / "sites"
VARIABLE = "RATCHET_SITE"
"""Names the site: a file, or the name of one in `deployments/sites/`."""

Overrides: type[BaseModel] = create_model(
    "Overrides",
    __config__=ConfigDict(extra="forbid"),
    **{name: (field.annotation | None, None) for name, field in Resources.model_fields.items()},
)
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
    gpu_pool: str = Field("gpu", description="Work pool of type slurm.")
    notify: str = Field(
        "",
        description="Shell command that the worker runs when a study needs a person, with the diagnosis on its input "
        'and RATCHET_SUBJECT set, such as: mail -s "$RATCHET_SUBJECT" me@example.edu',
    )
    resources: dict[str, Any] = Field({}, description="Resources that all stages take here, such as the partition.")
    stages: dict[str, dict[str, Any]] = Field({}, description="Resources by stage name, where they differ here.")

    @field_validator("root", "cache", "results", "python")
    @classmethod
    def _absolute(cls, value: str) -> str:
        value = os.path.expanduser(os.path.expandvars(value))
        if value and not os.path.isabs(value):
            raise ValueError("must be an absolute path")
        return value

    @field_validator("resources")
    @classmethod
    def _are_resources(cls, value: dict[str, Any]) -> dict[str, Any]:
        return Overrides.model_validate(value).model_dump(exclude_unset=True)

    @field_validator("stages")
    @classmethod
    def _are_resources_of_stages(cls, value: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
        return {name: Overrides.model_validate(some).model_dump(exclude_unset=True) for name, some in value.items()}


def read_site(name: str | None = None) -> Site:
    """The site of this name or file (else of `RATCHET_SITE`, else `cluster`). BadInput says what is wrong where."""
    name = name or os.environ.get(VARIABLE) or "cluster"
    file = Path(name) if name.endswith((".yaml", ".yml")) else SITES / f"{name}.yaml"
    try:
        values = yaml.safe_load(file.read_text())
    except FileNotFoundError:
        known = ", ".join(sorted(file.stem for file in SITES.glob("*.yaml")))
        raise BadInput(
            f"there is no site file {file}: copy {SITES / 'example.yaml'} to it and say what belongs to this cluster, "
            f"or name another one in {VARIABLE} (known: {known})"
        ) from None
    except (OSError, yaml.YAMLError) as error:
        raise BadInput(f"{file} cannot be read as YAML: {error}") from None
    try:
        return Site.model_validate(values)
    except ValidationError as error:
        lines = [f"{'.'.join(map(str, item['loc']))}: {item['msg']}" for item in error.errors()]
        raise BadInput(f"{file} is not a valid site:\n  " + "\n  ".join(lines)) from None
