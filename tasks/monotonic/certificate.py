"""Monotonicity of a feed-forward sublayer as a function: proved, refuted by a pair of inputs, or unknown.

The statement is about the sublayer alone, for arbitrary real inputs: x <= y in every coordinate implies f(x) <= f(y) in
every coordinate. The LayerNorm in front of it, attention and the sum with the residual stream are outside: none of them
keeps such an order, and a language model with monotone sublayers is not a monotone function of anything.

An entry of the sublayer's Jacobian is a sum over hidden units of W_out[o, u] * slope_u * W_in[u, i]: where the
activation never falls and no unit joins weights of both signs, no term is negative (Archer and Wang 1993; with signs by
unit: Daniels and Velikova 2010). H hidden units, D width; of the search C chains, P points of a chain.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from storage.errors import CheckFailed
from tasks.monotonic.result import ANSWERS, Certificate, Counterexample, SublayerCertificate
from tasks.monotonic.sublayer import ACTIVATIONS, FeedForward, feed_forward_sublayers, product

if TYPE_CHECKING:
    from transformers import PreTrainedModel


VERIFIED_AT_MOST = 64
"""Number of the steepest falls that are computed again, until one holds: rounding makes falls too, and small ones."""


def certify(
    model: PreTrainedModel,
    variant: str,
    seen: dict[str, torch.Tensor] | None = None,
    after_sublayer: Callable[[], None] = lambda: None,
) -> Certificate:
    """Examines every feed-forward sublayer of which `variant` names a weight; the model is set to evaluation.

    `seen`: sublayer -> inputs [N, D] from which half of the search starts. Raises as `feed_forward_sublayers` does,
    and CheckFailed when a counterexample contradicts a proof.
    """
    model.eval()
    sublayers = feed_forward_sublayers(model, variant)
    certificates = []
    for sublayer in sublayers:
        certificates.append(certify_sublayer(sublayer, (seen or {}).get(sublayer.name)))
        after_sublayer()
    certificates.sort(key=lambda each: (ANSWERS.index(each.certified), each.worst_violation_found))
    worst = certificates[0]
    return Certificate(
        scope=scope(sublayers),
        variant=variant,
        activation=sublayers[0].activation,
        certified=worst.certified,
        tensors_checked=sum(each.tensors_checked for each in certificates),
        sublayers=[worst, *(each.model_copy(update={"counterexample": None}) for each in certificates[1:])],
    )


def scope(sublayers: Sequence[FeedForward]) -> str:
    return (
        f"each feed-forward sublayer by itself ({', '.join(sublayers[0].layers)}), as a function of arbitrary real "
        "inputs; not LayerNorm, attention or residual stream, and not the model"
    )


def certify_sublayer(sublayer: FeedForward, seen_ND: torch.Tensor | None = None) -> SublayerCertificate:
    """Certifies one sublayer, like `certify`."""
    against = against_a_proof(sublayer)
    counterexample = _first_that_holds(sublayer, search(sublayer, seen_ND))
    if counterexample is not None and not against:
        raise CheckFailed(f"no counterexample to the proof of {sublayer.name} is found", counterexample.fall, 0)
    return SublayerCertificate(
        sublayer=sublayer.name,
        certified="no" if counterexample else "yes" if not against else "unknown",
        reason="; ".join(against)
        or f"where a hidden unit is used, {sublayer.activation} never falls and the signs of its weights agree",
        tensors_checked=len(sublayer.layers),
        worst_violation_found=0.0 if counterexample is None else _slope(counterexample),
        counterexample=counterexample,
    )


def against_a_proof(sublayer: FeedForward) -> list[str]:
    """Reasons why signs and slopes do not prove that it is monotone; none: they do."""
    if sublayer.gated:
        return ["a gated sublayer multiplies two functions of its input, and no theorem covers that"]
    against = []
    lowest = ACTIVATIONS[sublayer.activation].lowest_slope
    into_HD, out_DH = sublayer.matrices()
    rising_H = (into_HD >= 0).all(dim=1) & (out_DH >= 0).all(dim=0)
    falling_H = (into_HD <= 0).all(dim=1) & (out_DH <= 0).all(dim=0)
    silent_H = (into_HD == 0).all(dim=1) | (out_DH == 0).all(dim=0)
    if lowest < 0 and not silent_H.all():
        against.append(f"{sublayer.activation} falls in places, by a slope down to {lowest}")
    joins = int((~(rising_H | falling_H | silent_H)).sum())
    if joins:
        free = f", as the variant leaves {' and '.join(sublayer.free)} free" if sublayer.free else ""
        against.append(f"{joins} of {sublayer.hidden} hidden units join weights of both signs{free}")
    return against


def _first_that_holds(sublayer: FeedForward, falls: list[Fall]) -> Counterexample | None:
    for fall in falls[:VERIFIED_AT_MOST]:
        verified = fall_in_float64(sublayer, fall.x, fall.y, fall.output)
        if verified > 0:
            return Counterexample(x=fall.x.tolist(), y=fall.y.tolist(), output=fall.output, fall=verified)
    return None


def fall_in_float64(sublayer: FeedForward, x_D: np.ndarray, y_D: np.ndarray, output: int) -> float:
    """How far an output is lower at y than at x for certain, by `in_float64` and less than rounding could make.

    Above 0 it proves that the sublayer is not monotone. CheckFailed unless x <= y in every coordinate.
    """
    if not (x_D <= y_D).all():
        raise CheckFailed(f"a pair of inputs to {sublayer.name} is ordered", "a coordinate with x > y", "x <= y")
    inputs_2D = np.stack([x_D, y_D]).astype(np.float64)
    at_x, at_y = sublayer.in_float64(inputs_2D)[:, output]
    return float(at_x - at_y) - _rounding(sublayer, inputs_2D, output)


def _rounding(sublayer: FeedForward, inputs_ND: np.ndarray, output: int) -> float:
    """More than the error of the difference of one output of `in_float64` at two inputs.

    A sum of n products is off by at most n * eps times the sum of their sizes (Higham 2002, section 3.1), and no known
    activation is steeper than 2 or larger than its input's size plus 1.
    """
    eps = (sublayer.inputs + sublayer.hidden + 16) * np.finfo(np.float64).eps
    *into, out = (weight.double().abs().cpu().numpy() for weight in sublayer.matrices())
    *biases, bias_D = (
        0.0 if layer.bias is None else layer.bias.detach().double().abs().cpu().numpy()
        for layer in sublayer.layers.values()
    )
    sizes_NH = np.prod([product(np.abs(inputs_ND), w) + b + 1.0 for w, b in zip(into, biases, strict=True)], axis=0)
    return float(4 * eps * (product(sizes_NH, out[output : output + 1])[:, 0] + np.max(bias_D)).sum())


def _slope(counterexample: Counterexample) -> float:
    return -counterexample.fall / float(np.sum(np.asarray(counterexample.y) - np.asarray(counterexample.x)))


CHAINS, POINTS = 256, 29
REACH = 8.0
"""A chain moves the hidden units' inputs by about -REACH to REACH from where they are (root mean square)."""
HIDDEN_VALUES = 1 << 22
"""Number of values of hidden units that are held at once."""
SEED = 0


