"""The studies of a site that are to be followed, and the looks: tiny jobs on the cluster that do it where nobody waits.

A look submits what is ready, and queues the next one before it ends: one that begins when any job that lives now has
ended, and one after some minutes, a guard for when that is lost. So nothing of ours waits while nothing happens, and
neither the death of a node nor a look that is killed ends what they do.
"""

import hashlib
import os
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from deployments.slurm.cluster.client import Job, SlurmCommands
from deployments.slurm.cluster.diagnosis import ENDS
from deployments.slurm.cluster.partitions import Cluster, read_cluster
from deployments.slurm.cluster.site import VARIABLE, Resources, Site, folder_below
from deployments.slurm.job.script import JobText, sbatch_text
from storage import durable
from storage.run_directory import read
from tasks.stage import numerics

FOLLOW = "follow"
"""Name of their resources among the site's `stages`."""
OF_WORK = {"cpus", "memory_gb", "memory_cap_gb", "gpus", "gpu_model", "time_limit_minutes"}
"""Keys of the site that say what a stage works with; the others say where jobs run, and as whose."""
SMALL = {"cpus": 1, "memory_gb": 1.0, "time_limit_minutes": 5}
NOT_THEIRS = ("PREFECT_API_URL", "PREFECT_API_AUTH_STRING", "PREFECT_SERVER_DATABASE_CONNECTION_URL", "PREFECT_PROFILE")
"""Variables of a login shell that a job should not have: no job speaks to Prefect."""
GUARD_SECONDS, LEAST_SECONDS = 300, 30
"""When a look begins at the latest, and at the earliest where something is due at a known time."""
UNSURE = ("Dependency", "DependencyNeverSatisfied", "JobHeldUser", "JobHeldAdmin")
"""Why SLURM lets a look wait that may wait for ever."""


@dataclass(frozen=True)
class Entry:
    """A study that is to be followed."""

    file: Path
    """Its own file below its root."""
    root: Path
    by_person: bool
    """A person started it, and nobody has done yet what that asks for: what failed or was cancelled begins again."""


class Looks:
    """What is to be followed at a site, and its looks, from a login node or from within."""

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
            if entry := read(file):  # another process may have let go of it since
                yield Entry(Path(entry["file"]), Path(entry["root"]), bool(entry["by_person"]))

    def jobs(self) -> list[Job]:
        """Looks that run or are queued. Raises Unreachable."""
        return [job for job in self._commands.jobs().values() if job.name == self.name and job.state not in ENDS]

    def submit(self) -> str:
        """A look that begins at once; its id. Raises SlurmError."""
        return self._commands.submit(self.text())

    def ensure_guard(self, this: str) -> None:
        """Has a look queued beside `this` one that begins in some minutes, whatever becomes of all else. Raises
        SlurmError."""
        if not [job for job in self._queued(this) if job.reason not in UNSURE]:
            self._commands.submit(self.text(f"--begin=now+{GUARD_SECONDS}"))

    def queue_next(self, this: str, alive: Iterable[str], due_in_seconds: float) -> None:
        """Queues the look after `this` one: when a job of `alive` ends, or when something is due. Raises SlurmError."""
        before = [job.id for job in self._queued(this) if job.reason in UNSURE]
        if due_in_seconds < GUARD_SECONDS:
            self._commands.submit(self.text(f"--begin=now+{round(max(LEAST_SECONDS, due_in_seconds))}"))
        if ends := "?".join(f"afterany:{job}" for job in sorted(alive)):
            self._commands.submit(self.text(f"--dependency={ends}"))
        self._commands.cancel(before)

    def end(self, this: str) -> None:
        """Ends the looks beside `this` one: nothing is left to follow. Raises Unreachable."""
        self._commands.cancel([job.id for job in self._queued(this)])

    def _queued(self, this: str) -> list[Job]:
        return [job for job in self.jobs() if job.id != this and job.state == "PENDING"]

    def text(self, *when: str) -> str:
        """The script of a look, which begins `when` these options of sbatch say."""
        unset = [word for name in NOT_THEIRS for word in ("-u", name)]
        site = {VARIABLE: os.environ[VARIABLE]} if os.environ.get(VARIABLE) else {}
        resources = resources_of(self._site, read_cluster())
        lines = [*resources.extra_sbatch_lines, *when]
        return sbatch_text(
            JobText(
                self.name,
                ["env", *unset, sys.executable, "-P", "-m", "flows.look"],
                Path(self._site.root),
                self.log,
                self.folder / "follow.stop",
                resources.model_copy(update={"extra_sbatch_lines": lines}),
                numerics.environment() | site,
                comment="looks after studies, and submits their jobs",
            )
        )

    def _file(self, entry: Entry) -> Path:
        number = hashlib.sha256(str(entry.file).encode()).hexdigest()[:8]
        return self.folder / "studies" / f"{entry.file.stem}-{number}.json"


def resources_of(site: Site, cluster: Cluster) -> Resources:
    """Resources of a look: where the site has its `cpu` stages run, and little; `stages: {follow: ...}` says more."""
    common, own = site.resources | site.stages.get("cpu", {}), site.stages.get(FOLLOW, {})
    asked = SMALL | {key: value for key, value in common.items() if key not in OF_WORK}
    if common.get("memory_gb") == 0:
        asked["memory_gb"] = 0.0
    limits = [each.max_minutes for each in cluster.asked(own.get("partition") or common.get("partition") or "")]
    asked["time_limit_minutes"] = min([SMALL["time_limit_minutes"], *filter(None, limits)])
    return Resources.model_validate(asked | own)
