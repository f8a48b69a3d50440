"""Tells if a job can run at all, before it is submitted: asks SLURM, and looks at the folder of the run.

`sbatch --test-only` says what SLURM refuses, and little more; which keys of the site file or the study are meant, and
what the cluster has instead, is added here. It also refuses a job whose only nodes are down or drained now, which SLURM
would queue: such a job passes with a note. And it takes jobs that then wait for ever: longer than their partition
allows (EnforcePartLimits=NO is the default), of an account or QOS that it denies, in one that is down. Those are
looked for here. What is not known passes, and SLURM decides.
"""

import contextlib
import difflib
import math
import os
import re
import tempfile
from collections.abc import Callable, Container, Iterable
from pathlib import Path

import psutil

from deployments.slurm.cluster.client import NotNow
from deployments.slurm.cluster.partitions import NO_NEW_JOBS, Cluster, Node, Partition, listed
from deployments.slurm.cluster.site import Resources
from deployments.slurm.job.script import request_text
from storage.errors import BadInput
from tasks.stage.preflight import require_disk

NAMED_AT_MOST = 12
NO_NODE = re.compile(r"node configuration|generic resource|required node", re.I)
"""SLURM's words where no node that is up has what the job asks for."""
KEY_OF = {
    r"\baccount\b": "account",
    r"\bqos\b": "qos",
    "partition": "partition",
    "feature": "constraint",
    "node name": "exclude",
    "reservation": "reservation",
}
"""Keys that SLURM's words are about, where they say so."""
IN_MEMORY = ("tmpfs", "ramfs")
OWN_DISK = ("ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "overlay", "f2fs")
NODE_LOCAL = ("/tmp", "/var/tmp", "/dev/shm", "/local", "$TMPDIR")
LEAST_FREE_BYTES = 1 << 30
"""For records, logs and small checkpoints; a stage itself estimates what it needs, in its job, before it works."""


def require(resources: Resources, cluster: Cluster, folder: Path, where: str, *, strict_lead: bool = True) -> None:
    """BadInput with all that stands against the job of `where` (a stage), which this process submits.

    The job may wait until its partition starts jobs again; a person who starts a study learns it at once (`problems`).
    """
    refusals = [
        *problems(resources, cluster, os.environ, strict_lead=strict_lead, may_wait=True),
        *folder_problems(folder, several_hosts=cluster.several_hosts),
    ]
    if refusals:
        raise BadInput(f"{where}: {refusal_text('job', refusals)}")


def refusal_text(jobs: str, problems: Iterable[str]) -> str:
    """All that stands against a job or some jobs, and where it is corrected."""
    return (
        f"nothing was submitted, since the {jobs} could not run:\n  "
        + "\n  ".join(problems)
        + "\nResources stand in the site file and the deployment, which are read for each job, and in the study."
    )


def problems(
    resources: Resources,
    cluster: Cluster,
    environment: Container[str] = os.environ,
    *,
    strict_lead: bool = True,
    may_wait: bool = False,
) -> list[str]:
    """Why a job of these resources would be refused or never start here, and what to do; empty when nothing is seen.

    `environment` is that of the pool's worker. `strict_lead=False` allows a lead of more than a third of the limit.
    `may_wait`: the job may wait until its partition starts jobs again.
    """
    asked = cluster.asked(resources.partition)
    denied = [_denials(resources, partition, may_wait) for partition in asked]
    texts = [text for some in denied for text in some] if denied and all(denied) else []  # else one of them takes it
    if texts and (fit := _fitting(resources, cluster)):
        texts = [f"{text}, or name a partition that fits: {_some(fit)}" for text in texts]
    lead, limit = resources.lead_seconds, resources.time_limit_minutes
    if strict_lead and lead * 3 > limit * 60:
        texts.append(
            f"lead_seconds: {lead:g} s is more than a third of the time limit of {_h_min(limit)}, so that little of a "
            f"job would be work: set time_limit_minutes to at least {math.ceil(lead / 20)}, or lead_seconds to at most "
            f"{limit * 20}"
        )
    texts += [
        f"pass_environment: {name} is not set here, where jobs are submitted: set it, or take it out of "
        "pass_environment"
        for name in resources.pass_environment
        if name not in environment
    ]
    return texts + _refusals(resources, cluster)


def notes(resources: Resources, cluster: Cluster) -> list[str]:
    """Notes for a person on a job that is submitted all the same."""
    if cluster.refusal(request_text(resources)) is None or not (waits := _out_of_service(resources, cluster)):
        return []
    states = _some(f"{node.name} {node.state}" for node in waits)
    return [f"no node that fits starts jobs now ({states}): the job will wait; `sinfo -R` shows why"]


# ---------------------------------------------------------------------------------------- what the cluster offers


def _denials(resources: Resources, partition: Partition, may_wait: bool) -> list[str]:
    """Reasons why a partition denies jobs that SLURM queues there all the same."""
    texts, name = [], partition.name
    if not may_wait and partition.state in (*NO_NEW_JOBS, "DOWN"):
        texts.append(
            f"partition: {name} is {partition.state} and starts no jobs: submit again when `sinfo` shows it up"
        )
    limit, most = resources.time_limit_minutes, partition.max_minutes
    if most is not None and limit > most and not resources.qos:  # a QOS may lift the limit
        texts.append(
            f"time_limit_minutes: {limit} ({_h_min(limit)}) is more than partition {name} allows "
            f"({_h_min(most)}): ask for at most {most} (a training goes on in the next job)"
        )
    for key, value, kind in (("account", resources.account, "Accounts"), ("qos", resources.qos, "Qos")):
        wanted, allowed, denied = {*listed(value.lower())}, partition.allowed(kind), partition.denied(kind)
        if wanted and (wanted <= denied if allowed is None else not wanted & allowed):
            others = f"one of {_some(sorted(allowed))}" if allowed else "another"
            texts.append(f"{key}: partition {name} takes no jobs of {value}: name {others}")
    return texts


def _refusals(resources: Resources, cluster: Cluster) -> list[str]:
    """Refusals of SLURM itself, in its words; none when it takes the job, or will take it later."""
    refusal = cluster.refusal(request_text(resources))
    if refusal is None or isinstance(refusal, NotNow):
        return []
    text = f"SLURM refuses the job ({refusal})"
    if NO_NODE.search(str(refusal)):
        return _shortages(resources, cluster, text)
    key = next((key for words, key in KEY_OF.items() if re.search(words, str(refusal), re.I)), "")
    known, unknown = list[str](), list[str]()
    if key == "partition":
        known = [partition.name for partition in cluster.partitions.values() if not partition.hidden]
        unknown = [name for name in listed(resources.partition) if name not in cluster.partitions]
    elif key == "constraint":
        known = sorted({word for node in cluster.nodes for word in node.features})
        unknown = [word for word in re.findall(r"[\w.-]+", resources.constraint) if word not in known]
    advice, others = "correct it, or leave it empty", list[str]()
    if known and unknown:
        nearest = _nearest_first(unknown[0], known)
        advice = f"it knows no {_some(unknown)}: name one of {_some(nearest)}"
        if key == "partition":  # the rest that is wrong is told too, of the partition that is meant
            others = _refusals(resources.model_copy(update={key: nearest[0]}), cluster)
    keys = [key] if key else [key for key in Resources.model_fields if key in resources.model_fields_set]
    return [f"{_asked(resources, keys)}: {text}: {advice}", *others]


def _shortages(resources: Resources, cluster: Cluster, text: str) -> list[str]:
    """Requests that no node of the partition meets; none where one that is out of service may meet them."""
    partitions, wants = cluster.asked(resources.partition), _wants(resources)
    nodes = cluster.nodes_of(*partitions)
    if not nodes or _out_of_service(resources, cluster):
        return []
    keys = [key for key, is_met in wants.items() if not any(map(is_met, nodes))] or [*wants]
    models = sorted({model for node in nodes for model in node.gpus or ()} - {""})
    advice = "exclude fewer nodes" if "exclude" in keys else "ask for less"
    if resources.gpu_model and resources.gpu_model not in models and "gpus" in keys:
        nearest = f"name one of {_some(_nearest_first(resources.gpu_model, models))}" if models else "leave it empty"
        keys, advice = ["gpu_model", *keys], f"its GPUs are not of this model: {nearest}"
    elif "memory_gb" in keys and all(node.memory_mb == 1 for node in nodes):
        advice = "SLURM does not count its memory (RealMemory 1, the default): set memory_gb to 0, which asks for none"
    if fit := [name for name in _fitting(resources, cluster) if name not in {each.name for each in partitions}]:
        advice += f", or name a partition that fits: {_some(fit)}"
    limits = [f"{partition.name} has {partition.node_limits}" for partition in partitions if partition.node_limits]
    have = [*{_shown(node): f"{node.name} has {_shown(node)}" for node in reversed(nodes)}.values()]
    names = ",".join(partition.name for partition in partitions)
    return [
        f"{_asked(resources, keys)}: {text}; in partition {names} {_some([*limits, *reversed(have)], '; ')}: {advice}"
    ]


def _asked(resources: Resources, keys: Iterable[str]) -> str:
    """These keys and what each asks for, those that ask for nothing left out."""
    values = {key: getattr(resources, key) for key in dict.fromkeys(keys)}
    return ", ".join(
        f"{key} {','.join(map(str, value)) if isinstance(value, list) else value}"
        for key, value in values.items()
        if value
    )


def _wants(resources: Resources) -> dict[str, Callable[[Node], bool]]:
    """Tests by key whether a node has what the job asks for; it may have what is not known of it."""
    memory_mb = math.ceil(resources.memory_gb * 1024)  # same as in the job's text
    wants: dict[str, Callable[[Node], bool]] = {
        "cpus": lambda node: node.cpus is None or node.cpus >= resources.cpus,
        "memory_gb": lambda node: node.memory_mb is None or node.memory_mb >= memory_mb,
    }
    if resources.gpus:
        wants["gpus"] = lambda node: node.gpus is None or node.gpu_count(resources.gpu_model) >= resources.gpus
    if re.fullmatch(r"[^\s&|()*\[\]]+([&|][^\s&|()*\[\]]+)*", resources.constraint):  # else only SLURM can tell
        words, holds = re.split("[&|]", resources.constraint), any if "|" in resources.constraint else all
        wants["constraint"] = lambda node: holds(word in node.features for word in words)
    if resources.exclude:
        wants["exclude"] = lambda node: not _is_listed(node.name, ",".join(resources.exclude))
    return wants


def _is_listed(name: str, hosts: str) -> bool:
    """True where SLURM's list of hosts, such as `n1,gpu[01-12,15]`, has this name."""
    for head, ranges in re.findall(r"([^,\[]+)(?:\[([^]]*)\])?", hosts):
        number = name.removeprefix(head)
        ends = [(first, last or first) for first, _, last in (span.partition("-") for span in ranges.split(","))]
        within = any(first.zfill(9) <= number.zfill(9) <= last.zfill(9) for first, last in ends)
        if within and number.isdecimal() if ranges else name == head:
            return True
    return False


def _fits(resources: Resources, nodes: Iterable[Node]) -> list[Node]:
    return [node for node in nodes if all(is_met(node) for is_met in _wants(resources).values())]


def _out_of_service(resources: Resources, cluster: Cluster) -> list[Node]:
    """The nodes that the job fits on and that somebody must see to before jobs start there again."""
    nodes = cluster.nodes_of(*cluster.asked(resources.partition))
    return _fits(resources, (node for node in nodes if not node.in_service))


def _fitting(resources: Resources, cluster: Cluster) -> list[str]:
    """Partitions, not hidden ones, that would take the job, as far as is seen here."""
    shown = (partition for partition in cluster.partitions.values() if not partition.hidden)
    return [
        each.name for each in shown if _fits(resources, cluster.nodes_of(each)) and not _denials(resources, each, False)
    ]


def _shown(node: Node) -> str:
    gpus = [f"{count} {model or 'GPUs'}" for model, count in sorted((node.gpus or {}).items())]
    memory = [] if node.memory_mb is None else [f"{math.floor(node.memory_mb * 100 / 1024) / 100:.10g} GB"]
    return ", ".join([*([f"{node.cpus} CPUs"] if node.cpus else []), *memory, *gpus, *sorted(node.features)])


# ---------------------------------------------------------------------------------------- the folder


def folder_problems(folder: Path, need_bytes: int = LEAST_FREE_BYTES, *, several_hosts: bool = False) -> list[str]:
    """Why a run could not be kept in `folder`, which need not exist; empty when nothing is seen. Leaves no trace.

    `need_bytes` must be free. With `several_hosts` a folder that only this machine has is a problem.
    """
    folder = folder.absolute()
    there = next(path for path in (folder, *folder.parents) if os.path.lexists(path))
    if not os.path.isdir(there):
        return [f"root: {there} is not a folder, so {folder} cannot be made: move it away, or give another root"]
    texts = []
    try:
        _write(there, as_folder=there != folder)
    except OSError as error:
        what = "written" if there == folder else f"made in {there}"
        texts.append(f"root: {folder} cannot be {what} ({error.strerror or error}): give a root where you may write")
    try:
        require_disk(there, need_bytes)
    except BadInput as error:
        texts.append(f"root: {error}")
    except OSError:
        pass  # unknown
    if several_hosts and (why := _only_here(folder.resolve())):
        texts.append(
            f"root: {folder} is {why}, which other machines of this cluster do not have: give a root on a shared disk"
        )
    return texts


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
    """Reason why a real path is this machine's own; empty when it may be shared. A $TMPDIR may lie on a shared disk."""
    kind = file_system(path)
    if kind in IN_MEMORY:
        return f"in this machine's memory ({kind})"
    for name in NODE_LOCAL:
        local = Path(os.path.expandvars(name))
        if kind in OWN_DISK and local.is_absolute() and local != Path("/") and path.is_relative_to(local.resolve()):
            return f"below {name} on this machine's own disk ({kind})"
    return ""


def is_of_this_machine(folder: Path) -> bool:
    """True where a folder, which need not exist, is on a disk that no other machine sees, or nobody can tell."""
    kind = file_system(folder.absolute().resolve())
    return not kind or kind in (*OWN_DISK, *IN_MEMORY)


def file_system(path: Path) -> str:
    """The type of the file system that a real path lies on; empty when that cannot be read."""
    try:
        mounts = [(Path(disk.mountpoint), disk.fstype) for disk in psutil.disk_partitions(all=True)]
    except OSError:
        return ""
    above = [(point, kind) for point, kind in reversed(mounts) if path.is_relative_to(point)]
    # the last of several over each other counts
    return max(above, key=lambda mount: len(mount[0].parts), default=(path, ""))[1]


def _h_min(minutes: int) -> str:
    return f"{minutes // 60}:{minutes % 60:02} h"


def _some(texts: Iterable[str], between: str = ", ") -> str:
    texts = list(texts)
    more = f" and {len(texts) - NAMED_AT_MOST} more" if len(texts) > NAMED_AT_MOST else ""
    return between.join(texts[:NAMED_AT_MOST]) + more


def _nearest_first(name: str, known: Iterable[str]) -> list[str]:
    """Sorts by likeness, the nearest name first."""
    return sorted(known, key=lambda candidate: -difflib.SequenceMatcher(None, name.lower(), candidate.lower()).ratio())
