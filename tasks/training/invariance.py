"""Whether a model says the same of an example however it comes: alone, beside others, padded, in chunks.

Where it does not, one of the ways treats its inputs otherwise (forgets to normalise them, reads the padding, mixes
examples), and what was measured in one way says nothing about what is used in another.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

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
    (reference, first), *others = ways.items()
    expected, largest = first(indices), 0.0
    for name, way in others:
        given = way(indices)
        if given.shape != expected.shape:
            raise _failed(name, reference, f"predictions of the shape {list(given.shape)}", f"{list(expected.shape)}")
        differences = (given - expected).abs().flatten(1).amax(1)
        worst = int(torch.where(differences.isnan(), torch.inf, differences).argmax())
        difference = float(differences[worst])
        if not difference <= tolerance:
            measured = f"{difference:.3g} of difference in example {indices[worst]}"
            raise _failed(name, reference, measured, f"at most {tolerance:g}")
        largest = max(largest, difference)
    return largest


def _failed(way: str, reference: str, measured: str, required: str) -> CheckFailed:
    return CheckFailed(
        f"the model says the same of an example {way} as {reference}",
        measured,
        required,
        "One way treats its inputs otherwise: see that both normalise them, and that no padding is read",
    )
