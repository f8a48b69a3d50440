"""A whole study on the real cluster, started as a person starts it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from storage import attempts, durable
from tests.slurm.harness import Bench


def test_the_smoke_study_runs_through_the_pools_to_the_digests_of_a_run_here(
    bench: Bench, smoke_root: Path, tmp_path: Path
) -> None:
    root = tmp_path / "runs"
    shutil.copytree(smoke_root / ".cache", root / ".cache")
    bench.ensure_worker("ratchet")
    study = bench.run_deployment("robustness/smoke", root=str(root))
    study.wait("Completed", seconds=900)

    stages = bench.runs_of("smoke ")
    assert len(stages) == len(_results(smoke_root)) == 15, bench.told()
    for run in stages:  # the study believes the marker, which is there before the worker's next look
        run.wait("Completed")
    here, there = _results(smoke_root), _results(root)
    assert here.keys() == there.keys()
    assert {name: dict(_digests(result)) for name, result in there.items()} == {
        name: dict(_digests(result)) for name, result in here.items()
    }
    records = [attempts.newest(root / "smoke" / name / "attempts") or {} for name in there]
    assert len({record["slurm_job_id"] for record in records}) == 15, "a job of its own for each stage"
    assert all(record["end_state"] == "finished" for record in records)


def _results(root: Path) -> dict[str, Any]:
    """Stage and fingerprint -> result of every finished stage."""
    found = [file.parent for file in (root / "smoke").glob("*/*/COMPLETE.json")]
    return {str(run.relative_to(root / "smoke")): durable.read_json(run / "result.json") for run in found}


def _digests(result: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Every digest that a result tells, by where it stands."""
    for key, value in result.items() if isinstance(result, dict) else ():
        if key.endswith("digest") and isinstance(value, str):
            yield f"{path}/{key}", value
        yield from _digests(value, f"{path}/{key}")
