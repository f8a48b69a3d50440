"""Networks of the xenon detector: an encoder with a branch for each face, and two heads."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from storage import durable
from storage.tensors import read_tensors
from tasks.sensors.branches import Branch
from tasks.sensors.configuration import Network
from tasks.sensors.masks import near_mean
from tasks.sensors.xenon import detector

Kind = TypeVar("Kind", bound=nn.Module)


def kept(kind: Callable[[Network], Kind], model: Path, trained: bool = True) -> Kind:
    """The network of a `kind` that a stage published in `model`, for evaluation; else one of its shape, untrained."""
    network = kind(Network.model_validate(durable.read_json(model / "config.json")["network"]))
    if trained:
        network.load_state_dict(read_tensors(model / "model.safetensors"))
    return network.eval()


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
