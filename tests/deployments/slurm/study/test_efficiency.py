"""What a study's jobs cost, from their journals and records."""

import json
from dataclasses import replace
from pathlib import Path

from deployments.dag.walk import Walk
from deployments.slurm.cluster.client import Used
from deployments.slurm.job.journal import End, Journal, Submission
from deployments.slurm.study import efficiency
from deployments.slurm.study.efficiency import Use
from storage import durable
from tasks.stage.run import Stage
from tests.deployments.toy import ToyConfig


def a_stage(root: Path):
    walk = Walk(root, "toy")
    return walk(Stage("first", ToyConfig, "tests.deployments.toy:work"), ToyConfig(ends="finished"))


def a_job(
    run,
    number: int,
    submitted: float,
    began: float,
    ended: float | None,
    seen_ended: float = 0.0,
    follows="AwaitingRetry",
    device="cuda",
    **used,
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
        time_limit_minutes=1440,
        end=End(follows, "stopped"),
        ended_at=seen_ended,
    )
    Journal(run.path / "jobs").write(entry)
    run.attempts.mkdir(parents=True, exist_ok=True)
    record = {
        "attempt": number,
        "slurm_job_name": entry.name,
        "started_at": began,
        "ended_at": ended,
        "numerics": {"device": device},
        **used,
    }
    durable.write_json(run.attempts / f"{number:04d}.json", record)


def test_times_gpu_hours_and_use_are_summed_over_the_jobs(tmp_path):
    handle = a_stage(tmp_path)
    a_job(handle.run, 1, 0, 600, 600 + 3600, cpu_seconds=2 * 3600, peak_memory_bytes=2 * 2**30)
    a_job(handle.run, 2, 5000, 5100, None, seen_ended=5100 + 1800)  # killed: the worker saw its end
    used = efficiency.use_of(handle.run)
    assert (used.jobs, used.queued, used.ran) == (2, 700, 5400)
    assert " | 3.00 | - | " in " ".join(efficiency.table([handle]).split()), "of a script no step was counted"
    assert used.gpu_hours == 3.0 and used.cpu_share == 0.25 and used.memory_gb == 2.0
    assert used.suggestion == "memory_gb: 3, cpus: 3"


def test_what_a_killed_job_used_is_read_from_the_accounting(tmp_path):
    handle = a_stage(tmp_path)
    a_job(handle.run, 1, 0, 600, 600 + 3600, cpu_seconds=2 * 3600, peak_memory_bytes=2 * 2**30)
    a_job(handle.run, 2, 5000, 5100, None, seen_ended=5100 + 3600)
    asked: list[list[str]] = []

    def accounting(ids):
        asked.append(ids)
        return {"2": Used("toy.2", 14 * 3600.0, 15 * 2.0**30), "3": Used("of somebody else", 1.0, 99 * 2.0**30)}

    used = efficiency.use_of(handle.run, accounting)
    assert asked == [["2"]], "of what was measured nobody is asked"
    assert (used.cpu_share, used.memory_gb, used.suggestion) == (1.0, 15.0, "")


def test_steps_that_were_computed_twice_are_lost_work(tmp_path):
    handle = a_stage(tmp_path)
    a_job(handle.run, 1, 0, 0, 60, cpu_seconds=480.0, peak_memory_bytes=15 * 2**30)
    rows = [{"step": step} for step in (1, 2, 3, 4, 3, 4, 5)] + [{"checkpoint": 2}]
    handle.run.timing_file.write_text("".join(json.dumps(row) + "\n" for row in rows) + '{"step":')
    used = efficiency.use_of(handle.run)
    assert (used.steps, used.lost_steps) == (5, 2)
    assert used.suggestion == "a shorter execution.checkpoint_every_seconds"
    shown = " ".join(efficiency.table([handle]).split())
    assert "| first | 1 | 0.0 s | 1 min 0 s | 0.03 | 2 of 5 | 100% of 8 | 15.0 of 16 GB |" in shown
    assert "| all | 1 | 0.0 s | 1 min 0 s | 0.03 | 2 of 5 | | | |" in shown


def test_the_table_names_the_cell_of_each_stage_and_says_where_no_memory_was_asked_for(tmp_path):
    """Five rows that are all called `uat` say nothing."""
    config = ToyConfig(ends="finished", cell="adversarial, seed 3")
    handle = Walk(tmp_path, "toy")(Stage("first", ToyConfig, "tests.deployments.toy:work"), config)
    a_job(handle.run, 1, 0, 0, 60, cpu_seconds=480.0, peak_memory_bytes=15 * 2**30)
    assert "| first (adversarial, seed 3) | 1 |" in " ".join(efficiency.table([handle]).split())
    (entry,) = Journal(handle.run.path / "jobs").all()
    Journal(handle.run.path / "jobs").write(replace(entry, memory_gb=0.0))
    assert "| 15.0 GB" in efficiency.table([handle])


def test_what_is_suggested_is_less_than_what_was_asked(tmp_path):
    handle = a_stage(tmp_path)
    hour = 3600.0
    a_job(handle.run, 1, 0, 0, hour, device="cpu", cpu_seconds=3.9 * hour, peak_memory_bytes=0.3 * 2**30)
    assert efficiency.use_of(handle.run).suggestion == "gpus: 0, memory_gb: 1, cpus: 5"
    a_job(handle.run, 1, 0, 0, hour, follows="Completed", cpu_seconds=8 * hour, peak_memory_bytes=16 * 2**30)
    assert efficiency.use_of(handle.run).suggestion == "time_limit_minutes: 120"
    asked = Submission(1, "x", "f", 0.0, True, memory_gb=1.0, cpus=2, job_id="1")
    small = Use(1, 0, 0, 0, 0, 0, 0.42, 0.4, 60.0, False, asked)
    assert small.suggestion == "", "42% of 2 is still 2"


def test_a_job_that_was_cancelled_in_the_queue_counts_as_queued(tmp_path):
    handle = a_stage(tmp_path)
    a_job(handle.run, 1, 0, 100, 160, seen_ended=160)
    end = End("Cancelled", "cancelled")
    entry = Submission(2, "toy.2", "f", 1000.0, True, 16.0, job_id="2", end=end, ended_at=1500.0)
    Journal(handle.run.path / "jobs").write(entry)
    assert efficiency.use_of(handle.run).queued == 600


def test_a_study_without_jobs_has_no_table(tmp_path):
    assert efficiency.table([a_stage(tmp_path)]) == ""


def test_a_stage_that_has_not_run_yet_has_no_use(tmp_path):
    handle = a_stage(tmp_path)
    waits = Submission(1, "toy.1", "f", 1000.0, True, 16.0, cpus=8, gpus=1, time_limit_minutes=60, job_id="1")
    Journal(handle.run.path / "jobs").write(waits)
    refused = Submission(2, "toy.2", "f", 1000.0, True, 16.0, end=End("AwaitingRetry", "refused"), ended_at=1000.0)
    Journal(handle.run.path / "jobs").write(refused)
    used = efficiency.use_of(handle.run)
    assert used.suggestion == "" and used.jobs == 1, "what SLURM did not take is no job"
