"""Makes the work pools and deployments on a Prefect server, as `prefect deploy --all` does from `prefect.yaml`."""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.actions import DeploymentScheduleCreate, WorkPoolCreate
from prefect.client.schemas.schedules import IntervalSchedule
from prefect.exceptions import ObjectAlreadyExists
from prefect.utilities.callables import parameter_schema
from prefect.utilities.importtools import import_object

from deployments.study_flow import made


def make_pool(client: SyncPrefectClient, name: str) -> None:
    """Makes the pool; one that is there stays as it is, since a person may have changed it."""
    with suppress(ObjectAlreadyExists):
        client.create_work_pool(WorkPoolCreate(name=name, type="process"))


def deploy(client: SyncPrefectClient, deployments: Iterable[dict[str, Any]]) -> Iterator[str]:
    """Makes each deployment, given as `prefect.yaml` holds it, or brings it up to date; yields its name in Prefect.

    Their pools must be there. A run of one works in the folder in which this is called.
    """
    here = {"prefect.deployments.steps.set_working_directory": {"directory": str(Path.cwd())}}
    for deployment in deployments:
        flow = made(import_object(deployment["entrypoint"]))
        client.create_deployment(
            client.create_flow(flow),
            deployment["name"],
            schedules=[
                DeploymentScheduleCreate(
                    schedule=IntervalSchedule(interval=timedelta(seconds=schedule["interval"])),
                    active=schedule["active"],
                )
                for schedule in deployment.get("schedules", [])
            ],
            parameters=deployment.get("parameters", {}),
            description=deployment["description"],
            tags=deployment["tags"],
            work_pool_name=deployment["work_pool"]["name"],
            entrypoint=deployment["entrypoint"],
            job_variables=deployment["work_pool"].get("job_variables", {}),
            parameter_openapi_schema=parameter_schema(flow).model_dump_for_openapi(),
            pull_steps=[here],
        )
        yield f"{flow.name}/{deployment['name']}"
