"""What `ratchet rehearse` shows of a script, and what is said of a run that went on where nothing shows it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from storage import durable
from storage.continuations import exactness
from storage.run_directory import run_in

TRAIN = """
import os, random, sys, time, torch
torch.manual_seed(0)
random.seed(0)
model, step = torch.nn.Linear(4, 1), 0
if sys.argv[2:]:
    saved = torch.load(sys.argv[2])
    model.load_state_dict(saved["model"])
    step = saved["step"]
    KEPT and random.setstate(saved["random"])
while step < int(sys.argv[1]):
    with torch.no_grad():
        model.weight += random.random()
    step += 1
    print("step", step, "loss", float(model.weight.sum()), flush=True)
    state = {"step": step, "model": model.state_dict(), "random": random.getstate()}
    torch.save(state, NAME)
    time.sleep(0.2)
torch.save(model.state_dict(), "weights.pt")
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
    run.command("python", script.path, steps, checkpoints="PATTERN", resume=["{checkpoint}"], leaves=["weights.pt"],
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


def ratchet(place: Path, *words: str) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-c", "import sys; from flows.command import ratchet; sys.exit(ratchet())", *words],
        cwd=place, env=os.environ, capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    return done.returncode, done.stdout + done.stderr


def killed_once(place: Path, prefect_server: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PREFECT_API_URL", prefect_server)
        codes = [ratchet(place, "run", "mine.py", "--set", "dies=true")[0] for _ in range(2)]
    assert codes == [-9, 0]


@pytest.mark.parametrize("place", [(False, "step{step}.pt"), (True, "step{step}.pt")], indirect=True)
def test_a_script_that_loses_its_generator_is_told_from_one_that_keeps_it(place: Path, prefect_server: str) -> None:
    """Seen: an unchanged train.py, killed three times, had other weights, and "1 of 1 runs verified" said no word."""
    killed_once(place, prefect_server)
    (folder,) = (file.parent for file in place.glob("runs/mine/mine-train/*/stage.json"))
    doubted = "continued 1 time; not shown to be exact (run.command: its script was not rehearsed): ratchet rehearse"
    assert exactness(run_in(folder)).startswith(doubted)
    for words in (["show", str(folder)], ["list"], ["verify", "runs"]):
        code, said = ratchet(place, *words)
        assert code == 0 and "not shown to be exact" in " ".join(said.split()), said
    code, said = ratchet(place, "rehearse", "mine.py")
    if "True and" in (place / "train.py").read_text():
        assert (code, said) == (0, "mine-train: went on as an undisturbed run\n")
        assert exactness(run_in(folder)) == "continued 1 time; a rehearsal of its code went on as an undisturbed one"
    else:
        assert code == 1 and "pt (" in said and "tensor 0" in said
        assert "its rehearsal DIFFERED in " in exactness(run_in(folder))
    assert not (place / "runs" / ".rehearsal").exists()
    (place / "train.py").write_text((place / "train.py").read_text() + "\n# edited\n")
    killed_once(place, prefect_server)
    (edited,) = (file.parent for file in place.glob("runs/mine/mine-train/*/stage.json") if file.parent != folder)
    assert doubted in exactness(run_in(edited)), "an answer is of the script that was rehearsed"
    code, said = ratchet(place, "compare", str(folder), str(edited))
    assert code == 0 and "not shown to be exact" in " ".join(said.split()), said


@pytest.mark.parametrize("place", [(False, "last.pt")], indirect=True)
def test_a_rehearsal_that_never_went_on_shows_nothing(place: Path) -> None:
    """It writes over its one checkpoint too often for any to be kept, and begins anew, with equal bytes."""
    assert ratchet(place, "rehearse", "mine.py") == (
        1, "mine-train: not shown: it kept nothing before its end, so that it began anew each time\n"
    )  # fmt: skip
    assert not (place / "runs" / "mine" / "rehearsed.json").exists()


def test_a_run_that_never_went_on_needs_no_rehearsal(tmp_path: Path) -> None:
    (attempts := tmp_path / "runs/s/a/0" / "attempts").mkdir(parents=True)
    durable.write_json(attempts / "0001.json", {"attempt": 1})
    durable.write_json(attempts.parent / "stage.json", {"stage": "a", "fingerprint": "0"})
    assert exactness(run_in(attempts.parent)) == ""
