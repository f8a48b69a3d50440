"""A study that a command started and left: its stages follow one another by themselves, on the real cluster."""

import logging

import pytest

from deployments.dag.page import load_page
from deployments.slurm.job.journal import Journal, jobs_folder
from deployments.slurm.study.follow import entrust
from deployments.slurm.study.looks import Looks
from deployments.slurm.study.study import SlurmStudy
from storage import durable

LEVELS = 5
SOON_SECONDS = 60.0
"""Idle it takes some ten; `advance` alone came up to ten minutes later."""
PAGE = f"""
import ratchet as r

@r.stage(needs="cpu", torch=False)
def add(run, level: int, before=None):
    return {{"sum": 1 + (before.result["sum"] if before else 0)}}

@r.study
def chain():
    last = None
    for level in range({LEVELS}):
        last = add(level, before=last)
    return last
"""


@pytest.mark.slurm_long
def test_each_stage_is_submitted_within_seconds_of_the_end_of_what_it_waits_for(bench, tmp_path):
    (tmp_path / "chain.py").write_text(PAGE)
    page = load_page(str(tmp_path / "chain.py"))
    slurm = SlurmStudy.at_site(page, page.model(name="chain"), str(tmp_path / "runs"))
    entrust(slurm, Looks(slurm.site))  # as a start does that does not wait
    last = slurm.handles[-1].run
    bench.until("the last stage is finished", last.marker_file.exists, seconds=SOON_SECONDS * LEVELS)

    assert durable.read_json(last.result_file)["sum"] == LEVELS
    entries = [Journal(jobs_folder(handle.run)).all() for handle in slurm.handles]
    assert [len(some) for some in entries] == [1] * LEVELS, "each was submitted once"
    ends = [durable.read_json(handle.run.attempts / "0001.json")["ended_at"] for handle in slurm.handles]
    gaps = [entries[level][0].submitted_at - ends[level - 1] for level in range(1, LEVELS)]
    logging.getLogger("ratchet.test").warning("from a job's end to the next submission: %s s", gaps)
    assert max(gaps) < SOON_SECONDS, gaps
