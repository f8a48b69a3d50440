"""A training that is longer than its time limit: job after job, without anybody's help, to the same bytes."""

from pathlib import Path

import pytest

from storage import durable
from tests.slurm import toy
from tests.slurm.harness import toy_study
from tests.tasks.tiny import Here

STEPS = 24


@pytest.mark.slurm_long
def test_a_training_with_a_limit_of_two_minutes_goes_on_over_three_jobs_to_the_weights_of_a_run_here(bench, tmp_path):
    # USR1 comes 30 s before the limit, up to 30 s earlier since the controller looks every 30 s. Until there are three
    # jobs each takes a step and rests until then, however many more a quick machine could take
    resources = {"time_limit_minutes": 2, "lead_seconds": 30}
    one = bench.dispatch(tmp_path / "runs", resources=resources, steps=STEPS, pauses=True)
    one.job(number=3)
    one.go_on()
    bench.until("it is finished", lambda: one.run.state in ("Completed", "Failed"))
    assert one.run.state == "Completed", bench.told()

    history = one.run.history()
    assert len(one.submissions()) >= 3, history
    assert history.count("AwaitingRetry") == len(one.submissions()) - 1
    assert not {"Crashed", "Failed", "Cancelled"} & set(history), history
    records = one.records()
    assert [record["end_state"] for record in records] == ["out_of_time"] * (len(records) - 1) + ["finished"]
    assert [record["began_at"] for record in records] == sorted(record["began_at"] for record in records)
    assert all(entry.automatic for entry in one.submissions()[1:]), "no person came in between"

    assert one.digest == digest_of_a_run_here(tmp_path / "here", steps=STEPS)


def digest_of_a_run_here(root: Path, **fields: int) -> str:
    study = toy_study(**fields)
    walk = Here(root, study.name)
    toy.page(study, walk)
    return str(durable.read_json(walk.handles[0].run.result_file)["weights_digest"])
