"""Networks of the xenon detector: an encoder with a branch for each face, and two heads.

A branch is convolutional for a grid, and goes along the edges of a graph. Every index is a buffer, so that no tensor is
made in a forward pass; none is among the weights that are kept.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Self, TypeVar

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from storage import durable
from tasks.data.normaliser import Normaliser
from tasks.sensors.batches import near_mean
from tasks.sensors.configuration import Network
from tasks.sensors.xenon import FOREIGN, SENTINEL, TARGETS, Face, detector
from tasks.training.weights import load_kept

Kind = TypeVar("Kind", bound=nn.Module)
JOINED, BLOCKS = 4, 2
"""So many patches a side are joined on the way to a token; so many blocks mix patches with those beside them."""


def kept(kind: Callable[[Network], Kind], model: Path) -> Kind:
    """The network of a `kind` that a stage published in `model`, for evaluation."""
    network = kind(Network.model_validate(durable.read_json(model / "config.json")["network"]))
    load_kept(network, model / "model.safetensors")
    return network.eval()


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


class Encoder(nn.Module):
    """Light and which sensors are seen, [B, 2, S], as six tokens [B, 6, width] and the features of each face."""

    def __init__(self, shape: Network) -> None:
        super().__init__()
        self.faces = nn.ModuleDict(
            {name: Branch(face, shape.channels, shape.width) for name, face in detector().faces.items()}
        )
        self.place = nn.Parameter(0.02 * torch.randn(len(self.faces), shape.width))
        how: dict[str, Any] = {"activation": "gelu", "batch_first": True, "norm_first": True}
        layer = nn.TransformerEncoderLayer(shape.width, shape.heads, 2 * shape.width, 0.0, **how)
        self.joined = nn.TransformerEncoder(layer, shape.layers, enable_nested_tensor=False)

    def forward(self, seen: torch.Tensor) -> tuple[torch.Tensor, tuple[torch.Tensor, ...]]:
        features, tokens = zip(*(face(seen) for face in self.faces.values()), strict=True)
        return self.joined(torch.stack(tokens, 1) + self.place), features


class Regressor(nn.Module):
    """What is to be found of each event, normalised, [B, targets]."""

    def __init__(self, shape: Network, targets: int) -> None:
        super().__init__()
        self.encoder = Encoder(shape)
        tokens = nn.Linear(len(self.encoder.faces) * shape.width, shape.width)
        self.head = nn.Sequential(tokens, nn.GELU(), nn.Linear(shape.width, targets))

    def forward(self, seen: torch.Tensor) -> torch.Tensor:
        return self.head(self.encoder(seen)[0].flatten(1))


class Filler(nn.Module):
    """What every sensor would show, normalised, [B, S]: the mean of the neighbours that are seen, and a correction of
    it from the sensor's own patch and the token of its face, which begins as 0."""

    near: torch.Tensor
    place_of_sensor: torch.Tensor

    def __init__(self, shape: Network) -> None:
        super().__init__()
        self.encoder, self.head, hidden = Encoder(shape), nn.ModuleDict(), 2 * shape.channels
        for name, face in detector().faces.items():
            last = nn.Linear(hidden, int(np.prod(face.patch)))
            nn.init.zeros_(last.weight)
            nn.init.zeros_(last.bias)
            self.head[name] = nn.ModuleList([nn.Linear(shape.channels, hidden), nn.Linear(shape.width, hidden), last])
        order = torch.cat([face.sensors for face in self.encoder.faces.values()])
        self.register_buffer("place_of_sensor", order.argsort(), persistent=False)
        self.register_buffer("near", torch.from_numpy(detector().near), persistent=False)

    def forward(self, seen: torch.Tensor) -> torch.Tensor:
        tokens, features = self.encoder(seen)
        more = []
        for (name, face), token, own in zip(self.encoder.faces.items(), tokens.unbind(1), features, strict=True):
            of_patch, of_face, last = self.head[name]
            together = functional.gelu(of_patch(own) + of_face(token)[:, None, None])
            more.append(face.spread(last(together)))
        return near_mean(seen[:, 0], seen[:, 1], self.near) + torch.cat(more, 1)[:, self.place_of_sensor]


TINY = 1e-6
"""Of less light there is no logarithm."""


class Physical(nn.Module):
    """From light in photons [B, S], for the dead SENTINEL, or FOREIGN and more, to targets in their units [B, 4].

    What the normaliser does is kept as weights are, so that all have one graph.
    """

    offsets: torch.Tensor
    scales: torch.Tensor
    is_logarithm: torch.Tensor
    plus: torch.Tensor

    def __init__(self, network: Regressor, normaliser: Normaliser) -> None:
        super().__init__()
        self.network, light = network, normaliser.steps[0]
        self.register_buffer("offsets", torch.tensor([step.offset for step in normaliser.steps]))
        self.register_buffer("scales", torch.tensor([step.scale for step in normaliser.steps]))
        self.register_buffer("is_logarithm", torch.tensor(light.logarithm_of_plus is not None))
        self.register_buffer("plus", torch.tensor(light.logarithm_of_plus or 0.0))

    @classmethod
    def load(cls, model: Path) -> Self:
        """The regressor that a stage published, for evaluation on a CPU."""
        return cls(kept(lambda shape: Regressor(shape, TARGETS), model), Normaliser.load(model)).eval()

    def forward(self, photons: torch.Tensor) -> torch.Tensor:
        alive = (photons != SENTINEL) & (photons < FOREIGN)
        light = torch.where(self.is_logarithm, (photons + self.plus).clamp(min=TINY).log10(), photons)
        light = torch.where(alive, (light - self.offsets[0]) / self.scales[0], 0.0)
        return self.network(torch.stack([light, alive.to(light)], 1)) * self.scales[1:] + self.offsets[1:]
