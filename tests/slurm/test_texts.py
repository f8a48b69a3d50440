"""What a person can see and run of a job: the dry run's text, the submitted script, its name."""

import subprocess

import pytest

from deployments.dag.page import load_page
from deployments.slurm.study.engine import Engine
from deployments.slurm.study.preflight import checked
from deployments.slurm.study.study import SlurmStudy
from tests.slurm.harness import toy_study

pytestmark = pytest.mark.slurm_long

TOY = load_page("tests.slurm.toy")


def test_the_dry_run_prints_the_bytes_that_are_submitted_and_the_script_can_be_run_by_hand(bench, tmp_path):
    root = tmp_path / "runs"
    study = SlurmStudy.at_site(TOY, toy_study("texts", steps=12), str(root))
    jobs = checked(study)
    texts = {handle.stage.name: text for handle, text in jobs.scripts()}
    shown = texts["toy-training"]
    assert not list(root.rglob("jobs")), "a dry run begins nothing"

    one = bench.dispatch(root, "texts", steps=12)
    job = one.job()
    kept = one.folder / "jobs" / "0001.sbatch"
    assert kept.read_text() == shown
    (tmp_path / "asked").mkdir()
    slurms = bench.cluster.slurm("scontrol", "write", "batch_script", job, str(tmp_path / "asked" / "script"))
    assert slurms and (tmp_path / "asked" / "script").read_text() == shown
    one.run.wait("Completed")
    digest = one.digest
    tells = study.handles[-1].run.path / "jobs" / "0001.sbatch"
    bench.until("what waited is submitted", tells.exists)
    assert tells.read_text() == texts["toy-report"], "what waits is shown as it will be"

    (one.folder / "COMPLETE.json").unlink()
    done = subprocess.run(["sbatch", "--wait", str(kept)], capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr + kept.with_suffix(".log").read_text()
    assert (one.folder / "COMPLETE.json").exists() and one.digest == digest


def test_the_dry_run_says_what_a_start_would_refuse_and_shows_the_scripts(bench, tmp_path):
    study = toy_study("refused", resources={"memory_gb": 9000})
    found = checked(SlurmStudy.at_site(TOY, study, str(tmp_path / "runs")))
    assert "memory_gb 9000" in found.refusal and "--mem=9216000" in next(found.scripts())[1]


def test_the_status_shows_what_is_under_way_and_what_stopped(bench, tmp_path):
    one = bench.dispatch(tmp_path / "runs", check_fails_while="/dev/null")

    def line() -> str:
        study = SlurmStudy.at_site(TOY, one.study, str(one.root))
        return next(iter(Engine(study.site).standings(study).standings.values())).line

    bench.until("it is under way", lambda: line().startswith("under way: "))
    one.run.wait("Failed")
    assert line().startswith("failed: ") and "the way is free" in line()
    assert len(one.submissions()) == 1
