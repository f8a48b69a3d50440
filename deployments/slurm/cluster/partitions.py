"""Offers of the cluster to one job: its partitions, its nodes, and SLURM's own word. None: not known, which passes."""

import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from deployments.slurm.cluster.client import Done, Refused, SlurmCommands, Unreachable, call

LOG = logging.getLogger("ratchet.slurm")
NODE_FIELDS = ("NodeList", "Partition", "NodeHost", "NodeAddr", "CPUs", "Memory", "Gres", "Features", "StateLong")
NO_NEW_JOBS = ("DRAIN", "INACTIVE")
"""Partition states in which SLURM refuses a job; in DOWN it is queued until the partition is up again."""
IN_SERVICE = re.compile(r"(idle|mixed|allocated|completing|planned|reserved)[~#+-]?")
"""Node states in which jobs start sooner or later; in any other somebody must see to the node first."""

Run = Callable[..., Done]
"""Calls a command, as `client.call` does."""


@dataclass(frozen=True)
class Partition:
    """A partition as `scontrol show partition` prints it, by field."""

    fields: Mapping[str, str]

    @property
    def name(self) -> str:
        return self.fields.get("PartitionName", "")

    @property
    def state(self) -> str:
        return self.fields.get("State", "")

    @property
    def hidden(self) -> bool:
        return self.fields.get("Hidden") == "YES"

    @property
    def max_minutes(self) -> int | None:
        """None of UNLIMITED and the like."""
        match = re.fullmatch(r"(?:(\d+)-)?(\d+):(\d+):\d+", self.fields.get("MaxTime", ""))
        return int(match[1] or 0) * 1440 + int(match[2]) * 60 + int(match[3]) if match else None

    @property
    def node_limits(self) -> str:
        """Limits of one job on a node, in SLURM's words; empty where nothing limits it."""
        named = ("MaxCPUsPerNode", "MaxMemPerNode", "MaxMemPerCPU")
        shown = {name: self.fields.get(name, "UNLIMITED") for name in named}
        return ", ".join(f"{name}={value}" for name, value in shown.items() if value != "UNLIMITED")

    def allowed(self, kind: str) -> frozenset[str] | None:
        """The `Accounts` or `Qos` whose jobs it takes; None: those of all. Since SLURM 22.05, recognised by a field
        that it does not print, an allowed account stands for its subaccounts too, which are not listed here."""
        if kind == "Accounts" and "MaxCPUsPerSocket" in self.fields:
            return None
        return _names(self.fields.get(f"Allow{kind}", ""))

    def denied(self, kind: str) -> frozenset[str]:
        return _names(self.fields.get(f"Deny{kind}", "")) or frozenset()


@dataclass(frozen=True)
class Node:
    """Node of a partition, and what it has."""

    name: str
    partition: str
    host: str
    address: str
    cpus: int | None
    memory_mb: int | None
    gpus: dict[str, int] | None
    """Count by model; the model is empty where SLURM's configuration names none."""
    features: frozenset[str]
    state: str

    @property
    def in_service(self) -> bool:
        return IN_SERVICE.fullmatch(self.state) is not None

    def gpu_count(self, model: str) -> int:
        """GPUs of a model, or of any. SLURM takes the name to the letter: without configured models none is of it."""
        return (self.gpus or {}).get(model, 0) if model else sum((self.gpus or {}).values())


