"""A sweep on the real cluster: each cell a study of jobs, one table over them, ended by one Cancel."""

import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from deployments.dag.page import load_page
from deployments.dag.sweep import Over
from deployments.slurm.job.journal import Journal, jobs_folder
from deployments.slurm.study import study as study_file
from deployments.slurm.study.engine import Engine
from deployments.slurm.study.follow import entrust, followed
from deployments.slurm.study.looks import Looks
from deployments.slurm.study.study import SlurmStudy
from storage import attempts, durable
from tests.slurm.harness import Bench, Run, state_of, toy_study

pytestmark = pytest.mark.slurm_long

OVER: Over = {"training.seed": [1, 2]}


def swept(study: Any, root: Path, over: Over = OVER) -> SlurmStudy:
    return SlurmStudy.at_site(replace(load_page("tests.slurm.toy"), over=over), study, str(root))


def started(bench: Bench, study: Any, root: Path) -> Run:
    """The sweep as a person starts it in Prefect."""
    bench.ensure_worker("ratchet")
    bench.ensure_worker()
    return bench.run_deployment("toy/toy", study=study.model_dump(mode="json"), root=str(root), over=OVER)


def test_a_sweep_goes_on_to_its_table_when_its_flow_run_s_process_is_killed(bench, tmp_path):
    root, pause = tmp_path / "runs", tmp_path / "pause"
    pause.touch()
    study = toy_study("swept", pauses_while=str(pause))
    flow = started(bench, study, root)
    bench.trains(root, number=2)
    os.kill(flow_process(bench, flow), signal.SIGKILL)
    pause.unlink()

    (file,) = study_file.active(root)
    slurm = swept(study, root)
    assert file == slurm.file
    bench.until("the table is there", slurm.handles[-1].run.marker_file.exists)
    last = slurm.handles[-1].run.path
    results = durable.read_json(last / "final_results.json")
    assert list(results["cells"]) == ["training.seed 1", "training.seed 2"] and (last / "report.html").exists()
    labels = {entry.name.rpartition(".")[0].rpartition(".")[0] for handle in slurm.handles for entry in entries(handle)}
    assert labels == {
        "swept-s1-toy-training-training.seed-1",
        "swept-s2-toy-training-training.seed-2",
        "swept-s1-toy-report-training.seed-1",
        "swept-s2-toy-report-training.seed-2",
        "swept-sweep",
    }
    assert all(len(entries(handle)) == 1 for handle in slurm.handles), "each stage had one job"
    bench.until("nothing is left to do", lambda: not study_file.active(root))


def test_a_cancel_of_a_sweep_ends_every_cell(bench, tmp_path):
    root, pause = tmp_path / "runs", tmp_path / "pause"
    pause.touch()
    study = toy_study("ended", pauses_while=str(pause))
    flow = started(bench, study, root)
    trainings = bench.trains(root, number=2)
    slurm = swept(study, root)
    cells = [handle for handle in slurm.handles if handle.stage.name == "toy-training"]
    flow.cancel()
    flow.wait("Cancelled")
    bench.until("each is cancelled", lambda: [state_of(run) for run in trainings] == ["Cancelled"] * 2)
    for handle in cells:
        (job,) = entries(handle)
        bench.until("its job ended", lambda job=job: [*bench.cluster.jobs(job.name).values()] == ["CANCELLED"])
        assert attempts.newest(handle.run.attempts)["end_state"] == "sigterm", "it saved before it ended"
    assert study_file.active(root) == [] and not slurm.handles[-1].run.path.exists()


def test_squeue_tells_study_stage_and_cell_of_arrays_as_large_as_the_cluster_takes(own_bench, tmp_path):
    """Tasks of one array: MaxArraySize 3 is two, numbered 1 and 2."""
    bench, over = own_bench(extra="MaxArraySize=3"), {"training.seed": [1, 2, 3, 4]}
    pause = tmp_path / "pause"
    pause.touch()

    def squeue() -> list[tuple[str, str]]:
        lines = bench.cluster.slurm("squeue", "-h", "--me", "--array", "-o", "%j|%k").splitlines()
        return [(line.partition("|")[0].partition(".")[0], line.partition("|")[2]) for line in lines]

    with bench.site_with({"array_tasks": 8}):
        bench.cluster.hold()
        slurm = swept(toy_study("arrays", pauses_while=str(pause)), tmp_path / "runs", over)
        entrust(slurm, Looks(slurm.site))
        waiting = bench.until("four tasks wait", lambda: len(found := squeue()) == 4 and found)
        assert {name for name, _ in waiting} == {"arrays-toy-training"}
        cells = [f"arrays toy-training (training.seed {seed})" for seed in (1, 2, 3, 4)]
        parts = [part for _, comment in waiting for part in comment.split("; ") if "toy-training" in part]
        told = {part.rpartition(" ")[0] for part in parts}
        assert {part[0] for part in told} == {"1", "2"} and {part[2:] for part in told} == {*cells}, waiting
        bench.cluster.release()
        bench.until(
            "each task that runs says which cell it is",
            lambda: {comment.partition(";")[0].rpartition(" ")[0] for _, comment in squeue()} == {*cells},
        )
        pause.unlink()


def test_a_cell_that_failed_is_missing_from_the_table_and_the_study_has_failed(bench, tmp_path):
    """Its failure may be a result: without it the other cells would never be seen side by side."""
    root, over = tmp_path / "runs", {"training.poisoned_loss": [None, 0, 999]}
    bench.ensure_worker()
    slurm = swept(toy_study("partly", steps=12), root, over)
    state, message = followed(slurm, lambda *_: None)
    assert state.name == "Failed" and "toy-training (training.poisoned_loss 0)" in message
    (table,) = root.glob("partly/sweep/*/COMPLETE.json")
    results = durable.read_json(table.parent / "final_results.json")["cells"]
    assert [name for name, cell in results.items() if cell["run"] is None] == ["training.poisoned_loss 0"]
    assert len(results) == 3 and table.parent != slurm.handles[-1].run.path, "that of all cells is still to come"
    stands = {handle.label: standing.stand for handle, standing in shown(slurm)}
    assert stands["sweep (without training.poisoned_loss 0)"] == "finished" and stands["sweep"] == "waits"


def shown(slurm: SlurmStudy) -> list[tuple[Any, Any]]:
    found = Engine(slurm.site).standings(slurm)
    return [(handle, found.standing(handle)) for handle in found.handles]


def entries(handle: Any) -> list[Any]:
    return Journal(jobs_folder(handle.run)).all()


def flow_process(bench: Bench, flow: Run) -> int:
    return int(flow.read()["infrastructure_pid"].rpartition(":")[2])
