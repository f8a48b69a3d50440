"""What preflight finds before a job is submitted, from answers as SLURM gives them, and of the folder of the run.

`PARTITION_22` and the nodes of `REAL` were printed by a real SLURM 22.05.8, and `TAKEN` and `NOT_TAKEN` are what its
sbatch and its scheduler did with the same requests. The forms of later versions are put together from pages that show
them.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from deployments.slurm.cluster.partitions import NODE_FIELDS, Cluster, is_named
from deployments.slurm.cluster.resources import Resources
from deployments.slurm.job import preflight
from deployments.slurm.job.preflight import LEAST_FREE_BYTES, folder_problems, notes, problems, read_cluster, require
from storage.errors import BadInput

PARTITION_22 = (
    "PartitionName=cpu AllowGroups=ALL AllowAccounts=ALL AllowQos=ALL AllocNodes=ALL Default=NO QoS=N/A "
    "DefaultTime=01:00:00 DisableRootJobs=NO ExclusiveUser=NO GraceTime=0 Hidden=NO MaxNodes=UNLIMITED "
    "MaxTime=UNLIMITED MinNodes=0 LLN=NO MaxCPUsPerNode=UNLIMITED Nodes=n[1-2] PriorityJobFactor=1 PriorityTier=10 "
    "RootOnly=NO ReqResv=NO OverSubscribe=NO OverTimeLimit=NONE PreemptMode=OFF State=UP TotalCPUs=208 TotalNodes=1 "
    "SelectTypeParameters=NONE JobDefaults=(null) DefMemPerCPU=100 MaxMemPerNode=UNLIMITED "
    "TRES=cpu=208,mem=1190000M,node=6,billing=208"
)
PARTITION_24 = (
    "PartitionName=cpu AllowGroups=ALL AllowAccounts=ALL AllowQos=ALL AllocNodes=ALL Default=NO QoS=gpu_qos "
    "DefaultTime=NONE DisableRootJobs=NO ExclusiveUser=NO ExclusiveTopo=NO GraceTime=0 Hidden=NO MaxNodes=UNLIMITED "
    "MaxTime=UNLIMITED MinNodes=0 LLN=NO MaxCPUsPerNode=UNLIMITED MaxCPUsPerSocket=UNLIMITED NodeSets=ns-gpu "
    "Nodes=gpu[001-002] PriorityJobFactor=1 PriorityTier=1 RootOnly=NO ReqResv=NO OverSubscribe=FORCE:1 "
    "OverTimeLimit=NONE PreemptMode=REQUEUE State=UP TotalCPUs=128 TotalNodes=1 SelectTypeParameters=NONE "
    "JobDefaults=(null) DefMemPerNode=UNLIMITED MaxMemPerNode=UNLIMITED "
    "TRES=cpu=126,mem=1500G,node=2,billing=264,gres/gpu=8,gres/gpu:a100=8 "
    "TRESBillingWeights=CPU=1.0,Mem=0.25G,GRES/gpu:a100=5"
)


def partition(name: str, form: str = PARTITION_22, **changed: str) -> str:
    """A line of `scontrol show partition --oneliner`; a value of "" takes the word away, a new one is added."""
    for field, value in ({"PartitionName": name} | changed).items():
        word = f"{field}={value}" if value else ""
        form, found = re.subn(rf"(?<!\S){field}=\S*", word, form)
        form += "" if found else f" {word}"
    return form


def node(name: str, partitions: str, **changed: str) -> str:
    """The lines of a node, one for each partition, as `sinfo --Node` prints them."""
    fields = {
        "NodeHost": name, "NodeAddr": name, "CPUs": "8", "Memory": "16000", "Gres": "(null)", "Features": "(null)",
        "StateLong": "idle",
    } | changed  # fmt: skip
    rows = [{"NodeList": name, "Partition": one} | fields for one in partitions.split()]
    return "\n".join("".join(f"{row[field]}|" for field in NODE_FIELDS) for row in rows)


def answers(partitions: list[str], nodes: list[str]) -> Callable[..., subprocess.CompletedProcess[str]]:
    def run(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(command, 0, "\n".join(partitions if "scontrol" in command else nodes), "")

    return run


def cluster(partitions: list[str], nodes: list[str]) -> Cluster:
    return read_cluster(answers(partitions, nodes))


def asking(**given: Any) -> Resources:
    """Resources that fit anywhere, but for what is given."""
    return Resources(**{"time_limit_minutes": 2, "lead_seconds": 10.0, "memory_gb": 0.5} | given)


def one(node_changed: dict[str, str] | None = None, form: str = PARTITION_22, **changed: str) -> Cluster:
    """A cluster of one partition, the default one, with one node."""
    return cluster(
        [partition("gpu", form, **{"Default": "YES"} | changed)],
        [node("n1", "gpu*", **{"Gres": "gpu:a100:2"} | (node_changed or {}))],
    )


BIG = {
    "CPUs": "64",
    "Memory": "515000",
    "Gres": "gpu:v100:4,gpu:a100:2",
    "Features": "volta,nvlink,a-very-long-feature-name-indeed",
    "StateLong": "unknown*",
    "NodeAddr": "127.0.0.1",
}
OTHER = {"CPUs": "32", "Memory": "64000", "StateLong": "unknown*", "NodeAddr": "127.0.0.1"}
SMALL = {"Gres": "gpu:a100:2", "NodeHost": "localhost", "NodeAddr": "127.0.0.1"}
PARTITIONS = [
    partition("cpu", Default="YES", TotalNodes="6"),
    partition("gpu", MaxTime="1-00:00:00", TotalNodes="4"),
    partition("low", TotalNodes="3"),
    partition("high", MaxTime="5-00:00:00", State="DRAIN", Alternate="cpu"),
    partition("short", MaxTime="1-12:30:00", MaxCPUsPerNode="16", MaxMemPerNode="100000", TotalNodes="3"),
    partition("percpu", AllowAccounts="", AllowQos="", DenyAccounts="guests", DenyQos="scav", MaxTime="01:30:00",
              MaxMemPerNode="", MaxMemPerCPU="4000", TotalNodes="2"),
    partition("hid", Hidden="YES", MaxTime="00:02:00"),
    partition("dwn", State="DOWN"),
    partition("drn", State="DRAIN"),
    partition("ina", State="INACTIVE"),
    partition("empty", Nodes="(null)", TotalNodes="0"),
    partition("physics", AllowAccounts="physics,chem"),
    partition("quick", AllowQos="normal,long"),
]  # fmt: skip
REAL = cluster(
    PARTITIONS,
    [
        node("big01", "cpu* gpu short percpu", NodeHost="big01", **BIG),
        node("big02", "cpu* gpu short percpu", NodeHost="big02", **BIG),
        node("n1", "cpu* gpu low dwn drn ina physics quick high", **SMALL),
        node("n2", "cpu* gpu low high", **SMALL),
        node("plain1", "cpu* low short", NodeHost="plain1", **OTHER),
        node("untyped1", "cpu* hid", NodeHost="untyped1", Gres="gpu:3", **OTHER),
    ],
)

# What sbatch did: it took the job, or it refused it, or queued it where it would not start as things stood.
TAKEN = [
    {},
    {"partition": "gpu,cpu"},
    {"partition": "percpu,cpu", "time_limit_minutes": 120},
    {"partition": "high", "time_limit_minutes": 10000},  # goes to the alternate, which has no limit
    {"partition": "percpu", "memory_gb": 250000 / 1024},
    {"partition": "percpu", "memory_gb": 8000 / 1024, "cpus": 1},
    {"partition": "short", "cpus": 16},
    {"partition": "short", "memory_gb": 100000 / 1024},
    {"partition": "hid", "gpus": 3},
    {"partition": "percpu", "gpus": 4},
    {"partition": "percpu", "gpus": 4, "gpu_model": "v100"},
    {"partition": "percpu", "gpus": 2, "gpu_model": "a100"},
    {"partition": "percpu", "constraint": "volta"},
    {"partition": "gpu", "constraint": "volta&nvlink"},
    {"partition": "gpu", "constraint": "volta|nvlink"},
    {"partition": "gpu", "gpus": 1, "gpu_model": "v100", "cpus": 8, "memory_gb": 16000 / 1024},
    {"partition": "quick", "qos": "normal"},
]
NOT_TAKEN = [
    ("partition", {"partition": "nope"}),
    ("partition", {"partition": "CPU"}),
    ("partition", {"partition": "cpu,nope"}),
    ("partition", {"partition": "nope,cpu"}),
    ("partition", {"partition": "dwn"}),
    ("partition", {"partition": "drn"}),
    ("partition", {"partition": "ina"}),
    ("time_limit_minutes", {"partition": "percpu", "time_limit_minutes": 120}),
    ("memory_gb", {"memory_gb": 9000000 / 1024}),
    ("memory_gb", {"partition": "gpu", "cpus": 64, "memory_gb": 515001 / 1024}),
    ("memory_gb", {"partition": "short", "memory_gb": 100001 / 1024}),
    ("memory_gb", {"partition": "percpu", "memory_gb": 260000 / 1024}),
    ("cpus", {"partition": "percpu", "cpus": 65}),
    ("cpus", {"partition": "short", "cpus": 17}),
    ("gpu_model", {"partition": "hid", "gpus": 1, "gpu_model": "a100"}),
    ("gpus", {"partition": "hid", "gpus": 4}),
    ("gpus", {"partition": "percpu", "gpus": 7}),
    ("gpus", {"partition": "percpu", "gpus": 5, "gpu_model": "v100"}),
    ("gpus", {"partition": "percpu", "gpus": 3, "gpu_model": "a100"}),
    ("gpu_model", {"partition": "percpu", "gpus": 1, "gpu_model": "V100"}),
    ("gpu_model", {"partition": "percpu", "gpus": 1, "gpu_model": "a10"}),
    ("constraint", {"partition": "percpu", "constraint": "nope"}),
    ("constraint", {"partition": "percpu", "constraint": "Volta"}),
    ("constraint", {"partition": "percpu", "constraint": "volta&nope"}),
    ("constraint", {"partition": "percpu", "constraint": "volta|nope"}),
    ("constraint", {"partition": "percpu", "constraint": "nope|volta&nope"}),
    ("constraint", {"partition": "low", "constraint": "volta"}),
    ("exclude", {"partition": "percpu", "exclude": ["big01,big02"]}),
    ("exclude", {"partition": "percpu", "exclude": ["big0[1-2]"]}),
    ("exclude", {"partition": "gpu", "gpus": 1, "gpu_model": "v100", "exclude": ["big[01-02]"]}),
    ("account", {"partition": "physics", "account": "other"}),
]


@pytest.mark.parametrize("given", TAKEN, ids=str)
def test_what_sbatch_took_is_no_problem(given: dict[str, Any]) -> None:
    assert problems(asking(**given), REAL) == []


@pytest.mark.parametrize(("field", "given"), NOT_TAKEN, ids=str)
def test_what_sbatch_refused_or_never_started_is_one_problem_of_its_field(field: str, given: dict[str, Any]) -> None:
    found = problems(asking(**given), REAL)
    assert found and {text.split(":")[0] for text in found} == {field}
    assert all(text.count(": ") >= 2 for text in found), "each names what is wrong and, after a colon, what to do"


# ------------------------------------------------------------------------------------------------- the messages


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"partition": "gup"},
            r"partition: gup is not a partition of this cluster: name one of gpu, (?!.*hid).*cpu.*",
        ),
        ({"partition": "CPU"}, r"partition: CPU is not a partition of this cluster: name one of cpu, .*"),
        (
            {"partition": "percpu", "time_limit_minutes": 2941},
            r"time_limit_minutes: 2941 \(49:01 h\) is more than partition percpu allows \(1:30 h\): ask for at most "
            r"90 .*, or name a partition that fits: cpu, low, physics, quick",
        ),
        (
            {"partition": "low", "memory_gb": 100.0},
            r"memory_gb: 100 GB asked for, but no node of partition low gives a job more than 62.5 \(plain1\): ask for "
            r"at most that, or name a partition that fits: cpu, gpu, percpu",
        ),
        (
            {"partition": "short", "cpus": 40},
            r"cpus: 40 CPUs .* more than 16 \(big01\): ask for at most that, or name .*: cpu, gpu, percpu",
        ),
        (
            {"partition": "gpu", "gpus": 3, "gpu_model": "a100"},
            r"gpus: 3 a100 asked for, but no node of partition gpu gives a job more than 2 \(big01\): ask .*",
        ),
        (
            {"partition": "percpu", "gpus": 1, "gpu_model": "h100"},
            r"gpu_model: no node of partition percpu has GPUs of model h100: name one of a100, v100",
        ),
        (
            {"partition": "hid", "gpus": 1, "gpu_model": "a100"},
            r"gpu_model: .*hid.* leave it empty, or name .*: cpu, .*",
        ),
        (
            {"partition": "short", "gpus": 1, "exclude": ["big01", "big02"]},
            r"exclude: every node of partition short .* \(big01, big02\): exclude fewer, or .*: cpu, gpu, low, .*",
        ),
        (
            {"partition": "low", "gpus": 1, "cpus": 9},
            r"cpus, memory_gb, gpus: no node of partition low has all at once: 9 CPUs, 0.5 GB, 1 GPUs "
            r"\(n1 has 8 CPUs, 15.62 GB, 2 a100: too little cpus; plain1 has 32 CPUs, 62.5 GB: too little gpus\): "
            r"ask for less, or name a partition that fits: cpu, gpu, short, percpu",
        ),
        ({"partition": "low", "constraint": "volta"}, r"constraint: .*low has volta: .*: cpu, gpu, short, percpu"),
        ({"constraint": "volt"}, r"constraint: .* has the feature volt: name one of volta, .*"),
        ({"partition": "percpu,gpu", "constraint": "volt"}, r"constraint: .* has the feature volt: name one of .*"),
        (
            {"partition": "physics", "account": "Biology"},
            r"account: partition physics takes no jobs of Biology: name one of chem, physics, or name .*: cpu, .*quick",
        ),
        ({"partition": "percpu", "account": "guests"}, r"account: partition percpu .* guests: name another, or .*"),
        ({"partition": "quick", "qos": "scav"}, r"qos: .* scav: name one of long, normal, or .*: cpu, .*physics"),
        ({"partition": "percpu", "qos": "scav"}, r"qos: partition percpu takes no jobs of scav: name another.*"),
        ({"partition": "drn"}, r"partition: drn is DRAIN .*: submit again when `sinfo` shows it up, or .*: cpu, .*"),
        (
            {"time_limit_minutes": 5, "lead_seconds": 101.0},
            r"lead_seconds: 101 s is more than a third of the time limit of 0:05 h.*: set time_limit_minutes to at "
            r"least 6, or lead_seconds to at most 100",
        ),
    ],
    ids=str,
)
def test_a_message_names_what_is_wrong_where_and_what_to_do(given: dict[str, Any], message: str) -> None:
    (text,) = problems(asking(**given), REAL)
    assert re.fullmatch(message, text), text


def test_the_nodes_that_lack_the_least_are_named_one_of_each_kind() -> None:
    nodes = [
        node("a1", "gpu*", CPUs="4", Memory="2048"),
        node("a2", "gpu*", CPUs="2", Memory="8192"),
        node("b1", "gpu*", CPUs="16", Memory="2048", Gres="gpu:2"),
        node("b2", "gpu*", CPUs="16", Memory="2048", Gres="gpu:2"),
        node("c1", "gpu*", CPUs="16", Memory="8192", Features="volta"),
        node("d1", "gpu*", CPUs="1", Memory="2048"),
    ]
    here = cluster([partition("gpu", Default="YES", TotalNodes="6")], nodes)
    (problem,) = problems(asking(cpus=8, memory_gb=4.0, gpus=1), here)
    assert problem == (
        "cpus, memory_gb, gpus: no node of partition gpu has all at once: 8 CPUs, 4 GB, 1 GPUs (b1 has 16 CPUs, 2 GB, "
        "2 GPUs: too little memory_gb; c1 has 16 CPUs, 8 GB: too little gpus; a2 has 2 CPUs, 8 GB: too little cpus, "
        "gpus): ask for less"
    )
    (problem,) = problems(asking(cpus=8, memory_gb=7.9, constraint="volta"), cluster(
        [partition("gpu", Default="YES", TotalNodes="2")], [nodes[1], node("e1", "gpu*", Features="volta", Memory="9")]
    ))  # fmt: skip
    assert problem.startswith(
        "cpus, memory_gb, constraint: no node of partition gpu has all at once: 8 CPUs, 7.9 GB, con"
    )


def test_models_like_the_one_asked_for_are_named_first_and_gpus_without_a_model_are_not_named() -> None:
    here = cluster(
        [partition("gpu", Default="YES", TotalNodes="3")],
        [
            node("n1", "gpu*", Gres="gpu:a30:2"),
            node("n2", "gpu*", Gres="gpu:nvidia_a100_80gb_pcie:2"),
            node("n3", "gpu*", Gres="gpu:2"),
        ],
    )
    assert problems(asking(gpus=1, gpu_model="A100"), here) == [
        "gpu_model: no node of partition gpu has GPUs of model A100: name one of nvidia_a100_80gb_pcie, a30"
    ]


def test_of_many_partitions_a_dozen_are_named() -> None:
    names = [f"p{i:02}" for i in range(20)]
    here = cluster([partition(name) for name in names], [node("n1", " ".join(names))])
    (problem,) = problems(asking(partition="p77"), here)
    assert len(re.findall(r"\bp\d\d\b", problem)) == 13 and problem.endswith(" and 8 more")


def test_where_no_node_has_a_feature_the_constraint_is_to_be_left_empty() -> None:
    assert problems(asking(constraint="volta"), one()) == [
        "constraint: no node of this cluster has the feature volta: leave it empty, no node has any"
    ]


def test_memory_is_asked_for_as_the_jobs_text_asks_for_it() -> None:
    """In whole megabytes, rounded up."""
    assert not problems(asking(memory_gb=16000 / 1024), one())
    assert problems(asking(memory_gb=16000.5 / 1024), one())


def test_where_slurm_counts_no_memory_none_is_to_be_asked_for() -> None:
    """RealMemory is 1 where slurm.conf does not name it: every job that asks for memory is refused."""
    uncounted = one({"Memory": "1"})
    (told,) = problems(asking(memory_gb=32), uncounted)
    assert re.fullmatch(r"memory_gb: 32 GB asked for, .*RealMemory 1.*: set memory_gb to 0, .*", told), told
    assert problems(asking(memory_gb=0), uncounted) == []


def test_a_job_without_gpus_here_is_shown_where_there_are_some() -> None:
    both = cluster(
        [partition("cpu", Default="YES"), partition("big"), partition("secret", Hidden="YES"),
         partition("off", State="DOWN")],
        [node("c1", "cpu*"), node("g1", "big", Gres="gpu:2"), node("g2", "secret off", Gres="gpu:2")],
    )  # fmt: skip
    assert problems(asking(gpus=2), both) == [
        "gpus: no node of partition cpu has GPUs: ask for 0, or name a partition that fits: big"
    ]


@pytest.mark.parametrize(
    ("field", "given"),
    [
        ("memory_gb", {"partition": "low", "memory_gb": 1000.0}),
        ("memory_gb", {"partition": "short", "memory_gb": 1000.0}),
        ("memory_gb", {"partition": "percpu", "memory_gb": 1000.0}),
        ("memory_gb", {"partition": "gpu", "memory_gb": 1000.0}),
        ("cpus", {"partition": "short", "cpus": 1000}),
        ("gpus", {"partition": "gpu", "gpus": 100, "gpu_model": "v100"}),
        ("time_limit_minutes", {"partition": "percpu", "time_limit_minutes": 100000}),
        ("time_limit_minutes", {"time_limit_minutes": 7, "lead_seconds": 1234.5}),
        ("lead_seconds", {"time_limit_minutes": 7, "lead_seconds": 1234.5}),
    ],
    ids=str,
)
def test_doing_what_a_problem_asks_is_enough(field: str, given: dict[str, Any]) -> None:
    (text,) = problems(asking(**given), REAL)
    advice = re.search(r"lead_seconds to at most (\d+)" if field == "lead_seconds" else r"more than ([\d.]+) \(", text)
    advice = advice or re.search(r"at (?:least|most) (\d+)", text)
    assert advice
    kind = type(asking().model_dump()[field])
    assert problems(asking(**given | {field: kind(float(advice[1]))}), REAL) == []


def test_all_problems_are_listed_at_once_also_in_a_partition_that_does_not_exist() -> None:
    wrong = asking(
        partition="percpu", time_limit_minutes=120, memory_gb=600.0, cpus=65, gpus=1, gpu_model="h100",
        constraint="nope", account="guests", qos="", lead_seconds=5000.0,
    )  # fmt: skip
    fields = [text.split(":")[0] for text in problems(wrong, REAL)]
    assert fields == [
        "time_limit_minutes", "account", "constraint", "cpus", "memory_gb", "gpu_model", "lead_seconds",
    ]  # fmt: skip
    fields = [text.split(":")[0] for text in problems(wrong.model_copy(update={"partition": "nope"}), REAL)]
    assert fields == ["partition", "constraint", "cpus", "memory_gb", "gpu_model", "lead_seconds"]


def test_a_person_learns_of_a_partition_that_starts_no_jobs_and_what_was_started_waits_for_it() -> None:
    assert problems(asking(partition="dwn"), REAL)
    assert not problems(asking(partition="dwn"), REAL, may_wait=True)
    assert not problems(asking(partition="drn"), REAL, may_wait=True), "SLURM refuses these, which is tried again"


def test_the_third_of_the_time_limit_is_the_limit_of_the_lead_unless_it_is_allowed() -> None:
    assert not problems(asking(time_limit_minutes=2, lead_seconds=40.0), REAL)
    assert problems(asking(time_limit_minutes=2, lead_seconds=40.5), REAL)
    assert not problems(asking(time_limit_minutes=2, lead_seconds=40.5), REAL, strict_lead=False)


# ------------------------------------------------------------------------------------------------- versions and forms


@pytest.mark.parametrize(
    ("gres", "count", "model", "fits"),
    [
        ("gpu:a100:4(S:0-1)", 4, "a100", True),
        ("gpu:a100:4(S:0-1)", 5, "a100", False),
        ("gpu:a100:4(S:0,2-3)", 4, "a100", True),
        ("gpu:a100:2(S:0),gpu:h100:3(S:1)", 3, "h100", True),
        ("gpu:a100:2(S:0),gpu:h100:3(S:1)", 3, "a100", False),
        ("gpu:a100:2(S:0),gpu:h100:3(S:1)", 5, "", True),
        ("gpu:a100:2(S:0),gpu:h100:3(S:1)", 6, "", False),
        ("gpu:a100:2(S:0),gpu:a100:2(S:1)", 4, "a100", True),
        ("gpu:2", 2, "", True),
        ("gpu:2", 3, "", False),
        ("gpu:2(S:0-1)", 3, "", False),
        ("gpu:a100:no_consume:2", 2, "a100", True),
        ("gpu:a100:no_consume:2", 3, "a100", False),
        ("gpu:nvidia_a100_80gb_pcie:2", 1, "nvidia_a100_80gb_pcie", True),
        ("gpu:nvidia_a100_80gb_pcie:2", 1, "a100", False),
        ("gpu:1g.5gb:7,shard:40", 8, "", False),
        ("craynetwork:4,gpu:a100:2(S:0-1),shard:a100:80", 2, "a100", True),
        ("shard:40,mps:a100:200", 1, "", False),
        ("(null)", 1, "", False),
        ("gpu:many", 9, "x", True),
        ("gpu", 9, "", True),
        ("gpu:a100:a100:2", 9, "", True),
        ("gpu:a100:2K", 9, "", True),
        ("", 9, "h100", True),
    ],
)
def test_gres_in_all_its_forms(gres: str, count: int, model: str, fits: bool) -> None:
    found = problems(asking(gpus=count, gpu_model=model), one({"Gres": gres}))
    assert (not found) is fits, found


@pytest.mark.parametrize(
    ("text", "minutes"),
    [
        ("1-00:00:00", 1440),
        ("7-00:00:00", 10080),
        ("1-12:30:00", 2190),
        ("1-12", 2160),
        ("1-12:30", 2190),
        ("06:00:00", 360),
        ("00:02:00", 2),
        ("30:00", 30),
        ("90", 90),
        ("00:02:30", 2),
        ("UNLIMITED", None),
        ("INFINITE", None),
        ("infinite", None),
        ("NONE", None),
        ("", None),
        ("soon", None),
    ],
)
@pytest.mark.parametrize("form", [PARTITION_22, PARTITION_24], ids=["22.05", "24.05"])
def test_the_longest_time_in_all_its_forms(text: str, minutes: int | None, form: str) -> None:
    here = one(form=form, MaxTime=text)
    assert not problems(asking(time_limit_minutes=minutes or 10**6), here)
    if minutes is not None:
        (problem,) = problems(asking(time_limit_minutes=minutes + 1), here)
        assert f"({minutes // 60}:{minutes % 60:02} h)" in problem
        assert not problems(asking(time_limit_minutes=minutes + 1, qos="long"), here), "a QOS may lift the limit"


@pytest.mark.parametrize(
    ("word", "given"),
    [
        ({"MaxMemPerNode": "8000"}, {"memory_gb": 8.0}),
        ({"MaxMemPerNode": "", "MaxMemPerCPU": "1000"}, {"memory_gb": 8.0}),
        ({"MaxCPUsPerNode": "4"}, {"cpus": 5}),
        ({"MaxTime": "02:00:00"}, {"time_limit_minutes": 121}),
        ({"State": "INACTIVE"}, {}),
        ({"AllowAccounts": "", "DenyAccounts": "guests"}, {"account": "guests"}),
        ({"AllowQos": "normal"}, {"qos": "long"}),
        ({"AllowQos": "", "DenyQos": "scavenger,idle"}, {"qos": "idle"}),
    ],
    ids=str,
)
@pytest.mark.parametrize("form", [PARTITION_22, PARTITION_24], ids=["22.05", "24.05"])
def test_limits_of_a_partition_are_read_in_every_version(
    word: dict[str, str], given: dict[str, Any], form: str
) -> None:
    assert len(problems(asking(**given), one(form=form, **word))) == 1
    assert not problems(asking(**given), one(form=form))


def test_accounts_and_qos_are_compared_as_slurm_keeps_them_and_one_allowed_qos_of_several_is_enough() -> None:
    here = one(AllowAccounts="physics,chem", AllowQos="normal,long")
    assert not problems(asking(account="Physics", qos="LONG"), here)
    assert not problems(asking(account="physics"), one(AllowAccounts="Physics"))
    assert not problems(asking(account="chem", qos="scav,long"), here)
    assert len(problems(asking(account="physic", qos="scav,idle"), here)) == 2
    denied = one(AllowAccounts="", AllowQos="", DenyQos="scav")
    assert not problems(asking(qos="scav,long"), denied)


def test_a_subaccount_of_an_allowed_account_is_not_refused_where_slurm_takes_it() -> None:
    assert problems(asking(account="physics-lab"), one(AllowAccounts="physics"))
    assert not problems(asking(account="physics-lab"), one(form=PARTITION_24, AllowAccounts="physics"))


@pytest.mark.parametrize(
    ("constraint", "fits"),
    [
        ("", True),
        ("volta", True),
        ("volta&nvlink", True),
        ("ib&volta", False),
        ("ib|volta", True),
        ("ib", False),
        ("ib&opa|opa", True),  # what binds closer is not for us to decide
        ("[volta|nope]", True),
        ("(nope&volta)", True),
        ("volta*2", True),
        ("!volta", True),
        ("volta,nope", True),
        ("nope", False),
        ("nope&volta|ib", False),
    ],
)
def test_constraints_of_plain_words_are_checked_and_others_are_not(constraint: str, fits: bool) -> None:
    here = cluster(
        [partition("gpu", Default="YES"), partition("other")],
        [node("n1", "gpu*", Features="volta,nvlink"), node("n2", "other", Features="ib,opa")],
    )
    assert (not problems(asking(constraint=constraint), here)) is fits


# ------------------------------------------------------------------------------------------------- unknown passes

MUCH = {
    "memory_gb": 10**6,
    "cpus": 10**6,
    "gpus": 10**6,
    "gpu_model": "h100",
    "constraint": "nope",
    "time_limit_minutes": 10**6,
    "account": "nobody",
    "partition": "gpu",
}


def fields_of(found: list[str]) -> set[str]:
    return {field for text in found for field in text.split(":")[0].split(", ")}


@pytest.mark.parametrize(
    ("changed", "silent"),
    [
        ({"CPUs": "8+"}, {"cpus"}),
        ({"CPUs": ""}, {"cpus"}),
        ({"Memory": "16000+"}, {"memory_gb"}),
        ({"Memory": "lots"}, {"memory_gb"}),
        ({"Gres": ""}, {"gpu_model"}),
        ({"Gres": "gpu:?"}, {"gpu_model"}),
        ({"Features": ""}, {"constraint"}),
        ({"StateLong": ""}, set()),
        ({"NodeHost": "", "NodeAddr": ""}, set()),
    ],
    ids=str,
)
def test_a_nodes_field_that_is_not_understood_silences_its_own_check_only(
    changed: dict[str, str], silent: set[str]
) -> None:
    all_fields = {"cpus", "memory_gb", "gpu_model", "constraint", "time_limit_minutes", "account"}
    limits = {"MaxTime": "10", "AllowAccounts": "physics"}
    assert fields_of(problems(asking(**MUCH), one(**limits))) == all_fields
    assert fields_of(problems(asking(**MUCH), one(changed, **limits))) == all_fields - silent


def test_what_a_partition_allows_is_known_where_its_nodes_are_not() -> None:
    unknown = {"Memory": "16000+", "CPUs": "8+"}
    limits = {"MaxMemPerNode": "8000", "MaxCPUsPerNode": "4"}
    assert not problems(asking(memory_gb=7.5, cpus=4), one(unknown, **limits))
    assert fields_of(problems(asking(memory_gb=8.5, cpus=5), one(unknown, **limits))) == {"memory_gb", "cpus"}
    assert not problems(asking(memory_gb=99.0), one(unknown, MaxMemPerNode="", MaxMemPerCPU="1"))


@pytest.mark.parametrize("word", re.findall(r"(\w+)=", PARTITION_22.split("TRES=")[0]))
def test_a_partition_without_one_of_its_words_refuses_nothing_that_it_did_not_refuse_before(word: str) -> None:
    fits = asking(partition="gpu", cpus=8, memory_gb=15.5, gpus=2, gpu_model="a100", account="chem", qos="long")
    limits = {"MaxTime": "02:00:00", "MaxMemPerNode": "15900", "AllowAccounts": "chem", "AllowQos": "long"}
    assert not problems(fits, one(**limits))
    assert not problems(fits, one(**limits | {word: ""}))
    if word != "PartitionName":  # by that alone the partition is known
        assert not problems(fits, one(**limits | {word: "?"})) or word in ("AllowAccounts", "AllowQos")


def test_nodes_that_slurm_counts_but_does_not_show_may_have_everything() -> None:
    """A cloud's sleeping nodes, as a real 22.05 answered: 12 nodes, of which 8 were shown."""
    for total, silent in (("1", False), ("2", True), ("", True), ("some", True)):
        found = fields_of(problems(asking(**MUCH), one(TotalNodes=total, MaxTime="10")))
        assert ("memory_gb" not in found and "cpus" not in found and "constraint" not in found) is silent
        assert "time_limit_minutes" in found