@dataclass(frozen=True)
class Cluster:
    """Partitions by name, their nodes, and whether SLURM would take a job; nothing is known of what did not answer."""

    partitions: dict[str, Partition]
    nodes: tuple[Node, ...] = ()
    would_take: Callable[[str], None] = lambda script: None
    """Raises Refused where SLURM takes no job of this text."""
    _said: dict[str, Refused | None] = field(default_factory=dict)

    def refusal(self, script: str) -> Refused | None:
        """Why SLURM takes no job of this text. Each text is asked for once: the jobs of a study have few."""
        if script not in self._said:
            answer = None
            try:
                self.would_take(script)
            except Refused as refusal:
                answer = refusal
            except Unreachable as error:
                LOG.warning("preflight: sbatch --test-only gave no answer: %s", error)
            self._said[script] = answer
        return self._said[script]

    def asked(self, partition: str) -> list[Partition]:
        """The partitions that a job may start in: those named that exist, else the default one; or their alternates."""
        known = self.partitions
        names = listed(partition) or [other.name for other in known.values() if other.fields.get("Default") == "YES"]
        named = [known[name] for name in names if name in known]
        return [known.get(own.fields.get("Alternate", ""), own) if own.state in NO_NEW_JOBS else own for own in named]

    def nodes_of(self, *partitions: Partition) -> list[Node]:
        names = {partition.name for partition in partitions}
        return [node for node in self.nodes if node.partition in names]

    @property
    def several_hosts(self) -> bool:
        """True where the nodes are several machines; a test cluster's many nodes share one name or one address."""
        return min(len({node.host for node in self.nodes}), len({node.address for node in self.nodes})) > 1


def read_cluster(run: Run = call, would_take: Callable[[str], None] | None = None) -> Cluster:
    """Asks `scontrol` and `sinfo` once each, however large the cluster. What does not answer stays unknown.

    Hidden partitions are asked for too: jobs may run there.
    """
    form = ",".join(f"{name}:|" for name in NODE_FIELDS)
    partitions = [
        Partition({name: value for name, _, value in (word.partition("=") for word in line.split())})
        for line in _lines(run, "scontrol", "show", "partition", "--all", "--oneliner")
    ]
    lines = _lines(run, "sinfo", "--all", "--noheader", "--Node", f"--Format={form}")
    rows = [[text.strip() for text in line.split("|")[:-1]] for line in lines]
    return Cluster(
        {partition.name: partition for partition in partitions if partition.name},
        tuple(_node(**dict(zip(NODE_FIELDS, row, strict=True))) for row in rows if len(row) == len(NODE_FIELDS)),
        would_take or SlurmCommands().would_take,
    )


def listed(text: str) -> list[str]:
    """The parts of a list with commas."""
    return [part for part in text.split(",") if part]


def _lines(run: Run, *command: str) -> list[str]:
    """Lines that a command prints; none when it fails, which is logged."""
    try:
        done = run([*command])
        problem = done.stderr.strip() or "it failed" if done.returncode else ""
    except Unreachable as error:
        problem = str(error)
    if problem:
        LOG.warning("preflight: %s gave no answer: %s", command[0], problem)
        return []
    return [line for line in done.stdout.splitlines() if line.strip()]


def _node(**row: str) -> Node:
    return Node(
        name=row["NodeList"],
        partition=row["Partition"].removesuffix("*"),  # the default partition's mark
        host=row["NodeHost"],
        address=row["NodeAddr"],
        cpus=_number(row["CPUs"]),
        memory_mb=_number(row["Memory"]),
        gpus=_gpus(row["Gres"]),
        features=frozenset(listed(row["Features"])) - {"(null)"},
        state=row["StateLong"],
    )


def _gpus(gres: str) -> dict[str, int] | None:
    """GPUs by model from `gpu:a100:2(S:0,2-3),gpu:2,shard:8`; none of `(null)`."""
    gpus: dict[str, int] = {}
    for model, count in re.findall(
        r"(?:^|,)gpu(?::([^:,(]+))??(?::no_consume)?:(\d+)(?=,|$)", re.sub(r"\([^)]*\)", "", gres)
    ):
        gpus[model] = gpus.get(model, 0) + int(count)
    return gpus if gres else None


def _number(text: str) -> int | None:
    return int(text) if text.isdecimal() else None


def _names(text: str) -> frozenset[str] | None:
    """Names of accounts or QOS, which SLURM keeps in small letters; None for ALL and what is not reported."""
    return None if text in ("", "ALL", "(null)", "N/A") else frozenset(listed(text.lower()))
