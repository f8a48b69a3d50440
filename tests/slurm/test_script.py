"""A script of somebody as a stage, longer than the time limit of its jobs: it goes on by its own checkpoint."""

from __future__ import annotations

from pathlib import Path

import pytest

from deployments.dag.page import load_page
from deployments.slurm.study.follow import Follower
from deployments.slurm.study.study import SlurmStudy
from storage import durable
from tests.slurm.harness import Bench

pytestmark = pytest.mark.slurm_long

PAGE = '''
from ratchet import Numerics, Script, Stage, StageConfiguration, StudyBase, scientific, study_flow

class Study(StudyBase):
    """A study of one's own."""
    script: Script = scientific(description="The script.")

class CountConfig(StageConfiguration):
    """Counts."""
    STUDY = Study
    numerics = Numerics(torch=False)
    script: Script

COUNT = Stage("tally-count", CountConfig, "tally:count", needs="cpu")

def page(study: Study, stage):
    return stage(COUNT, CountConfig.of(study))

tally = study_flow(page)

def count(run, config):
    run.command("python", config.script.path, checkpoints="count-*", resume=["{checkpoint}"], leaves=["sum.txt"],
                save_seconds=5)
    return {"sum": int((run.scratch / "sum.txt").read_text())}
'''
SCRIPT = """
import os, pathlib, signal, sys, time
count = 0
def save(*_):
    pathlib.Path(f"count-{count}").write_text(str(count))
    sys.exit("saved")
signal.signal(signal.SIGTERM, save)
if sys.argv[1:]:
    count = int(pathlib.Path(sys.argv[1]).read_text())
while count < 2:  # one a job: the rest of its time it waits
    count += 1
    if count < 2:
        time.sleep(600)
pathlib.Path("sum.txt").write_text(str(count))
"""


def test_a_script_goes_on_over_jobs_that_end_before_it(bench: Bench, tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.mkdir()
    (own / "tally.py").write_text(PAGE)
    (own / "count.py").write_text(SCRIPT)
    page = load_page(str(own / "tally.py"))
    resources = {"all": {"time_limit_minutes": 2, "lead_seconds": 90}}
    study = page.model.model_validate(
        {"name": "tally", "script": {"path": str(own / "count.py")}, "execution": {"resources": resources}}
    )
    slurm = SlurmStudy.at_site(page, study, str(tmp_path / "runs"))
    follower = Follower(slurm)
    follower.start()
    (handle,) = slurm.handles
    bench.until("it is finished", lambda: follower.advance().handles[-1].finished, 600)
    assert durable.read_json(handle.run.result_file)["sum"] == 2
    ends = [durable.read_json(file)["end_state"] for file in sorted(handle.run.attempts.glob("*.json"))]
    assert ends == ["out_of_time", "finished"]
