"""The network that gives an event's direction: a transformer over its pulses, and the mean of what it says of them."""

from __future__ import annotations

import torch
from torch import nn

from tasks.icecube.angle import direction
from tasks.icecube.batches import FEATURES, Batch


class DirectionNetwork(nn.Module):
    """Events to unit vectors [B, 3]. LayerNorms stand behind each sublayer, as in the study that this one follows."""

    def __init__(self, width: int, layers: int, heads: int, dropout: float, batch_norm: bool = False):
        super().__init__()
        self.norm = nn.BatchNorm1d(len(FEATURES)) if batch_norm else None
        self.embed = nn.Linear(len(FEATURES), width)
        layer = nn.TransformerEncoderLayer(width, heads, 4 * width, dropout, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, 3)

    def forward(self, batch: Batch) -> torch.Tensor:
        return direction(self.head(self.events(batch)))

    def events(self, batch: Batch) -> torch.Tensor:
        """What is known of each event, [B, width]: the mean over its pulses, whatever stands beside them."""
        features = batch.features
        if self.norm is not None:
            normed = torch.zeros_like(features)
            normed[batch.there] = self.norm(features[batch.there])
            features = normed
        pulses = self.encoder(self.embed(features), src_key_padding_mask=~batch.there)
        pulses = torch.where(batch.there[..., None], pulses, 0.0)
        return pulses.sum(1) / batch.there.sum(1, keepdim=True)


@torch.no_grad()
def predicted(model: nn.Module, batch: Batch, at_once: int) -> torch.Tensor:
    """The directions [B, 3], for so many events at once as the memory holds."""
    return torch.cat([model(batch.part(start, start + at_once)) for start in range(0, len(batch), at_once)])
