"""Memory that ends at a step: the micro-batch is halved, the same step made again, and every kill ends the same."""

import json
import re
import subprocess
import sys

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel

from flows.command.show import facts_of, in_words
from storage import durable
from storage.errors import CheckFailed
from tasks.findings.final_results import numerics_changed
from tasks.stage.execution import Execution
from tasks.training.memory import explain_out_of_memory
from tasks.training.state import Position, State, StepStart
from tests.conftest import REPOSITORY
from tests.tasks import tiny
from tests.tasks.tiny import (
    HOOKS,
    SEEN,
    ToyConfig,
    toy_attempt,
    toy_directory,
    toy_problem,
    toy_to_the_end,
    what_changed,
)

TOY = ToyConfig()  # windows of 4 + 4 examples, with dropout
CHUNKS = 2  # of a window
AT_STEP = 3


@pytest.fixture
def fits(monkeypatch, tmp_path):
    """The most rows beside one example, the first in the second half of step 3; more are an error."""
    toy_attempt(tmp_path / "order", TOY, max_steps_per_run=AT_STEP)
    example, fits = SEEN[CHUNKS * AT_STEP - 1][0], {"rows": 2, "error": torch.OutOfMemoryError("CUDA out of memory.")}
    SEEN.clear()

    def limited(config):
        problem = toy_problem(config)
        losses = problem.losses

        def within(model, batch):
            if example in batch.indices and len(batch.x) > fits["rows"]:
                raise fits["error"]
            return losses(model, batch)

        problem.losses = within
        return problem

    monkeypatch.setattr(tiny, "toy_problem", limited)
    return fits


def halved(root, **changed):
    assert toy_to_the_end(root, TOY, fit_memory=True, **changed)[-1].end_state == "finished"
    return what_changed(root, TOY)


def ends_unhalved(root, config=TOY):
    outcome = toy_attempt(root, config, fit_memory=True)
    assert durable.read_json(toy_directory(root, config).stage_file)["numerics_changes"] == []
    return outcome.end_state


@pytest.mark.parametrize("workers", [0, 2])
def test_the_same_step_is_made_again_as_if_it_had_begun_with_the_smaller_micro_batch(tmp_path, fits, workers):
    left, changes = halved(tmp_path / "halved", loader_workers=workers)
    assert changes == [{"from_step": AT_STEP, "micro_batch_examples": 2}]
    fits["rows"] = 8
    toy_attempt(tmp_path / "set", TOY, max_steps_per_run=AT_STEP - 1)
    toy_attempt(tmp_path / "set", TOY, micro_batch_examples=2, allow_numerics_change=True)
    by_hand = what_changed(tmp_path / "set", TOY)
    assert left == by_hand[0]


@pytest.mark.parametrize("steps_per_run", [1, 2, 5])
def test_a_training_in_pieces_halves_at_the_same_step(tmp_path, fits, steps_per_run):
    whole = halved(tmp_path / "whole")
    assert halved(tmp_path / "pieces", max_steps_per_run=steps_per_run) == whole


@pytest.mark.parametrize("calls_after", [1, 2, 6])
def test_killed_before_the_next_checkpoint_it_has_the_same_size_at_the_same_step(tmp_path, fits, calls_after):
    """Also where the memory would suffice the next time: another process may have left the GPU."""
    whole = halved(tmp_path / "whole")
    SEEN.clear()
    failed = CHUNKS * AT_STEP

    def die():
        if len(SEEN) == failed + calls_after:
            HOOKS.clear()
            raise ConnectionError("the node died")

    HOOKS["batch"] = die
    assert toy_attempt(tmp_path / "killed", TOY, fit_memory=True).end_state == "crashed"
    assert toy_directory(tmp_path / "killed", TOY).stage_file.exists()
    fits["rows"] = 8
    SEEN.clear()
    assert toy_attempt(tmp_path / "killed", TOY).end_state == "finished"  # nor need halving be allowed any more
    assert [len(some) for some in SEEN[:8]] == [4] * 4 + [2] * 4
    assert what_changed(tmp_path / "killed", TOY) == whole


