"""inversion-audit: the errors of some matrices again, each sought by itself, with the schedule and the search in plain
torch."""

from __future__ import annotations

import math
from collections.abc import Mapping
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
                found = _inverse(network, pairs.x[[number]], noise, config.network.sampling_descent_steps)
                rank = math.isqrt(entries)
                truth = torch.linalg.inv(pairs.x[number].double().reshape(rank, rank)).flatten()
                computed = (found[0].double() - truth).square().mean().item()
                where = f"the error of {cell} on matrix {number} of {split}"
                said = recorded[split, number]
                audited.compare("errors", where, said, computed, said)
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


def _inverse(network: nn.Module, x: torch.Tensor, noise: torch.Tensor, descents: int) -> torch.Tensor:
    """From noise down: at each step the noise that is predicted is taken away, then some steps down the energy."""
    steps = len(network.steps)
    left = [math.cos((t / steps + 0.008) / 1.008 * math.pi / 2) ** 2 for t in range(steps + 1)]
    betas = [min(1 - after / before, 0.999) for before, after in pairwise(left)]
    signals = np.cumprod([1 - beta for beta in betas])  # shares of the variance

    def energy(y: torch.Tensor, t: int) -> tuple[torch.Tensor, torch.Tensor]:
        y = y.detach().requires_grad_()
        value = network(x, y, torch.tensor([t])).sum()
        return value.detach(), torch.autograd.grad(value, y)[0]

    y, found = noise, noise
    for t in reversed(range(steps)):
        signal, spread = math.sqrt(signals[t]), math.sqrt(1 - signals[t])
        clean = ((y - spread * energy(y, t)[1]) / signal).clamp(-LARGEST, LARGEST)
        at, limit, size = signal * clean, LARGEST * signal, betas[t] / spread
        for _ in range(descents):
            value, gradient = energy(at, t)
            tried = (at - size * gradient).clamp(-limit, limit)
            at = tried if energy(tried, t)[0] <= value else at
        found = at / signal
        y = math.sqrt(signals[t - 1]) * found if t else y
    return found
