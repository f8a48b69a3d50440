"""The job that follows studies where nobody waits and no server stands: a small one on the cluster, one for each site.

What it follows stands on disk, an entry for each study that was given to it. While it works, the job that comes after
it is queued already, so neither its time limit nor the death of its node ends what it does; when nothing is left to
follow, it cancels that one.
"""

import hashlib
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from deployments.slurm.cluster.client import Job, SlurmCommands
from deployments.slurm.cluster.diagnosis import ENDS
from deployments.slurm.cluster.partitions import Cluster, read_cluster
from deployments.slurm.cluster.site import VARIABLE, Resources, Site, folder_below
from deployments.slurm.job.script import JobText, sbatch_text
from storage import durable
from tasks.stage import numerics

FOLLOW = "follow"
"""Name of its resources among the site's `stages`."""
OF_WORK = {"cpus", "memory_gb", "memory_cap_gb", "gpus", "gpu_model", "time_limit_minutes"}
"""Keys of the site that say what a stage works with; the others say where jobs run, and as whose."""
SMALL = {"cpus": 2, "memory_gb": 4.0, "time_limit_minutes": 1440}
NOT_THEIRS = ("PREFECT_API_URL", "PREFECT_API_AUTH_STRING", "PREFECT_SERVER_DATABASE_CONNECTION_URL", "PREFECT_PROFILE")
"""Variables of a login shell that would lead it to another server or database than its own."""


@dataclass(frozen=True)
class Entry:
    """A study that is to be followed."""

    file: Path
    """Its own file below its root."""
    root: Path
    by_person: bool
    """A person started it, and nobody has done yet what that asks for: what failed or was cancelled begins again."""


class FollowerJob:
    """The follower of a site, from a login node or from within."""

    def __init__(self, site: Site, commands: SlurmCommands | None = None) -> None:
        self._site, self._commands = site, commands or SlurmCommands()
        self.folder = folder_below(site, FOLLOW)
        self.log = self.folder / "follow.log"
        self.name = f"ratchet-follow-{hashlib.sha256(str(self.folder).encode()).hexdigest()[:8]}"

    def add(self, entry: Entry) -> None:
        """Gives it a study."""
        self._file(entry).parent.mkdir(parents=True, exist_ok=True)
        durable.write_json(
            self._file(entry), {"file": str(entry.file), "root": str(entry.root), "by_person": entry.by_person}
        )

    def remove(self, entry: Entry) -> None:
        self._file(entry).unlink(missing_ok=True)

    def entries(self) -> Iterator[Entry]:
        """The studies that it is to follow."""
        for file in sorted(self.folder.glob("studies/*.json")):
            entry = durable.read_json(file)
            yield Entry(Path(entry["file"]), Path(entry["root"]), bool(entry["by_person"]))

    def jobs(self) -> list[Job]:
        """Its jobs that run or are queued. Raises Unreachable."""
        return [job for job in self._commands.jobs().values() if job.name == self.name and job.state not in ENDS]

    def ensure_queued(self) -> str:
        """Id of its job that waits: for the one that works now, where one does. Raises SlurmError."""
        jobs = self.jobs()
        if waiting := [job.id for job in jobs if job.state == "PENDING"]:
            return waiting[0]
        return self._commands.submit(self.text([job.id for job in jobs]))

    def cancel(self, job: str) -> None:
        """Ends one of its jobs. Raises Unreachable."""
        self._commands.cancel([job])

    def text(self, after: Sequence[str] = ()) -> str:
        """The script of its next job, which begins when those `after` have ended."""
        unset = [word for name in NOT_THEIRS for word in ("-u", name)]
        site = {VARIABLE: os.environ[VARIABLE]} if os.environ.get(VARIABLE) else {}
        return sbatch_text(
            JobText(
                self.name,
                ["env", *unset, sys.executable, "-P", "-m", "flows.follow"],
                Path(self._site.root),
                self.log,
                self.folder / "follow.stop",
                resources_of(self._site, read_cluster()),
                numerics.environment() | site,
                [*after],
                comment="follows studies, and submits their jobs",
            )
        )

    def _file(self, entry: Entry) -> Path:
        number = hashlib.sha256(str(entry.file).encode()).hexdigest()[:8]
        return self.folder / "studies" / f"{entry.file.stem}-{number}.json"


def resources_of(site: Site, cluster: Cluster) -> Resources:
    """Resources of the job: where the site has its `cpu` stages run, and little; `stages: {follow: ...}` says more."""
    common, own = site.resources | site.stages.get("cpu", {}), site.stages.get(FOLLOW, {})
    asked = SMALL | {key: value for key, value in common.items() if key not in OF_WORK}
    if common.get("memory_gb") == 0:
        asked["memory_gb"] = 0.0
    limits = [each.max_minutes for each in cluster.asked(own.get("partition") or common.get("partition") or "")]
    asked["time_limit_minutes"] = min([SMALL["time_limit_minutes"], *filter(None, limits)])
    return Resources.model_validate(asked | own)
