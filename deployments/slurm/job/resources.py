"""What the job of a stage asks for: by its needs, by the site file, and by the study, the later over the earlier.

All are read as they stand now: who corrects one of them and starts the study again expects the next job to have it.
"""

import re
import sys
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from deployments.dag.walk import Handle
from deployments.slurm.cluster.ownership import require_own
from deployments.slurm.cluster.site import Resources, Site, overrides
from deployments.slurm.job.journal import Journal, jobs_folder
from deployments.slurm.job.plan import Plan
from storage import reading
from storage.errors import BadInput
from tasks.stage import numerics
from tasks.stage.validation import listed

GPU = {"cpus": 8, "memory_gb": 77, "gpus": 1, "gpu_model": "a100"}
NEEDS: dict[str, dict[str, Any]] = {
    "training": {"time_limit_minutes": 1440, **GPU},
    "gpu": {"time_limit_minutes": 480, **GPU},
    "cpu": {"time_limit_minutes": 60, "cpus": 8, "memory_gb": 32},
}
"""Resources that jobs ask for, by what their stages need; those of the first study's cluster."""
OF_SITE = ("setup_lines", "pass_environment", "extra_sbatch_lines")
"""Resources that only the site file sets: they are commands, secrets and options of sbatch, such as a container."""
NO_WORD = re.compile(r"[^\w.=-]+")
"""Characters that the name of a job should not hold."""
Asked = dict[str, dict[str, Any]]
"""Requests of a study itself, by stage name or `all`."""


def own_resources(study: Any) -> Asked:
    """Requests of the study itself, by stage name or `all`.

    BadInput when it is nothing that a job can ask for, and for OF_SITE: a profile may be another person's.
    """
    return _asked_by_study(study.execution.resources)


def kept_resources(study_file: Path, group: str = "") -> Asked:
    """Same as `own_resources`, of a study as it is kept beside its runs; none when it is missing: its job reports that.

    BadInput also when others than `group` may have written it: what it asks for stands in the job's script.
    """
    require_own([study_file], group)
    try:
        kept = reading.read_yaml(study_file)["study"]["execution"]["resources"]
        return _asked_by_study(kept)
    except (FileNotFoundError, IsADirectoryError, KeyError, TypeError, AttributeError, ValueError):
        return {}


def _asked_by_study(resources: Asked) -> Asked:
    asked = overrides(resources, "execution.resources.")
    if of_site := [f"{group}.{name}" for group, some in asked.items() for name in OF_SITE if name in some]:
        raise BadInput(
            f"execution.resources.{of_site[0]}: a study cannot set this, since it would run commands in its jobs or "
            "hand them what is secret, whoever wrote the profile. Read what it says; where you want it, write it into "
            "the site file, under resources or stages (docs/cluster.md)"
        )
    return asked


def plan_of(
    handle: Handle,
    site: Site,
    study_file: Path,
    source: Path,
    own: Asked,
    *,
    run: str,
    automatic: bool = False,
    state_id: str = "",
) -> Plan:
    """The plan of a run's next job, which works in `source`; BadInput where nothing can be asked for so."""
    stage, needs = handle.stage.name, handle.stage.needs
    asked = NEEDS[needs] | site.resources | site.stages.get(needs, {}) | site.stages.get(stage, {})
    asked |= own.get("all", {}) | own.get(stage, {})
    try:
        resources = Resources.model_validate(asked)
    except ValidationError as error:
        raise BadInput(f"{description_of(handle)}: {'; '.join(listed(Resources, error))}") from None
    where = {"study-file": study_file, "stage": stage, "root": handle.run.root, "fingerprint": handle.run.fingerprint}
    options = [f"--{name}={value}" for name, value in where.items()]
    return Plan(
        flow_run=run,
        folder=jobs_folder(handle.run),
        label=_label(site, handle),
        command=[site.python or sys.executable, "-m", "flows.stage", *options],
        directory=source,
        resources=resources,
        environment=numerics.environment(),
        automatic=automatic,
        state_id=state_id,
        array_tasks=site.array_tasks,
        study_file=str(study_file),
        stage=stage,
        comment=description_of(handle),
    )


def next_plan(handle: Handle, site: Site, study_file: Path, source: Path, own: Asked) -> Plan:
    """The plan of a stage's next job as it will be made; nothing is written or started."""
    last = next(reversed(Journal(jobs_folder(handle.run)).all()), None)
    goes_on = last is not None and (last.end is None or last.end.follows == "AwaitingRetry")
    run = last.flow_run if last is not None and goes_on else ""  # else a person's start makes a new one
    return plan_of(handle, site, study_file, source, own, run=run, automatic=goes_on or bool(handle.waits_for))


def description_of(handle: Handle) -> str:
    """Study, stage and cell in words: the comment of its jobs."""
    return f"{handle.run.study} {handle.label} {handle.run.fingerprint[:12]}"


def _label(site: Site, handle: Handle) -> str:
    """The beginning of the names of its jobs."""
    seed: int | str = next(iter(handle.seeds)) if len(handle.seeds) == 1 else "all"
    label = site.job_name if seed != "all" else site.job_name.replace("-s{seed}", "")
    cell = [NO_WORD.sub("-", part) for part in handle.cell if part != f"seed {seed}"]
    return label.format(study=handle.run.study, stage="-".join([handle.stage.name, *cell]), seed=seed)
