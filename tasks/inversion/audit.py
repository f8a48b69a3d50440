"""inversion-audit: the errors of some matrices again, each sought by itself, with the schedule and the search in plain
torch."""

import math
from collections.abc import Iterator, Mapping
from functools import partial
from itertools import pairwise

import numpy as np
import torch
from torch import nn

from storage.errors import require_equal
from tasks.findings.audit import Again, Asked, Audited, AuditResult
from tasks.inversion import stages
from tasks.inversion.diffusion import Diffusion, EnergyNetwork
from tasks.inversion.final_results import errors_of
from tasks.inversion.matrices import MEASURED, QUANTILES, Pairs, drawn, fixed_pairs
from tasks.inversion.stages import AUDITED, INSIDE, SPLITS, MatricesResult, SplitFacts
from tasks.inversion.study import Network
from tasks.inversion.train import Judge, descent_differences, largest_difference, load_network
from tasks.stage.run import StageInput, StageRun
from tasks.training.draws import normal_at

LARGEST = 2.0
"""No entry of an inverse is predicted larger."""
ROUNDING = 1e-6
"""Smaller differences between negatives are rounding."""
NEAR = 1e-5
"""Relative: energies that differ by less are told apart by rounding in fp32 alone."""
FEW = 4
"""Matrices that are given in all ways again."""
SAME, MOST = 1e-5, 64
"""Entries that differ by less are the same; more inverses of one matrix are not followed."""


def audit(run: StageRun, config: stages.AuditConfig, data: StageInput, **cells: StageInput) -> AuditResult:
    """CheckFailed names the first cell and matrix whose error is another one than that of its record."""
    audited = Audited(run, "torch, matrix by matrix (how a matrix comes by the stage's own code)")
    splits = {split: fixed_pairs(data, split) for split in SPLITS}
    audited.ask(_facts(data, splits))
    for done, (cell, trained) in enumerate(cells.items()):
        run.step(done, len(cells), "trainings", note=cell)
        network = load_network(trained, splits[INSIDE].x.shape[1], config.network)
        errors = errors_of(trained, len(splits[INSIDE]))
        for split, pairs in splits.items():
            again = partial(_error, network, f"{cell} on matrix", split, pairs, errors[split], config.network)
            how = (again, "of an error", AUDITED["errors"], config.audit.examples)
            audited.ask(Asked("errors", range(len(pairs)), *how), cell + split)
        audited.ask(_differences(cell, network, trained, splits[INSIDE]))
    return audited.result()


def _facts(data: StageInput, splits: Mapping[str, Pairs]) -> Asked[str]:
    """The difficulty of the fixed matrices, and what needs no learning, by the file that trainings read."""
    config, result = data.configuration(stages.MatricesConfig), MatricesResult.read(data)
    shape = config.matrices
    known = drawn(config.seed, "measured", np.arange(MEASURED), shape.rank, shape.diagonal_in)
    mean = np.linalg.inv(known).reshape(MEASURED, -1).mean(0)

    def again(split: str) -> Iterator[Again]:
        x, y = (values.double().numpy() for values in (splits[split].x, splits[split].y))
        eigenvalues = np.linalg.eigvalsh(x.reshape(-1, shape.rank, shape.rank))
        condition = np.quantile(eigenvalues[:, -1] / eigenvalues[:, 0], QUANTILES)
        facts: SplitFacts = getattr(result, split)
        diagonal = shape.diagonal_in if split == INSIDE else shape.diagonal_out
        matrices = drawn(config.seed, split, np.arange(len(x)), shape.rank, diagonal)
        for what, kept, computed in (("entries", x, matrices), ("inverses", y, np.linalg.inv(matrices))):
            away = float(np.abs(kept - computed.reshape(len(x), -1)).max())
            yield Again(f"the {what} of the matrices of {split}", away, 0.0, float(np.abs(computed).max()))
        for what, recorded, computed in (
            ("number", facts.matrices, len(y)),
            ("error of predicting zero", facts.trivial.zero, np.square(y).mean()),
            ("error of predicting the mean", facts.trivial.mean, np.square(y - mean).mean()),
            ("smallest eigenvalue", facts.smallest_eigenvalue, eigenvalues.min()),
            ("share of clamped entries", facts.clamped_share, (np.abs(y) > LARGEST).mean()),
            *(("condition number", *pair) for pair in zip(facts.condition, condition, strict=True)),
        ):
            yield Again(f"the {what} of the matrices of {split}", recorded, float(computed), float(computed) or 1.0)

    kind = "facts of the fixed matrices"
    return Asked(kind, SPLITS, again, "of itself", AUDITED[kind])


