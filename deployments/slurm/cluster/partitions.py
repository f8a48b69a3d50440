"""What the cluster offers one job, read from two commands. None: not reported or not understood."""

from __future__ import annotations

import logging
import os
import re
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

LOG = logging.getLogger("ratchet.slurm")
CALL_SECONDS = 60.0
NODE_FIELDS = ("NodeList", "Partition", "NodeHost", "NodeAddr", "CPUs", "Memory", "Gres", "Features", "StateLong")

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@dataclass(frozen=True)
class Partition:
    """What a partition allows one job. None: unlimited or unknown, which both pass."""

    name: str
    state: str = ""
    alternate: str = ""
    """Where SLURM puts the jobs while this one takes none."""
    is_default: bool = False
    hidden: bool = False
    max_minutes: int | None = None
    max_memory_mb: int | None = None
    max_memory_mb_per_cpu: int | None = None
    max_cpus: int | None = None
    total_nodes: int | None = None
    accounts: frozenset[str] | None = None
    denied_accounts: frozenset[str] = frozenset()
    qos: frozenset[str] | None = None
    denied_qos: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Node:
    """What a node has. None: unknown, which passes."""

    name: str
    partitions: frozenset[str] = frozenset()
    host: str = ""
    address: str = ""
    cpus: int | None = None
    memory_mb: int | None = None
    gpus: dict[str, int] | None = None
    """Count by model; the model is empty where SLURM's configuration names none."""
    features: frozenset[str] | None = None
    state: str = ""

    def gpu_count(self, model: str = "") -> int | None:
        """GPUs of a model, or of any. SLURM takes the name to the letter: without configured models none is of it."""
        if self.gpus is None:
            return None
        return self.gpus.get(model, 0) if model else sum(self.gpus.values())


@dataclass(frozen=True)
class Cluster:
    """Partitions by name, and nodes; both empty when SLURM reported nothing."""

    partitions: dict[str, Partition]
    nodes: tuple[Node, ...] = ()

    def nodes_of(self, partition: Partition) -> list[Node]:
        """The partition's nodes with what one job can get of each; none unless SLURM shows every one of them.

        SLURM counts the sleeping nodes of a cloud, and future ones, but does not show them: the larger ones may be
        among these. MaxMemPerCPU gives a job as much memory as all CPUs of a node bring.
        """
        return self._offers.get(partition.name, [])

    @cached_property
    def all_nodes(self) -> list[Node]:
        """Every node; none unless SLURM shows every one."""
        whole = all(self.nodes_of(partition) or partition.total_nodes == 0 for partition in self.partitions.values())
        return list(self.nodes) if self.partitions and whole else []

    @cached_property
    def _offers(self) -> dict[str, list[Node]]:
        shown: dict[str, list[Node]] = {name: [] for name in self.partitions}
        for node in self.nodes:
            for name in node.partitions & shown.keys():
                shown[name].append(_within(node, self.partitions[name]))
        totals = {name: partition.total_nodes for name, partition in self.partitions.items()}
        return {
            name: nodes for name, nodes in shown.items() if (total := totals[name]) is not None and len(nodes) >= total
        }

    @property
    def several_hosts(self) -> bool:
        """Whether the nodes are several machines; a test cluster's many nodes share one name or one address."""
        return min(len({node.host for node in self.nodes}), len({node.address for node in self.nodes})) > 1


def read_cluster(run: Run = subprocess.run) -> Cluster:
    """Asks `scontrol` and `sinfo` once each, however large the cluster. What does not answer stays unknown.

    Hidden partitions are asked for too: jobs may run there. `run` is called as `subprocess.run` is.
    """
    form = ",".join(f"{field}:|" for field in NODE_FIELDS)
    partitions = [_partition(line) for line in lines_of(run, "scontrol", "show", "partition", "--all", "--oneliner")]
    nodes: dict[str, Node] = {}
    for line in lines_of(run, "sinfo", "--all", "--noheader", "--Node", f"--Format={form}"):
        fields = [field.strip() for field in line.split("|")[:-1]]
        if len(fields) == len(NODE_FIELDS):
            node = _node(*fields)
            before = nodes[node.name].partitions if node.name in nodes else frozenset()
            nodes[node.name] = replace(node, partitions=node.partitions | before)
    return Cluster({partition.name: partition for partition in partitions if partition.name}, tuple(nodes.values()))


def listed(text: str) -> list[str]:
    """The parts of a list with commas."""
    return [part for part in text.split(",") if part]


def is_named(node: str, expression: str) -> bool:
    """Whether a node is one of `n[1-3,07]`. A file of names, or what is not understood, names none."""
    pieces = re.split(r"\[([\d,-]+)\]", expression)
    pattern = "".join(r"(\d+)" if index % 2 else re.escape(piece) for index, piece in enumerate(pieces))
    match = re.fullmatch(pattern, node)
    return match is not None and all(
        any(_is_between(digits, part) for part in listed(ranges))
        for digits, ranges in zip(match.groups(), pieces[1::2], strict=True)
    )


