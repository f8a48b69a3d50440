"""Monotonicity of a feed-forward sublayer as a function: proved, refuted by a pair of inputs, or unknown.

The statement is about the sublayer alone, for arbitrary real inputs: x <= y in every coordinate implies f(x) <= f(y) in
every coordinate. The LayerNorm in front of it, attention and the sum with the residual stream are outside: none of them
keeps such an order, and a language model with monotone sublayers is not a monotone function of anything.

An entry of the sublayer's Jacobian is a sum over hidden units of W_out[o, u] * slope_u * W_in[u, i]:

- sign times slope: where the activation never falls and no unit joins weights of both signs, no term is negative.
- interval bound of the Jacobian: each slope lies between the lowest and the highest of the activation, so an entry is
  at least lowest * (sum of positive products) + highest * (sum of negative products). Sound, rarely tight.

Method of the first: Archer and Wang 1993; with signs by unit: Daniels and Velikova 2010. H hidden units, D width;
of the search C chains, P points of a chain, S starts of the descent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from storage.errors import CheckFailed
from tasks.monotonic.result import ANSWERS, Certificate, Counterexample, Method, SublayerCertificate
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
    and CheckFailed when a counterexample contradicts a proof or a bound.
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
        pairs_tried=sum(each.pairs_tried for each in certificates),
        sublayers=[worst, *(each.model_copy(update={"counterexample": None}) for each in certificates[1:])],
    )


def scope(sublayers: Sequence[FeedForward]) -> str:
    return (
        f"each feed-forward sublayer by itself ({', '.join(sublayers[0].layers)}), as a function of arbitrary real "
        "inputs; not LayerNorm, attention or residual stream, and not the model"
    )


def certify_sublayer(sublayer: FeedForward, seen_ND: torch.Tensor | None = None) -> SublayerCertificate:
    """Certifies one sublayer, like `certify`. In two [D, D] matrices, and 2 * H * D^2 multiplications for the bound."""
    against, bound = proof(sublayer)
    searched = search(sublayer, seen_ND, _lowest_entries(sublayer))
    counterexample = _first_that_holds(sublayer, searched.falls)
    slope = 0.0 if counterexample is None else _slope(counterexample)
    if bound is not None and slope < bound:
        raise CheckFailed(f"no counterexample to {sublayer.name} is steeper than the bound", slope, f">= {bound}")
    method: Method = "none" if sublayer.gated else "interval bound of the Jacobian" if against else "sign times slope"
    return SublayerCertificate(
        sublayer=sublayer.name,
        certified="no" if counterexample else "yes" if not against else "unknown",
        method=method,
        reason="; ".join(against)
        or f"where a hidden unit is used, {sublayer.activation} never falls and the signs of its weights agree",
        tensors_checked=len(sublayer.layers),
        worst_violation_bound=bound,
        worst_violation_found=slope,
        pairs_tried=searched.pairs_tried,
        counterexample=counterexample,
    )


def proof(sublayer: FeedForward) -> tuple[list[str], float | None]:
    """Reasons against sign times slope (none: it holds), and the steepest fall that there can be (None: unknown)."""
    against = _against_a_proof(sublayer)
    if sublayer.gated:
        return against, None
    return against, min(0.0, _lowest_entries(sublayer).min().item()) if against else 0.0


def _against_a_proof(sublayer: FeedForward) -> list[str]:
    """Reasons against sign times slope; none: it holds."""
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


def _lowest_entries(sublayer: FeedForward) -> torch.Tensor:
    """[D, D]: below each entry of the Jacobian at every input, rounding counted in; of a gated sublayer 0, unknown."""
    if sublayer.gated:
        return torch.zeros(sublayer.inputs, sublayer.inputs, device=sublayer.matrices()[0].device)
    activation = ACTIVATIONS[sublayer.activation]
    into_HD, out_DH = (weight.double() for weight in sublayer.matrices())
    net_DD, sizes_DD = out_DH @ into_HD, out_DH.abs() @ into_HD.abs()
    rounding_DD = 2 * sublayer.hidden * torch.finfo(torch.float64).eps * sizes_DD
    positive_DD, negative_DD = (sizes_DD + net_DD) / 2, (sizes_DD - net_DD) / 2
    lowest_DD = activation.lowest_slope * positive_DD - activation.highest_slope * (negative_DD + rounding_DD)
    return lowest_DD - rounding_DD


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
STARTS, STEPS = 32, 30
"""Number of starts of either kind in the descent, and of steps from each."""
RATE, AIMING_RATE = 0.2, 0.5
"""Approximate movement of the hidden units' inputs in a step."""
AIMED_RISE = 0.1
"""Rise of the inputs of the hidden units from x to y of a pair that is aimed at one entry."""
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


