"""What a running stage says of itself."""

import logging

import pytest

from storage import durable
from tasks.stage import progress
from tasks.stage.progress import Progress, duration


def test_the_log_gets_a_line_a_minute_and_the_file_every_second(tmp_path, monkeypatch, caplog):
    """The log is what `tail -f` follows, and what is left of a job that was killed."""
    caplog.set_level("INFO", "ratchet.x")
    now = [1000.0]
    monkeypatch.setattr(progress.time, "time", lambda: now[0])
    told = Progress(tmp_path / "progress.json", logging.getLogger("ratchet.x"))
    for step in range(1, 180):
        now[0] += 1.0
        told.update(step, 1560, "steps", "loss 4.1 at validation")
        assert durable.read_json(tmp_path / "progress.json")["step"] == step
    assert [record.getMessage() for record in caplog.records] == [
        "60/1,560 steps, loss 4.1 at validation, 25 min 0 s left",
        "120/1,560 steps, loss 4.1 at validation, 24 min 0 s left",
    ]


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(0.04, "0.0 s"), (9.9, "9.9 s"), (59.6, "1 min 0 s"), (250, "4 min 10 s"), (3600 * 30 + 181, "30 h 3 min")],
)
def test_a_duration_is_said_in_the_units_that_people_use(seconds, said):
    assert duration(seconds) == said