def _is_between(digits: str, part: str) -> bool:
    """Whether `007` is in `1-9` (no) or `001-009` (yes): a number is as wide as the lower bound is written."""
    low, _, high = part.partition("-")
    if not low.isdecimal() or not (high or low).isdecimal():
        return False
    return int(low) <= int(digits) <= int(high or low) and len(digits) == max(len(low), len(str(int(digits))))


def lines_of(run: Run, *command: str, level: int = logging.WARNING) -> list[str]:
    """What a command prints; nothing when it fails, which is logged. A person's SINFO_PARTITION must not hide half of
    the cluster."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SINFO_")}
    try:
        done = run(
            list(command),
            capture_output=True,
            text=True,
            errors="replace",
            timeout=CALL_SECONDS,
            check=False,
            env=environment | {"LC_ALL": "C"},
        )
    except (OSError, subprocess.SubprocessError) as error:
        LOG.log(level, "preflight: %s gave no answer: %s", command[0], error)
        return []
    if done.returncode:
        LOG.log(level, "preflight: %s gave no answer: %s", command[0], done.stderr.strip())
        return []
    return [line for line in done.stdout.splitlines() if line.strip()]


def _partition(line: str) -> Partition:
    """One partition from its line of `NAME=value` words."""
    fields = {name: value for name, _, value in (word.partition("=") for word in line.split())}
    # In newer versions an allowed account stands for its subaccounts too, which are not listed here. 22.05 is
    # older, and is recognised by a field that it does not print.
    subaccounts = "MaxCPUsPerSocket" in fields
    return Partition(
        fields.get("PartitionName", ""),
        fields.get("State", ""),
        fields.get("Alternate", ""),
        fields.get("Default") == "YES",
        fields.get("Hidden") == "YES",
        _minutes(fields.get("MaxTime", "")),
        _number(fields.get("MaxMemPerNode", "")),
        _number(fields.get("MaxMemPerCPU", "")),
        _number(fields.get("MaxCPUsPerNode", "")),
        _number(fields.get("TotalNodes", "")),
        None if subaccounts else _names(fields.get("AllowAccounts", "")),
        _names(fields.get("DenyAccounts", "")) or frozenset(),
        _names(fields.get("AllowQos", "")),
        _names(fields.get("DenyQos", "")) or frozenset(),
    )


def _node(
    name: str, partition: str, host: str, address: str, cpus: str, memory: str, gres: str, features: str, state: str
) -> Node:
    return Node(
        name,
        frozenset([partition.removesuffix("*")]),  # the default partition's mark
        host,
        address,
        _number(cpus),
        _number(memory),
        _gpus(gres),
        None if not features else frozenset() if features == "(null)" else frozenset(listed(features)),
        state,
    )


def _gpus(gres: str) -> dict[str, int] | None:
    """GPUs by model from `gpu:a100:2(S:0,2-3),gpu:2,shard:8`; None when it is not understood."""
    if not gres:
        return None  # SLURM writes (null) for none, and nothing for a field that it does not know
    found: dict[str, int] = {}
    for entry in re.sub(r"\([^)]*\)", "", gres).split(","):
        name, *rest = entry.strip().split(":")
        if name != "gpu":
            continue
        *models, count = [part for part in rest if part != "no_consume"] or [""]
        if len(models) > 1 or not count.isdecimal():
            return None
        model = "".join(models)
        found[model] = found.get(model, 0) + int(count)
    return found


def _minutes(text: str) -> int | None:
    """Minutes of `1-12:30:00`, `1-12`, `36:30:00`, `30:00` (minutes first) or `90`; None for UNLIMITED and the like."""
    match = re.fullmatch(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?", text)
    if not match:
        return None
    first = int(match[2])
    days, second, third = (int(part) if part else None for part in match.group(1, 3, 4))
    if days is None and third is None:
        return first  # second: seconds
    return (days or 0) * 1440 + first * 60 + (second or 0)


def _number(text: str) -> int | None:
    return int(text) if text.isdecimal() else None


def _names(text: str) -> frozenset[str] | None:
    """Names of accounts or QOS, which SLURM keeps in small letters; None for ALL and what is not reported."""
    return None if text in ("", "ALL", "(null)", "N/A") else frozenset(listed(text.lower()))


def _within(node: Node, limits: Partition) -> Node:
    """The node as one job of the partition gets it."""
    if limits.max_cpus is limits.max_memory_mb is limits.max_memory_mb_per_cpu is None:
        return node
    brought = limits.max_memory_mb_per_cpu and node.cpus and limits.max_memory_mb_per_cpu * node.cpus
    return replace(
        node,
        cpus=_least(node.cpus, limits.max_cpus),
        memory_mb=_least(node.memory_mb, limits.max_memory_mb, brought),
    )


def _least(*values: int | None) -> int | None:
    return min((value for value in values if value is not None), default=None)
