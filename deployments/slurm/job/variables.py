"""From the layers of a job's variables to its plan: what the worker submits, and what the dry run prints."""

import re
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError

from deployments.dag.walk import Handle
from deployments.prefect.generate import NEEDS
from deployments.slurm.cluster.ownership import require_own
from deployments.slurm.cluster.site import Resources, Site, overrides
from deployments.slurm.job.journal import Journal, jobs_folder
from deployments.slurm.job.plan import Plan
from storage import reading
from storage.errors import BadInput
from tasks.stage import numerics
from tasks.stage.validation import listed

OPEN = re.compile(
    "(CUDA|CUBLAS|CUDNN|NVIDIA|NCCL|UCX|OMP|KMP|MKL|OPENBLAS|NUMEXPR|RAYON|MALLOC|TORCH|TORCHINDUCTOR|PYTORCH|TRITON|LC)"
    "_[A-Z0-9_]+|PYTHON[A-Z]+|HF_(HOME|HUB_CACHE|HUB_OFFLINE|DATASETS_CACHE|DATASETS_OFFLINE)|TRANSFORMERS_OFFLINE|"
    "TOKENIZERS_PARALLELISM|MPLCONFIGDIR|XDG_CACHE_HOME|TMPDIR|LANG|TZ|PATH|LD_LIBRARY_PATH|LD_PRELOAD"
)
"""Variables that may stand in a job's script, which others may read: results and speed depend on them. A list of what
hides a secret would never be whole."""
SECRET = re.compile(
    ".*(TOKEN(?!IZER)|PASS(W|PHRASE)|SECRET|CREDENTIAL|API_?KEY).*|(.*_)?(KEYS?|PASS|PWD|AUTH|CREDS?|LOGIN|COOKIE|JWT|PAT)(_.*)?"
)
"""What no setting of a library's is called: a whole family of names is open to whoever names a secret so."""
PASSWORD = re.compile(r"://[^/\s@]*:[^/\s@]*@")

OF_SITE = ("setup_lines", "pass_environment", "extra_sbatch_lines")
"""Resources that only the site file sets, and the pool and its deployments: they are commands, secrets and options of
sbatch, such as a container."""

NO_WORD = re.compile(r"[^\w.=-]+")
"""Characters that the name of a job should not hold."""


class Where(Resources):
    """Facts of a run's job beside its resources; the dispatch fills them in."""

    folder: str = Field(
        "",
        title="Folder",
        description="Where scripts, logs and the journal of the run's jobs are kept; Ratchet sets it. Empty: below "
        "the site's root.",
    )
    label: str = Field("", title="Job name", description="Beginning of the job's name. Empty: the flow run's name.")
    directory: str = Field(
        "", title="Source", description="Folder with the source that the job runs. Empty: the site's root."
    )

    needs: str = Field("", title="Needs", description="What the stage needs: training, gpu or cpu; Ratchet sets it.")


class JobValues(Where):
    """One run's job, all layers but the site's and the study's merged."""

    env: dict[str, str | None] = Field({})
    command: str | None = Field(None)


@dataclass(frozen=True)
class Layers:
    """Sources of the variables of a job, the later over the earlier. All are read as they stand now: who corrects
    one of them and retries the run, or starts the study again, expects the next job to have it."""

    configuration: JobValues
    """The pool's and the deployment's."""
    site: Site
    study: dict[str, dict[str, Any]]
    """By stage, or `all` (`own_resources`)."""
    run: dict[str, Any]
    """Given to the flow run itself."""


def plan_of(
    layers: Layers,
    *,
    name: str,
    parameters: dict[str, Any],
    own_folder: Path,
    flow_run: str,
    automatic: bool = False,
    state_id: str = "",
) -> Plan:
    """The plan of a flow run's next job; `own_folder` is for a run whose variables name none.

    BadInput for a variable of the environment that may be a secret: they stand in the job's script.
    """
    configuration, site, stage = layers.configuration, layers.site, parameters.get("stage", "")
    environment = {key: value for key, value in configuration.env.items() if value and not key.startswith("PREFECT_")}
    hidden = sorted(
        key
        for key, value in environment.items()
        if not OPEN.fullmatch(key) or SECRET.fullmatch(key) or PASSWORD.search(value)
    )
    if hidden:
        raise BadInput(
            f"env: {', '.join(hidden)} would stand in the job's script, which others may read, and may be a secret: "
            "set it where the worker runs, and name it in pass_environment of the site file"
        )
    asked = configuration.model_dump(include=set(Resources.model_fields))
    at_site = site.resources | site.stages.get(configuration.needs, {}) | site.stages.get(stage, {})
    asked |= at_site | layers.study.get("all", {}) | layers.study.get(stage, {})
    asked |= {key: value for key, value in layers.run.items() if key in Resources.model_fields}
    try:
        resources = Resources.model_validate(asked)
    except ValidationError as error:
        raise BadInput(f"{name}: {'; '.join(listed(Resources, error))}") from None
    return Plan(
        flow_run=flow_run,
        folder=Path(configuration.folder or own_folder),
        label=configuration.label or name,
        command=command(configuration.command or "", parameters),
        directory=Path(configuration.directory or site.root),
        resources=resources,
        environment=numerics.environment() | environment,
        automatic=automatic,
        state_id=state_id,
        array_tasks=site.array_tasks if parameters.get("study_file") else None,
        study_file=parameters.get("study_file", ""),
        stage=stage,
        comment=name,
    )