@dataclass(frozen=True)
class Search:
    """The steepest fall of each chain and of each way of the descent, the steepest first; how many pairs were tried."""

    falls: list[Fall]
    pairs_tried: int


def search(sublayer: FeedForward, seen_ND: torch.Tensor | None, lowest_DD: torch.Tensor) -> Search:
    """Searches for inputs x <= y (in every coordinate) of a sublayer with an output that is lower at y.

    First chains: ordered inputs on a line, along all coordinates, one, or random ones, through regions in which hidden
    units fall (below about -0.75 for GELU). If no output falls from a point to the next, none falls between any two of
    the chain, so a chain tries each of its P (P - 1) / 2 pairs. Then gradient descent: from the steepest falls of the
    chains, and from inputs that are aimed at those entries of the Jacobian that could be the lowest.

    It tries at least 10^5 pairs, always the same ones of the same sublayer; half of the chains run through `seen_ND`.

    `lowest_DD`: how low each entry of the Jacobian could be, which says where to look first. What is found was computed
    in fp32 and is yet to be verified. It costs as much as 15,000 forward passes of one input: 1 TFLOP for a sublayer
    of 2048 x 8192 weights.
    """
    chance = np.random.default_rng(SEED)
    directions_CD = _directions(sublayer, lowest_DD, chance)
    centres_CD = _centres(sublayer, seen_ND, chance)
    chains = max(1, HIDDEN_VALUES // (POINTS * sublayer.hidden))
    parts = zip(centres_CD.split(chains), directions_CD.split(chains), strict=True)
    falls = [fall for centres, directions in parts for fall in _along_chains(sublayer, centres, directions)]
    falls.sort(key=lambda fall: fall.slope)
    starts = falls[:STARTS] + ([] if sublayer.gated else _aimed(sublayer, lowest_DD))
    falls += _descended(sublayer, starts)
    falls.sort(key=lambda fall: fall.slope)
    tried = CHAINS * POINTS * (POINTS - 1) // 2 + len(starts) * STEPS
    return Search([fall for fall in falls if fall.slope < 0], tried)


def _directions(sublayer: FeedForward, lowest_DD: torch.Tensor, chance: np.random.Generator) -> torch.Tensor:
    """[C, D], none negative: all coordinates alike, random ones, and one at a time, that with the lowest entry first.

    Each is as long as moves the inputs of the hidden units by 1 (root mean square).
    """
    into_HD = sublayer.matrices()[0]
    kinds_CD = chance.random((CHAINS, sublayer.inputs), dtype=np.float32)
    kinds_CD[0::3] = 1.0
    coordinates_D = lowest_DD.min(dim=0).values.argsort(stable=True).cpu().numpy()
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
        yield _fall(x_CPD[chain, point], x_CPD[chain, point + 1], output, slope)


def _aimed(sublayer: FeedForward, lowest_DD: torch.Tensor) -> list[Fall]:
    """For each of the entries that could be lowest, a pair along its input, from an x that makes it low.

    The entry is a sum over hidden units. Those that pull it down are to be where they are steep, the others where they
    are flat: x is a separating plane, found by gradient descent on the hinge loss, both sides weighing the same. It
    has no local minimum, as the entry itself has wherever every unit is flat.
    """
    (into_HD, out_DH), (into, _) = sublayer.matrices(), sublayer.layers.values()
    places = lowest_DD.flatten().argsort(stable=True)[:STARTS]
    outputs_S, inputs_S = places // lowest_DD.shape[1], places % lowest_DD.shape[1]
    products_SH = out_DH[outputs_S] * into_HD.T[inputs_S]
    sides_SH = -products_SH.sign() * _steep_side(sublayer)
    down_SH, up_SH = products_SH.clamp_max(0).abs(), products_SH.clamp_min(0)
    weights_SH = sum(half / half.sum(dim=1, keepdim=True).clamp_min(1e-30) for half in (down_SH, up_SH))
    x_SD = torch.zeros(len(places), sublayer.inputs).to(into_HD).requires_grad_()
    adam = torch.optim.Adam([x_SD], lr=AIMING_RATE / _unit(into_HD))
    for _ in range(STEPS):
        loss = (weights_SH * (1 - sides_SH * into(x_SD)).relu()).sum()
        (x_SD.grad,) = torch.autograd.grad(loss, x_SD)
        adam.step()
    y_SD = x_SD.detach().clone()
    columns_S = into_HD.T[inputs_S].square().mean(dim=1).sqrt()
    y_SD[torch.arange(len(places)), inputs_S] += AIMED_RISE / torch.where(columns_S > 0, columns_S, 1.0)
    pairs = zip(x_SD, y_SD, outputs_S.tolist(), strict=True)
    return [_fall(x_D, y_D, output, slope=0.0) for x_D, y_D, output in pairs]


@torch.no_grad()
def _steep_side(sublayer: FeedForward) -> torch.Tensor:
    """[H]: 1 for a unit that is steeper where its input is high, -1 where that is low, 0 where both are alike."""
    z_4H = torch.tensor([-3.5, -2.5, 2.5, 3.5]).to(sublayer.matrices()[0])[:, None].repeat(1, sublayer.hidden)
    low_H, _, high_H = sublayer.act(z_4H).diff(dim=0)
    return (high_H - low_H).sign()


def _unit(into_HD: torch.Tensor) -> float:
    """How far the inputs of the hidden units move (root mean square) when every coordinate moves by 1 either way."""
    return into_HD.square().sum(dim=1).mean().sqrt().item() or 1.0


def _descended(sublayer: FeedForward, starts: list[Fall]) -> Iterator[Fall]:
    """Moves x and y of each start together, so that the output falls more steeply; the best of each one's way."""
    into_HD = sublayer.matrices()[0]
    x_SD = torch.from_numpy(np.stack([start.x for start in starts])).to(into_HD).requires_grad_()
    rise_SD = torch.from_numpy(np.stack([start.y - start.x for start in starts])).to(into_HD)
    chosen_SD = torch.eye(sublayer.inputs)[[start.output for start in starts]].to(into_HD)
    adam = torch.optim.Adam([x_SD], lr=RATE / _unit(into_HD))
    best = list(starts)
    for _ in range(STEPS):
        y_SD = x_SD + rise_SD
        falls_SD = sublayer.module(y_SD) - sublayer.module(x_SD)
        slopes_S = (falls_SD * chosen_SD).sum(dim=1) / rise_SD.sum(dim=1).clamp_min(1e-30)
        for number, slope in enumerate(slopes_S.tolist()):
            if slope < best[number].slope:
                best[number] = _fall(x_SD[number], y_SD[number], best[number].output, slope)
        (x_SD.grad,) = torch.autograd.grad(slopes_S.sum(), x_SD)
        adam.step()
    yield from best


def _fall(x_D: torch.Tensor, y_D: torch.Tensor, output: int, slope: float) -> Fall:
    return Fall(x_D.detach().cpu().numpy().copy(), y_D.detach().cpu().numpy().copy(), output, slope)
