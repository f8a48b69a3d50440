"""A compiler that fails never ends a training, at whichever rung, and what was compiled goes on bit for bit."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._dynamo.exc import InternalTorchDynamoError

from storage import durable
from tasks.findings.final_results import numerics_changed
from tasks.training import compiled
from tasks.training.budget import SpikeGuard
from tests.tasks import tiny
from tests.tasks.tiny import (
    SEEN,
    ToyConfig,
    toy_attempt,
    toy_directory,
    toy_problem,
    toy_to_the_end,
    what_changed,
)

TOY = ToyConfig()
REAL_COMPILE, REAL_REFUSAL = torch.compile, compiled.refusal
STEP = 2  # micro-batches of a step


def rungs(changes: list[dict[str, Any]]) -> list[tuple[int, str]]:
    return [(change["from_step"], change["compile"]) for change in changes]


class Faulty:
    """`torch.compile`, of which these modes fail from this call of the compiled model on, or only on these examples;
    else the model as it is."""

    def __init__(
        self, *modes: str, at_call: int = 1, on: list[int] | None = None, error: Exception | None = None
    ) -> None:
        self.modes, self.at_call, self.on, self.calls = modes, at_call, on, 0
        self.error = error or InternalTorchDynamoError("planted\nwith a second line")

    def __call__(self, model: torch.nn.Module, mode: str, dynamic: bool) -> Any:
        assert not dynamic
        torch._dynamo.utils.counters["frames"]["ok"] += 1

        def called(*args: Any) -> Any:
            self.calls += 1
            if mode in self.modes and self.calls >= self.at_call and self.on in (None, SEEN[-1]):
                torch.rand(3), model.outer.weight.grad
                raise self.error
            return model(*args)

        return called


@pytest.fixture
def everything_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "refusal", lambda rung, device: "")


KILLED = """
import os, signal, sys
from pathlib import Path
from tests.tasks.tiny import HOOKS, SEEN, ToyConfig, toy_attempt
HOOKS["batch"] = lambda: os.kill(os.getpid(), signal.SIGKILL) if len(SEEN) == 9 else None
toy_attempt(Path(sys.argv[1]), ToyConfig(), compile="default", checkpoint_every_steps=1)
"""


def test_a_compiled_training_that_is_killed_has_the_bytes_of_one_piece(tmp_path: Path) -> None:
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


@pytest.mark.parametrize("fails", range(1, 4))
def test_what_fails_at_each_rung_goes_on_at_the_next_with_the_same_step(
    fails: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, everything_is_there: None
) -> None:
    faulty = compiled.RUNGS[:fails]
    monkeypatch.setattr(torch, "compile", Faulty(*faulty))
    assert toy_attempt(tmp_path / "run", TOY, compile="max-autotune").end_state == "finished"
    left, changes = what_changed(tmp_path / "run", TOY)
    assert rungs(changes) == [(1, rung) for rung in compiled.RUNGS[1 : fails + 1]]
    assert {change["why"] for change in changes} == {"InternalTorchDynamoError: planted"}
    monkeypatch.setattr(torch, "compile", REAL_COMPILE)
    assert toy_attempt(tmp_path / "eager", TOY).end_state == "finished"
    assert left == what_changed(tmp_path / "eager", TOY)[0]  # of which the planted compiler makes the same bytes
    (caution,) = numerics_changed({"toy": changes})
    assert "toy was not compiled as was asked" in caution and f"{compiled.RUNGS[fails]} from step 1" in caution


def test_a_compiler_that_fails_later_is_lowered_from_there_on_whatever_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, everything_is_there: None
) -> None:
    """Such as at the first window of another size."""
    monkeypatch.setattr(torch, "compile", Faulty("default", at_call=2 * STEP + 1))
    assert toy_attempt(tmp_path / "run", TOY, compile="default", max_steps_per_run=4).end_state == "out_of_time"
    monkeypatch.setattr(torch, "compile", Faulty())
    assert toy_attempt(tmp_path / "run", TOY, compile="default").end_state == "finished"
    assert rungs(what_changed(tmp_path / "run", TOY)[1]) == [(3, "none")]


def test_a_machine_that_cannot_compile_does_not_go_on_with_what_another_compiled_unless_it_may(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, everything_is_there: None
) -> None:
    monkeypatch.setattr(torch, "compile", Faulty())
    assert toy_attempt(tmp_path, TOY, compile="default", max_steps_per_run=3).end_state == "out_of_time"
    monkeypatch.setattr(compiled, "refusal", lambda rung, _: "no compiler" * (rung != "none"))
    refused = toy_attempt(tmp_path, TOY, compile="default")
    assert refused.end_state == "check_failed" and "no compiler" in refused.text
    assert toy_attempt(tmp_path, TOY).end_state == "bad_input"  # nor is it taken for one that was never compiled
    assert toy_attempt(tmp_path, TOY, compile="default", allow_numerics_change=True).end_state == "finished"
    assert rungs(what_changed(tmp_path, TOY)[1]) == [(4, "none")]


@pytest.mark.parametrize("steps_per_run", [1, 3])
def test_what_fails_at_one_step_is_lowered_there_wherever_the_training_is_cut(
    steps_per_run: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, everything_is_there: None
) -> None:
    toy_attempt(tmp_path / "order", TOY, max_steps_per_run=4)
    monkeypatch.setattr(torch, "compile", Faulty("default", on=SEEN[3 * STEP]))
    assert toy_attempt(tmp_path / "whole", TOY, compile="default").end_state == "finished"
    changed = {"compile": "default", "max_steps_per_run": steps_per_run}
    assert toy_to_the_end(tmp_path / "pieces", TOY, **changed)[-1].end_state == "finished"
    whole = what_changed(tmp_path / "whole", TOY)
    assert what_changed(tmp_path / "pieces", TOY) == whole and rungs(whole[1]) == [(4, "none")]


def test_a_compiler_that_fails_where_an_attempt_began_and_went_back_to_is_lowered_like_any(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, everything_is_there: None
) -> None:
    toy_attempt(tmp_path / "order", TOY, max_steps_per_run=5)
    budget = TOY.budget.model_copy(update={"guard": SpikeGuard(max_rollbacks=1), "validations_per_epoch": 2})
    poisoned = TOY.model_copy(update={"budget": budget, "poisoned_loss": SEEN[4 * STEP][0]})
    monkeypatch.setattr(torch, "compile", Faulty())
    assert toy_attempt(tmp_path, poisoned, compile="default", max_steps_per_run=3).end_state == "out_of_time"
    monkeypatch.setattr(torch, "compile", Faulty("default", at_call=2 * STEP + 1))  # of step 4, made again
    assert toy_attempt(tmp_path, poisoned, compile="default").end_state == "numerical_failure"
    changes = durable.read_json(toy_directory(tmp_path, poisoned).stage_file)["numerics_changes"]
    assert rungs(changes) == [(4, "none")] and changes[0]["after_rollbacks"] == 1


def test_a_machine_that_compiles_nothing_does_not_go_on_with_what_another_compiled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, everything_is_there: None
) -> None:
    monkeypatch.setattr(torch, "compile", Faulty())
    assert toy_attempt(tmp_path, TOY, compile="default", max_steps_per_run=3).end_state == "out_of_time"
    monkeypatch.setattr(torch, "compile", Faulty("default"))
    assert toy_attempt(tmp_path, TOY, compile="default").end_state == "check_failed"
    assert toy_attempt(tmp_path, TOY, compile="default", allow_numerics_change=True).end_state == "finished"
    assert rungs(what_changed(tmp_path, TOY)[1]) == [(4, "none")]


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
@pytest.mark.parametrize("error", [ValueError("of the model"), RuntimeError("mat1 and mat2 shapes"), MemoryError()])
def test_an_error_of_the_model_and_memory_that_ends_are_not_the_compiler_s(
    error: Exception, mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, everything_is_there: None
) -> None:
    monkeypatch.setattr(torch, "compile", Faulty(mode, error=error))
    ends = "check_failed" if isinstance(error, MemoryError) else "crashed"
    assert toy_attempt(tmp_path, TOY, compile=mode).end_state == ends
    assert durable.read_json(toy_directory(tmp_path, TOY).stage_file)["numerics_changes"] == []


def test_an_error_of_what_the_compiler_made_is_the_compiler_s(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, everything_is_there: None
) -> None:
    """Such as a CUDA graph that cannot be captured: any error, but from within the compiler's own modules."""
    within: dict[str, Any] = {"__name__": "torch._inductor.cudagraph_trees"}
    exec("def capture(*_):\n    raise RuntimeError('operation not permitted when stream is capturing')", within)
    monkeypatch.setattr(torch, "compile", lambda model, mode, dynamic: within["capture"])
    assert toy_attempt(tmp_path, TOY, compile="reduce-overhead").end_state == "finished"
    assert rungs(what_changed(tmp_path, TOY)[1]) == [(1, "default"), (1, "none")]


