"""What the benchmarks train: a GPT-NeoX of a stated size on blocks of real text, docstrings of installed packages."""

import argparse
import inspect
import os
import platform
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import GPTNeoXConfig, GPTNeoXForCausalLM

from tasks.language.model import block_losses
from tasks.stage.execution import Execution
from tasks.stage.numerics import Numerics, prepare
from tasks.training.budget import Budget
from tasks.training.loader import moved
from tasks.training.problem import Problem, adamw

SIZES: dict[str, dict[str, int]] = {
    "2M": {"hidden_size": 128, "num_hidden_layers": 4, "intermediate_size": 512, "vocab_size": 4096},
    "29M": {"hidden_size": 512, "num_hidden_layers": 4, "intermediate_size": 2048, "vocab_size": 16000},
    "110M": {"hidden_size": 768, "num_hidden_layers": 10, "intermediate_size": 3072, "vocab_size": 25000},
    "1.4B": {"hidden_size": 2048, "num_hidden_layers": 24, "intermediate_size": 8192, "vocab_size": 50304},
}
LENGTH = 128


def arguments(description: str, **defaults: Any) -> argparse.Namespace:
    """The options of a benchmark: each keyword is one, of the type of its default."""
    parser = argparse.ArgumentParser(description=description)
    for name, default in defaults.items():
        parser.add_argument(
            f"--{name.replace('_', '-')}", type=type(default), default=default, help=f"default {default}"
        )
    return parser.parse_args()


def execution(device: str, micro_batch: int) -> Execution:
    """Settings of a stage, with torch set up for them as every stage sets it up."""
    settings = Execution(device=device, micro_batch_examples=micro_batch, checkpoint_every_seconds=60.0)
    prepare(Numerics(), settings, 0)
    return settings


def network(size: str, device: str, length: int = LENGTH) -> GPTNeoXForCausalLM:
    torch.manual_seed(0)
    shape = SIZES[size]
    config = GPTNeoXConfig(
        **shape, num_attention_heads=max(2, shape["hidden_size"] // 64), max_position_embeddings=length, use_cache=False
    )
    with torch.device(device):
        return GPTNeoXForCausalLM(config)


def flops_of_a_token(model: GPTNeoXForCausalLM, length: int) -> float:
    """Floating-point operations of training on a token: matrix products and causal attention, nothing recomputed."""
    weights = sum(part.weight.numel() for part in model.modules() if isinstance(part, torch.nn.Linear))
    return 6 * (weights + model.config.num_hidden_layers * model.config.hidden_size * length)


@cache
def documents() -> list[np.ndarray]:
    """Docstrings of torch as their bytes: real text with its real lengths, which any vocabulary here can hold."""
    found = []
    for module in (torch, torch.nn, torch.nn.functional, torch.linalg, torch.optim, torch.distributions, torch.fft, np):
        for name in dir(module):
            text = inspect.getdoc(getattr(module, name)) or ""
            if len(text) > 40:
                found.append(np.frombuffer(text.encode(), dtype=np.uint8).astype(np.int64))
    return found


def blocks(length: int = LENGTH) -> torch.Tensor:
    """The documents end to end, cut into blocks: int64 [blocks, length]."""
    joined = np.concatenate([part for document in documents() for part in (document, [0])])
    return torch.from_numpy(joined[: len(joined) // length * length].reshape(-1, length))


def problem(model: GPTNeoXForCausalLM, data: torch.Tensor, budget: Budget) -> Problem:
    """The training as the stages set it up; validation is not what is measured here."""
    where = next(model.parameters()).device

    def batch(indices: np.ndarray, _epoch: int) -> torch.Tensor:
        return moved(data[torch.from_numpy(indices)], where)

    return Problem(model, adamw(model, budget), batch, block_losses, lambda _: 0.0)


def machine() -> str:
    """One line that says on what was measured."""
    cpu = next(
        (line.split(":")[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line),
        platform.processor(),
    )
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU"
    return f"{os.cpu_count()} x {cpu}, {gpu}, torch {torch.__version__}, Python {platform.python_version()}"
