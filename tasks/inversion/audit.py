"""inversion-audit: the errors of some matrices again, each sought by itself, with the schedule and the search in plain
torch."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from itertools import pairwise

import numpy as np
import torch
from torch import nn

from storage.errors import require_close, require_equal
from tasks.findings.audit import Audited, AuditResult, sample
from tasks.inversion.checks import SPLITS, require_records
from tasks.inversion.diffusion import Diffusion
from tasks.inversion.energy import EnergyNetwork
from tasks.inversion.matrices import FILE, MEASURED, QUANTILES, Pairs, drawn, fixed_pairs
from tasks.inversion.results import MatricesResult, SplitFacts, TrainResult
from tasks.inversion.stages import AUDIT_TOLERANCE, AuditConfig, MatricesConfig, TrainConfig
from tasks.inversion.train import descent_differences, load_network
from tasks.stage.run import StageInput, StageRun
from tasks.training.draws import normal_at
from tasks.training.weights import weights_digest

LARGEST = 2.0
"""No entry of an inverse is predicted larger."""
ROUNDING = 1e-6
"""Smaller differences between negatives are rounding."""
NEAR = 1e-5
"""Relative: energies that differ by less are told apart by rounding in fp32 alone."""
SAME, MOST = 1e-5, 64
"""Entries that differ by less are the same; more inverses of one matrix are not followed."""
OF_FP32 = 1e-4
"""Relative: what the precision of the file does to an eigenvalue."""


def audit(run: StageRun, config: AuditConfig, data: StageInput, **cells: StageInput) -> AuditResult:
    """CheckFailed names the first cell and matrix whose error is another one than that of its record."""
    audited = Audited("torch, matrix by matrix", "of an error", AUDIT_TOLERANCE)
    splits = {split: fixed_pairs(data, split) for split in SPLITS}
    fixed = MatricesResult.read(data)
    _require_fixed(fixed, data.configuration(MatricesConfig), splits)
    for done, (cell, trained) in enumerate(cells.items()):
        run.step(done, len(cells), "trainings", note=cell)
        told, digest = TrainResult.read(trained), weights_digest(trained.path / "model")
        require_equal(f"model/ of {cell} holds the weights that its training left", digest, told.weights_digest)
        recorded = require_records(cell, trained, told, fixed)
        entries = splits["validation"].x.shape[1]
        network = load_network(trained, entries, config.network)
        weights = sum(parameter.numel() for parameter in network.parameters())
        require_equal(f"model/ of {cell} has the parameters that its training counted", weights, told.parameters)
        _require_descent(cell, network, told, trained.configuration(TrainConfig))
        for split, pairs in splits.items():
            for number in sample(config.seed, split, len(pairs), config.audit.examples):
                noise = normal_at(0, split, 0, np.array([number]), (entries,))
                inverses = _inverses(network, pairs.x[[number]], noise, config.network.sampling_descent_steps)
                truth = torch.linalg.inv(pairs.x[number].double().reshape(math.isqrt(entries), -1)).flatten()
                errors = [(found[0].double() - truth).square().mean().item() for found in inverses]
                where = f"the error of {cell} on matrix {number} of {split}"
                said = recorded[split, number]
                audited.compare("errors", where, said, min(errors, key=lambda error: abs(error - said)), said)
    return audited.result()


def _require_fixed(said: MatricesResult, config: MatricesConfig, splits: Mapping[str, Pairs]) -> None:
    """The difficulty of the fixed matrices, and what needs no learning, follows from the file that trainings read."""
    shape = config.matrices
    known = drawn(config.seed, "measured", np.arange(MEASURED), shape.rank, shape.diagonal_in)
    mean = np.linalg.inv(known).reshape(MEASURED, -1).mean(0)
    for split, pairs in splits.items():
        x, y = (one.double().numpy() for one in (pairs.x, pairs.y))
        eigenvalues = np.linalg.eigvalsh(x.reshape(-1, shape.rank, shape.rank))
        condition = np.quantile(eigenvalues[:, -1] / eigenvalues[:, 0], QUANTILES)
        told: SplitFacts = getattr(said, split)
        require_equal(f"the matrices of {split} in {FILE}", (told.matrices, len(y)), (shape.validation_matrices,) * 2)
        for what, recorded, computed in (
            ("error of predicting zero", told.trivial.zero, np.square(y).mean()),
            ("error of predicting the mean", told.trivial.mean, np.square(y - mean).mean()),
            ("smallest eigenvalue", told.smallest_eigenvalue, eigenvalues.min()),
            ("share of clamped entries", told.clamped_share, (np.abs(y) > LARGEST).mean()),
            *(("condition number", *pair) for pair in zip(told.condition, condition, strict=True)),
        ):
            where = f"the {what} of the matrices of {split}"
            require_close(where, recorded, float(computed), OF_FP32 * float(computed))


def _require_descent(cell: str, network: EnergyNetwork, told: TrainResult, config: TrainConfig) -> None:
    """Negatives of a matrix depend on how it comes by so much as was said: here alone the stage's own code computes."""
    found, defect = descent_differences(network, config, Diffusion.cosine(config.network.diffusion_steps))
    said, check = told.descent_difference, f"how much the negatives of {cell} depend on how a matrix comes"
    require_equal(check, (said is None, told.descent_defect), (found is None, defect))
    if found is not None and said is not None:
        require_close(check, said, found, AUDIT_TOLERANCE * max(found, ROUNDING))


def _inverses(network: nn.Module, x: torch.Tensor, noise: torch.Tensor, descents: int) -> list[torch.Tensor]:
    """From noise down: at each step the noise that is predicted is taken away, then some steps down the energy. More
    than one where rounding alone says which of two energies is the lower: each inverse that it may give."""
    steps = len(network.steps)
    left = [math.cos((t / steps + 0.008) / 1.008 * math.pi / 2) ** 2 for t in range(steps + 1)]
    betas = [min(1 - after / before, 0.999) for before, after in pairwise(left)]
    signals = np.cumprod([1 - beta for beta in betas])  # shares of the variance

    def energy(y: torch.Tensor, t: int) -> tuple[torch.Tensor, torch.Tensor]:
        y = y.detach().requires_grad_()
        value = network(x, y, torch.tensor([t])).sum()
        return value.detach(), torch.autograd.grad(value, y)[0]

    def descended(at: torch.Tensor, t: int, size: float, limit: float) -> list[torch.Tensor]:
        value, gradient = energy(at, t)
        tried = (at - size * gradient).clamp(-limit, limit)
        other = energy(tried, t)[0]
        near = (other - value).abs() <= NEAR * max(value.abs(), other.abs())
        return [tried, at] if near else [tried if other < value else at]

    states = [noise]
    for t in reversed(range(steps)):
        signal, spread = math.sqrt(signals[t]), math.sqrt(1 - signals[t])
        states = [signal * ((y - spread * energy(y, t)[1]) / signal).clamp(-LARGEST, LARGEST) for y in states]
        for _ in range(descents):
            states = _distinct(one for at in states for one in descended(at, t, betas[t] / spread, LARGEST * signal))
        states = [(math.sqrt(signals[t - 1]) if t else 1.0) * (at / signal) for at in states]
    return states


def _distinct(states: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    """Those that rounding does not explain, at most MOST."""
    kept: list[torch.Tensor] = []
    for state in states:
        if len(kept) < MOST and all((state - one).abs().max() > SAME for one in kept):
            kept.append(state)
    return kept