def _error(
    network: EnergyNetwork, where: str, split: str, pairs: Pairs, recorded: np.ndarray, shape: Network, number: int
) -> Iterator[Again]:
    """The error on a matrix; of several that rounding allows the one that is nearest to its record."""
    entries, kept = pairs.x.shape[1], float(recorded[number])
    noise = normal_at(0, split, 0, np.array([number]), (entries,))
    inverses = _inverses(network, pairs.x[[number]], noise, shape.sampling_descent_steps)
    truth = torch.linalg.inv(pairs.x[number].double().reshape(math.isqrt(entries), -1)).flatten()
    errors = (inverses.double() - truth).square().mean(1).tolist()
    nearest = min(errors, key=lambda error: abs(error - kept))
    yield Again(f"the error of {where} {number} of {split}", kept, nearest, nearest)


def _differences(cell: str, network: EnergyNetwork, trained: StageInput, fixed: Pairs) -> Asked[str]:
    """Answers and negatives of a matrix depend on how it comes by so much as was said, by the stage's own code on the
    kept weights."""
    result, config = stages.TrainResult.read(trained), trained.configuration(stages.TrainConfig)
    diffusion = Diffusion.cosine(config.network.diffusion_steps)
    noise = normal_at(0, INSIDE, 0, np.arange(len(fixed)), fixed.y.shape[1:])
    judge = Judge(fixed.x, fixed.y, noise, diffusion, config.network.sampling_descent_steps, len(fixed))
    kind = "dependence on how a matrix comes"

    def again(what: str) -> Iterator[Again]:
        if what == "answers":
            recorded, computed = result.largest_difference, largest_difference(network, judge, FEW)
        else:
            difference, defect = descent_differences(network, config, diffusion)
            check = f"how much the negatives of {cell} depend on how a matrix comes"
            require_equal(
                check, (result.descent_difference is None, result.descent_defect), (difference is None, defect)
            )
            recorded, computed = result.descent_difference or 0.0, difference or 0.0
        yield Again(
            f"how much the {what} of {cell} depend on how a matrix comes", recorded, computed, max(computed, ROUNDING)
        )

    return Asked(kind, ("answers", "negatives"), again, "of itself", AUDITED[kind])


def _inverses(network: nn.Module, x: torch.Tensor, noise: torch.Tensor, descents: int) -> torch.Tensor:
    """From noise down: at each step the noise that is predicted is taken away, then some steps down the energy. More
    than one where rounding alone says which of two energies is the lower: each inverse that it may give."""
    steps = len(network.steps)
    left = [math.cos((t / steps + 0.008) / 1.008 * math.pi / 2) ** 2 for t in range(steps + 1)]
    betas = [min(1 - after / before, 0.999) for before, after in pairwise(left)]
    signals = np.cumprod([1 - beta for beta in betas])  # shares of the variance

    def energy(y: torch.Tensor, t: int) -> tuple[torch.Tensor, torch.Tensor]:
        y = y.detach().requires_grad_()
        values = network(x.expand(len(y), -1), y, torch.tensor([t]).expand(len(y)))
        return values.detach(), torch.autograd.grad(values.sum(), y)[0]

    def descended(at: torch.Tensor, t: int, size: float, limit: float) -> torch.Tensor:
        values, gradients = energy(at, t)
        tried = (at - size * gradients).clamp(-limit, limit)
        others = energy(tried, t)[0]
        near = (others - values).abs() <= NEAR * torch.maximum(values.abs(), others.abs())
        return torch.cat([tried[near | (others < values)], at[near | ~(others < values)]])

    states = noise
    for t in reversed(range(steps)):
        signal, spread = math.sqrt(signals[t]), math.sqrt(1 - signals[t])
        states = signal * ((states - spread * energy(states, t)[1]) / signal).clamp(-LARGEST, LARGEST)
        for _ in range(descents):
            states = _distinct(descended(states, t, betas[t] / spread, LARGEST * signal))
        states = (math.sqrt(signals[t - 1]) if t else 1.0) * (states / signal)
    return states


def _distinct(states: torch.Tensor) -> torch.Tensor:
    """States that rounding does not explain, at most MOST; [states, entries]."""
    kept = states[:1]
    for state in states[1:]:
        if len(kept) < MOST and ((kept - state).abs().amax(1) > SAME).all():
            kept = torch.cat([kept, state[None]])
    return kept
