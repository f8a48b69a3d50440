"""inversion-pilot and inversion-train: an energy network, trained with one kind of negatives and one seed.

Everything that is drawn for a matrix is a function of seed and index alone. So two arms with one seed see the same
matrices, times and noise, in the same order, and their difference is that of their negatives.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
import torch
from safetensors.torch import save_file
from torch import nn
from torch.nn import functional

from storage import durable
from storage.errors import CheckFailed, require_close
from tasks.inversion.diffusion import CLAMP, Diffusion, EnergyNetwork, descend, energy_and_gradient, invert
from tasks.inversion.matrices import Pairs, drawn, fixed_pairs, pairs
from tasks.inversion.stages import (
    INSIDE,
    OUTSIDE,
    SPLITS,
    TOLERANCE,
    MatricesResult,
    PilotConfig,
    TrainConfig,
    TrainResult,
    TrainsEnergy,
)
from tasks.inversion.study import Matrices, Mining, Network
from tasks.stage.numerics import device
from tasks.stage.run import StageInput, StageRun
from tasks.training.draws import normal_at, uniform_at
from tasks.training.invariance import Way, batchwise, largest_differences, require_invariant
from tasks.training.loader import moved
from tasks.training.loop import train_problem
from tasks.training.order import as_stored
from tasks.training.problem import Problem, adamw
from tasks.training.schedule import Schedule
from tasks.training.weights import load_kept

MSE = "validation_mse"
"""The metric that decides: the mean square of the error over all entries of the validation inverses."""


@dataclass(frozen=True)
class Batch:
    """x and y [B, d], their steps of the diffusion [B], the noise that is predicted and that of the contrast, wrong
    inverses [B, d], and a draw [B].

    What the arm's strategy does not read is empty.
    """

    x: torch.Tensor
    y: torch.Tensor
    t: torch.Tensor
    noise: torch.Tensor
    contrast: torch.Tensor
    random: torch.Tensor
    share: torch.Tensor


@dataclass(frozen=True)
class Batches:
    """`batch(indices, epoch)` of a training: matrices that are made as they are needed, none of them twice."""

    seed: int
    matrices: Matrices
    diffusion_steps: int
    device: torch.device
    mining: Mining
    judged: Mapping[str, torch.Tensor] = field(default_factory=dict)
    """Split -> x of the matrices that trainings are judged on."""

    def __call__(self, indices: np.ndarray, epoch: int) -> Batch:
        shape, strategy = (self.matrices.entries,), self.mining.strategy
        made = pairs(drawn(self.seed, "train", indices, self.matrices.rank, self.matrices.diagonal_in))
        for split, x in self.judged.items():
            require_apart(made.x, x, split)
        contrasts, of_random = strategy != "none", strategy in ("random", "mixed")
        times = uniform_at(self.seed, "time", epoch, indices)
        batch = (
            made.x,
            made.y,
            (times * self.diffusion_steps).long().clamp(max=self.diffusion_steps - 1),
            normal_at(self.seed, "noise", epoch, indices, shape),
            normal_at(self.seed, "contrast", epoch, indices, shape) if contrasts else torch.empty(0),
            normal_at(self.seed, "negative", epoch, indices, shape) if of_random else torch.empty(0),
            uniform_at(self.seed, "share", epoch, indices) if strategy == "mixed" else torch.empty(0),
        )
        return Batch(*(moved(part, self.device) for part in batch))


def require_apart(trained: torch.Tensor, judged: torch.Tensor, split: str) -> None:
    """CheckFailed where a matrix is trained on and judged; both [N, d]."""
    alike = torch.isin(trained[:, 0], judged[:, 0])  # nearly none: the rest is compared for these alone
    if shared := sum(bool((judged == matrix).all(1).any()) for matrix in trained[alike]):
        raise CheckFailed(
            f"no matrix is in both train and {split}",
            f"{shared} of the {len(trained)} of a batch are",
            "none",
            "What a network was trained on says nothing about what it has learned",
        )


@dataclass(frozen=True)
class Judge:
    """The error on fixed matrices, sought from the same noise each time."""

    x: torch.Tensor
    y: torch.Tensor
    noise: torch.Tensor
    diffusion: Diffusion
    descent_steps: int
    at_once: int
    touch: Callable[[], None] = lambda: None

    @classmethod
    def of(cls, config: TrainsEnergy, fixed: Pairs, purpose: str, touch: Callable[[], None] = lambda: None) -> Judge:
        where = device(config.execution)
        noise = normal_at(0, purpose, 0, np.arange(len(fixed)), (fixed.y.shape[1],))
        diffusion = Diffusion.cosine(config.network.diffusion_steps, where)
        steps, at_once = config.network.sampling_descent_steps, config.execution.micro_batch_examples
        return cls(fixed.x.to(where), fixed.y.to(where), noise.to(where), diffusion, steps, at_once, touch)

    def predicted(self, network: nn.Module, indices: np.ndarray, at_once: int) -> torch.Tensor:
        """The inverses that are found for these matrices [B], so many at once; [B, d], of the network's precision."""
        network.eval()
        kind, parts = next(network.parameters()).dtype, []
        for first in range(0, len(indices), at_once):
            some = torch.from_numpy(indices[first : first + at_once])
            x, noise = self.x[some].to(kind), self.noise[some].to(kind)
            parts.append(invert(network, self.diffusion, x, noise, self.descent_steps))
            self.touch()
        return torch.cat(parts)

    def errors(self, network: nn.Module) -> torch.Tensor:
        """The mean squared error of each matrix, fp64 [N], on the CPU."""
        predicted = self.predicted(network, np.arange(len(self.x)), self.at_once)
        return (predicted - self.y).double().square().mean(-1).cpu()

    def __call__(self, network: nn.Module) -> dict[str, float]:
        return {MSE: float(self.errors(network).mean())}


