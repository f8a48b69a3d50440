"""Tests whether constrained sublayers do anything: the cost of replacing each by its mean output, and their rank."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from tasks.monotonic.constraint import constrained_sublayers
from tasks.monotonic.result import Liveness

if TYPE_CHECKING:
    from transformers import PreTrainedModel

CONSTANT = 1e-12
"""Variance below this share of the mean square is rounding: the output is constant."""


class _OutputMoments:
    """Sums over the tokens of a sublayer's outputs, float64: their number, sum [D] and products [D, D]."""

    def __init__(self, mean_is_read: bool) -> None:
        self.mean_is_read = mean_is_read
        self.tokens, self.sum_D, self.products_DD = 0, torch.zeros(()), torch.zeros(())

    def add(self, output: torch.Tensor, read: torch.Tensor | None) -> None:
        """`read`: which positions of `output` are tokens, and no padding; None: all."""
        outputs_TD = (output.flatten(0, -2) if read is None else output[read.bool()]).detach().double()
        self.tokens += len(outputs_TD)
        self.sum_D = self.sum_D.to(outputs_TD) + outputs_TD.sum(0)
        self.products_DD = self.products_DD.to(outputs_TD) + outputs_TD.T @ outputs_TD

    def mean_D(self) -> torch.Tensor:
        return self.sum_D / self.tokens

    def effective_rank(self) -> float:
        """exp(entropy of the shares of variance) (Roy and Vetterli 2007); 1 for a constant output."""
        mean_D = self.mean_D()
        square = self.products_DD.diagonal().sum() / self.tokens
        covariance_DD = self.products_DD / self.tokens - torch.outer(mean_D, mean_D)
        if not self.mean_is_read:  # over coordinates: every LayerNorm that reads the output takes it away
            covariance_DD = covariance_DD - covariance_DD.mean(0, keepdim=True)
            covariance_DD = covariance_DD - covariance_DD.mean(1, keepdim=True)
        variances_D = torch.linalg.eigvalsh(covariance_DD.cpu()).clamp_min(0)
        total = variances_D.sum()
        if total <= CONSTANT * square.cpu():
            return 1.0
        shares_D = variances_D / total
        return float(torch.exp(-torch.special.xlogy(shares_D, shares_D).sum()))


@torch.no_grad()
def measure_liveness(model: PreTrainedModel, variant: str, loss: Callable[[nn.Module], float]) -> Liveness:
    """Two passes of `loss`, the mean loss in nats per token over one fixed text: as it is, and with mean outputs.

    The means are over the tokens of that same text. Memory: two [D, D] for each sublayer, D its width.
    """
    sublayers = constrained_sublayers(model, variant)
    mean_is_read = not any(isinstance(module, nn.LayerNorm) for module in model.modules())
    moments = {name: _OutputMoments(mean_is_read) for name in sublayers}

    def collect(name: str) -> Callable[..., None]:
        part = "decoder_" if name.startswith("decoder.") else ""
        return lambda _module, _inputs, output: moments[name].add(output, inputs.get(f"{part}attention_mask"))

    inputs: dict[str, Any] = {}
    seeing = model.register_forward_pre_hook(lambda _, __, kwargs: inputs.update(kwargs), with_kwargs=True)
    with _hooked(sublayers, collect):
        alive = loss(model)
    seeing.remove()
    means = {name: moment.mean_D() for name, moment in moments.items()}

    def replace(name: str) -> Callable[..., torch.Tensor]:
        return lambda _module, _inputs, output: means[name].to(output).expand_as(output)

    with _hooked(sublayers, replace):
        dead = loss(model)
    return Liveness(
        loss_nats_per_token=alive,
        loss_with_means_nats_per_token=dead,
        effective_rank={name: moment.effective_rank() for name, moment in moments.items()},
    )


@contextmanager
def _hooked(modules: Mapping[str, nn.Module], hook: Callable[[str], Callable[..., Any]]) -> Iterator[None]:
    """While the block runs, `hook(name)` is called with each module's output, and may replace it."""
    handles = [module.register_forward_hook(hook(name)) for name, module in modules.items()]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
