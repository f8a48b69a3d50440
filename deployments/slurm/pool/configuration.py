"""The variables of a job in Prefect: of its pool's form, of the deployment of its stage, of its run."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.responses import DeploymentResponse
from prefect.exceptions import ObjectNotFound
from prefect.workers.base import BaseJobConfiguration, BaseVariables

from deployments.dag.walk import Handle
from deployments.slurm.cluster.site import Site
from deployments.slurm.job.variables import JobValues, Where, job_variables
from storage.errors import BadInput


class SlurmVariables(BaseVariables, Where):
    """Resources of one SLURM job. What a cluster needs everywhere belongs into the site file."""


class SlurmJobConfiguration(BaseJobConfiguration, Where):
    """One run's job, all layers merged."""

    @property
    def values(self) -> JobValues:
        return JobValues.model_validate(self.model_dump(include=set(JobValues.model_fields)))


class Deployments:
    """The deployments by which stages are started, and the templates of their pools: each asked for once."""

    def __init__(self, client: SyncPrefectClient) -> None:
        self._deployment, self._pool = cache(client.read_deployment_by_name), cache(client.read_work_pool)

    def named(self, name: str) -> DeploymentResponse:
        """BadInput says how to make the one that the server does not have."""
        with _known_to_the_server(name):
            return self._deployment(name)

    def pool(self, name: str) -> str:
        """The work pool of the deployment."""
        return self.named(name).work_pool_name or ""

    def template(self, name: str) -> dict[str, Any]:
        """The base job template of the deployment's work pool."""
        pool = self.pool(name)
        with _known_to_the_server(name):
            return self._pool(pool).base_job_template

    def values(self, site: Site, handle: Handle, source: Path) -> JobValues:
        """What the job of a stage is made of."""
        name = handle.stage.deployment
        values = (self.named(name).job_variables or {}) | job_variables(site, handle, source)
        made: SlurmJobConfiguration = asyncio.run(
            SlurmJobConfiguration.from_template_and_values(self.template(name), values)
        )
        return made.values


@contextmanager
def _known_to_the_server(name: str) -> Iterator[None]:
    try:
        yield
    except ObjectNotFound:
        raise BadInput(
            f"this Prefect server has no deployment {name!r}, or not its work pool: run `ratchet deploy`"
        ) from None
