"""What studies need of a cluster, looked at before any: the site file, SLURM, the disks, and a node of each kind.

What a node has is seen by a small job there, of the partition and account that the stages of that kind have.
"""

import os
import pwd
import shutil
import sys
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deployments.dag.page import load_page, stages_of
from deployments.dag.sources import page_names
from deployments.slurm.cluster.client import Job, SlurmCommands, SlurmError, call, other_clusters
from deployments.slurm.cluster.diagnosis import ENDS
from deployments.slurm.cluster.partitions import Cluster, read_cluster
from deployments.slurm.cluster.site import Resources, Site, folder_below, read_site
from deployments.slurm.job.preflight import file_system, folder_problems, is_of_this_machine, problems
from deployments.slurm.job.resources import NEEDS
from deployments.slurm.job.script import JobText, sbatch_text
from deployments.slurm.study.looks import FOLLOW
from storage import durable
from storage.errors import BadInput

NEEDED = ("sbatch", "squeue", "scancel", "scontrol", "sinfo")
WAIT_SECONDS, LOOK_SECONDS = 600.0, 1.0
SEEN_SECONDS = 90.0
"""Time that an NFS client may know nothing of what another host wrote (its own limit is a minute)."""
CLOCK_SECONDS = 30.0
"""What clocks may differ by: states and times of jobs are laid beside ours."""
MINUTES = 5
ON_NODE = """\
import json, os, platform, socket, sys, time
found = {"time": time.time(), "host": socket.gethostname(), "python": platform.python_version()}
try:
    import torch
    built = f"CUDA {torch.version.cuda}" if torch.version.cuda else "no CUDA"
    found["torch"] = f"torch {torch.__version__}, {built}"
    if torch.cuda.is_available():
        found["gpu"] = torch.cuda.get_device_name(0)
except Exception as error:
    found["torch_error"] = repr(error)
with open(sys.argv[1] + ".part", "w") as file:
    json.dump(found, file)
os.replace(sys.argv[1] + ".part", sys.argv[1])
"""
"""Run by the jobs' Python, which may be a container's without our source."""


@dataclass(frozen=True)
class Finding:
    """Something that was looked at: good, or what is wrong and what to do."""

    good: bool
    text: str


def look(name: str | None, database: Path | None) -> Iterator[Finding]:
    """All of it, each as soon as it is known; `database` is the file of Prefect's, None where it is no file."""
    try:
        site = read_site(name)
    except BadInput as error:
        yield Finding(False, str(error))
        return
    yield Finding(True, f"site file: root {site.root}")
    yield from _commands()
    if any(not shutil.which(command) for command in NEEDED):
        return
    yield _database(database)
    cluster = read_cluster()
    if not cluster.partitions:
        yield Finding(False, "SLURM: the controller tells no partitions; `sinfo` must answer here first")
        return
    kinds = dict(_kinds(site))
    for kind, resources in kinds.items():
        texts = problems(resources, cluster, strict_lead=site.strict_lead) + _unknown_accounts(resources)
        yield from (Finding(False, f"{kind}: {text}") for text in texts)
        if not texts:
            yield Finding(True, f"{kind}: {_asked(resources, cluster)}")
    of_root = [
        *folder_problems(Path(site.root), several_hosts=cluster.several_hosts),
        *(text for place in (site.cache, site.results) if place for text in folder_problems(Path(place))),
    ]
    yield from (Finding(False, text) for text in of_root)
    if not of_root:
        yield Finding(True, f"folders: {site.root} can be written here")
        yield from _nodes(site, kinds)


def _commands() -> Iterator[Finding]:
    missing = [command for command in NEEDED if not shutil.which(command)]
    if missing:
        yield Finding(
            False, f"SLURM: {', '.join(missing)} not on PATH: work on a login node, or add their folder to PATH"
        )
    else:
        accounting = "" if shutil.which("sacct") else "; no sacct, so what jobs used is not shown"
        yield Finding(True, f"SLURM: {call(['sinfo', '--version']).stdout.strip()}{accounting}")
    yield from (Finding(False, text) for text in other_clusters())


def _database(database: Path | None) -> Finding:
    if database is None or is_of_this_machine(database.parent):
        return Finding(True, "Prefect's database: on a disk of this host's own, or no file")
    kind = file_system(database.parent.resolve())
    return Finding(
        False,
        f"Prefect's database: {database} is on {kind}, which hosts share: set PREFECT_HOME to a folder of this host's "
        "own disk, such as one below /var/tmp, before you start a server. Commands with --wait or --detach do so "
        "themselves",
    )


def _kinds(site: Site) -> Iterator[tuple[str, Resources]]:
    """The resources of each kind of stage, and of each stage that the site file names. Those unknown are left out."""
    needs = {kind: kind for kind in NEEDS}
    needs |= {stage.name: stage.needs for name in page_names() for stage in stages_of(load_page(name))}
    for name in [*NEEDS, *(name for name in site.stages if name not in {*NEEDS, FOLLOW})]:
        if kind := needs.get(name):
            own = site.stages.get(kind, {}) | site.stages.get(name, {})
            yield name, Resources.model_validate(NEEDS[kind] | site.resources | own)


