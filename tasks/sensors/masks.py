"""Values of sensors that are hidden from a network, and what the sensors beside them say."""

from __future__ import annotations

import torch
from torch.nn import functional


def hide(draws: torch.Tensor, alive: torch.Tensor, ratio: float) -> torch.Tensor:
    """Which sensors are hidden, bool [B, S]: of each event's live ones exactly the share `ratio`, rounded down, and at
    least one. `draws` [B, S] are uniform; the lowest decide, and of equal ones the first."""
    counts = (alive.sum(1, keepdim=True).double() * ratio).long().clamp(min=1)
    order = torch.where(alive, draws, torch.inf).sort(stable=True, dim=1).indices
    return torch.zeros_like(alive).scatter(1, order, torch.arange(alive.shape[1]) < counts)


def near_mean(values: torch.Tensor, seen: torch.Tensor, near: torch.Tensor) -> torch.Tensor:
    """The mean value of each sensor's seen neighbours [B, S]; of all that an event shows, where it has none.

    `values` and `seen` (0 or 1) are [B, S], `near` the numbers of each sensor's neighbours [S, K], filled up with S.
    """
    values, seen = (functional.pad(of, (0, 1)) for of in (values * seen, seen))
    count, total = seen[:, near].sum(-1), values[:, near].sum(-1)
    everywhere = values.sum(1, keepdim=True) / seen.sum(1, keepdim=True)
    return torch.where(count > 0, total / count.clamp(min=1), everywhere)
