"""A branch of a network for each face of a detector: convolutional for a grid, along its edges for a graph.

Every index is a buffer, so that no tensor is made in a forward pass; none is among the weights that are kept.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from tasks.sensors.faces import Face

JOINED, BLOCKS = 4, 2
"""So many patches a side are joined on the way to a token; so many blocks mix patches with those beside them."""


class GridMix(nn.Module):
    """Each patch [B, H, W, C] and the eight around it."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.mix = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.mix(x.movedim(-1, 1)).movedim(1, -1)


class GraphMix(nn.Module):
    """Each sensor [B, 1, N, C] and the mean of its neighbours."""

    def __init__(self, channels: int, pairs: np.ndarray) -> None:
        super().__init__()
        near = torch.zeros(pairs.max() + 1, pairs.max() + 1)
        near[pairs[:, 0], pairs[:, 1]] = near[pairs[:, 1], pairs[:, 0]] = 1.0
        self.register_buffer("near", near / near.sum(1, keepdim=True), persistent=False)
        self.mix = nn.Linear(2 * channels, channels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.mix(torch.cat([x, self.near @ x], -1))


class Branch(nn.Module):
    """A face: features of each of its patches [B, H, W, C], and a token [B, width]. A graph is one row of patches."""

    cells: torch.Tensor
    sensors: torch.Tensor
    cell_of_sensor: torch.Tensor

    def __init__(self, face: Face, channels: int, width: int) -> None:
        super().__init__()
        high, wide = face.patch
        cells = np.atleast_2d(face.cells)
        patches = cells.reshape(len(cells) // high, high, -1, wide).swapaxes(1, 2)
        sensors, first = np.unique(patches, return_index=True)
        for name, index in {"cells": patches.ravel(), "sensors": sensors, "cell_of_sensor": first}.items():
            self.register_buffer(name, torch.from_numpy(index), persistent=False)
        rows, columns = self.size = patches.shape[:2]
        self.stem = nn.Linear(2 * high * wide, channels)
        graph, mixes = face.pairs, range(BLOCKS)
        self.mixes = nn.ModuleList(GridMix(channels) if graph is None else GraphMix(channels, graph) for _ in mixes)
        self.norms = nn.ModuleList(nn.LayerNorm(channels) for _ in mixes)
        self.room = (0, 0, 0, -columns % JOINED, 0, -rows % JOINED)
        self.join = nn.Linear(JOINED**2 * channels, 2 * channels)
        self.token = nn.Linear(2 * channels * -(-rows // JOINED) * -(-columns // JOINED), width)

    def forward(self, seen: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        patches = seen[..., self.cells].unflatten(2, (*self.size, -1))
        x = self.stem(patches.permute(0, 2, 3, 1, 4).flatten(3))
        for mix, norm in zip(self.mixes, self.norms, strict=True):
            x = x + functional.gelu(norm(mix(x)))
        joined = functional.pad(x, self.room).unflatten(2, (-1, JOINED)).unflatten(1, (-1, JOINED))
        joined = functional.gelu(self.join(joined.transpose(2, 3).flatten(3)))
        return x, self.token(joined.flatten(1))

    def spread(self, patches: torch.Tensor) -> torch.Tensor:
        """Values of each patch's cells [B, H, W, cells] as those of the face's sensors [B, N]."""
        return patches.flatten(1)[:, self.cell_of_sensor]
