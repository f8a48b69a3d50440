"""What `ratchet rehearse` shows of a script, and what is said of a run that went on where nothing shows it."""

from pathlib import Path

import pytest
import torch

from flows.command.rehearse import differences
from storage import durable
from storage.attempts import exactness
from storage.run_directory import run_in
from tests.forks import QUICK, Forks

OFTEN = QUICK.format(quiet=1.0)

TRAIN = """
import json, os, random, sys, time, zipfile
random.seed(0)
weight, step = 0.0, 0
if sys.argv[2:]:
    saved = json.loads(zipfile.ZipFile(sys.argv[2]).read("last/data.pkl"))
    weight, step = saved["weight"], saved["step"]
    KEPT and random.setstate((saved["random"][0], tuple(saved["random"][1]), saved["random"][2]))
while step < int(sys.argv[1]):
    weight += random.random()
    step += 1
    print("step", step, "loss", weight, flush=True)
    state = {"step": step, "weight": weight, "random": random.getstate()}
    with zipfile.ZipFile(NAME, "w") as file:  # as torch.save writes it
        for name, text in (("data.pkl", json.dumps(state)), ("data/0", str(weight))):
            file.writestr(zipfile.ZipInfo(f"last/{name}"), text)
    time.sleep(0.05)
open("weights.txt", "w").write(str(weight))
"""
STUDY = """
import ratchet as r

@r.stage(needs="cpu")
def train(run, script: r.Script = r.Script(path="train.py"), steps: int = 12, dies: bool = False):
    import os, signal, threading, time

    def die():
        while run.lock.number == 1 and not any(run.directory.glob("checkpoints/[0-9]*")):
            time.sleep(0.01)
        run.lock.number == 1 and os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=die, daemon=True).start() if dies else None
    run.command("python", script.path, steps, checkpoints="PATTERN", resume=["{checkpoint}"], leaves=["weights.txt"],
        progress=r"step (\\d+)")
    return {}

@r.study(small={"steps": SMALL, "dies": False})
def mine():
    return train()
"""


@pytest.fixture
def place(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    kept, name = request.param
    pattern = "step*.pt" if "step" in name else name
    (tmp_path / "train.py").write_text(TRAIN.replace("KEPT", str(kept)).replace("NAME", f'f"{name}"'))
    (tmp_path / "mine.py").write_text(STUDY.replace("PATTERN", pattern).replace("SMALL", "8"))
    return tmp_path


def killed_once(place: Path, forks: Forks) -> None:
    assert [forks.run(place, "run", "mine.py", "--set", "dies=true", first=OFTEN)[0] for _ in range(2)] == [-9, 0]


@pytest.mark.parametrize("place", [(False, "step{step}.pt"), (True, "step{step}.pt")], indirect=True)
def test_a_script_that_loses_its_generator_is_told_from_one_that_keeps_it(place, forks):
    """Seen: an unchanged train.py, killed three times, had other weights, and "1 of 1 runs verified" said no word."""
    killed_once(place, forks)
    (folder,) = (file.parent for file in place.glob("runs/mine/mine-train/*/stage.json"))
    doubted = "continued 1 time; not shown to be exact (run.command: its script was not rehearsed): ratchet rehearse"
    assert exactness(run_in(folder)).startswith(doubted)
    for words in (["show", str(folder)], ["list"], ["verify", "runs"]):
        code, said = forks.run(place, *words)
        assert code == 0 and "not shown to be exact" in " ".join(said.split()), said
    code, said = forks.run(place, "rehearse", "mine.py", first=OFTEN)
    assert not (place / "runs" / ".rehearsal").exists()
    if "False and" in (place / "train.py").read_text():
        assert code == 1 and "pt (" in said and "tensor 0" in said
        assert "its rehearsal DIFFERED in " in exactness(run_in(folder))
        return
    assert (code, said) == (0, "mine-train: went on as an undisturbed run\n")
    assert exactness(run_in(folder)) == "continued 1 time; a rehearsal of its code went on as an undisturbed one"
    (place / "train.py").write_text((place / "train.py").read_text() + "\n# edited\n")
    killed_once(place, forks)
    (edited,) = (file.parent for file in place.glob("runs/mine/mine-train/*/stage.json") if file.parent != folder)
    assert doubted in exactness(run_in(edited)), "an answer is of the script that was rehearsed"
    code, said = forks.run(place, "compare", str(folder), str(edited))
    assert code == 0 and "not shown to be exact" in " ".join(said.split()), said


def test_what_differs_in_two_files_of_torch_is_named(tmp_path):
    for run, value in (("whole", 1.0), ("killed", 2.0)):
        (tmp_path / run).mkdir()
        durable.write_json(tmp_path / run / "COMPLETE.json", {"outputs": {"last.pt": {}}})
        torch.save({"step": 3, "weights": torch.tensor([value])}, tmp_path / run / "last.pt")
    assert differences(tmp_path / "whole", tmp_path / "killed") == "last.pt (tensor 0)"


@pytest.mark.parametrize("place", [(False, "last.pt")], indirect=True)
def test_a_rehearsal_that_never_went_on_shows_nothing(place, forks):
    """It writes over its one checkpoint too often for any to be kept, and begins anew, with equal bytes."""
    assert forks.run(place, "rehearse", "mine.py", first=OFTEN) == (
        1, "mine-train: not shown: it kept nothing before its end, so that it began anew each time\n"
    )  # fmt: skip
    assert not (place / "runs" / "mine" / "rehearsed.json").exists()


def test_a_run_that_never_went_on_needs_no_rehearsal(tmp_path):
    (attempts := tmp_path / "runs/s/a/0" / "attempts").mkdir(parents=True)
    durable.write_json(attempts / "0001.json", {"attempt": 1})
    durable.write_json(attempts.parent / "stage.json", {"stage": "a", "fingerprint": "0"})
    assert exactness(run_in(attempts.parent)) == ""
