"""`ratchet init`: the file that it writes runs to its end by the command, killed once in between."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from flows import command
from storage import durable
from tests.conftest import REPOSITORY
from tests.test_going_on import FILES

TRAIN = FILES["train.py"].replace("    if step % 50 ==", "    time.sleep(pause)\n    if step % 50 ==")
"""That of docs/going-on.md, which takes --output, --steps and --resume, and waits until the test lets it go on."""


def run(folder: Path, server: str, *words: str, strike: Callable[[], bool] = lambda: False) -> tuple[int, str]:
    """The command, which is killed once `strike` sees its moment; (exit code, all that it printed)."""
    process = subprocess.Popen(
        [sys.executable, "-m", "flows", "run", *words], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        env=os.environ | {"PREFECT_API_URL": server, "PYTHONPATH": str(REPOSITORY)}, text=True,
    )  # fmt: skip
    deadline = time.monotonic() + 300
    while process.poll() is None and time.monotonic() < deadline:
        if strike():
            process.send_signal(signal.SIGKILL)
            break
        time.sleep(0.002)
    return process.wait(300), process.communicate()[0]


def test_the_study_that_is_written_goes_on_after_a_kill(
    tmp_path: Path, prefect_server: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert command.ratchet(["init"]) == 0
    assert capsys.readouterr().out == "wrote my_study.py; next: ratchet run my_study.py\n"
    given = ("my_study.py", "--set", "pieces=1000")

    def parts() -> list[Path]:
        return [*tmp_path.glob("runs/my_study/my-study-measure/*/records/*.json")]

    assert run(tmp_path, prefect_server, *given, strike=lambda: len(parts()) > 5)[0] == -signal.SIGKILL
    kept = {file: file.stat().st_mtime_ns for file in parts()[:3]}
    code, printed = run(tmp_path, prefect_server, *given)
    assert code == 0 and "  mean 0." in printed, printed
    assert len([*tmp_path.rglob("attempts/*.json")]) == 2
    assert {file: file.stat().st_mtime_ns for file in kept if file.exists()} in (kept, {}), "none was made anew"


def test_a_script_is_given_the_words_that_it_takes_and_goes_on_from_its_checkpoint(
    tmp_path: Path, prefect_server: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    script = TRAIN.replace("type=int)", "type=int, default=300)", 1).replace(
        "import argparse", "import argparse, time", 1
    )
    waits = "pause = 0.0 if options.resume else 0.05\n"
    (tmp_path / "train.py").write_text(script.replace("pictures, digits =", f"{waits}pictures, digits =", 1))
    assert command.ratchet(["init", "mine", "--train-py", "train.py"]) == 0
    assert capsys.readouterr().out.endswith("then: ratchet run mine.py\n")
    written = (tmp_path / "mine.py").read_text()
    for part in (
        '"--output",\n        run.scratch,',
        'checkpoints="last.pt",',
        'resume=["--resume", "{checkpoint}"],',
        'leaves=["weights.pt"],',
        r'progress=r"step (\d+) of (\d+)",',
    ):
        assert f"        {part}" in written and "to fill in" not in written
    (code, printed) = run(
        tmp_path, prefect_server, "mine.py", strike=lambda: bool([*tmp_path.glob("runs/mine/*/*/checkpoints/[0-9]*")])
    )
    assert code == -signal.SIGKILL, printed
    code, printed = run(tmp_path, prefect_server, "mine.py")
    assert code == 0 and "goes on from last" in printed, printed
    (marker,) = tmp_path.glob("runs/mine/mine-train/*/COMPLETE.json")
    assert durable.read_json(marker.with_name("result.json"))["ended"] == "exit code 0"
    assert len([*marker.parent.glob("attempts/*.json")]) == 2


OTHERWISE = """
import argparse, json, os, torch

def save(state, folder, epoch):
    part = os.path.join(folder, f"ckpt_{epoch}.part")
    torch.save(state, part)
    os.replace(part, os.path.join(folder, f"ckpt_{epoch}.pt"))

parser = argparse.ArgumentParser()
parser.add_argument("--dropout", type=float)
parser.add_argument("--save-dir", default="out")
parser.add_argument("-r", "--resume", action="store_true")
given = parser.parse_args()
for epoch in range(3):
    save({}, given.save_dir, epoch)
    print(f"[Epoch {epoch + 1:3d}/{3}] loss {0.1:.3f}")
with open(given.save_dir + "/metrics.json", "w") as file:
    json.dump({}, file)
"""


JSON_LINES = """
for step in range(9):
    print(f'{{"step": {step}, "loss": 0.1}}')
"""


@pytest.mark.parametrize(
    ("script", "words"),
    [
        (OTHERWISE, [
            '"--save-dir",', "run.scratch,", "# it takes --dropout too", 'checkpoints="ckpt_*.pt",',
            'resume=["--resume"],', 'leaves=["metrics.json"],', r'progress=r"Epoch \s*(\d+)/(\d+)",',
        ]),
        (JSON_LINES, [
            "progress=r'step" + r"""": (\d+)',""",
            "# to fill in, as train_NAME.py does not tell it; without checkpoints a kill costs all:",
            '# checkpoints="last.pt",', '# resume=["--resume", "{checkpoint}"],', '# leaves=["weights.pt"],',
        ]),
        ("for it in range(9):\n    print('it %d' % it)\n", [
            r'progress=r"it \s*(\d+)",',
            "# to fill in, as train_NAME.py does not tell it; without checkpoints a kill costs all:",
            '# checkpoints="last.pt",', '# resume=["--resume", "{checkpoint}"],', '# leaves=["weights.pt"],',
        ]),
    ],
)  # fmt: skip
def test_what_a_script_s_text_tells_is_filled_in_and_the_rest_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, words: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train_NAME.py").write_text(script)
    assert command.ratchet(["init", "mine", "--train-py", "train_NAME.py"]) == 0
    whole = (tmp_path / "mine.py").read_text()
    assert '"train_NAME.py"' in whole
    written = whole.partition("script.path,\n")[2].partition("    )\n")[0]
    assert [re.sub("(,)  # .*", r"\1", line.strip()) for line in written.splitlines()] == words


def test_nothing_is_overwritten_and_no_file_is_left_that_would_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text("# mine")
    (tmp_path / "plain.py").write_text("print('trained')\n")
    (tmp_path / "torn.py").write_text("print(")
    for given, said in (
        (["mine"], "mine.py is there already: give another name"),
        (["json"], "the module name 'json' is taken"),
        (["two words"], "its name is no module name"),
        (["other", "--train-py", "none.py"], "--train-py none.py cannot be read"),
        (["other", "--train-py", "torn.py"], "--train-py torn.py:1: SyntaxError"),
        (["no/where"], "no/where.py cannot be written"),
    ):
        assert command.ratchet(["init", *given]) == 2
        assert said in capsys.readouterr().err
    assert (tmp_path / "mine.py").read_text() == "# mine" and len([*tmp_path.iterdir()]) == 3
    assert command.ratchet(["init", "plain_study", "--train-py", "plain.py"]) == 0
    assert '        # checkpoints="last.pt",  # what it goes' in (tmp_path / "plain_study.py").read_text()
