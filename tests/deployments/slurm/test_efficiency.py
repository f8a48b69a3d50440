"""What a study's jobs cost, from their journals and records."""

from __future__ import annotations

import json
from pathlib import Path

from deployments.dispatch import Walk
from deployments.slurm import efficiency
from deployments.slurm.journal import End, Journal, Submission
from storage import durable
from tasks.stage import Stage
from tests.deployments.toy import ToyConfig


def a_stage(root: Path):
    walk = Walk(root, "toy")
    return walk(Stage("first", ToyConfig, "tests.deployments.toy:work"), ToyConfig(ends="finished"))


def a_job(
    run, number: int, submitted: float, began: float, ended: float | None, seen_ended: float = 0.0, **used
) -> None:
    entry = Submission(
        number,
        f"toy.{number}",
        "f",
        submitted,
        True,
        memory_gb=16.0,
        cpus=8,
        gpus=2,
        job_id=str(number),
        end=End("AwaitingRetry", "stopped"),
        ended_at=seen_ended,
    )
    Journal(run.path / "jobs").write(entry)
    run.attempts.mkdir(parents=True, exist_ok=True)
    record = {"slurm_job_name": entry.name, "started_at": began, "ended_at": ended, **used}
    durable.write_json(run.attempts / f"{number:04d}.json", record)


def test_times_gpu_hours_and_use_are_summed_over_the_jobs(tmp_path: Path) -> None:
    handle = a_stage(tmp_path)
    a_job(handle.run, 1, 0, 600, 600 + 3600, cpu_seconds=2 * 3600, peak_memory_bytes=2 * 2**30)
    a_job(handle.run, 2, 5000, 5100, None, seen_ended=5100 + 1800)  # killed: the worker saw its end
    used = efficiency.use_of(handle.run)
    assert (used.jobs, used.queued, used.ran) == (2, 700, 5400)
    assert used.gpu_hours == 3.0 and used.cpu_share == 0.25 and used.memory_gb == 2.0
    assert used.suggestion == "memory_gb: 3, cpus: 3"


def test_steps_that_were_computed_twice_are_lost_work(tmp_path: Path) -> None:
    handle = a_stage(tmp_path)
    a_job(handle.run, 1, 0, 0, 60, cpu_seconds=480.0, peak_memory_bytes=15 * 2**30)
    rows = [{"step": step} for step in (1, 2, 3, 4, 3, 4, 5)] + [{"checkpoint": 2}]
    handle.run.timing_file.write_text("".join(json.dumps(row) + "\n" for row in rows) + '{"step":')
    used = efficiency.use_of(handle.run)
    assert (used.steps, used.lost_steps) == (5, 2)
    assert used.suggestion == "a shorter execution.checkpoint_every_seconds"
    assert "| first | 1 | 0 min 00 s | 1 min 00 s | 0.0 | 2 of 5 | 100% of 8 | 15.0 of 16 GB |" in efficiency.table(
        [handle]
    )


def test_a_study_without_jobs_has_no_table(tmp_path: Path) -> None:
    assert efficiency.table([a_stage(tmp_path)]) == ""