def test_a_feature_may_be_on_a_node_of_another_partition_that_is_not_shown() -> None:
    partitions = [partition("gpu", Default="YES"), partition("cloud", TotalNodes="5")]
    assert not problems(asking(constraint="volta|nope"), cluster(partitions, [node("n1", "gpu*", Features="volta")]))


@pytest.mark.parametrize("dead", ["scontrol", "sinfo", "both"])
@pytest.mark.parametrize(
    "failure",
    [
        FileNotFoundError("no such command"),
        PermissionError("not for you"),
        subprocess.TimeoutExpired("sinfo", 60),
        subprocess.CompletedProcess([], 1, "PartitionName=other", "Unable to contact slurm controller"),
        subprocess.CompletedProcess([], 0, "", ""),
        subprocess.CompletedProcess([], 0, "slurm_load_partitions: something\n|||\nn1|n2\n\0\ufffd", ""),
    ],
    ids=str,
)
def test_a_command_that_fails_or_babbles_makes_no_problem(dead: str, failure: Any) -> None:
    good = answers([partition("gpu", Default="YES")], [node("n1", "gpu*")])

    def run(command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
        if dead not in (command[0], "both"):
            return good(command, **options)
        if isinstance(failure, Exception):
            raise failure
        return failure

    assert problems(asking(**MUCH), read_cluster(run)) == []
    assert notes(asking(partition="gpu", exclude=["n1"]), read_cluster(run)) == []


def test_the_cluster_is_asked_twice_whatever_the_person_has_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SINFO_PARTITION", "low")
    monkeypatch.setenv("SLURM_CONF", "/etc/here.conf")
    calls: list[tuple[list[str], dict[str, Any]]] = []

    def run(command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
        calls.append((command, options))
        return subprocess.CompletedProcess(command, 0, "", "")

    read_cluster(run)
    assert [command[0] for command, _ in calls] == ["scontrol", "sinfo"]
    for command, options in calls:
        assert "--all" in command, "hidden partitions take jobs too"
        assert options["timeout"] and "SINFO_PARTITION" not in options["env"]
        assert options["env"]["SLURM_CONF"] == "/etc/here.conf" and options["env"]["LC_ALL"] == "C"


def test_without_a_default_partition_nothing_is_known() -> None:
    here = cluster([partition("gpu", MaxTime="1", TotalNodes="2")], [node("n1", "gpu")])
    assert not problems(asking(time_limit_minutes=60), here), "a plugin may choose the partition"
    assert problems(asking(partition="nope"), here)


def test_an_alternate_takes_the_jobs_of_a_partition_that_takes_none() -> None:
    def here(**changed: str) -> Cluster:
        return cluster(
            [partition("old", Alternate="new", **changed), partition("new", MaxTime="30")],
            [node("n1", "old", CPUs="99"), node("n2", "new")],
        )

    assert not problems(asking(partition="old", time_limit_minutes=60), here())
    for state in ("DRAIN", "INACTIVE"):
        assert not problems(asking(partition="old"), here(State=state))
        found = problems(asking(partition="old", time_limit_minutes=60, cpus=50), here(State=state))
        assert fields_of(found) == {"time_limit_minutes", "cpus"} and all("partition new" in text for text in found)


# ------------------------------------------------------------------------------------------------- notes, names, hosts


def test_excluded_nodes_that_are_not_shown_are_noted_and_not_refused() -> None:
    resources = asking(partition="low", exclude=["n1,zz[1-3]", "big0[1-2],n[1,2]", "/etc/a,file", "n9"])
    assert problems(resources, REAL) == []
    assert [re.search(r"no node (\S+);", text)[1] for text in notes(resources, REAL)] == ["zz[1-3]", "n9"]  # type: ignore[index]


def test_a_job_whose_nodes_are_all_down_now_is_noted_and_not_refused() -> None:
    for state in ("down", "down*", "drained", "draining", "drng", "inval", "fail", "unknown*"):
        (problem,) = notes(asking(), one({"StateLong": state}))
        assert f"n1 {state}" in problem and not problems(asking(), one({"StateLong": state}))
    for state in ("idle", "idle~", "mixed", "allocated", "planned", "powered_down", "reserved", "completing", ""):
        assert not notes(asking(), one({"StateLong": state}))
    two = cluster(
        [partition("gpu", Default="YES", TotalNodes="2")], [node("n1", "gpu*", StateLong="down"), node("n2", "gpu*")]
    )
    assert not notes(asking(), two)
    two = cluster(
        [partition("gpu", Default="YES", TotalNodes="2")],
        [node("n1", "gpu*", StateLong="down", CPUs="9"), node("n2", "gpu*")],
    )
    assert notes(asking(cpus=9), two)
    assert not notes(asking(cpus=99), two), "what fits nowhere is a problem, and no note"


@pytest.mark.parametrize(
    ("name", "expression", "named"),
    [
        ("n1", "n1", True),
        ("n1", "n10", False),
        ("n10", "n1", False),
        ("n2", "n[1-3,7]", True),
        ("n7", "n[1-3,7]", True),
        ("n4", "n[1-3,7]", False),
        ("n01", "n[1-3]", False),
        ("n01", "n[01-10]", True),
        ("n10", "n[01-10]", True),
        ("n10", "n[8-12]", True),
        ("n1", "n[01-10]", False),
        ("r2n05", "r[1-2]n[01-08]", True),
        ("r3n05", "r[1-2]n[01-08]", False),
        ("gpu2-ib", "gpu[1-2]-ib", True),
        ("gpu2", "gpu[1-2]-ib", False),
        ("n.1", "n.1", True),
        ("nx1", "n.1", False),
        ("n1", "n[x-z]", False),
        ("n1", "n[-]", False),
        ("n1", "n[1", False),
        ("n1", "/n1", False),
    ],
)
def test_lists_of_nodes(name: str, expression: str, named: bool) -> None:
    assert is_named(name, expression) is named


def test_many_nodes_on_one_host_are_one_host_and_so_are_many_names_of_one_address() -> None:
    def hosts(*pairs: tuple[str, str]) -> bool:
        nodes = [node(f"n{i}", "gpu", NodeHost=host, NodeAddr=address) for i, (host, address) in enumerate(pairs)]
        return cluster([partition("gpu")], nodes).several_hosts

    assert hosts(("a", "10.0.0.1"), ("b", "10.0.0.2"))
    assert not hosts(("localhost", "127.0.0.1"), ("localhost", "127.0.0.1"))
    assert not hosts(("localhost", "10.0.0.1"), ("localhost", "10.0.0.2"))
    assert not hosts(("a", "127.0.0.1"), ("b", "127.0.0.1"))
    assert not hosts(("a", "10.0.0.1"))
    assert not REAL.several_hosts and not hosts()


# ------------------------------------------------------------------------------------------------- the folder


def everything_below(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*"))


@pytest.fixture
def mounted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str], None]:
    """Makes the list of mounts hold everything, or a folder, on a file system of this type."""
    file = tmp_path / "mounts"
    monkeypatch.setattr(preflight, "MOUNTS", file)
    monkeypatch.delenv("TMPDIR", raising=False)
    return lambda text: file.write_text(text) and None


@pytest.mark.parametrize("below", ["", "study/train-baseline/abc"])
def test_a_folder_that_can_be_made_and_written_is_no_problem_and_stays_as_it_was(tmp_path: Path, below: str) -> None:
    root = tmp_path / "root"
    root.mkdir()
    (root / "kept").write_text("kept")
    before = everything_below(tmp_path)
    assert folder_problems(root / below, 1000) == []
    assert everything_below(tmp_path) == before


@pytest.mark.parametrize("failing", ["fsync", "mkdir"])
def test_what_the_disk_refuses_is_a_problem_and_nothing_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    def refuse(*_: Any) -> None:
        raise OSError(errno.EDQUOT, "Disk quota exceeded")

    (tmp_path / "made").mkdir()
    monkeypatch.setattr(os, failing, refuse)
    (problem,) = folder_problems(tmp_path / "new" / "run")
    assert problem == (
        f"root: {tmp_path}/new/run cannot be made in {tmp_path} (Disk quota exceeded): give a root where you may write"
    )
    assert everything_below(tmp_path) == [tmp_path / "made"]
    found = folder_problems(tmp_path / "made")
    assert found == ([f"root: {tmp_path}/made cannot be written (Disk quota exceeded): give a root where you may write"]
                     if failing == "fsync" else [])  # fmt: skip
    assert everything_below(tmp_path) == [tmp_path / "made"]


@pytest.fixture
def somebody_else() -> Iterator[None]:
    """As an ordinary user: root may write everywhere."""
    if os.geteuid() == 0:
        os.seteuid(65534)
        yield
        os.seteuid(0)
    else:
        yield


def test_a_folder_of_somebody_else_is_a_problem(tmp_path: Path, somebody_else: None) -> None:
    (problem,) = folder_problems(Path("/etc/ratchet/run"))
    assert re.fullmatch(r"root: /etc/ratchet/run cannot be made in /etc \(Permission denied\): .*", problem)
    (problem,) = folder_problems(Path("/etc"))
    assert "/etc cannot be written (Permission denied)" in problem


def test_a_file_or_a_dead_link_in_the_way_is_a_problem(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "link").symlink_to(tmp_path / "gone")
    for name in ("file", "link"):
        for folder in (tmp_path / name, tmp_path / name / "study" / "run"):
            (problem,) = folder_problems(folder)
            assert f"{tmp_path / name} is not a folder" in problem and str(folder) in problem
    (tmp_path / "gone").mkdir()
    assert folder_problems(tmp_path / "link" / "run") == []


def test_a_relative_folder_is_named_in_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("runs").write_text("")
    (problem,) = folder_problems(Path("runs/study"))
    assert f"{tmp_path}/runs/study" in problem


def test_a_disk_with_too_little_room_is_a_problem_with_both_figures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=3 << 30))
    assert folder_problems(tmp_path / "run", 3 << 30) == []
    (problem,) = folder_problems(tmp_path / "run", (3 << 30) + (1 << 28))
    assert problem.startswith("root: ") and "3.25 GiB" in problem and "3.00 GiB are free" in problem


