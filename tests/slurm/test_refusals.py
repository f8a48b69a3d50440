"""What could not run: refused before any job, or diagnosed by the first one; with what to do."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from deployments.slurm.cluster.partitions import read_cluster
from deployments.slurm.cluster.site import Resources
from deployments.slurm.job.preflight import problems
from storage.errors import BadInput
from tests.slurm.conftest import cluster_or_skip
from tests.slurm.harness import Bench, Cluster, StageRun, until

pytestmark = pytest.mark.slurm_long
NEVER: dict[str, dict[str, Any]] = {
    "partition nope": {"partition": "nope"},
    "partition: drained": {"partition": "drained"},
    "partition: dwn": {"partition": "dwn"},
    "time_limit_minutes: 60": {"partition": "short", "time_limit_minutes": 60},
    "account: partition physics": {"partition": "physics", "account": "chem"},
    "memory_gb 999": {"memory_gb": 999},
    "cpus 999": {"cpus": 999},
    "gpus 99": {"gpus": 99},
    "gpu_model a10, gpus 1": {"gpus": 1, "gpu_model": "a10"},
    "constraint volt": {"constraint": "volt"},
    "exclude zz": {"exclude": ["zz"]},
    "exclude n[1-2]": {"partition": "few", "exclude": ["n[1-2]"]},
    "cpus 5, memory_gb 0.5": {"partition": "few", "cpus": 5},
    "cpus 9, memory_gb 0.5, gpus 1": {"cpus": 9, "gpus": 1},
    "reservation nobodys": {"reservation": "nobodys"},
}
"""By the beginning of what is told."""
HONEST: dict[str, dict[str, Any]] = {
    "what fits": {"gpus": 2, "gpu_model": "a100", "cpus": 8, "memory_gb": 15},
    "one of two partitions": {"partition": "dwn,cpu"},
    "a node that is down": {"constraint": "volta", "cpus": 16},
    "nodes that are busy": {"partition": "busy", "cpus": 8},
    "the alternate of a partition that takes none": {"partition": "old", "time_limit_minutes": 60},
}
CLUSTER = [
    "NodeName=volta1 NodeAddr=127.0.0.1 Port=9 CPUs=16 RealMemory=16000 Feature=volta State=DOWN",
    "PartitionName=drained State=DRAIN",
    "PartitionName=dwn State=DOWN",
    "PartitionName=short MaxTime=10",
    "PartitionName=old State=DRAIN Alternate=cpu",
    "PartitionName=physics AllowAccounts=physics",
    "PartitionName=few MaxCPUsPerNode=4 Nodes=n[1-2]",
    "PartitionName=busy Nodes=n1",
]


@pytest.fixture(scope="module")
def of_many_kinds() -> Iterator[Cluster]:
    """A cluster with a node that is down and one that is busy."""
    made = cluster_or_skip(extra=r"\n".join(CLUSTER))
    made.slurm("sbatch", "--output=/dev/null", "--exclusive", "--nodelist=n1", "--time=60", "--wrap=sleep 600")
    until("it runs", lambda: "RUNNING" in made.jobs().values())
    yield made
    made.wipe()


@pytest.mark.parametrize("told", NEVER)
def test_what_could_never_run_is_told_before_any_job(told, of_many_kinds, monkeypatch):
    found = asked_of(of_many_kinds, NEVER[told], monkeypatch)
    assert [text.startswith(told) for text in found] == [True], found
    assert ": " in found[0].removeprefix(told), "and what to do"


@pytest.mark.parametrize("honest", HONEST)
def test_what_waits_its_turn_is_queued(honest, of_many_kinds, monkeypatch):
    assert asked_of(of_many_kinds, HONEST[honest], monkeypatch) == []


def asked_of(cluster: Cluster, given: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    for name, value in cluster.environment.items():
        monkeypatch.setenv(name, value)
    asked = {"time_limit_minutes": 2, "lead_seconds": 10.0, "memory_gb": 0.5} | given
    return problems(Resources(**asked), read_cluster())


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "partition": ({"partition": "nope"}, "cpu, gpu"),
    "memory": ({"memory_gb": 9000}, "memory"),
}


@pytest.mark.parametrize("wrong", REFUSED)
def test_resources_that_the_cluster_does_not_have_are_refused_before_any_job(wrong, bench, tmp_path):
    resources, told = REFUSED[wrong]
    before = bench.cluster.submitted()
    with pytest.raises(BadInput, match=told) as refused:
        bench.dispatch(tmp_path / "runs", resources=resources)
    assert "nothing was submitted" in str(refused.value)
    run = past_the_checks(bench, tmp_path / "other", resources)
    run.wait("Failed")
    before_sbatch = told in run.message and "Resources stand in the site file" in run.message
    # where sbatch does not answer in time, as was seen on a busy machine, its second answer counts
    assert before_sbatch or "SLURM refused the job: " in run.message
    assert bench.cluster.submitted() == before
    assert not list((tmp_path / "runs").rglob("jobs")), "nothing was begun"


def past_the_checks(bench: Bench, root: Path, resources: dict[str, Any]) -> StageRun:
    """The run of a training whose study was changed after a start had looked at it."""
    bench.stop_workers("server")
    one = bench.dispatch(root)
    values = yaml.safe_load(one.slurm.file.read_text())
    values["study"]["execution"]["resources"] = {"all": resources}
    one.slurm.file.write_text(yaml.safe_dump(values))
    bench.ensure_worker()
    return one.run


def test_an_output_folder_that_cannot_be_written_is_refused_before_any_job(bench, tmp_path):
    before = bench.cluster.submitted()
    with pytest.raises((BadInput, OSError), match="/proc"):
        bench.dispatch(Path("/proc/ratchet"))
    assert bench.cluster.submitted() == before


def test_setup_lines_that_fail_on_the_node_end_the_stage_and_corrected_ones_are_taken_by_a_retry(bench, tmp_path):
    with bench.site_with(setup_lines=["module load no-such-module"]):
        one = bench.dispatch(tmp_path / "runs")
        one.run.wait("Failed")
        assert "setup lines" in one.run.message and "setup_lines in the site file" in one.run.message
        assert len(one.jobs()) == 1 and not one.records()
        log = next((one.folder / "jobs").glob("*.log")).read_text()
        assert "module" in log, "the job's log says why"
    with bench.site_with(setup_line=[]), pytest.raises(BadInput, match="did you mean 'setup_lines'"):
        one.run.retry()
    one.run.retry()
    one.run.wait("Completed")
    assert len(one.jobs()) == 2


def test_a_study_file_that_is_gone_is_named_by_the_first_job(bench, tmp_path):
    bench.cluster.hold()
    one = bench.dispatch(tmp_path / "runs")
    one.job("PENDING")
    for file in (tmp_path / "runs" / one.study.name / "studies").glob("*"):
        file.unlink()
    bench.cluster.release()
    one.run.wait("Failed")
    assert "could not begin" in one.run.message and "the job's log" in one.run.message
    assert len(one.jobs()) == 1


@pytest.mark.drawn
def test_an_account_that_is_not_ones_own_and_one_job_too_many(own_bench, tmp_path):
    """With accounting: an unknown account never reaches the queue, and a full queue is waited for.

    Who serves knows no limit at first: it asks before the first run, and there is none then. The next one knows it, and
    submits nothing that SLURM would refuse.
    """
    bench = own_bench(nodes=1, dbd=1, extra="AccountingStorageEnforce=associations,limits,qos")
    slurm = bench.cluster.slurm
    slurm("sacctmgr", "-i", "add", "account", "lab")
    slurm("sacctmgr", "-i", "add", "user", "root", "account=lab", "defaultaccount=lab")
    with pytest.raises(BadInput, match=r"account nobody: SLURM refuses the job \(Invalid account .*: correct it"):
        bench.dispatch(tmp_path / "wrong", resources={"account": "nobody"})
    slurm("sacctmgr", "-i", "modify", "qos", "normal", "set", "maxsubmitjobsperuser=1")
    runs = bench.dispatch(tmp_path / "runs", pauses=True)
    runs.job("RUNNING")
    waits = bench.dispatch(tmp_path / "waits")
    waits.run.wait("AwaitingRetry")
    assert "MaxSubmit" in waits.run.message and "tried again" in waits.run.message
    runs.go_on()
    runs.run.wait("Completed")
    waits.run.come_due()  # five minutes have passed
    waits.run.wait("Completed")
    assert "Failed" not in waits.run.history() and len(waits.jobs()) == 1

    bench.stop_workers("server")
    bench.start_worker()
    three = [bench.dispatch(tmp_path / f"of-three-{number}", pauses=True) for number in range(3)]
    three[2].run.wait("AwaitingPlace")
    assert three[2].run.message == "waits for a place: at most 1 jobs of yours at once (the QOS normal)"
    for one in three:
        one.go_on()
    for one in three:
        one.run.wait("Completed")
        assert len(one.submissions()) == 1, "none was refused"
