"""What preflight finds before a job is submitted, from answers as SLURM gives them, and of the folder of the run.

`PARTITION_22` and what `sbatch --test-only` says were printed by a real SLURM 22.05.8, which
tests/slurm/test_refusals.py asks. The forms of later versions are put together from pages that show them.
"""

import errno
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from deployments.slurm.cluster.client import NotNow, Refused, Unreachable
from deployments.slurm.cluster.partitions import NODE_FIELDS, Cluster, read_cluster
from deployments.slurm.cluster.site import Resources
from deployments.slurm.job import preflight
from deployments.slurm.job.preflight import LEAST_FREE_BYTES, folder_problems, notes, problems, require
from storage.errors import BadInput

NO_NODE = "Requested node configuration is not available"
HOST = {"NodeHost": "localhost", "NodeAddr": "127.0.0.1"}
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


class Slurm:
    """Answers as `scontrol`, `sinfo` and `sbatch --test-only` do; `says` is sbatch's refusal."""

    def __init__(self, partitions: list[str], nodes: list[str], says: Exception | str = "") -> None:
        self.partitions, self.nodes, self.says, self.asked = partitions, nodes, says, list[str]()

    def run(self, command: list[str]) -> subprocess.CompletedProcess[str]:
        said = self.partitions if command[0] == "scontrol" else self.nodes
        return subprocess.CompletedProcess(command, 0, "\n".join(said), "")

    def would_take(self, script: str) -> None:
        self.asked.append(script)
        known = any(f"--partition={line.split()[0].partition('=')[2]}\n" in script for line in self.partitions)
        if self.says and not (known and "artition name" in str(self.says)):
            raise self.says if isinstance(self.says, Exception) else Refused(self.says)


def cluster(partitions: list[str], nodes: list[str], says: Exception | str = "") -> Cluster:
    slurm = Slurm(partitions, nodes, says)
    return read_cluster(slurm.run, slurm.would_take)


def asking(**given: Any) -> Resources:
    """Resources that fit anywhere, but for what is given."""
    return Resources(**{"time_limit_minutes": 2, "lead_seconds": 10.0, "memory_gb": 0.5} | given)


def one(
    node_changed: dict[str, str] | None = None, form: str = PARTITION_22, says: Exception | str = "", **changed: str
) -> Cluster:
    """A cluster of one partition, the default one, with one node."""
    return cluster(
        [partition("gpu", form, **{"Default": "YES"} | changed)],
        [node("n1", "gpu*", **{"Gres": "gpu:a100:2"} | (node_changed or {}))],
        says,
    )


def real(says: Exception | str = "", **of_big: str) -> Cluster:
    """A cluster of several partitions."""
    big = (
        {"CPUs": "64", "Memory": "515000", "Gres": "gpu:v100:4,gpu:a100:2", "Features": "volta,nvlink"} | HOST | of_big
    )
    return cluster(
        [
            partition("cpu", Default="YES"),
            partition("gpu", MaxTime="1-00:00:00"),
            partition("short", MaxTime="1-12:30:00", MaxCPUsPerNode="16", MaxMemPerNode="100000"),
            partition("percpu", AllowAccounts="", DenyAccounts="guests", DenyQos="scav", MaxTime="01:30:00"),
            partition("hid", Hidden="YES"),
            partition("dwn", State="DOWN"),
            partition("drn", State="DRAIN"),
            partition("high", State="DRAIN", Alternate="percpu"),
            partition("physics", AllowAccounts="physics,chem"),
            partition("quick", AllowQos="normal,long"),
        ],
        [
            node("big1", "cpu* gpu short percpu", **big),
            node("n1", "cpu* gpu dwn drn physics quick", Gres="gpu:a100:2", **HOST),
            node("u1", "cpu* hid", Gres="gpu:3", CPUs="32", **HOST),
        ],
        says,
    )


# ------------------------------------------------------------------------------------------------- what SLURM refuses