def test_a_disk_that_does_not_report_its_room_is_no_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: Any) -> None:
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(shutil, "disk_usage", refuse)
    assert folder_problems(tmp_path / "run", 1) == []


@pytest.mark.parametrize(
    ("mounts", "reason"),
    [
        ("/dev/sda / ext4 rw 0 0\n", "below /tmp on this machine's own disk (ext4)"),
        ("overlay / overlay rw 0 0\n", "below /tmp on this machine's own disk (overlay)"),
        ("tmpfs / tmpfs rw 0 0\n", "in this machine's memory (tmpfs)"),
        ("/dev/sda / ext4 rw 0 0\ntmpfs /tmp tmpfs rw 0 0\n", "in this machine's memory (tmpfs)"),
        ("tmpfs /tmp tmpfs rw 0 0\nserver:/tmp /tmp nfs4 rw 0 0\n", ""),
        ("server:/ / nfs4 rw 0 0\n", ""),
        ("tmpfs /tmp tmpfs rw 0 0\nserver:/ / nfs4 rw 0 0\n", "in this machine's memory (tmpfs)"),
        ("/dev/sda / ext4 rw 0 0\nserver:/x /tmp lustre rw 0 0\n", ""),
        ("/dev/sda / ext4 rw 0 0\ntmpfs /tm tmpfs rw 0 0\nx /tmp beegfs_nodev rw 0 0\n", ""),
        ("x@y:/ / fuse.unheard-of rw 0 0\n", ""),
        ("", ""),
    ],
)
def test_a_folder_that_other_hosts_do_not_have_is_a_problem_when_there_are_other_hosts(
    mounted: Callable[[str], None], mounts: str, reason: str
) -> None:
    folder = Path("/tmp/ratchet-preflight-of-a-test")  # need not exist
    mounted(mounts)
    assert folder_problems(folder) == []
    found = folder_problems(folder, several_hosts=True)
    assert [reason in text for text in found] == ([True] if reason else [])
    assert not folder.exists()


