"""TensorBoard's own reader finds each number once, whatever became of the run meanwhile."""

import hashlib
import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from deployments.views.tensorboard import TensorBoard, scalars
from flows import command
from storage.errors import BadInput
from tests.conftest import REPOSITORY, heed_ctrl_c

RUN = "mine/train/0123456789ab"
ROWS = [{"step": step, "train_loss": 5 - step / 10, "learning_rate": 0.1} for step in (1, 2, 3)]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "runs" / RUN
    folder.mkdir(parents=True)
    (folder / "stage.json").write_text("{}")
    (folder / "timing.jsonl").write_text("".join(json.dumps({"step": n, "at": 1000.0 + n}) + "\n" for n in (1, 2, 3)))
    return tmp_path / "runs"


@pytest.fixture
def files(root: Path, tmp_path: Path) -> Iterator[TensorBoard]:
    made = TensorBoard(root, tmp_path / "events")
    yield made
    made.close()


def _measured(root: Path, rows: list[dict[str, Any]], torn: str = "", run: str = RUN) -> None:
    (root / run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows) + torn)


def _points(folder: Path, tag: str, run: str = RUN) -> list[tuple[int, float]]:
    events = EventAccumulator(str(folder / run)).Reload()
    return [(event.step, round(event.value, 5)) for event in events.Scalars(tag)]


def _losses(rows: list[dict[str, Any]]) -> list[tuple[int, float]]:
    return [(row["step"], round(row["train_loss"], 5)) for row in rows]


def test_every_number_stands_there_once_with_its_step_and_its_time(root, files, tmp_path):
    _measured(root, ROWS)
    assert files.update() == 1
    assert _points(tmp_path / "events", "loss/training") == _losses(ROWS)
    assert _points(tmp_path / "events", "training/learning_rate") == [(step, 0.1) for step in (1, 2, 3)]
    events = EventAccumulator(str(tmp_path / "events" / RUN)).Reload().Scalars("loss/training")
    assert [event.wall_time for event in events] == [1001.0, 1002.0, 1003.0]


def test_what_a_kill_cut_back_and_measured_again_does_not_stand_there_twice(root, files, tmp_path):
    seen = set()
    for rows in (ROWS[:2], ROWS[:1], ROWS[:1], ROWS):
        _measured(root, rows, torn='{"step": 9, "train_lo')
        files.update()
        seen |= set((tmp_path / "events" / RUN).iterdir())
    assert len(seen) == 1, "TensorBoard goes on with the file that it reads"
    assert _points(tmp_path / "events", "loss/training") == _losses(ROWS)


def test_a_second_start_doubles_nothing(root, files, tmp_path):
    _measured(root, ROWS)
    files.update()
    files.close()
    again = TensorBoard(root, tmp_path / "events")
    again.update()
    again.close()
    assert len(list((tmp_path / "events" / RUN).iterdir())) == 1
    assert _points(tmp_path / "events", "loss/training") == _losses(ROWS)


def test_a_run_whose_rows_became_others_is_written_anew(root, files, tmp_path):
    _measured(root, ROWS)
    files.update()
    others = [row | {"train_loss": row["train_loss"] + 1} for row in ROWS[1:]]
    _measured(root, [ROWS[0], *others])
    files.update()
    assert _points(tmp_path / "events", "loss/training") == _losses([ROWS[0], *others])


@pytest.mark.parametrize(("torn", "lines"), [("", 0), ('{"step": 4, "tr', 0), ('{"step": 4, "tr\n[4]\n\udcff\n', 3)])
def test_a_damaged_row_is_left_out_and_said(root, files, tmp_path, capsys, torn, lines):
    """A last line without an end is no damage: it is just being written."""
    measured = root / RUN / "metrics.jsonl"
    _measured(root, ROWS[:2])
    measured.write_bytes(measured.read_bytes() + torn.encode(errors="surrogateescape") + b"\n" * bool(lines))
    files.update()
    assert _points(tmp_path / "events", "loss/training") == _losses(ROWS[:2])
    expected = {measured: lines + 1} if lines else {}  # with the empty one
    assert files.damaged == expected
    assert command.ratchet(["tensorboard", str(root), "--to", str(tmp_path / "again")]) == 0
    assert (f"left out, because it cannot be read: 4 lines of {measured}" in capsys.readouterr().out) == bool(lines)


def test_a_run_has_the_name_of_its_folder_and_one_that_begins_later_is_seen(root, files, tmp_path):
    _measured(root, ROWS)
    assert files.update() == 1
    shutil.copytree(root / RUN, root / "mine/train/ba9876543210")
    _measured(root, ROWS[:1], run="mine/train/ba9876543210")
    shutil.copytree(root / RUN, root / "mine/setup/ffffffffffff")
    (root / "mine/setup/ffffffffffff/metrics.jsonl").unlink()
    assert files.update() == 2, "setup measures nothing"
    assert _points(tmp_path / "events", "loss/training", "mine/train/ba9876543210") == _losses(ROWS[:1])
    assert not (tmp_path / "events/mine/setup").exists()


def test_a_metric_stands_beside_what_needs_no_learning():
    row = {"step": 5, "validation_angle": 1.2, "validation_loss": 2.0, "finite": True, "note": "x", "epoch": 1}
    row |= {"trivial": {"a constant": 1.5}, "ratio_to_trivial": 1.2 / 1.5}
    assert scalars(row) == {
        "angle/validation": 1.2,
        "angle/without learning, a constant": 1.5,
        "loss/validation": 2.0,
        "training/epoch": 1,
        "training/ratio_to_trivial": 1.2 / 1.5,
    }


def test_without_its_library_a_command_says_what_to_install(root, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(BadInput, match=r"pip install --constraint constraints.txt --editable '\.\[tensorboard\]'"):
        TensorBoard(root)


def test_a_folder_without_runs_is_refused(tmp_path):
    with pytest.raises(BadInput, match="there are no runs below"):
        TensorBoard(tmp_path, tmp_path / "events")


def test_the_command_follows_until_ctrl_c_and_touches_no_run(root):
    _measured(root, ROWS[:1])
    before = _digests(root)
    follows = subprocess.Popen(
        [sys.executable, "-c", "from flows.command import ratchet; raise SystemExit(ratchet())",
         "tensorboard", str(root), "--follow"],
        cwd=REPOSITORY, stdout=subprocess.PIPE, text=True, preexec_fn=heed_ctrl_c,
    )  # fmt: skip
    try:
        assert follows.stdout and "tensorboard --logdir" in follows.stdout.readline()
        assert _points(root / ".tensorboard", "loss/training") == _losses(ROWS[:1])
        assert _digests(root) == before
        _measured(root, ROWS)
        end = time.monotonic() + 300
        while _points(root / ".tensorboard", "loss/training") != _losses(ROWS):
            assert time.monotonic() < end
            time.sleep(0.5)
    finally:
        follows.send_signal(signal.SIGINT)
        follows.communicate(timeout=300)
    assert follows.returncode == 0


def _digests(root: Path) -> dict[str, str]:
    files = (file for file in root.rglob("*") if file.is_file() and ".tensorboard" not in file.parts)
    return {str(file): hashlib.sha256(file.read_bytes()).hexdigest() for file in files}
