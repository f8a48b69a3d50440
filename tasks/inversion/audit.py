"""inversion-audit: the errors of some matrices again, each sought by itself, with the schedule and the search in plain
torch."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pyarrow.parquet as pq
import torch
from torch import nn

from storage.errors import require_equal
from tasks.inversion.fixed import fixed_pairs
from tasks.inversion.results import TrainResult
from tasks.inversion.stages import AUDIT_TOLERANCE, AuditConfig
from tasks.inversion.train import load_network
from tasks.report.audit import Audited, AuditResult, sample
from tasks.stage.run import StageInput, StageRun
from tasks.training.draws import normal_at
from tasks.training.weights import weights_digest

LARGEST = 2.0
"""No entry of an inverse is predicted larger."""


def audit(run: StageRun, config: AuditConfig, data: StageInput, **cells: StageInput) -> AuditResult:
    """CheckFailed names the first cell and matrix whose error is another one than that of its record."""
    audited = Audited("torch, matrix by matrix", "of an error", AUDIT_TOLERANCE)
    splits = {split: fixed_pairs(data, split) for split in ("validation", "out_of_distribution")}
    for done, (cell, trained) in enumerate(cells.items()):
        run.stop.check()
        run.progress.update(done, len(cells), "trainings", note=cell)
        told, digest = TrainResult.read(trained), weights_digest(trained.path / "model")
        require_equal(f"model/ of {cell} holds the weights that its training left", digest, told.weights_digest)
        rows = pq.read_table(trained.path / "records.parquet").to_pylist()
        recorded = {(row["split"], row["matrix"]): row["mse"] for row in rows}
        for split, pairs in splits.items():
            entries = pairs.x.shape[1]
            network = load_network(trained, entries, config.network)
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