def test_a_mounts_name_may_hold_blanks(tmp_path: Path, mounted: Callable[[str], None]) -> None:
    folder = tmp_path / "a b"
    folder.mkdir()
    mounted(f"server:/x / nfs4 rw 0 0\ntmpfs {str(folder).replace(' ', chr(92) + '040')} tmpfs rw 0 0\n")
    assert folder_problems(folder, several_hosts=True) and not folder_problems(tmp_path, several_hosts=True)


def test_the_temporary_folder_is_the_nodes_own_unless_it_is_on_a_shared_disk(
    tmp_path: Path, mounted: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preflight, "NODE_LOCAL", ("/local", "$TMPDIR"))
    for kind, is_local in (("xfs", True), ("lustre", False)):
        mounted(f"x / {kind} rw 0 0\n")
        monkeypatch.setenv("TMPDIR", str(tmp_path / "mine"))
        found = folder_problems(tmp_path / "mine" / "runs", several_hosts=True)
        assert [f"below $TMPDIR on this machine's own disk ({kind})" in text for text in found] == [True] * is_local
        assert not folder_problems(tmp_path / "shared", several_hosts=True)
        for nowhere in ("", "/", "mine"):
            monkeypatch.chdir(tmp_path)
            monkeypatch.setenv("TMPDIR", nowhere)
            assert not folder_problems(tmp_path / "mine" / "runs", several_hosts=True)


