"""A time limit in which a start does not end, on the real cluster: told, refused, mended by the key that is named."""

import pytest

from deployments.dag.page import load_page
from deployments.slurm.pool.records import Record, record_of
from deployments.slurm.study.follow import entrust
from deployments.slurm.study.looks import Looks
from deployments.slurm.study.study import SlurmStudy
from storage import attempts
from storage.errors import BadInput

pytestmark = pytest.mark.slurm_long

PAGE = """
import time
import ratchet as r

@r.stage(needs="cpu", torch=False)
def work(run):
    time.sleep(42)  # the signal comes by then, 20 s before a limit of a minute
    run.stop.check("its start")
    return {}

@r.study
def slow():
    return work()
"""


@pytest.mark.drawn
def test_a_limit_that_is_too_short_for_the_start_is_told_refused_and_mended(bench, tmp_path):
    (tmp_path / "slow.py").write_text(PAGE)
    page = load_page(str(tmp_path / "slow.py"))
    study = page.model(name="slow")

    def ended() -> Record:
        """The record of the stage's run when it has ended, after a start."""
        slurm = SlurmStudy.at_site(page, study, str(tmp_path / "runs"))
        run = slurm.handles[0].run
        before = record_of(run)
        entrust(slurm, Looks(slurm.site))
        return bench.until("it has ended", lambda: ((r := record_of(run)) and r.over and r != before and r) or None)

    with bench.site_with(time_limit_minutes=1, lead_seconds=20):
        run = ended()
        assert run.name == "Failed"
        assert (
            "the time limit is too short: the start took 4" in run.message
            and "of 60 s lead_seconds (20)" in run.message
        )
        assert "Set time_limit_minutes to at least 3" in run.message, run.message
        handle = SlurmStudy.at_site(page, study, str(tmp_path / "runs")).handles[0]
        record = attempts.newest(handle.run.attempts) or {}
        assert record["attempt"] == 2 and "remove" not in (handle.run.attempts / "0002.log").read_text()
        assert "the start took 4" in record["diagnosis"]["summary"]
        with pytest.raises(BadInput, match="Set time_limit_minutes to at least 3"):
            ended()
    with bench.site_with(time_limit_minutes=3, lead_seconds=20):
        assert ended().name == "Completed"