def test_a_size_that_a_person_sets_after_a_halving_holds(tmp_path, fits):
    toy_attempt(tmp_path, TOY, fit_memory=True, max_steps_per_run=AT_STEP)
    changed = {"micro_batch_examples": 1, "allow_numerics_change": True}
    for _ in range(2):
        SEEN.clear()
        toy_attempt(tmp_path, TOY, max_steps_per_run=1, **changed)
        assert {len(some) for some in SEEN} == {1}


def test_it_is_halved_until_it_fits_and_ends_where_one_example_does_not(tmp_path, fits):
    fits["rows"] = 1
    _, changes = halved(tmp_path / "one")
    assert [change["micro_batch_examples"] for change in changes] == [2, 1]
    fits["rows"] = 0
    outcome = toy_attempt(tmp_path / "none", TOY, fit_memory=True)
    assert outcome.end_state == "check_failed" and "a micro-batch fits in memory" in outcome.message


@pytest.mark.parametrize("error", [RuntimeError("CUDA error: an illegal memory access"), RuntimeError("out of memory")])
def test_an_error_that_only_looks_like_it_is_not_caught(tmp_path, fits, error):
    fits["error"] = error
    assert ends_unhalved(tmp_path) == "crashed"


OF_MEMORY = [
    MemoryError(),
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
    RuntimeError("[enforce] DefaultCPUAllocator: can't allocate memory"),
    RuntimeError("CUDA error: out of memory"),
    RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"),
]


@pytest.mark.parametrize("error", OF_MEMORY)
def test_memory_that_ends_elsewhere_is_memory(tmp_path, fits, error):
    fits["error"] = error
    assert len(halved(tmp_path)[1]) == 1


@pytest.mark.parametrize("error", OF_MEMORY)
def test_a_validation_that_does_not_fit_ends_with_the_setting_that_helps(tmp_path, error):
    """It is not cut otherwise: its rounding would depend on what an attempt had met."""

    def fail():
        raise error

    HOOKS["evaluate"] = fail
    outcome = toy_attempt(tmp_path, TOY, fit_memory=True)
    assert outcome.diagnosis.category == "out of memory" and "execution.micro_batch_examples" in outcome.text
    HOOKS.clear()
    smaller = {"micro_batch_examples": 2, "allow_numerics_change": True}
    assert toy_attempt(tmp_path, TOY, **smaller).end_state == "finished"


def test_people_read_of_it(tmp_path, fits):
    changes = halved(tmp_path)[1]
    lines = [*in_words(facts_of(toy_directory(tmp_path, TOY)))]
    assert "  numerics memory ended: micro-batches of 2 from step 3 on" in lines
    other = {"device": "cuda"}
    both = numerics_changed({"train": changes, "fit": [*changes, other], "look": [other]})
    assert len(both) == 3 and both[2].startswith("**Numerics changed between attempts of fit, look:**")
    assert "train" in both[0] and both[0].endswith(" 2 from step 3 on.") and "fit" in both[1]


@pytest.mark.parametrize(("of", "name"), [(torch.optim.AdamW, "step"), (AveragedModel, "update_parameters")])
def test_a_step_whose_weights_may_have_changed_is_not_made_again(tmp_path, monkeypatch, of, name):
    def failing(*_):
        raise torch.OutOfMemoryError("CUDA out of memory.")

    monkeypatch.setattr(of, name, failing)
    averaged = TOY.model_copy(update={"budget": TOY.budget.model_copy(update={"ema_decay": 0.9})})
    assert ends_unhalved(tmp_path, averaged) == "check_failed"


def test_a_model_with_batch_norm_is_not_cut_otherwise(tmp_path, fits, monkeypatch):
    limited = tiny.toy_problem

    def normalised(config):
        problem = limited(config)
        problem.model.add_module("norm", nn.BatchNorm1d(4))
        return problem

    monkeypatch.setattr(tiny, "toy_problem", normalised)
    assert ends_unhalved(tmp_path) == "check_failed"


