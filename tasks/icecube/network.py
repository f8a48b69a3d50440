"""The network that gives an event's direction, and the angle between directions, for a loss.

arccos(a . b) needs a clip to stay finite, and beyond the clip it teaches nothing: with an epsilon of 1e-4 every pair
nearer than 0.8 degrees counts as 0.8 degrees. The form below needs none (Kahan, "How Futile are Mindless Assessments
of Roundoff", 2006, section 12).
"""

import torch
from torch import nn

from tasks.icecube.batches import FEATURES, Batch

SHORTEST = 1e-6
"""A vector that is shorter has no direction that could be told from rounding; it bounds the gradient of `direction`."""


def direction(vectors: torch.Tensor) -> torch.Tensor:
    """Unit vectors [..., 3] along `vectors` [..., 3]; a vector shorter than SHORTEST stays as short in proportion."""
    return nn.functional.normalize(vectors, dim=-1, eps=SHORTEST)


def angle(first: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Angles in radians [...] between unit vectors [..., 3]: 2 atan2(|a - b|, |a + b|).

    The gradient is finite everywhere; between equal or opposite vectors, where there is none, it is 0.
    """
    return 2 * torch.atan2(_length(first - other), _length(first + other))


def _length(vectors: torch.Tensor) -> torch.Tensor:
    """Norms [...] of vectors [..., 3], with the gradient 0 at 0 instead of none."""
    squares = vectors.square().sum(-1)
    nothing = squares == 0
    return torch.where(nothing, 0.0, torch.where(nothing, 1.0, squares).sqrt())


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
        """An embedding of each event, [B, width]: the mean over its pulses, whatever stands beside them."""
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
    return torch.cat([model(batch.rows(slice(start, start + at_once))) for start in range(0, len(batch), at_once)])
