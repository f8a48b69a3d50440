"""What it costs to start many stages at once on a Prefect server, on SQLite and on PostgreSQL, beside plain sbatch.

    python -m benchmarks.start --stages 100 300 1000

Every stage is ready: its flow run is made, as by `ratchet run --dispatch slurm`, and no job. Plain sbatch queues as
many jobs, each with a dependency, on a real cluster.
"""

import argparse
import os
import subprocess
import tempfile
import time
from pathlib import Path

from prefect import flow
from prefect.client.orchestration import get_client
from prefect.client.schemas.actions import WorkPoolCreate
from prefect.settings import PREFECT_API_URL, temporary_settings
from rich.console import Console

from benchmarks import language
from deployments.dag.walk import Walk
from deployments.slurm.cluster.client import SlurmCommands
from deployments.slurm.cluster.site import Site
from deployments.slurm.study.standings import Look, Starter
from tasks.stage.run import Stage
from tests.deployments.requests import counted
from tests.deployments.toy import ToyConfig
from tests.slurm.harness import Cluster, Server
from tests.slurm.postgres import postgres

OUT = Console(highlight=False, soft_wrap=True)
STAGE = Stage("toy", ToyConfig, "tests.deployments.toy:work")


def through_prefect(name: str, counts: list[int], folder: Path, database: str = "") -> None:
    """Seconds and requests of a start, and of a look at what was started."""
    (folder / "home").mkdir(parents=True)
    server = Server(folder / "home", database)
    server.start()
    try:
        with temporary_settings({PREFECT_API_URL: server.address}), get_client(sync_client=True) as client:
            client.create_work_pool(WorkPoolCreate(name="gpu", type="process"))
            stage = client.create_flow(flow(lambda: None, name="stage"))
            client.create_deployment(stage, STAGE.needs, work_pool_name="gpu", enforce_parameter_schema=False)
            for count in counts:
                walk = Walk(folder / str(count), f"cells-{count}")
                for number in range(count):
                    walk(STAGE, ToyConfig(ends="finished", number=number))
                site, file = Site(root=str(walk.root)), folder / "study.yaml"
                for what in ("start", "look"):
                    with counted() as asked:
                        began = time.monotonic()
                        starter = Starter(client, site, file, folder / ".sources" / "abc")
                        Look(client, SlurmCommands(), starter=starter).at(walk.handles)
                        seconds = time.monotonic() - began
                    OUT.print(
                        f"{name}, {what} of {count:,} stages: {seconds:.1f} s, {1000 * seconds / count:.0f} ms and "
                        f"{sum(asked.values()) / count:.2f} requests a stage ({sum(asked.values()):,})"
                    )
    finally:
        server.kill()


def by_plain_sbatch(counts: list[int]) -> None:
    """Seconds of so many sbatch commands, each with a dependency on a job that waits."""
    cluster = Cluster()
    try:
        environment = os.environ | cluster.environment
        held = ["sbatch", "--parsable", "-o", "/dev/null", "--wrap", "true"]

        def submit(*options: str) -> str:
            done = subprocess.run([*held, *options], env=environment, check=True, capture_output=True, text=True)
            return done.stdout.strip()

        first = submit("--hold")
        for count in counts:
            began = time.monotonic()
            for _ in range(count):
                submit(f"--dependency=afterany:{first}")
            seconds = time.monotonic() - began
            OUT.print(
                f"plain sbatch --dependency of {count:,} jobs: {seconds:.1f} s, {1000 * seconds / count:.0f} ms a job"
            )
    finally:
        cluster.wipe()


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--stages", type=int, nargs="+", required=True, help="how many at once, one after the other")
    given = options.parse_args()
    OUT.print(language.machine())
    with tempfile.TemporaryDirectory() as made:
        through_prefect("SQLite", given.stages, Path(made) / "sqlite")
        with postgres() as address:
            through_prefect("PostgreSQL", given.stages, Path(made) / "postgres", address)
    by_plain_sbatch(given.stages)