@dataclass(frozen=True)
class Fall:
    """Inputs x <= y, float32 [D] each, and the output that seemed to fall, by so much for each unit of |y - x|_1."""

    x: np.ndarray
    y: np.ndarray
    output: int
    slope: float


def search(sublayer: FeedForward, seen_ND: torch.Tensor | None) -> list[Fall]:
    """The steepest fall of each of some chains, the steepest first: inputs x <= y with an output that is lower at y.

    A chain is ordered inputs on a line, along all coordinates, one, or random ones, through regions in which hidden
    units fall (below about -0.75 for GELU). If no output falls from a point to the next, none falls between any two of
    the chain, so a chain tries each of its P (P - 1) / 2 pairs: 10^5 in all, always the same ones of the same sublayer.
    Half of the chains run through `seen_ND`. What is found was computed in fp32 and is yet to be verified.
    """
    chance = np.random.default_rng(SEED)
    directions_CD = _directions(sublayer, chance)
    centres_CD = _centres(sublayer, seen_ND, chance)
    chains = max(1, HIDDEN_VALUES // (POINTS * sublayer.hidden))
    parts = zip(centres_CD.split(chains), directions_CD.split(chains), strict=True)
    falls = [fall for centres, directions in parts for fall in _along_chains(sublayer, centres, directions)]
    return sorted((fall for fall in falls if fall.slope < 0), key=lambda fall: fall.slope)


def _directions(sublayer: FeedForward, chance: np.random.Generator) -> torch.Tensor:
    """[C, D], none negative: all coordinates alike, random ones, and one at a time.

    Each is as long as moves the inputs of the hidden units by 1 (root mean square).
    """
    into_HD = sublayer.matrices()[0]
    kinds_CD = chance.random((CHAINS, sublayer.inputs), dtype=np.float32)
    kinds_CD[0::3] = 1.0
    coordinates_D = np.arange(sublayer.inputs)
    kinds_CD[2::3] = np.eye(sublayer.inputs, dtype=np.float32)[np.resize(coordinates_D, len(kinds_CD[2::3]))]
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
        x_D, y_D = (x_CPD[chain, place].cpu().numpy().copy() for place in (point, point + 1))
        yield Fall(x_D, y_D, output, slope)