@pytest.mark.parametrize(
    ("given", "says", "message"),
    [
        (
            {"partition": "gup"},
            "invalid partition specified: gup Invalid partition name specified",
            r"partition gup: SLURM refuses the job \(invalid partition specified: gup .*\): it knows no gup: name one "
            r"of gpu, cpu, (?!.*hid).*",
        ),
        ({"partition": "cpu,CPU"}, "Invalid partition name specified", r".* it knows no CPU: name one of cpu, .*"),
        (
            {"partition": "gpu", "memory_gb": 900.0},
            NO_NODE,
            rf"memory_gb 900.0: SLURM refuses the job \({NO_NODE}\); in partition gpu big1 has 64 CPUs, 502.92 GB, "
            r"2 a100, 4 v100, nvlink, volta; n1 has 8 CPUs, 15.62 GB, 2 a100: ask for less",
        ),
        ({"partition": "quick", "cpus": 9}, NO_NODE, r"cpus 9: .* or name a partition that fits: cpu, gpu, sh.*"),
        (
            {"partition": "short", "cpus": 17, "gpus": 1},
            NO_NODE,
            r"cpus 17, memory_gb 0.5, gpus 1: .*; in partition short short has MaxCPUsPerNode=16, "
            r"MaxMemPerNode=100000; big1 has .*: ask for less, or name a partition that fits: cpu, gpu, percpu",
        ),
        (
            {"partition": "gpu", "gpus": 1, "gpu_model": "V100"},
            NO_NODE,
            r"gpu_model V100, gpus 1: .*: its GPUs are not of this model: name one of v100, a100",
        ),
        ({"partition": "hid", "gpus": 1, "gpu_model": "a100"}, NO_NODE, r"gpu_model .*: leave it empty, or .* cpu, .*"),
        ({"gpus": 1, "gpu_model": "h9"}, "Invalid generic resource (gres)", r"gpu_model h9, gpus 1: .*a100.*"),
        ({"partition": "gpu", "gpus": 5, "gpu_model": "a100"}, NO_NODE, r"gpus 5: .*: ask for less"),
        ({"partition": "percpu", "exclude": ["big[1-2]"]}, NO_NODE, r"exclude big\[1-2\]: .*: exclude fewer .*"),
        ({"partition": "physics", "constraint": "volta"}, NO_NODE, r"constraint volta: .* fits: cpu, gpu, .*"),
        ({"constraint": "volt&x"}, "Invalid feature specification", r"constraint .*no volt, x: name one of volta, .*"),
        ({"exclude": ["zz"]}, "Invalid node name specified", r"exclude zz: .*: correct it, or leave it empty"),
        ({"reservation": "r"}, "Requested reservation is invalid", r"reservation r: .*: correct it, .*"),
        ({"account": "x"}, "Invalid account or account/partition combination specified", r"account x: .*"),
        ({"qos": "x"}, "Invalid qos specification", r"qos x: .*"),
        ({"cpus": 2}, "a plugin of this site wants more", r".*, cpus 2, .*: SLURM .* \(a plugin .*\): correct .*"),
    ],
    ids=str,
)  # fmt: skip
def test_what_slurm_refuses_is_told_with_its_words_the_keys_that_are_meant_and_what_to_do(given, says, message):
    (text,) = problems(asking(**given), real(says))
    assert re.fullmatch(message, text), text
    assert not notes(asking(**given), real(says))


def test_a_job_that_slurm_takes_is_no_problem_whatever_is_seen_of_nodes():
    assert not problems(asking(memory_gb=10**6, cpus=10**6, gpus=9, gpu_model="x", constraint="nope"), real())


@pytest.mark.parametrize("says", [NotNow("QOSMaxSubmitJobPerUserLimit"), Unreachable("Socket timed out")])
def test_a_job_that_slurm_takes_later_or_says_nothing_of_is_no_problem(says):
    assert not problems(asking(), real(says))


def test_a_job_whose_nodes_are_all_down_now_is_noted_and_not_refused():
    """`sbatch --test-only` refuses it in the words in which it refuses what no node has; `sbatch` queues it."""
    for state in ("down", "down*", "drained", "draining", "inval", "fail", "unknown*", "idle*", "maint"):
        here = one({"StateLong": state}, says=NO_NODE)
        (told,) = notes(asking(), here)
        assert f"n1 {state}" in told and not problems(asking(), here)
        assert problems(asking(cpus=9), here) and not notes(asking(cpus=9), here), "it fits nowhere"
    for state in ("idle", "idle~", "mixed", "allocated", "planned", "reserved", "completing"):
        assert problems(asking(), one({"StateLong": state}, says=NO_NODE))
    assert not notes(asking(gpus=4), real(NO_NODE)), "the one that fits is up"
    assert notes(asking(gpus=4), real(NO_NODE, StateLong="down")) and not problems(
        asking(gpus=4), real(NO_NODE, StateLong="down")
    )


