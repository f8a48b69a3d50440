"""A whole study on the real cluster, started as a person starts it."""

import os
import shutil
import signal
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from deployments.slurm.job.journal import Journal
from storage import attempts, durable
from tests.slurm import toy
from tests.slurm.harness import Bench, Run, toy_study
from tests.tasks.icecube import tiny as icecube
from tests.tasks.inversion import tiny as inversion
from tests.tasks.poison import tiny as poison
from tests.tasks.summarisation import tiny as summarisation
from tests.tasks.tiny import Here


def test_a_study_runs_through_its_flow_run_to_the_digests_of_a_run_here(bench, tmp_path):
    study, here, there = toy_study("through"), tmp_path / "here", tmp_path / "there"
    toy.page(study, Here(here, study.name))
    bench.stop_workers("server")
    bench.ensure_worker("ratchet")
    bench.run_deployment("toy/toy", study=study.model_dump(mode="json"), root=str(there)).wait("Completed")
    _require_jobs_of_equal_digests(bench, here / study.name, there / study.name, stages=2)


@pytest.mark.slurm_long
def test_the_smoke_study_runs_through_its_flow_run_to_the_digests_of_a_run_here(bench, smoke_root, tmp_path):
    root = tmp_path / "runs"
    shutil.copytree(smoke_root / ".cache", root / ".cache")
    bench.ensure_worker("ratchet")
    deployed(bench, "robustness/smoke", root).wait("Completed", seconds=3000)
    _require_jobs_of_equal_digests(bench, smoke_root / "smoke", root / "smoke", stages=16)


@pytest.mark.slurm_long
@pytest.mark.drawn
@pytest.mark.parametrize(
    ("name", "finished"),
    [("icecube", icecube.finished), ("summarisation", summarisation.finished), ("poison", poison.finished)],
)
def test_another_study_runs_through_its_flow_run_to_the_digests_of_a_run_here(bench, tmp_path, name, finished):
    """A trial of icecube that ends in numbers that are no numbers is a job that finished."""
    here, root = finished(), tmp_path / "runs"
    bench.ensure_worker("ratchet")
    deployed(bench, f"{name}/smoke", root, study=here.study.model_dump(mode="json")).wait("Completed", seconds=3000)
    _require_jobs_of_equal_digests(bench, here.root / here.study.name, root / here.study.name, stages=len(here.handles))


@pytest.mark.slurm_long
def test_cells_of_the_inversion_study_that_are_killed_or_lose_their_node_go_on_and_leave_the_others_alone(
    bench, tmp_path
):
    """The cells are tasks of an array, of which three run at once; a job that goes on is one of its own."""
    here, root = inversion.finished(), tmp_path / "runs"
    cells = {label: handle for label, handle in here.handles.items() if "adversarial" in label}
    places = {label: root / handle.run.path.relative_to(here.root) for label, handle in cells.items()}

    def at_work(but: str = "") -> tuple[str, dict[str, Any]] | None:
        found = ((label, frozen(place / "attempts")) for label, place in places.items() if label != but)
        return next(((label, record) for label, record in found if record), None)

    bench.ensure_worker("ratchet")
    with bench.site_with({"array_tasks": 3}):
        study = deployed(bench, "inversion/smoke", root)
        killed, record = bench.until("a cell is at work", at_work)
        os.kill(record["pid"], signal.SIGKILL)  # it is frozen, so that it is not over before
        stranded, record = bench.until("another one is", partial(at_work, but=killed))
        node = bench.cluster.slurm("squeue", "-h", "-j", record["slurm_job_id"], "-o", "%N")
        bench.cluster.slurm("scontrol", "update", f"nodename={node}", "state=down", "reason=test")
        study.wait("Completed", seconds=3000)

    _require_jobs_of_equal_digests(bench, here.root / here.study.name, root / here.study.name, stages=len(here.handles))
    jobs = {label: [one.job_id or "" for one in Journal(place / "jobs").all()] for label, place in places.items()}
    assert sum("_" in some[0] for some in jobs.values()) > 1 and not any(
        "_" in job for some in jobs.values() for job in some[1:]
    )
    ends = {label: [one.end for one in Journal(place / "jobs").all() if one.end] for label, place in places.items()}
    why = {label: [end.diagnosis.category for end in some if end.diagnosis] for label, some in ends.items()}
    assert why[killed][0] in ("crash", "killed", "node failure") and len(why[killed]) > 1, why
    assert why[stranded][0] == "node failure", why
    for label, categories in why.items():
        assert categories[-1] == "finished" and {*categories[:-1]} <= {"node failure", "killed", "crash"}, why
        assert label == killed or {*categories} <= {"node failure", "finished"}, why


def deployed(bench: Bench, name: str, root: Path, **more: Any) -> Run:
    """A run of a deployment that was just made."""
    bench.deploy(name)
    return bench.run_deployment(name, root=str(root), **more)


def frozen(folder: Path) -> dict[str, Any] | None:
    """The record of the attempt that is at work there, whose process goes no further; None where none is."""
    record = attempts.newest(folder)
    if not record or record.get("end_state"):
        return None
    with suppress(ProcessLookupError):
        os.kill(record["pid"], signal.SIGSTOP)
        if not (attempts.newest(folder) or {}).get("end_state"):
            return record
        os.kill(record["pid"], signal.SIGCONT)
    return None


def _require_jobs_of_equal_digests(bench: Bench, here: Path, there: Path, stages: int) -> None:
    """Every stage of the study in `there` was a job of its own, and came to what the same came to in `here`."""
    assert len(_results(here)) == stages and _results(there) == _results(here), bench.told()
    records = [attempts.newest(there / name / "attempts") or {} for name in _results(there)]
    assert len({record["slurm_job_id"] for record in records}) == stages, "a job of its own for each stage"
    assert all(record["end_state"] == "finished" for record in records)


def _results(study: Path) -> dict[str, dict[str, str]]:
    """Stage and fingerprint -> digests in the result of every finished stage."""
    found = [file.parent for file in study.glob("*/*/COMPLETE.json")]
    return {str(run.relative_to(study)): dict(_digests(durable.read_json(run / "result.json"))) for run in found}


def _digests(result: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Every digest that a result tells, by where it stands."""
    for key, value in result.items() if isinstance(result, dict) else ():
        if key.endswith("digest") and isinstance(value, str):
            yield f"{path}/{key}", value
        yield from _digests(value, f"{path}/{key}")
