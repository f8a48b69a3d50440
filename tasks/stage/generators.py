"""The generators of random numbers of a process: Python's, NumPy's and torch's."""

import random
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch


def generator_tensors(on_gpu: bool) -> dict[str, torch.Tensor]:
    """The state of torch's generators: the CPU's, and each GPU's where one is used (a query alone would occupy it)."""
    gpus: Iterable[torch.Tensor] = torch.cuda.get_rng_state_all() if on_gpu else ()
    return {"torch": torch.get_rng_state()} | {f"cuda.{index}": state for index, state in enumerate(gpus)}


def generator_numbers() -> dict[str, Any]:
    """The state of Python's and NumPy's generators, as JSON."""
    state: Any = np.random.get_state()  # NumPy's types leave open whether this is a tuple
    kind, keys, place, has_gauss, gauss = state
    version, numbers, gauss_next = random.getstate()
    return {
        "numpy": [kind, keys.tolist(), int(place), int(has_gauss), float(gauss)],
        "python": [version, list(numbers), gauss_next],
    }


def load_generator_tensors(tensors: dict[str, torch.Tensor]) -> None:
    """Restores the state from `generator_tensors`."""
    torch.set_rng_state(tensors["torch"])
    for name, tensor in tensors.items():
        kind, _, index = name.partition(".")
        if kind == "cuda" and int(index) < torch.cuda.device_count():  # fewer GPUs may be visible than before
            torch.cuda.set_rng_state(tensor, int(index))


def load_generators(tensors: dict[str, torch.Tensor], numbers: dict[str, Any]) -> None:
    """Restores the state from `generator_tensors` and `generator_numbers`."""
    load_generator_tensors(tensors)
    kind, keys, place, has_gauss, gauss = numbers["numpy"]
    np.random.set_state((kind, np.array(keys, dtype=np.uint32), place, has_gauss, gauss))
    version, state, gauss_next = numbers["python"]
    random.setstate((version, tuple(state), gauss_next))