def test_with_an_unknown_partition_all_else_that_is_wrong_is_told_too():
    """It came after the first correction."""

    def refuses(script: str) -> None:
        words = {"--partition=gup": "Invalid partition name specified", "--constraint=volt": "Invalid feature"}
        for option, said in words.items():
            if option in script:
                raise Refused(said)

    told = problems(asking(partition="gup", constraint="volt"), replace(real(), would_take=refuses))
    assert [text.partition(": ")[0] for text in told] == ["partition gup", "constraint volt"]


@pytest.mark.parametrize(
    ("exclude", "told"),
    [(["n1", "n2"], True), (["n[1-2]"], True), (["n[01-09]"], True), (["n[1,3]"], False), (["n1", "n22"], False)],
)
def test_that_all_nodes_are_excluded_is_told_at_the_start_where_a_down_node_would_fit(exclude, told):
    nodes = [node(name, "gpu*", StateLong=state) for name, state in (("n1", "idle"), ("n2", "down"))]
    here = cluster([partition("gpu", Default="YES")], nodes, NO_NODE)
    found = problems(asking(exclude=exclude), here)
    assert [text.endswith("exclude fewer nodes") and text.startswith("exclude n") for text in found] == [True] * told
    assert bool(notes(asking(exclude=exclude), here)) != told


def test_where_slurm_counts_no_memory_none_is_to_be_asked_for():
    """RealMemory is 1 where slurm.conf does not name it: every job that asks for memory is refused."""
    (told,) = problems(asking(memory_gb=32), one({"Memory": "1"}, says=NO_NODE))
    assert re.fullmatch(r"memory_gb 32.0: .*RealMemory 1.*: set memory_gb to 0, .*", told), told


def test_each_kind_of_job_is_asked_for_once():
    slurm = Slurm([partition("gpu", Default="YES")], [], NO_NODE)
    here = read_cluster(slurm.run, slurm.would_take)
    for cpus in (1, 2, 1):
        problems(asking(cpus=cpus), here)
        notes(asking(cpus=cpus), here)
    assert len(slurm.asked) == 2 and "#SBATCH --cpus-per-task=2\n" in slurm.asked[1] + "\n"


def test_of_many_partitions_a_dozen_are_named():
    names = [f"p{i:02}" for i in range(20)]
    (problem,) = problems(asking(partition="p77"), cluster([*map(partition, names)], [], "Invalid partition name"))
    assert len(re.findall(r"\bp\d\d\b", problem)) == 14 and problem.endswith(" and 8 more")


@pytest.mark.parametrize(
    ("gres", "gpus"),
    [
        ("gpu:a100:4(S:0-1)", "4 a100"),
        ("gpu:a100:4(S:0,2-3)", "4 a100"),
        ("gpu:a100:2(S:0),gpu:h100:3(S:1)", "2 a100, 3 h100"),
        ("gpu:a100:2(S:0),gpu:a100:2(S:1)", "4 a100"),
        ("gpu:2(S:0-1)", "2 GPUs"),
        ("gpu:a100:no_consume:2", "2 a100"),
        ("gpu:1g.5gb:7,shard:40", "7 1g.5gb"),
        ("craynetwork:4,gpu:a100:2(S:0-1),shard:a100:80", "2 a100"),
        ("shard:40,mps:a100:200", ""),
        ("(null)", ""),
        ("", ""),
    ],
)
def test_gres_in_all_its_forms(gres, gpus):
    (text,) = problems(asking(cpus=99), one({"Gres": gres}, says=NO_NODE))
    assert f"n1 has {', '.join(filter(None, ['8 CPUs, 15.62 GB', gpus]))}: ask for less" in text


