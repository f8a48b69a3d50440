"""A compiled training goes on bit for bit; a compiler that fails ends it and says what to set."""

import os
import signal
import subprocess
import sys
from typing import Any

import pytest
import torch
from torch._dynamo.exc import InternalTorchDynamoError

from storage import durable
from tests.tasks import tiny
from tests.tasks.tiny import ToyConfig, toy_attempt, toy_directory, toy_problem, what_changed

TOY = ToyConfig()
STEP = 2  # micro-batches of a step
ADVICE = "or set execution.compile=none, and where steps were made already execution.allow_numerics_change=true too"


class Faulty:
    """`torch.compile`, which makes the model as it is, and fails from this call of it on."""

    def __init__(self, at_call: int, error: Exception | None = None) -> None:
        self.at_call, self.calls = at_call, 0
        self.error = error or InternalTorchDynamoError("planted\nwith a second line")

    def __call__(self, model: torch.nn.Module, mode: str, dynamic: bool) -> Any:
        assert (mode, dynamic) == ("default", False)
        torch._dynamo.utils.counters["frames"]["ok"] += 1

        def called(*args: Any) -> Any:
            self.calls += 1
            if self.calls >= self.at_call:
                raise self.error
            return model(*args)

        return called


KILLED = """
import os, signal, sys
from pathlib import Path
from tests.tasks.tiny import HOOKS, SEEN, ToyConfig, toy_attempt
HOOKS["batch"] = lambda: os.kill(os.getpid(), signal.SIGKILL) if len(SEEN) == 9 else None
toy_attempt(Path(sys.argv[1]), ToyConfig(), compile="default", checkpoint_every_steps=1)
"""
WITHOUT_COMPILER = """
import sys
from pathlib import Path
from tests.tasks.tiny import ToyConfig, toy_attempt
outcome = toy_attempt(Path(sys.argv[1]), ToyConfig(), compile="default")
sys.exit(f"{outcome.end_state}: {outcome.text}")
"""


def test_a_compiled_training_that_is_killed_has_the_bytes_of_one_piece(tmp_path):
    """With the real compiler of a CPU."""
    killed = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path / "killed")], cwd=os.getcwd(), timeout=600)
    assert killed.returncode == -signal.SIGKILL
    assert toy_attempt(tmp_path / "killed", TOY, compile="default").end_state == "finished"
    assert toy_attempt(tmp_path / "whole", TOY, compile="default").end_state == "finished"
    left, changes = what_changed(tmp_path / "killed", TOY)
    assert (left, changes) == what_changed(tmp_path / "whole", TOY) and changes == []
    numerics = durable.read_json(toy_directory(tmp_path / "whole", TOY).stage_file)["numerics"]
    assert numerics["compile"] == "default"
    assert toy_attempt(tmp_path / "eager", TOY).end_state == "finished"
    assert "compile" not in durable.read_json(toy_directory(tmp_path / "eager", TOY).stage_file)["numerics"]


def test_a_machine_without_a_compiler_ends_with_what_to_set(tmp_path):
    command = [sys.executable, "-c", WITHOUT_COMPILER, str(tmp_path / "run")]
    bare = os.environ | {"CXX": "no-such-compiler", "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache")}
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, env=bare)
    last = done.stderr.splitlines()[-1]
    assert last.startswith("bad_input: ") and "install what the compiler misses (g++" in last and ADVICE in last
    assert "no-such-compiler" in last
    assert toy_attempt(tmp_path / "run", TOY, allow_numerics_change=True).end_state == "finished"


@pytest.mark.parametrize("steps", [0, 3])
def test_a_compiler_that_fails_ends_the_training_and_what_was_made_goes_on_without(steps, tmp_path, monkeypatch):
    monkeypatch.setattr(torch, "compile", Faulty(at_call=steps * STEP + 1))
    failed = toy_attempt(tmp_path, TOY, compile="default", checkpoint_every_steps=1)
    assert failed.end_state == "bad_input" and ADVICE in failed.text
    assert "(InternalTorchDynamoError: planted)" in failed.text
    assert toy_attempt(tmp_path, TOY).end_state == "bad_input", "it is not taken for one that was never compiled"
    assert toy_attempt(tmp_path, TOY, allow_numerics_change=True).end_state == "finished"
    assert [change.get("compile") for change in what_changed(tmp_path, TOY)[1]] == [None]


@pytest.mark.parametrize("error", [ValueError("of the model"), RuntimeError("mat1 and mat2 shapes"), MemoryError()])
def test_an_error_of_the_model_and_memory_that_ends_are_not_the_compiler_s(error, tmp_path, monkeypatch):
    monkeypatch.setattr(torch, "compile", Faulty(1, error))
    outcome = toy_attempt(tmp_path, TOY, compile="default")
    assert outcome.end_state == ("check_failed" if isinstance(error, MemoryError) else "crashed")
    assert "execution.compile" not in outcome.text


def test_an_error_of_what_the_compiler_made_is_the_compiler_s(tmp_path, monkeypatch):
    """Such as a CUDA graph that cannot be captured: any error, but from within the compiler's own modules."""
    within: dict[str, Any] = {"__name__": "torch._inductor.cudagraph_trees"}
    exec("def capture(*_):\n    raise RuntimeError('operation not permitted when stream is capturing')", within)
    monkeypatch.setattr(torch, "compile", lambda model, mode, dynamic: within["capture"])
    outcome = toy_attempt(tmp_path, TOY, compile="default")
    assert outcome.end_state == "bad_input" and "operation not permitted" in outcome.text and ADVICE in outcome.text


def test_losses_that_never_call_the_model_are_not_called_compiled(tmp_path, monkeypatch):
    def around(config: ToyConfig) -> Any:
        problem = toy_problem(config)
        losses = problem.losses
        problem.losses = lambda model, batch: losses(problem.model, batch)
        return problem

    monkeypatch.setattr(tiny, "toy_problem", around)
    outcome = toy_attempt(tmp_path, TOY, compile="default")
    assert outcome.end_state == "bad_input" and "the losses do not call the model itself" in outcome.text