def test_a_link_to_a_nodes_own_disk_is_followed(tmp_path: Path, mounted: Callable[[str], None]) -> None:
    mounted("server:/ / nfs4 rw 0 0\ntmpfs /dev/shm tmpfs rw 0 0\n")
    (tmp_path / "scratch").symlink_to("/dev/shm")
    assert "in this machine's memory" in folder_problems(tmp_path / "scratch" / "new", several_hosts=True)[0]


def test_without_a_list_of_mounts_nothing_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "MOUNTS", tmp_path / "none")
    assert folder_problems(tmp_path, several_hosts=True) == []


# ------------------------------------------------------------------------------------------------- all together


def test_require_says_everything_in_one_message_and_names_the_stage(
    tmp_path: Path, mounted: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    mounted("tmpfs / tmpfs rw 0 0\n")
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=LEAST_FREE_BYTES - 1))
    two = cluster(
        [partition("gpu", Default="YES", State="DOWN", TotalNodes="2")], [node("n1", "gpu*"), node("n2", "gpu*")]
    )
    resources = asking(cpus=99, lead_seconds=80.0)
    with pytest.raises(BadInput) as raised:
        require(resources, two, tmp_path, "my-study, stage train-baseline")
    text = str(raised.value)
    assert text.startswith("my-study, stage train-baseline: nothing was submitted")
    wanted = ("partition: gpu is DOWN", "cpus: 99", "lead_seconds: 80", "GiB below", "in this machine's memory")
    assert [text.count(part) for part in wanted] == [1] * len(wanted)
    with pytest.raises(BadInput) as raised:
        require(resources, two, tmp_path, "x", strict_lead=False, may_wait=True)
    assert "lead_seconds" not in str(raised.value) and "DOWN" not in str(raised.value)


def test_require_is_silent_when_all_is_well(tmp_path: Path) -> None:
    require(asking(), REAL, tmp_path / "study" / "run", "train-baseline")
    require(asking(), Cluster({}), tmp_path, "train-baseline")