def test_the_start_of_a_step_has_buffers_and_every_generator():
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    state = State(model, torch.optim.SGD(model.parameters(), 0.1), Position())
    start = StepStart(model)
    model(torch.rand(4, 2)).sum().backward()
    drawn = torch.rand(1)
    start.restore(state)
    assert model[1].num_batches_tracked == 0 and model[1].running_mean.tolist() == [0, 0]
    assert all(parameter.grad is None for parameter in model.parameters())
    torch.rand(4, 2)
    assert torch.equal(torch.rand(1), drawn)


# a wide network and an address space with room for one example, not for the 1,024 MiB of sixteen
TOO_LARGE = """
import os, resource, sys
from pathlib import Path
import torch
from torch import nn
from tasks.training.problem import adamw
from tests.tasks import tiny

MIB = 1024**2

def problem(config):
    made = toy_problem(config)
    made.losses = lambda model, batch: torch.ones(len(batch.x), 16 * MIB).matmul(
        torch.ones(16 * MIB, 1)).squeeze(1) * 0 + model(torch.ones(len(batch.x), 4))
    return made

toy_problem, tiny.toy_problem = tiny.toy_problem, problem
torch.ones(2, 4).matmul(torch.ones(4, 1))
torch.optim.AdamW([torch.zeros(1)])  # imports half of torch, once for all attempts
used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + 950 * MIB, used + 950 * MIB))
budget = tiny.ToyConfig().budget.model_copy(update={"epochs": 1.0, "effective_batch_examples": 16})
config = tiny.ToyConfig(budget=budget, examples=16)
for micro_batch in sys.argv[2:]:
    if not os.fork():
        folder, halve = Path(sys.argv[1]) / micro_batch, micro_batch == "halved"
        size = 16 if halve else int(micro_batch)
        outcome = tiny.toy_attempt(folder, config, micro_batch_examples=size, fit_memory=halve)
        print(outcome.end_state, outcome.exit_code, outcome.message, flush=True)
        os._exit(0)
    assert os.wait()[1] == 0
"""


def test_a_micro_batch_that_does_not_fit_ends_with_the_settings_that_help(tmp_path):
    command = [sys.executable, "-c", TOO_LARGE, str(tmp_path), "16", "1", "halved"]
    done = subprocess.run(command, cwd=REPOSITORY, timeout=300, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    message, as_it_says, halved = done.stdout.splitlines()
    assert message.startswith("check_failed 1 check failed: a micro-batch fits in memory: measured of 16: ")
    assert "set execution.micro_batch_examples (now 16) to 8 or less" in message
    assert "the effective batch is the same" in message and "execution.gradient_checkpointing=true" in message
    assert "execution.fit_memory=true" in message
    assert as_it_says.startswith("finished") and halved.startswith("finished")
    (changes,) = [
        json.loads(file.read_text())["numerics_changes"] for file in tmp_path.glob("halved/*/*/*/result.json")
    ]
    assert [change["micro_batch_examples"] for change in changes] in ([8], [8, 4], [8, 4, 2])


LOOK_LIKE_IT = ["shape '[3]' is invalid", "CUDA error: an illegal memory access", "can't allocate memory for 3 seats"]


@pytest.mark.parametrize("message", LOOK_LIKE_IT)
def test_other_errors_stay_what_they_are(message):
    with pytest.raises(RuntimeError, match=re.escape(message)), explain_out_of_memory(Execution(), 8):
        raise RuntimeError(message)


def test_a_gpu_s_words_are_understood_and_a_single_example_is_not_halved():
    """As torch words it on a GPU; raised here on a CPU, since the tests have none."""
    error = torch.OutOfMemoryError(
        "CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has a total capacity of 1 GiB"
    )
    with pytest.raises(CheckFailed) as caught, explain_out_of_memory(Execution(), 1):
        raise error
    assert "measured of 1: CUDA out of memory. Tried to allocate 2.50 GiB" in str(caught.value)
    assert "micro_batch_examples" not in caught.value.advice
    assert caught.value.advice.startswith("set execution.gradient_checkpointing=true")
