"""Whether a job can run at all, asked before it is submitted: what the cluster offers, and the folder of the run.

SLURM by itself queues a job that is longer or larger than its partition allows, where it waits for ever
(EnforcePartLimits=NO is the default), and refuses others in few words. Preflight lists every problem at once, with
what to do. What is not known passes: an answer that is missing, partial or not understood refuses nothing, and SLURM
decides.
"""

from __future__ import annotations

import contextlib
import difflib
import math
import os
import re
import tempfile
from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass
from pathlib import Path

from deployments.slurm.cluster.partitions import Cluster, Node, Partition, is_named, listed, read_cluster
from deployments.slurm.cluster.resources import Resources
from storage.errors import BadInput
from tasks.stage.disk import require_disk

__all__ = ["Cluster", "folder_problems", "notes", "problems", "problems_of", "read_cluster", "require"]

NAMED_AT_MOST = 12
NO_NEW_JOBS = ("DRAIN", "INACTIVE")
"""Partition states in which SLURM refuses a job; in DOWN it is queued until the partition is up again."""
NOT_NOW = ("down", "drain", "drng", "fail", "error", "inval", "unknown")
"""Beginnings of the states of nodes that start no job until somebody has seen to them."""
IN_MEMORY = ("tmpfs", "ramfs")
OWN_DISK = ("ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "overlay", "f2fs")
NODE_LOCAL = ("/tmp", "/var/tmp", "/dev/shm", "/local", "$TMPDIR")
LEAST_FREE_BYTES = 1 << 30
"""For records, logs and small checkpoints; what a stage needs it estimates itself, in its job, before it works."""
MOUNTS = Path("/proc/self/mounts")


def require(
    resources: Resources,
    cluster: Cluster,
    folder: Path,
    where: str,
    *,
    strict_lead: bool = True,
    may_wait: bool = False,
) -> None:
    """BadInput with all that stands against the job of `where` (a stage), which this process submits.

    `problems` describes the options.
    """
    found = [
        *problems_of(resources, cluster, os.environ, strict_lead=strict_lead, may_wait=may_wait),
        *folder_problems(folder, several_hosts=cluster.several_hosts),
    ]
    if found:
        raise BadInput(
            f"{where}: nothing was submitted, since the job could not run:\n  "
            + "\n  ".join(found)
            + "\nResources stand in the site file and the deployment, which are read for each job, and in the study."
        )


def problems_of(
    resources: Resources,
    cluster: Cluster,
    environment: Container[str],
    *,
    strict_lead: bool = True,
    may_wait: bool = False,
) -> list[str]:
    """What stands against a job of these resources, but for its folder. `environment` is that of the pool's worker.

    `problems` describes the options.
    """
    return [
        *problems(resources, cluster, strict_lead=strict_lead, may_wait=may_wait),
        *(
            f"pass_environment: {name} is not set where the worker of the pool runs: end the worker, set it there, and "
            "start the worker again; or take it out of pass_environment"
            for name in resources.pass_environment
            if name not in environment
        ),
    ]


# ---------------------------------------------------------------------------------------- what the cluster offers


@dataclass(frozen=True)
class _Want:
    """One thing that the job needs of its node, in numbers."""

    field: str
    text: str
    need: int
    had: Callable[[Node], int | None]
    shown: Callable[[int], str] = str

    def met_by(self, node: Node) -> bool:
        had = self.had(node)
        return had is None or had >= self.need


def problems(resources: Resources, cluster: Cluster, *, strict_lead: bool = True, may_wait: bool = False) -> list[str]:
    """Why a job of these resources would be refused or never start here, and what to do; empty when nothing is seen.

    `strict_lead=False` allows a lead time of more than a third of the limit. `may_wait`: the job may wait until its
    partition starts jobs again; a person who starts a study learns it at once.
    """
    lead = _lead_problems(resources) if strict_lead else []
    if not cluster.partitions:
        return lead
    unknown = [name for name in listed(resources.partition) if name not in cluster.partitions]
    if unknown or not (asked := _asked(resources, cluster)):
        known = [partition.name for partition in cluster.partitions.values() if not partition.hidden]
        missing = [
            f"partition: {name} is not a partition of this cluster: name one of {_some(_nearest_first(name, known))}"
            for name in unknown
        ]
        return [*missing, *_node_problems(resources, cluster, "this cluster", cluster.all_nodes), *lead]
    found = [_partition_problems(resources, cluster, partition, may_wait) for partition in asked]
    if not all(found):
        return lead  # one of them takes the job
    fit = [
        partition.name
        for partition in cluster.partitions.values()
        if not partition.hidden
        and cluster.nodes_of(partition)
        and not _partition_problems(resources, cluster, partition)
    ]
    instead = f", or name a partition that fits: {_some(fit)}" if fit else ""
    return [*(text + instead for text in dict.fromkeys(text for some in found for text in some)), *lead]


def notes(resources: Resources, cluster: Cluster) -> list[str]:
    """What a person should know of a job that is submitted all the same."""
    found = [
        f"exclude: sinfo shows no node {item}; SLURM refuses a job that excludes a name unknown to it"
        for item in _excluded(resources)
        if cluster.nodes and not any(is_named(node.name, item) for node in cluster.nodes)
    ]
    fitting = {
        node.name: node.state
        for partition in _asked(resources, cluster)
        for node in _fitting(resources, cluster.nodes_of(partition))
    }
    if fitting and all(state.startswith(NOT_NOW) for state in fitting.values()):
        states = _some(f"{name} {state}" for name, state in fitting.items())
        found.append(f"no node that fits starts jobs now ({states}): the job will wait; `sinfo -R` shows why")
    return found


def _lead_problems(resources: Resources) -> list[str]:
    lead, limit = resources.lead_seconds, resources.time_limit_minutes
    if lead * 3 <= limit * 60:
        return []
    return [
        f"lead_seconds: {lead:g} s is more than a third of the time limit of {_h_min(limit)}, so that little of a job "
        f"would be work: set time_limit_minutes to at least {math.ceil(lead / 20)}, or lead_seconds to at most "
        f"{limit * 20}"
    ]


def _partition_problems(
    resources: Resources, cluster: Cluster, partition: Partition, may_wait: bool = False
) -> list[str]:
    return [
        *_limit_problems(resources, partition, may_wait),
        *_node_problems(resources, cluster, f"partition {partition.name}", cluster.nodes_of(partition)),
    ]


def _limit_problems(resources: Resources, partition: Partition, may_wait: bool) -> list[str]:
    """What the partition forbids, whatever its nodes have."""
    found, name = [], partition.name
    if not may_wait and partition.state in (*NO_NEW_JOBS, "DOWN"):
        found.append(
            f"partition: {name} is {partition.state} and starts no jobs: submit again when `sinfo` shows it up"
        )
    limit, most = resources.time_limit_minutes, partition.max_minutes
    if most is not None and limit > most and not resources.qos:  # a QOS may lift the limit
        found.append(
            f"time_limit_minutes: {limit} ({_h_min(limit)}) is more than partition {name} allows "
            f"({_h_min(most)}): ask for at most {most} (a training goes on in the next job)"
        )
    for field, value, allowed, denied in (
        ("account", resources.account, partition.accounts, partition.denied_accounts),
        ("qos", resources.qos, partition.qos, partition.denied_qos),
    ):
        wanted = set(listed(value.lower()))
        if wanted and allowed is not None and not wanted & allowed:
            found.append(f"{field}: partition {name} takes no jobs of {value}: name one of {_some(sorted(allowed))}")
        elif wanted and wanted <= denied:
            found.append(f"{field}: partition {name} takes no jobs of {value}: name another")
    return found


def _node_problems(resources: Resources, cluster: Cluster, place: str, nodes: list[Node]) -> list[str]:
    """What no node of a place has: each thing by itself, else all of it at once; else only nodes that are excluded."""
    if not nodes:
        return []
    wants, unknown = _wants(resources), _unknown_features(resources, cluster)
    unmet = [want for want in wants if not any(want.met_by(node) for node in nodes)]
    if found := unknown + [
        _unmet(want, resources, place, nodes) for want in unmet if not unknown or want.field != "constraint"
    ]:
        return found
    fitting = _fitting(resources, nodes)
    if not fitting:
        kinds: dict[str, str] = {}  # one node of each kind, those first that lack the least
        for node in sorted(nodes, key=lambda node: -sum(want.met_by(node) for want in wants)):
            kinds.setdefault(_shortage(node, wants), node.name)
        have = "; ".join(f"{name} has {text}" for text, name in list(kinds.items())[:3])
        return [
            f"{', '.join(want.field for want in wants)}: no node of {place} has all at once: "
            f"{', '.join(want.text for want in wants)} ({have}): ask for less"
        ]
    excluded = {node.name for node in nodes for item in _excluded(resources) if is_named(node.name, item)}
    if excluded.issuperset(node.name for node in fitting):
        names = _some(node.name for node in fitting)
        return [f"exclude: every node of {place} that the job fits on is excluded ({names}): exclude fewer"]
    return []


def _wants(resources: Resources) -> list[_Want]:
    gpus, model = resources.gpus, resources.gpu_model
    memory_mb = math.ceil(resources.memory_gb * 1024)  # as the job's text has it
    wants = [
        _Want("cpus", f"{resources.cpus} CPUs", resources.cpus, lambda node: node.cpus),
        _Want("memory_gb", f"{resources.memory_gb:g} GB", memory_mb, lambda node: node.memory_mb, _gb),
    ]
    if gpus:
        wants.append(_Want("gpus", f"{gpus} {model or 'GPUs'}", gpus, lambda node: node.gpu_count(model)))
    words, joined_by = _constraint(resources)
    if joined_by in ("&", "|"):
        holds = all if joined_by == "&" else any
        wants.append(
            _Want(
                "constraint",
                f"constraint {resources.constraint}",
                1,
                lambda node: None if node.features is None else int(holds(word in node.features for word in words)),
            )
        )
    return wants


def _fitting(resources: Resources, nodes: list[Node]) -> list[Node]:
    wants = _wants(resources)
    return [node for node in nodes if all(want.met_by(node) for want in wants)]


def _unmet(want: _Want, resources: Resources, place: str, nodes: list[Node]) -> str:
    """The problem when no node of a place has what is wanted: what they have is known then."""
    if want.field == "constraint":
        return f"constraint: no node of {place} has {resources.constraint}: ask for other features"
    if want.field == "gpus":
        model, known = resources.gpu_model, {model for node in nodes for model in node.gpus or ()}
        if not known:
            return f"gpus: no node of {place} has GPUs: ask for 0"
        if model and known == {""}:
            return f"gpu_model: SLURM knows no models of the GPUs of {place}, so it has no {model}: leave it empty"
        if model and model not in known:
            names = _some(_nearest_first(model, sorted(known - {""})))
            return f"gpu_model: no node of {place} has GPUs of model {model}: name one of {names}"
    if want.field == "memory_gb" and all(node.memory_mb == 1 for node in nodes):
        return (
            f"memory_gb: {want.text} asked for, but SLURM does not count the memory of {place} (RealMemory 1, its "
            "default): set memory_gb to 0, which asks for none"
        )
    largest = max(nodes, key=lambda node: want.had(node) or 0)
    return (
        f"{want.field}: {want.text} asked for, but no node of {place} gives a job more than "
        f"{want.shown(want.had(largest) or 0)} ({largest.name}): ask for at most that"
    )


def _unknown_features(resources: Resources, cluster: Cluster) -> list[str]:
    """Words of the constraint that no node of the whole cluster has: SLURM refuses the job, even behind an `or`."""
    words, nodes = _constraint(resources)[0], cluster.all_nodes
    if not words or not nodes or any(node.features is None for node in nodes):
        return []
    known = sorted({word for node in nodes for word in node.features or ()})
    return [
        f"constraint: no node of this cluster has the feature {word}: "
        + (f"name one of {_some(_nearest_first(word, known))}" if known else "leave it empty, no node has any")
        for word in words
        if word not in known
    ]


def _constraint(resources: Resources) -> tuple[list[str], str]:
    """The features of a constraint of plain words, and what joins them: & (also for one), | or both. Else nothing."""
    text = resources.constraint
    if not re.fullmatch(r"[\w.:@%+/=-]+([&|][\w.:@%+/=-]+)*", text):
        return [], ""
    return re.split("[&|]", text), "".join(sorted(set(text) & set("&|"))) or "&"


def _asked(resources: Resources, cluster: Cluster) -> list[Partition]:
    """The partitions that the job may start in: those named that exist, else the default one; or their alternates."""
    known = cluster.partitions
    names = listed(resources.partition) or [partition.name for partition in known.values() if partition.is_default]
    asked = [known[name] for name in names if name in known]
    return [known.get(one.alternate, one) if one.state in NO_NEW_JOBS else one for one in asked]


def _excluded(resources: Resources) -> list[str]:
    """The single expressions of node lists such as `n1,n[2-3,5]`; what has a slash is a file of names, unknown here."""
    texts = [text for text in resources.exclude if "/" not in text]
    return [item for text in texts for item in re.findall(r"(?:\[[^\]]*\]|[^,\[])+", text)]


# ---------------------------------------------------------------------------------------- the folder


def folder_problems(folder: Path, need_bytes: int = LEAST_FREE_BYTES, *, several_hosts: bool = False) -> list[str]:
    """Why a run could not be kept in `folder`, which need not exist; empty when nothing is seen. Leaves no trace.

    `need_bytes` must be free. With `several_hosts` a folder that only this machine has is a problem.
    """
    folder = folder.absolute()
    there = next(path for path in (folder, *folder.parents) if os.path.lexists(path))
    if not os.path.isdir(there):
        return [f"root: {there} is not a folder, so {folder} cannot be made: move it away, or give another root"]
    found = []
    try:
        _write(there, as_folder=there != folder)
    except OSError as error:
        what = "written" if there == folder else f"made in {there}"
        found.append(f"root: {folder} cannot be {what} ({error.strerror or error}): give a root where you may write")
    try:
        require_disk(there, need_bytes)
    except BadInput as error:
        found.append(f"root: {error}")
    except OSError:
        pass  # unknown
    if several_hosts and (why := _only_here(folder.resolve())):
        found.append(
            f"root: {folder} is {why}, which other machines of this cluster do not have: give a root on a shared disk"
        )
    return found


def _write(there: Path, as_folder: bool) -> None:
    """Makes and removes what a run makes. A quota or a full disk shows only when bytes reach the disk."""
    with contextlib.ExitStack() as stack:
        if as_folder:
            made = tempfile.TemporaryDirectory(prefix=".preflight-", dir=there, ignore_cleanup_errors=True)
            there = Path(stack.enter_context(made))
        file = stack.enter_context(tempfile.NamedTemporaryFile(prefix=".preflight-", dir=there))
        file.write(bytes(4096))
        file.flush()
        os.fsync(file.fileno())


def _only_here(path: Path) -> str:
    """What makes a real path this machine's own; empty when it may be shared. A $TMPDIR may lie on a shared disk."""
    kind = _file_system(path)
    if kind in IN_MEMORY:
        return f"in this machine's memory ({kind})"
    for name in NODE_LOCAL:
        local = Path(os.path.expandvars(name))
        if kind in OWN_DISK and local.is_absolute() and local != Path("/") and path.is_relative_to(local.resolve()):
            return f"below {name} on this machine's own disk ({kind})"
    return ""


def _file_system(path: Path) -> str:
    """The type of the file system that a real path lies on; empty when that cannot be read."""
    try:
        lines = MOUNTS.read_text(errors="replace").splitlines()
    except OSError:
        return ""
    deepest, kind = 0, ""
    for line in lines:
        _, mounted, type_, *_ = line.split(" ")
        point = Path(re.sub(r"\\(\d{3})", lambda octal: chr(int(octal[1], 8)), mounted))
        if len(point.parts) >= deepest and path.is_relative_to(point):  # the last of several over each other counts
            deepest, kind = len(point.parts), type_
    return kind


# ---------------------------------------------------------------------------------------- texts


def _shortage(node: Node, wants: Iterable[_Want]) -> str:
    """What a node has, and what it is short of."""
    gpus = [f"{count} {model or 'GPUs'}" for model, count in sorted((node.gpus or {}).items())]
    memory = [] if node.memory_mb is None else [f"{_gb(node.memory_mb)} GB"]
    has = ", ".join([*([f"{node.cpus} CPUs"] if node.cpus else []), *memory, *gpus])
    return f"{has}: too little {', '.join(want.field for want in wants if not want.met_by(node))}"


def _gb(megabytes: int) -> str:
    """Rounded down, so that asking for it is granted."""
    return f"{math.floor(megabytes * 100 / 1024) / 100:.10g}"


def _h_min(minutes: int) -> str:
    return f"{minutes // 60}:{minutes % 60:02} h"


def _some(names: Iterable[str]) -> str:
    names = list(names)
    more = f" and {len(names) - NAMED_AT_MOST} more" if len(names) > NAMED_AT_MOST else ""
    return ", ".join(names[:NAMED_AT_MOST]) + more


def _nearest_first(name: str, known: Iterable[str]) -> list[str]:
    """The likeliest meant first: one that holds the other, then by likeness."""

    def far(other: str) -> tuple[bool, float]:
        a, b = name.lower(), other.lower()
        return (a not in b and b not in a, -difflib.SequenceMatcher(None, a, b).ratio())

    return sorted(known, key=far)
