"""Out of memory: a real failed allocation ends with what to change."""

import json
import re
import subprocess
import sys

import pytest
import torch

from storage.errors import CheckFailed
from tasks.stage.execution import Execution
from tasks.training.memory import explain_out_of_memory
from tests.conftest import REPOSITORY

# a wide network and an address space with room for one example, not for the 1,024 MiB of sixteen
TOO_LARGE = """
import os, resource, sys
from pathlib import Path
import torch
from torch import nn
from tasks.training.optimizer import adamw
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