# ------------------------------------------------------------------------------------------------- what SLURM takes


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"partition": "percpu", "time_limit_minutes": 2941},
            r"time_limit_minutes: 2941 \(49:01 h\) is more than partition percpu allows \(1:30 h\): ask for at most "
            r"90 .*, or name a partition that fits: cpu, physics, quick",
        ),
        (
            {"partition": "physics", "account": "Biology"},
            r"account: partition physics takes no jobs of Biology: name one of chem, physics, or name .*: cpu, .*quick",
        ),
        ({"partition": "percpu", "account": "guests"}, r"account: partition percpu .* guests: name another, or .*"),
        ({"partition": "quick", "qos": "scav"}, r"qos: .* scav: name one of long, normal, or .*: cpu, .*physics"),
        ({"partition": "percpu", "qos": "scav"}, r"qos: partition percpu takes no jobs of scav: name another.*"),
        ({"partition": "drn"}, r"partition: drn is DRAIN .*: submit again when `sinfo` shows it up, or .*: cpu, .*"),
        ({"partition": "dwn"}, r"partition: dwn is DOWN .*"),
        ({"partition": "high", "time_limit_minutes": 91}, r"time_limit_minutes: .* partition percpu .*"),
        (
            {"time_limit_minutes": 5, "lead_seconds": 101.0},
            r"lead_seconds: 101 s is more than a third of the time limit of 0:05 h.*: set time_limit_minutes to at "
            r"least 6, or lead_seconds to at most 100",
        ),
    ],
    ids=str,
)
def test_what_slurm_would_let_wait_for_ever_is_told(given, message):
    (text,) = problems(asking(**given), real())
    assert re.fullmatch(message, text), text


def test_a_partition_of_several_that_takes_the_job_is_enough():
    assert not problems(asking(partition="percpu,cpu", time_limit_minutes=120), real())
    assert not problems(asking(partition="dwn,cpu"), real())


def test_a_person_learns_of_a_partition_that_starts_no_jobs_and_what_was_started_waits_for_it():
    for name in ("dwn", "drn"):
        assert problems(asking(partition=name), real())
        assert not problems(asking(partition=name), real(NotNow("inactive or drain")), may_wait=True)


def test_the_third_of_the_time_limit_is_the_limit_of_the_lead_unless_it_is_allowed():
    assert not problems(asking(time_limit_minutes=2, lead_seconds=40.0), real())
    assert problems(asking(time_limit_minutes=2, lead_seconds=40.5), real())
    assert not problems(asking(time_limit_minutes=2, lead_seconds=40.5), real(), strict_lead=False)


@pytest.mark.parametrize("form", [PARTITION_22, PARTITION_24], ids=["22.05", "24.05"])
@pytest.mark.parametrize(
    ("text", "minutes"),
    [("1-12:30:00", 2190), ("06:00:00", 360), ("00:02:30", 2), ("UNLIMITED", None), ("NONE", None), ("", None)],
)
def test_the_longest_time_in_all_its_forms(text, minutes, form):
    here = one(form=form, MaxTime=text)
    assert not problems(asking(time_limit_minutes=minutes or 10**6), here)
    if minutes is not None:
        (problem,) = problems(asking(time_limit_minutes=minutes + 1), here)
        assert f"({minutes // 60}:{minutes % 60:02} h)" in problem
        assert not problems(asking(time_limit_minutes=minutes + 1, qos="long"), here), "a QOS may lift the limit"


def test_accounts_and_qos_are_compared_as_slurm_keeps_them_and_one_allowed_qos_of_several_is_enough():
    here = one(AllowAccounts="physics,chem", AllowQos="normal,long")
    assert not problems(asking(account="Physics", qos="LONG"), here)
    assert not problems(asking(account="chem", qos="scav,long"), here)
    assert len(problems(asking(account="physic", qos="scav,idle"), here)) == 2
    assert not problems(asking(qos="scav,long"), one(AllowQos="", DenyQos="scav"))
    assert problems(asking(account="physics-lab"), one(AllowAccounts="physics"))
    assert not problems(asking(account="physics-lab"), one(form=PARTITION_24, AllowAccounts="physics")), "a subaccount"


# ------------------------------------------------------------------------------------------------- unknown passes


@pytest.mark.parametrize("word", re.findall(r"(\w+)=", PARTITION_22.split("TRES=")[0]))
def test_a_partition_without_one_of_its_words_refuses_nothing_that_it_did_not_refuse_before(word):
    fits = asking(partition="gpu", account="chem", qos="long")
    limits = {"MaxTime": "02:00:00", "AllowAccounts": "chem", "AllowQos": "long"}
    for text in ("", "?"):
        assert not problems(fits, one(**limits | {word: text})) or (text and word in ("AllowAccounts", "AllowQos"))


