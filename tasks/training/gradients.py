"""The sizes of gradients before they are clipped, by epoch."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

import torch

BINS_PER_DECADE = 20
LOWEST, DECADES = 1e-8, 16
TYPICAL_SHARE = 0.9
"""A usual clip value leaves this share of the steps unchanged."""


def norm_in_fp64(gradients: Iterable[torch.Tensor]) -> torch.Tensor:
    """The 2-norm of all gradients, fp64 []: finite wherever they are.

    In fp32 the square of a norm above 1.8e19 overflows, while every gradient may be finite.
    """
    norms = [torch.linalg.vector_norm(gradient, dtype=torch.float64) for gradient in gradients]
    return torch.linalg.vector_norm(torch.stack(norms))


@dataclass
class GradientNorms:
    """The norms of one epoch so far, as counts in bins of equal ratio: its size does not grow with the steps."""

    count: int = 0
    clipped: int = 0
    largest: float = 0.0
    bins: dict[str, int] = field(default_factory=dict)

    def add(self, norm: float, clip: float) -> None:
        """Counts a step: `norm` is the global norm before clipping, `clip` the value that it is clipped to."""
        self.count += 1
        self.clipped += norm > clip
        self.largest = max(self.largest, norm)
        place = math.ceil(BINS_PER_DECADE * math.log10(max(norm, LOWEST) / LOWEST))
        key = str(min(place, BINS_PER_DECADE * DECADES))
        self.bins[key] = self.bins.get(key, 0) + 1

    def typical(self) -> float:
        """The norm that 90 % of the steps stay below, to within a bin (12 %); at most the largest."""
        count = 0
        for place in sorted(map(int, self.bins)):
            count += self.bins[str(place)]
            if count >= TYPICAL_SHARE * self.count:
                return min(LOWEST * 10 ** (place / BINS_PER_DECADE), self.largest)
        return self.largest

    def row(self) -> dict[str, float]:
        """The epoch's norms for a metric row and the result, in the order in which a checkpoint returns them."""
        return {
            "gradient_norm_90_percent_below": self.typical(),
            "gradient_norm_max": self.largest,
            "gradient_steps_clipped_share": self.clipped / max(1, self.count),
        }


def measured(row: dict[str, float], clip: float) -> str:
    """An epoch's largest norm, that of most steps, and how many steps were clipped."""
    share, typical = row["gradient_steps_clipped_share"], row["gradient_norm_90_percent_below"]
    largest = f"largest gradient norm {row['gradient_norm_max']:.3g}, 90 % below {typical:.3g}"
    return f"{largest}; {share:.0%} of the steps were clipped to {clip:g}"
