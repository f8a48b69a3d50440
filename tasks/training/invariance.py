"""Checks that a model predicts the same for an example alone, beside others, padded, or in chunks.

Where it does not, one of the ways treats its inputs differently (forgets to normalise them, reads the padding, mixes
examples), and a measurement in one way says nothing about use in another.
"""

from collections.abc import Callable, Iterator, Mapping

import numpy as np
import torch

from storage.errors import CheckFailed

Way = Callable[[np.ndarray], torch.Tensor]
"""Dataset indices [B] -> predictions [B, ...]."""


def require_invariant(ways: Mapping[str, Way], indices: np.ndarray, tolerance: float) -> float:
    """Compares each way with the first on the examples `indices`; returns the largest difference.

    CheckFailed names the way and the example where one is larger than `tolerance`, or not finite. Dropout and the like
    must be switched off.
    """
    reference, largest = next(iter(ways)), 0.0
    for name, differences in _differences(ways, indices):
        worst = int(torch.where(differences.isnan(), torch.inf, differences).argmax())
        difference = float(differences[worst])
        if not difference <= tolerance:
            measured = f"{difference:.3g} of difference in example {indices[worst]}"
            raise _failed(name, reference, measured, f"at most {tolerance:g}")
        largest = max(largest, difference)
    return largest


def largest_differences(ways: Mapping[str, Way], indices: np.ndarray) -> dict[str, float]:
    """The largest difference of each way from the first, where a failure is a result; NaN if a prediction is NaN."""
    return {name: float(differences.max()) for name, differences in _differences(ways, indices)}


def batchwise(way: Way, batch: int) -> dict[str, Way]:
    """The ways to batch examples: `batch` at a time, an eighth of that, in another order, each alone.

    A dependence on the batch as a whole (its mean, its first row, its size) shows in one of them.
    """

    def in_batches(size: int) -> Way:
        return lambda indices: torch.cat([way(indices[first : first + size]) for first in range(0, len(indices), size)])

    def in_another_order(indices: np.ndarray) -> torch.Tensor:
        backwards = np.ascontiguousarray(indices[::-1])
        return in_batches(batch)(backwards).flip(0)

    return {
        f"in batches of {batch}": in_batches(batch),
        f"in batches of {max(1, batch // 8)}": in_batches(max(1, batch // 8)),
        "in another order": in_another_order,
        "alone": in_batches(1),
    }


def _differences(ways: Mapping[str, Way], indices: np.ndarray) -> Iterator[tuple[str, torch.Tensor]]:
    """Yields each way but the first, with the largest difference of each example from the first, [B]."""
    (reference, reference_way), *rest = ways.items()
    expected = reference_way(indices)
    for name, way in rest:
        predictions = way(indices)
        if predictions.shape != expected.shape:
            raise _failed(
                name, reference, f"predictions of the shape {list(predictions.shape)}", f"{list(expected.shape)}"
            )
        yield name, (predictions - expected).abs().flatten(1).amax(1)


def _failed(way: str, reference: str, measured: str, required: str) -> CheckFailed:
    return CheckFailed(
        f"the model says the same of an example {way} as {reference}",
        measured,
        required,
        "One way treats its inputs otherwise: see that both normalise them, and that no padding is read",
    )