@pytest.mark.parametrize("dead", ["scontrol", "sinfo", "both"])
@pytest.mark.parametrize(
    "failure",
    [
        Unreachable("not installed"),
        subprocess.CompletedProcess([], 1, "PartitionName=other", "Unable to contact slurm controller"),
        subprocess.CompletedProcess([], 0, "", ""),
        subprocess.CompletedProcess([], 0, "slurm_load_partitions: something\n|||\nn1|n2\n\0\ufffd", ""),
    ],
    ids=str,
)
def test_a_command_that_fails_or_babbles_makes_no_problem(dead, failure):
    slurm = Slurm([partition("gpu", Default="YES")], [node("n1", "gpu*")], NO_NODE)

    def run(command: list[str]) -> subprocess.CompletedProcess[str]:
        if dead not in (command[0], "both"):
            return slurm.run(command)
        if isinstance(failure, Exception):
            raise failure
        return failure

    here = read_cluster(run, slurm.would_take)
    assert problems(asking(cpus=99, account="nobody"), here) == notes(asking(), here) == []


def test_the_cluster_is_asked_twice_whatever_the_person_has_set(monkeypatch, tmp_path):
    for command in ("scontrol", "sinfo", "sbatch"):
        (tmp_path / command).write_text(f'#!/bin/sh\necho "{command} $* $(env)" >> {tmp_path}/asked\n')
        (tmp_path / command).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    for name in ("SINFO_PARTITION", "SBATCH_PARTITION"):
        monkeypatch.setenv(name, "low")
    monkeypatch.setenv("SLURM_CONF", "/etc/here.conf")
    here = read_cluster()
    assert not problems(asking(), here) and not problems(asking(), here)
    asked = (tmp_path / "asked").read_text()
    assert asked.count("scontrol show partition --all") == asked.count("sinfo --all") == 1, "hidden ones take jobs too"
    assert asked.count("sbatch --test-only") == 1 and "_PARTITION" not in asked
    assert asked.count("SLURM_CONF=/etc/here.conf") == asked.count("LC_ALL=C\n") == 3


def test_many_nodes_on_one_host_are_one_host_and_so_are_many_names_of_one_address():
    def hosts(*pairs: tuple[str, str]) -> bool:
        nodes = [node(f"n{i}", "gpu", NodeHost=host, NodeAddr=address) for i, (host, address) in enumerate(pairs)]
        return cluster([partition("gpu")], nodes).several_hosts

    assert hosts(("a", "10.0.0.1"), ("b", "10.0.0.2"))
    assert not hosts(("localhost", "127.0.0.1"), ("localhost", "127.0.0.1"))
    assert not hosts(("localhost", "10.0.0.1"), ("localhost", "10.0.0.2"))
    assert not hosts(("a", "127.0.0.1"), ("b", "127.0.0.1"))
    assert not hosts(("a", "10.0.0.1")) and not hosts()


# ------------------------------------------------------------------------------------------------- the folder


def everything_below(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*"))


@pytest.fixture
def mounted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str], None]:
    """Makes the list of mounts hold everything, or a folder, on a file system of this type."""
    (tmp_path / "self").mkdir()
    for name in ("filesystems", "self/mounts"):
        (tmp_path / name).touch()
    monkeypatch.setattr(psutil, "PROCFS_PATH", str(tmp_path))
    monkeypatch.delenv("TMPDIR", raising=False)
    return lambda text: (tmp_path / "self" / "mounts").write_text(text) and None


@pytest.mark.parametrize("below", ["", "study/train-baseline/abc"])
def test_a_folder_that_can_be_made_and_written_is_no_problem_and_stays_as_it_was(tmp_path, below):
    root = tmp_path / "root"
    root.mkdir()
    (root / "kept").write_text("kept")
    before = everything_below(tmp_path)
    assert folder_problems(root / below, 1000) == []
    assert everything_below(tmp_path) == before


@pytest.mark.parametrize("failing", ["fsync", "mkdir"])
def test_what_the_disk_refuses_is_a_problem_and_nothing_stays(tmp_path, monkeypatch, failing):
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


def test_a_folder_of_somebody_else_is_a_problem(tmp_path, somebody_else):
    (problem,) = folder_problems(Path("/etc/ratchet/run"))
    assert re.fullmatch(r"root: /etc/ratchet/run cannot be made in /etc \(Permission denied\): .*", problem)
    (problem,) = folder_problems(Path("/etc"))
    assert "/etc cannot be written (Permission denied)" in problem


