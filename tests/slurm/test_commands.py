"""A study that a command started is one as a person starts it in Prefect, and ended as a whole."""

from typing import Any

import pytest

from flows import command
from storage import durable
from tests.slurm.harness import Run

pytestmark = pytest.mark.slurm_long


@pytest.mark.drawn
def test_a_study_started_by_a_command_has_its_own_run_and_ends_whole_by_a_command_or_in_the_ui(bench, tmp_path, capsys):
    hold, name = tmp_path / "hold", f"commanded-{tmp_path.parent.name[-4:]}"
    hold.touch()
    of = ["tests.slurm.toy", f"--root={tmp_path / 'runs'}", f"--set=name={name}", f"--set=training.pauses_while={hold}"]
    jobs: set[str] = set()

    def started() -> Run:
        """The study's flow run, when a new job of the training runs."""
        assert command.ratchet(["run", *of, "--dispatch", "slurm"]) == 75
        own = bench.run_told(capsys.readouterr().out)
        jobs.add(bench.until("a new job runs", lambda: next((job for job in running() if job not in jobs), None)))
        own.wait("Running")
        return own

    def running() -> list[str]:
        return [job for job, state in bench.cluster.jobs(f"{name}-s3-toy-training.").items() if state == "RUNNING"]

    bench.ensure_worker("ratchet")
    own = started()
    assert command.ratchet(["run", *of, "--dispatch", "slurm"]) == 75
    assert bench.run_told(capsys.readouterr().out).id == own.id, "the same run shows it"
    shown = bench.until("a task shows the stage", lambda: bench.api("POST", "/task_runs/filter", _of(own)))
    assert shown[0]["name"].startswith("toy-training")
    bench.stop_workers("server")
    assert command.ratchet(["cancel", *of]) == 0
    assert "1 flow runs and 1 jobs" in capsys.readouterr().out
    bench.until("the job ends", lambda: not running())
    own.wait("Cancelled")

    own = started()
    own.cancel()
    own.wait("Cancelled")
    bench.until("the job ends", lambda: not running())

    own = started()
    hold.unlink()
    own.wait("Completed")
    assert len(jobs) == 3

    (marker,) = (tmp_path / "runs").glob(f"{name}/toy-training/*/COMPLETE.json")
    made = durable.read_json(marker)
    assert command.ratchet(["run", *of, "--dispatch", "slurm", "--fresh", "toy-training", "--wait"]) == 0
    again = durable.read_json(marker)
    assert again["lock"] != made["lock"] and weights(again) == weights(made) != {}


def weights(marker: dict[str, Any]) -> dict[str, str]:
    return {file: output["sha256"] for file, output in marker["outputs"].items() if file.endswith(".safetensors")}


def _of(run: Run) -> dict[str, object]:
    return {"flow_runs": {"id": {"any_": [run.id]}}}