def test_losses_that_never_call_the_model_are_not_called_compiled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def around(config: ToyConfig) -> Any:
        problem = toy_problem(config)
        losses = problem.losses
        problem.losses = lambda model, batch: losses(problem.model, batch)
        return problem

    monkeypatch.setattr(tiny, "toy_problem", around)
    assert toy_to_the_end(tmp_path, TOY, compile="default")[-1].end_state == "finished"
    assert rungs(what_changed(tmp_path, TOY)[1]) == [(1, "none")]


def test_this_machine_refuses_what_it_cannot_do(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu = torch.device("cpu")
    assert [REAL_REFUSAL(rung, cpu) for rung in compiled.RUNGS] == ["it is for a GPU", "it is for a GPU", "", ""]
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert "no C++ compiler no-such-compiler" in REAL_REFUSAL("default", cpu)
    monkeypatch.setattr(os, "sysconf", lambda name: 0)  # of a machine whose page cache holds the rest
    monkeypatch.setenv("CXX", sys.executable)
    assert not REAL_REFUSAL("default", cpu)
    monkeypatch.setattr(compiled, "LEAST_BYTES", 1 << 60)
    assert "memory are free" in REAL_REFUSAL("default", cpu) and not REAL_REFUSAL("none", cpu)
    SEEN.clear()