def test_a_file_or_a_dead_link_in_the_way_is_a_problem(tmp_path):
    (tmp_path / "file").write_text("")
    (tmp_path / "link").symlink_to(tmp_path / "gone")
    for name in ("file", "link"):
        for folder in (tmp_path / name, tmp_path / name / "study" / "run"):
            (problem,) = folder_problems(folder)
            assert f"{tmp_path / name} is not a folder" in problem and str(folder) in problem
    (tmp_path / "gone").mkdir()
    assert folder_problems(tmp_path / "link" / "run") == []


def test_a_relative_folder_is_named_in_full(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("runs").write_text("")
    (problem,) = folder_problems(Path("runs/study"))
    assert f"{tmp_path}/runs/study" in problem


def test_a_disk_with_too_little_room_is_a_problem_with_both_figures(tmp_path, monkeypatch):
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=3 << 30))
    assert folder_problems(tmp_path / "run", 3 << 30) == []
    (problem,) = folder_problems(tmp_path / "run", (3 << 30) + (1 << 28))
    assert problem.startswith("root: ") and "3.25 GiB" in problem and "3.00 GiB are free" in problem


def test_a_disk_that_does_not_report_its_room_is_no_problem(tmp_path, monkeypatch):
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
def test_a_folder_that_other_hosts_do_not_have_is_a_problem_when_there_are_other_hosts(mounted, mounts, reason):
    folder = Path("/tmp/ratchet-preflight-of-a-test")  # need not exist
    mounted(mounts)
    assert folder_problems(folder) == []
    found = folder_problems(folder, several_hosts=True)
    assert [reason in text for text in found] == ([True] if reason else [])
    assert not folder.exists()


def test_a_mounts_name_may_hold_blanks(tmp_path, mounted):
    folder = tmp_path / "a b"
    folder.mkdir()
    mounted(f"server:/x / nfs4 rw 0 0\ntmpfs {str(folder).replace(' ', chr(92) + '040')} tmpfs rw 0 0\n")
    assert folder_problems(folder, several_hosts=True) and not folder_problems(tmp_path, several_hosts=True)


def test_the_temporary_folder_is_the_nodes_own_unless_it_is_on_a_shared_disk(tmp_path, mounted, monkeypatch):
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


def test_a_link_to_a_nodes_own_disk_is_followed(tmp_path, mounted):
    mounted("server:/ / nfs4 rw 0 0\ntmpfs /dev/shm tmpfs rw 0 0\n")
    (tmp_path / "scratch").symlink_to("/dev/shm")
    assert "in this machine's memory" in folder_problems(tmp_path / "scratch" / "new", several_hosts=True)[0]


def test_without_a_list_of_mounts_nothing_is_known(tmp_path, monkeypatch):
    monkeypatch.setattr(psutil, "PROCFS_PATH", str(tmp_path / "none"))
    assert folder_problems(tmp_path, several_hosts=True) == []


# ------------------------------------------------------------------------------------------------- all together


def test_require_says_everything_in_one_message_and_names_the_stage(tmp_path, mounted, monkeypatch):
    mounted("tmpfs / tmpfs rw 0 0\n")
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=LEAST_FREE_BYTES - 1))
    nodes = [node("n1", "gpu*"), node("n2", "gpu*")]
    two = cluster([partition("gpu", Default="YES", MaxTime="00:03:00")], nodes, NO_NODE)
    resources = asking(cpus=99, time_limit_minutes=4, lead_seconds=81.0, pass_environment=["SURELY_NOT_SET"])
    with pytest.raises(BadInput) as raised:
        require(resources, two, tmp_path, "my-study, stage train-baseline")
    text = str(raised.value)
    assert text.startswith("my-study, stage train-baseline: nothing was submitted")
    wanted = ("time_limit_minutes: 4", "cpus 99", "lead_seconds: 81", "SURELY", "GiB below", "in this machine's memory")
    assert [text.count(part) for part in wanted] == [1] * len(wanted)


def test_require_is_silent_when_all_is_well(tmp_path):
    require(asking(), real(), tmp_path / "study" / "run", "train-baseline")
    require(asking(), Cluster({}), tmp_path, "train-baseline")
    require(asking(partition="dwn"), real(), tmp_path, "x")
