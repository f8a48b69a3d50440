"""The search for inputs x <= y (in every coordinate) of a feed-forward sublayer with an output that is lower at y.

Shape suffixes: C chains, P points of a chain, D width of the residual stream, S starts of the descent.

First chains: ordered inputs on a line, along all coordinates, one, or random ones, through regions in which hidden
units fall (below about -0.75 for GELU). If no output falls from a point to the next, none falls between any two of
the chain, so a chain tries each of its P (P - 1) / 2 pairs. Then gradient descent on the steepest falls found.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch

from tasks.monotonic.sublayer import FeedForward

CHAINS, POINTS = 256, 29
REACH = 8.0
"""A chain moves the hidden units' inputs by about -REACH to REACH from where they are (root mean square)."""
STARTS, DESCENT_STEPS = 64, 30
DESCENT_RATE = 0.2
"""A step of Adam moves the inputs of the hidden units by about so much."""
PAIRS_TRIED = CHAINS * POINTS * (POINTS - 1) // 2 + STARTS * DESCENT_STEPS
HIDDEN_VALUES = 1 << 22
"""So many values of hidden units are held at once."""
SEED = 0


@dataclass(frozen=True)
class Fall:
    """Inputs x <= y, float32 [D] each, and the output that seemed to fall, by so much for each unit of |y - x|_1."""

    x: np.ndarray
    y: np.ndarray
    output: int
    slope: float


@dataclass(frozen=True)
class Search:
    """The falls found, the steepest of each chain and of the descent, steepest first; how many pairs were tried."""

    falls: list[Fall]
    pairs_tried: int


def search(sublayer: FeedForward, seen_ND: torch.Tensor | None = None) -> Search:
    """Tries at least 10^5 pairs, always the same ones of the same sublayer; half of the chains run through `seen_ND`.

    What it finds was computed in fp32 and is yet to be verified. It costs about 15,000 forward passes of one input:
    1 TFLOP for a sublayer of 2048 x 8192 weights.
    """
    chance = np.random.default_rng(SEED)
    directions_CD = _directions(sublayer, chance)
    centres_CD = _centres(sublayer, seen_ND, chance)
    chains = max(1, HIDDEN_VALUES // (POINTS * sublayer.hidden))
    parts = zip(centres_CD.split(chains), directions_CD.split(chains), strict=True)
    found = [fall for centres, directions in parts for fall in _along_chains(sublayer, centres, directions)]
    found.sort(key=lambda fall: fall.slope)
    found += _descended(sublayer, found[:STARTS])
    found.sort(key=lambda fall: fall.slope)
    return Search([fall for fall in found if fall.slope < 0], PAIRS_TRIED)


def _directions(sublayer: FeedForward, chance: np.random.Generator) -> torch.Tensor:
    """[C, D], none negative: all coordinates alike, random ones, and one coordinate at a time.

    Each is as long as moves the inputs of the hidden units by 1 (root mean square).
    """
    into_HD = sublayer.matrices()[0]
    kinds_CD = chance.random((CHAINS, sublayer.inputs), dtype=np.float32)
    kinds_CD[0::3] = 1.0
    kinds_CD[2::3] = np.eye(sublayer.inputs, dtype=np.float32)[
        chance.integers(sublayer.inputs, size=len(kinds_CD[2::3]))
    ]
    directions_CD = torch.from_numpy(kinds_CD).to(into_HD)
    moved_C1 = (directions_CD @ into_HD.T).square().mean(dim=1, keepdim=True).sqrt()
    return directions_CD / torch.where(moved_C1 > 0, moved_C1, 1.0)


def _centres(sublayer: FeedForward, seen_ND: torch.Tensor | None, chance: np.random.Generator) -> torch.Tensor:
    """[C, D]: one half at 0 or near it, the other at inputs that were seen, or as spread as a LayerNorm's output."""
    into_HD = sublayer.matrices()[0]
    centres_CD = torch.from_numpy(chance.standard_normal((CHAINS, sublayer.inputs), dtype=np.float32)).to(into_HD)
    centres_CD[0::2] *= torch.linspace(0, 1, CHAINS // 2)[:, None].to(into_HD)
    if seen_ND is not None:
        rows = chance.integers(len(seen_ND), size=CHAINS // 2)
        centres_CD[1::2] = seen_ND[torch.from_numpy(rows).to(seen_ND.device)].to(into_HD)
    return centres_CD


@torch.no_grad()
def _along_chains(sublayer: FeedForward, centres_CD: torch.Tensor, directions_CD: torch.Tensor) -> Iterator[Fall]:
    """The steepest step of each chain; a slope above 0 where no output falls."""
    steps_P = torch.linspace(-REACH, REACH, POINTS).to(centres_CD)
    # rounding never turns an order around: with rising steps every coordinate stays or rises
    x_CPD = centres_CD[:, None] + steps_P[:, None] * directions_CD[:, None]
    rise_CP1 = x_CPD.diff(dim=1).sum(dim=2, keepdim=True)
    slopes_CPD = sublayer.module(x_CPD).diff(dim=1) / torch.where(rise_CP1 > 0, rise_CP1, 1.0)
    slopes_C, places_C = slopes_CPD.flatten(1).min(dim=1)
    for chain, (slope, place) in enumerate(zip(slopes_C.tolist(), places_C.tolist(), strict=True)):
        point, output = divmod(place, slopes_CPD.shape[2])
        yield _fall(x_CPD[chain, point], x_CPD[chain, point + 1], output, slope)


def _descended(sublayer: FeedForward, starts: list[Fall]) -> Iterator[Fall]:
    """Moves x and y of each start together, so that the output falls more steeply; the best of each one's way."""
    into_HD = sublayer.matrices()[0]
    x_SD = torch.from_numpy(np.stack([start.x for start in starts])).to(into_HD).requires_grad_()
    rise_SD = torch.from_numpy(np.stack([start.y - start.x for start in starts])).to(into_HD)
    outputs_S1 = torch.tensor([[start.output] for start in starts], device=into_HD.device)
    unit = into_HD.square().sum(dim=1).mean().sqrt().item()
    adam = torch.optim.Adam([x_SD], lr=DESCENT_RATE / (unit or 1.0))
    best = list(starts)
    for _ in range(DESCENT_STEPS):
        y_SD = x_SD + rise_SD
        falls_SD = sublayer.module(y_SD) - sublayer.module(x_SD)
        slopes_S = falls_SD.gather(1, outputs_S1)[:, 0] / rise_SD.sum(dim=1).clamp_min(1e-30)
        for number, slope in enumerate(slopes_S.tolist()):
            if slope < best[number].slope:
                best[number] = _fall(x_SD[number], y_SD[number], best[number].output, slope)
        (x_SD.grad,) = torch.autograd.grad(slopes_S.sum(), x_SD)
        adam.step()
    yield from best


def _fall(x_D: torch.Tensor, y_D: torch.Tensor, output: int, slope: float) -> Fall:
    return Fall(x_D.detach().cpu().numpy().copy(), y_D.detach().cpu().numpy().copy(), output, slope)