def own_resources(study: Any) -> dict[str, dict[str, Any]]:
    """Requests of the study itself, by stage name or `all`.

    BadInput when it is nothing that a job can ask for, and for OF_SITE: a profile may be another person's.
    """
    return _asked_by_study(study.execution.resources)


def kept_resources(study_file: str, group: str = "") -> dict[str, dict[str, Any]]:
    """Same as `own_resources`, of a study as it is kept beside its runs; none when it is missing: its job reports that.

    BadInput also when others than `group` may have written it: what it asks for stands in the job's script.
    """
    if study_file:
        require_own([Path(study_file)], group)
    try:
        kept = reading.read_yaml(Path(study_file))["study"]["execution"]["resources"]
        return _asked_by_study(kept)
    except (FileNotFoundError, IsADirectoryError, KeyError, TypeError, AttributeError, ValueError):
        return {}


def _asked_by_study(resources: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    asked = overrides(resources, "execution.resources.")
    if of_site := [f"{group}.{name}" for group, some in asked.items() for name in OF_SITE if name in some]:
        raise BadInput(
            f"execution.resources.{of_site[0]}: a study cannot set this, since it would run commands in its jobs or "
            "hand them what is secret, whoever wrote the profile. Read what it says; where you want it, write it into "
            "the site file, under resources or stages (docs/cluster.md)"
        )
    return asked


def command(template: str, parameters: dict[str, Any]) -> list[str]:
    """The job's argument vector: `{parameters}` in the template becomes the run's parameters as options."""
    arguments = [f"--{name.replace('_', '-')}={value}" for name, value in parameters.items() if value is not None]
    return [word for part in shlex.split(template) for word in (arguments if part == "{parameters}" else [part])]


def plan_for(
    values: JobValues, site: Site, handle: Handle, study_file: Path, source: Path, own: dict[str, dict[str, Any]]
) -> Plan:
    """The plan of a stage's next job as it will be made; nothing is written or started."""
    folder = jobs_folder(handle.run)
    last = next(reversed(Journal(folder).all()), None)
    goes_on = last is not None and (last.end is None or last.end.follows == "AwaitingRetry")
    flow_run = last.flow_run if last is not None and goes_on else ""  # else a person's start makes a new one
    return plan_of(
        Layers(values, site, own, job_variables(site, handle, source)),
        name=run_name(handle),
        parameters=stage_parameters(handle, study_file),
        own_folder=folder,
        flow_run=flow_run,
        automatic=goes_on,
    )


def job_values(site: Site, handle: Handle, source: Path) -> JobValues:
    """What a stage's job is made of where no Prefect server has a deployment of it."""
    return JobValues.model_validate(NEEDS[handle.stage.needs] | job_variables(site, handle, source))


def run_name(handle: Handle) -> str:
    """The name of a stage's flow run, and the comment of its jobs."""
    return f"{handle.run.study} {handle.label} {handle.run.fingerprint[:12]}"


def stage_parameters(handle: Handle, study_file: Path) -> dict[str, Any]:
    """Parameters of the flow `stage`."""
    return {
        "study_file": str(study_file),
        "stage": handle.stage.name,
        "root": str(handle.run.root),
        "fingerprint": handle.run.fingerprint,
    }


def job_variables(site: Site, handle: Handle, source: Path) -> dict[str, Any]:
    """Job variables of this stage's run: where it works. Resources are put together for each job (`plan_of`)."""
    name = handle.stage.name
    seed: int | str = next(iter(handle.seeds)) if len(handle.seeds) == 1 else "all"
    label = site.job_name if seed != "all" else site.job_name.replace("-s{seed}", "")
    cell = [NO_WORD.sub("-", part) for part in handle.cell if part != f"seed {seed}"]
    return {
        "folder": str(jobs_folder(handle.run)),
        "needs": handle.stage.needs,
        "label": label.format(study=handle.run.study, stage="-".join([name, *cell]), seed=seed),
        "directory": str(source),
        "command": f"{shlex.quote(site.python or sys.executable)} -m flows.stage {{parameters}}",
    }