def problem(config: TrainsEnergy, mining: Mining, data: StageInput, touch: Callable[[], None]) -> Problem:
    """A network of the configuration's seed, trained with negatives of `mining`."""
    facts, where, shape = MatricesResult.read(data), device(config.execution), config.network
    torch.manual_seed(config.seed)
    mean, deviation = (torch.tensor(values) for values in (facts.input_mean, facts.input_deviation))
    network = EnergyNetwork(config.matrices.entries, shape.width, shape.diffusion_steps, mean, deviation).to(where)
    judge = Judge.of(config, fixed_pairs(data, "validation"), "validation", touch)
    judged = {split: fixed_pairs(data, split).x for split in SPLITS}
    return Problem(
        network,
        adamw(network, config.budget),
        Batches(config.seed, config.matrices, shape.diffusion_steps, where, mining, judged),
        partial(losses, diffusion=judge.diffusion, mining=mining),
        judge,
        decides=MSE,
        trivial=facts.validation.trivial.by_name,
        order=as_stored,
    )


def schedule(config: TrainsEnergy) -> Schedule:
    """One epoch is the whole training: no matrix comes twice."""
    assert config.budget.steps is not None
    return Schedule(config.budget, config.budget.steps * config.budget.effective_batch_examples)


def losses(network: nn.Module, batch: Batch, diffusion: Diffusion, mining: Mining) -> torch.Tensor:
    """Loss by matrix, [B]: the error of the noise that is predicted, and the contrast of the truth with a negative.

    Both are given the same noise, another one than that which is predicted; a mined negative was sought from it.
    """
    noised = diffusion.noised(batch.y, batch.t, batch.noise)
    _, predicted = energy_and_gradient(network, batch.x, noised, batch.t, for_training=True)
    squares = (predicted - batch.noise).square().mean(-1)
    if mining.strategy == "none":
        return squares
    wrong = negatives_of(network, batch, diffusion, mining)
    true, false = (network(batch.x, diffusion.noised(y, batch.t, batch.contrast), batch.t) for y in (batch.y, wrong))
    return squares + mining.contrast_weight * functional.softplus(true - false)


def negatives_of(network: nn.Module, batch: Batch, diffusion: Diffusion, mining: Mining) -> torch.Tensor:
    """A wrong y for each matrix, [B, d], free of noise and without gradients."""
    if mining.strategy == "random":
        return batch.random.clamp(-CLAMP, CLAMP)
    mined = (mine(network, batch, diffusion, mining) / diffusion.signal(batch.t)).clamp(-CLAMP, CLAMP)
    if mining.strategy == "mixed":
        return torch.where(batch.share[:, None] < mining.adversarial_share, mined, batch.random.clamp(-CLAMP, CLAMP))
    return mined


def mine(network: nn.Module, batch: Batch, diffusion: Diffusion, mining: Mining) -> torch.Tensor:
    """Adversarial negatives, still at their steps of the diffusion: from much noise down the energy."""
    start = diffusion.noised(batch.y, batch.t, mining.noise_scale * batch.contrast)
    how = (mining.descent_steps, mining.step_scale, mining.descent)
    return descend(network, diffusion, batch.x, start, batch.t, *how)


CHECKED, BATCH = 16, 16
"""On how many matrices an answer must not depend on how they come."""


