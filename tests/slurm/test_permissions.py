"""Who may read what a study on SLURM leaves."""

import stat

import pytest

from deployments.slurm.job.journal import jobs_folder


@pytest.mark.slurm_long
def test_a_private_site_closes_the_study_s_folder_its_jobs_logs_and_what_they_write(bench, tmp_path):
    bench.stop_workers("server")
    try:
        with bench.site_with({"permissions": "private"}):
            bench.ensure_worker()
            one = bench.dispatch(tmp_path / "runs", steps=1)
            one.run.wait("Completed")
        run = one.training.run
        open_ones = [file for file in run.path.rglob("*") if file.is_file() and file.stat().st_mode & 0o077]
        assert [file for file in jobs_folder(run).glob("0001.*")] and not open_ones
        assert stat.S_IMODE((run.root / run.study).stat().st_mode) == 0o700
    finally:
        bench.stop_workers("server")  # the next one has its own umask again
