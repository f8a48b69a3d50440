"""Starts of constrained weights: the base model's own, brought to their allowed signs before any training.

One start costs nothing: every constrained weight made non-negative by a shift that the network undoes. A LayerNorm with
scale g and bias b gives x with sum(x / g) = sum(b / g), whatever it reads. So adding c / g to a row of W_in adds the
same c sum(b / g) to its unit for every text, which its bias takes away; and adding d to a column of W_out adds d times
the unit to every coordinate of the residual stream, whose mean each later LayerNorm takes away. With c and d large
enough all weights are >= 0, and the model is the function that it was.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn

from storage.errors import BadInput
from tasks.monotonic.configuration import Start
from tasks.monotonic.constraint import constrained_modules, matrix
from tasks.monotonic.signs import AllowedSigns, project

if TYPE_CHECKING:
    from transformers import PreTrainedModel

NORMS = {
    "GPTNeoXMLP": ("post_attention_layernorm", "mlp", "dense_h_to_4h", "dense_4h_to_h"),
    "GPT2MLP": ("ln_2", "mlp", "c_fc", "c_proj"),
}
"""Class of a feed-forward sublayer -> in its transformer block, the LayerNorm that it reads and it itself; in it, the
input and output projections."""


@torch.no_grad()
def shift(model: PreTrainedModel, variant: str) -> None:
    """Makes the weights that `variant` names non-negative in place, without changing what the model computes.

    In float64, then rounded to the weights' format. BadInput for a variant or a network with which that cannot be: it
    needs LayerNorm with a scale above 0, with its mean taken away, and no constrained attention.
    """
    if variant not in ("mlp_in", "mlp_both"):
        raise BadInput(f"constraint.start shifted exists for the variants mlp_in and mlp_both, not for {variant}")
    blocks = [
        (getattr(block, norm), getattr(getattr(block, holder), into), getattr(getattr(block, holder), out_of))
        for block in model.modules()
        for kind, (norm, holder, into, out_of) in NORMS.items()
        if type(getattr(block, holder, None)).__name__ == kind
    ]
    if not blocks:
        raise BadInput(
            f"constraint.start shifted needs a network with LayerNorm, GPT-NeoX or GPT-2, not {type(model).__name__}"
        )
    for norm, into, out_of in blocks:
        _shift_rows(norm, into)
        if variant == "mlp_both":
            _shift_columns(out_of)


def _shift_rows(norm: nn.LayerNorm, into: nn.Module) -> None:
    """W_ui + c_u / g_i >= 0 for every unit u, its bias less by c_u sum(b / g)."""
    scale_D, bias_D = norm.weight.double(), norm.bias.double()
    if not (scale_D > 0).all():
        raise BadInput(
            f"constraint.start shifted needs LayerNorm scales above 0, and one here is {scale_D.min().item():g}: take "
            "positive-part or absolute"
        )
    weight_UD = matrix(into, into.weight)
    weights_UD = weight_UD.double()
    c_U = (-weights_UD * scale_D).amax(1).clamp(min=0)
    weight_UD.copy_((weights_UD + c_U[:, None] / scale_D).clamp(min=0))
    into.bias.copy_(into.bias.double() - c_U * (bias_D / scale_D).sum())


def _shift_columns(out_of: nn.Module) -> None:
    """W_iu + d_u >= 0 for every unit u: the residual stream rises as a whole, which no LayerNorm sees."""
    weight_DU = matrix(out_of, out_of.weight)
    weights_DU = weight_DU.double()
    weight_DU.copy_((weights_DU + (-weights_DU).amax(0).clamp(min=0)).clamp(min=0))


@torch.no_grad()
def set_start(model: PreTrainedModel, variant: str, allowed: AllowedSigns, start: Start) -> None:
    """Gives the layers of `variant` in the base model `model` weights of their allowed signs s, in place.

    positive-part: s max(s W, 0); absolute: s |W|; shifted: W itself, moved up by what the network takes away again (for
    non-negative weights).
    """
    if start == "shifted":
        return shift(model, variant)
    layers = constrained_modules(model, variant)
    signs = allowed.of(layers)
    for name, layer in layers.items():
        sign = signs[name].to(layer.weight.device)
        if start == "absolute":
            layer.weight.abs_().mul_(sign)
        else:
            project(layer.weight, sign)