def pilot(run: StageRun, config: PilotConfig, data: StageInput) -> dict[str, float]:
    """Ends as not learning where it is hardly better than what needs no learning; its metric rows are what is kept."""
    made = problem(config, Mining(), data, run.progress.touch)
    train_problem(run, made, schedule(config), config.seed, config.execution)
    return {}


def train(run: StageRun, config: TrainConfig, data: StageInput, pilot: StageInput) -> TrainResult:
    """Publishes `model/` with the best step's weights. Records: the error of every matrix of both splits."""
    made = problem(config, config.mining, data, run.progress.touch)
    position = train_problem(run, made, schedule(config), config.seed, config.execution)
    assert position.best_value is not None
    network = made.model.eval()
    with run.watched(config.execution.stall_minutes):
        validation = Judge.of(config, fixed_pairs(data, INSIDE), INSIDE, run.progress.touch)
        outside = Judge.of(config, fixed_pairs(data, OUTSIDE), OUTSIDE, run.progress.touch)
        largest = largest_difference(network, validation)
        difference, defect = descent_differences(network, config, validation.diffusion)
        errors = {INSIDE: validation.errors(network), OUTSIDE: outside.errors(network)}
        _keep_errors(run, errors)
    error, best = float(errors[INSIDE].mean()), position.best_value
    require_close("the best weights give the best error again", error, best, 1e-9 * best)
    with run.publish("model") as folder:
        save_file(network.cpu().state_dict(), folder / "model.safetensors")
        durable.write_json(folder / "config.json", {"entries": config.matrices.entries} | config.network.model_dump())
    return TrainResult(largest_difference=largest, descent_difference=difference, descent_defect=defect)


def load_network(trained: StageInput, entries: int, shape: Network) -> EnergyNetwork:
    """The network of a finished training, on the CPU."""
    network = EnergyNetwork(entries, shape.width, shape.diffusion_steps, torch.zeros(entries), torch.ones(entries))
    load_kept(network, trained.path / "model" / "model.safetensors")
    return network.eval()


def largest_difference(network: torch.nn.Module, judge: Judge, matrices: int = CHECKED) -> float:
    """Between predictions of a matrix however it comes; CheckFailed where it is more than rounding. In fp64, where
    rounding decides no step down the energy."""
    exact = copy.deepcopy(network).double()
    checked = np.arange(min(matrices, len(judge.x)))
    return require_invariant(batchwise(lambda some: judge.predicted(exact, some, len(some)), BATCH), checked, TOLERANCE)


def descent_differences(
    network: torch.nn.Module, config: TrainConfig, diffusion: Diffusion
) -> tuple[float | None, str]:
    """Largest difference of a matrix's negatives however it comes, and on what they depend; None for an arm without.

    The descent as published does; that is a finding about it, and ends nothing.
    """
    if not config.mining.uses_descent:
        return None, ""
    ways = descent_ways(copy.deepcopy(network).double(), config, diffusion)
    largest = largest_differences(ways, np.arange(min(CHECKED, config.budget.effective_batch_examples)))
    wrong = {name: difference for name, difference in largest.items() if not difference <= TOLERANCE}
    return max(largest.values()), ", ".join(wrong)


def descent_ways(network: torch.nn.Module, config: TrainConfig, diffusion: Diffusion) -> dict[str, Way]:
    """The ways in which the descent of an arm can come to the negatives of the same matrices."""
    where = next(network.parameters()).device
    batches = Batches(config.seed, config.matrices, config.network.diffusion_steps, where, config.mining)

    def mined(indices: np.ndarray) -> torch.Tensor:
        return mine(network, _exact(batches(indices, 0)), diffusion, config.mining)

    def step_by_step(indices: np.ndarray) -> torch.Tensor:
        batch, mining = _exact(batches(indices, 0)), config.mining
        y = mine(network, batch, diffusion, mining.model_copy(update={"descent_steps": 1}))
        for _ in range(mining.descent_steps - 1):
            y = descend(network, diffusion, batch.x, y, batch.t, 1, mining.step_scale, mining.descent)
        return y

    return batchwise(mined, BATCH) | {"step by step": step_by_step}


def _exact(batch: Batch) -> Batch:
    return replace(batch, **{name: getattr(batch, name).double() for name in ("x", "y", "noise", "contrast")})


def _keep_errors(run: StageRun, errors: dict[str, torch.Tensor]) -> None:
    """Records: each matrix's squared error."""
    parts = {
        split: [{"split": split, "matrix": number, "mse": value} for number, value in enumerate(of_split.tolist())]
        for split, of_split in errors.items()
    }
    run.merge_records(run.each(parts, list, "splits"), ("split", "matrix"))