def _unknown_accounts(resources: Resources) -> list[str]:
    """Account and QOS that the accounting does not know; where it does not answer SLURM has the last word."""
    texts, user = [], pwd.getpwuid(os.geteuid()).pw_name
    for key, value, command in (
        ("account", resources.account, ["associations", f"user={user}", "format=account"]),
        ("qos", resources.qos, ["qos", "format=name"]),
    ):
        try:
            done = call(["sacctmgr", "-nP", "show", *command]) if value else None
        except SlurmError:
            continue
        known = sorted({*done.stdout.split()}) if done and not done.returncode else []
        if known and value.lower() not in known:
            texts.append(f"{key}: the accounting knows no {value} of yours: name one of {', '.join(known)}")
    return texts


def _asked(resources: Resources, cluster: Cluster) -> str:
    where = ",".join(partition.name for partition in cluster.asked(resources.partition))
    gpus = f", {resources.gpus} {resources.gpu_model or 'GPU'}" if resources.gpus else ""
    memory = f", {resources.memory_gb:g} GB" if resources.memory_gb else ""
    return f"partition {where} takes {resources.cpus} CPUs{memory}{gpus}, {resources.time_limit_minutes} minutes"


# --------------------------------------------------------------------------------------------------- on the nodes


@dataclass(frozen=True)
class _Sent:
    """A job that looks at a node."""

    kinds: list[str]
    resources: Resources
    job: str
    at: float
    answer: Path


def _nodes(site: Site, kinds: dict[str, Resources]) -> Iterator[Finding]:
    """What nodes have: a job for all kinds whose stages run at the same place."""
    commands = SlurmCommands()
    folder = folder_below(site, "doctor") / uuid.uuid4().hex[:8]
    folder.mkdir(parents=True)
    (folder / "node.py").write_text(ON_NODE)
    small: dict[str, tuple[Resources, list[str]]] = {}
    for kind, resources in kinds.items():
        asked = resources.model_copy(
            update={
                "cpus": 1,
                "gpus": min(1, resources.gpus),
                "memory_gb": min(4.0, resources.memory_gb),
                "time_limit_minutes": MINUTES,
                "lead_seconds": 1.0,
            }
        )
        small.setdefault(asked.model_dump_json(exclude={"memory_cap_gb"}), (asked, []))[1].append(kind)
    sent = []
    for number, (asked, names) in enumerate(small.values()):
        answer = folder / f"{number}.json"
        python = site.python or sys.executable
        text = JobText(
            f"ratchet-doctor-{number}",
            [python, str(folder / "node.py"), str(answer)],
            folder,
            answer.with_suffix(".log"),
            answer.with_suffix(".stop"),
            asked,
            comment=f"looks at a node for {', '.join(names)}",
        )
        at = time.time()
        try:
            sent.append(_Sent(names, asked, commands.submit(sbatch_text(text)), at, answer))
        except SlurmError as error:
            yield Finding(False, f"a node for {', '.join(names)}: SLURM takes no job ({error})")
    for job in sent:
        yield from _answered(commands, job)
    shutil.rmtree(folder, ignore_errors=True)


def _answered(commands: SlurmCommands, sent: _Sent) -> Iterator[Finding]:
    """What the job found. It is waited for; one that does not begin in some minutes is cancelled."""
    what, end = f"a node for {', '.join(sent.kinds)}", time.monotonic() + WAIT_SECONDS
    job: Job | None = None
    while not sent.answer.exists():
        job = _job(commands, sent.job) or job
        if job is not None and job.state in ENDS:
            end = min(end, time.monotonic() + (SEEN_SECONDS if job.state == "COMPLETED" else LOOK_SECONDS))
        if time.monotonic() > end:
            break
        time.sleep(LOOK_SECONDS)
    else:
        yield from _judged(what, sent, durable.read_json(sent.answer))
        return
    if job is None or job.state not in ENDS:
        commands.cancel([sent.job])
        yield Finding(
            False,
            f"{what}: its job {sent.job} waited for {WAIT_SECONDS / 60:.0f} minutes ({job.reason if job else ''}) and "
            "was cancelled: look again when the cluster is less busy; `sinfo` says what is up",
        )
        return
    log = sent.answer.with_suffix(".log")
    text = log.read_text(errors="replace").strip().rpartition("\n")[2] if log.exists() else "it has no log"
    yield Finding(
        False,
        f"{what}: job {sent.job} ended ({job.state}), and what it should have written below {sent.answer.parents[3]} "
        f"is not seen here ({text}): give a root on a disk that nodes share, and a Python (`python` of the site file, "
        "else this one) that starts on them",
    )


def _job(commands: SlurmCommands, job: str) -> Job | None:
    try:
        return commands.jobs().get(job)
    except SlurmError:
        return None


def _judged(what: str, sent: _Sent, facts: dict[str, Any]) -> Iterator[Finding]:
    what = f"{what} ({facts['host']})"
    yield Finding(True, f"{what}: shares the root, Python {facts['python']}")
    early, late = sent.at - float(facts["time"]), float(facts["time"]) - time.time()
    if max(early, late) > CLOCK_SECONDS:
        yield Finding(
            False,
            f"{what}: its clock differs from this host's by {max(early, late):.0f} s or more: tell your operators",
        )
    else:
        yield Finding(True, f"{what}: its clock and this host's agree")
    if error := facts.get("torch_error"):
        yield Finding(False, f"{what}: torch cannot be imported ({error}): install it in the Python of the jobs")
    elif sent.resources.gpus and "gpu" not in facts:
        yield Finding(
            False,
            f"{what}: {facts['torch']} finds no GPU there: install the build for the driver that nvidia-smi shows on "
            "the node (docs/cluster.md, Which torch)",
        )
    else:
        yield Finding(True, f"{what}: {', '.join(filter(None, [facts['torch'], facts.get('gpu')]))}")
