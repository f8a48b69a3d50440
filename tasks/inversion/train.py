"""inversion-pilot and inversion-train: an energy network, trained with one kind of negatives and one seed."""

import copy
from dataclasses import replace

import numpy as np
import torch
from safetensors.torch import save_file

from storage import durable
from storage.errors import require_close
from tasks.inversion.configuration import Mining, Network
from tasks.inversion.diffusion import Diffusion, descend
from tasks.inversion.energy import EnergyNetwork
from tasks.inversion.matrices import fixed_pairs
from tasks.inversion.stages import INSIDE, OUTSIDE, TOLERANCE, PilotConfig, TrainConfig, TrainResult
from tasks.inversion.training import Batch, Batches, Judge, mine, problem, schedule
from tasks.stage.run import StageInput, StageRun
from tasks.training.invariance import Way, batchwise, largest_differences, require_invariant
from tasks.training.loop import train_problem
from tasks.training.weights import load_kept

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
        return mine(network, _exact(batches(indices, 0)), diffusion, config.mining).y

    def step_by_step(indices: np.ndarray) -> torch.Tensor:
        batch, mining = _exact(batches(indices, 0)), config.mining
        y = mine(network, batch, diffusion, mining.model_copy(update={"descent_steps": 1})).y
        for _ in range(mining.descent_steps - 1):
            y = descend(network, diffusion, batch.x, y, batch.t, 1, mining.step_scale, mining.descent).y
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
