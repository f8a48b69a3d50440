"""Monotonicity of a feed-forward sublayer as a function: proved, refuted by a pair of inputs, or unknown.

The statement is about the sublayer alone, for arbitrary real inputs: x <= y in every coordinate implies f(x) <= f(y) in
every coordinate. The LayerNorm in front of it, attention and the sum with the residual stream are outside: none of them
keeps such an order, and a language model with monotone sublayers is not a monotone function of anything.

An entry of the sublayer's Jacobian is a sum over hidden units of W_out[o, u] * slope_u * W_in[u, i]:

- sign times slope: where the activation never falls and no unit joins weights of both signs, no term is negative.
- interval bound of the Jacobian: each slope lies between the lowest and the highest of the activation, so an entry is
  at least lowest * (sum of positive products) + highest * (sum of negative products). Sound, rarely tight.

Method of the first: Archer and Wang 1993; with signs by unit: Daniels and Velikova 2010. H hidden units, D width.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch

from storage.errors import CheckFailed
from tasks.monotonic.result import ANSWERS, Certificate, Counterexample, Method, SublayerCertificate
from tasks.monotonic.search import Fall, search
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
