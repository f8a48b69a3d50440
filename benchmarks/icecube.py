"""Reading events in three orders, and learning rates beside those of torch-lr-finder.

python -m benchmarks.icecube --orders FOLDER --batches 9 --open-files 2
python -m benchmarks.icecube --rates RUNS        (a finished quick study: runs/icecube-quick)

FOLDER has files in Kaggle's layout, such as those of a run of icecube-pulses. The finder comes with
`make .venv-peers`.
"""

import argparse
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from storage.errors import NumericalFailure
from storage.run_directory import RunDirectory, read
from tasks.icecube.batches import FEATURES, Batch, EventBatches
from tasks.icecube.events import EventFiles, read_geometry
from tasks.icecube.look import FIXED
from tasks.icecube.stages import RatesConfig
from tasks.icecube.study import Trained
from tasks.icecube.train import Prepared, judge, losses
from tasks.stage.run import StageInput
from tasks.training.loader import micro_batches
from tasks.training.loop import initial_state
from tasks.training.order import FileOrder, Order, as_stored, example_at
from tasks.training.schedule import Schedule
from tasks.training.step import optimizer_step

PEERS = Path(__file__).parents[1] / ".venv-peers"
BATCH, ROUNDS = 64, 3
STEPS_OF_TRAINING = 315


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def orders(folder: Path, batches: int, open_files: int, events: int) -> None:
    """Events a second as batches, of the first `events` of an epoch; of random reading, of far fewer."""
    files = EventFiles(folder, list(range(1, batches + 1)), open_files)
    make = EventBatches(files, read_geometry(folder), FIXED, 24, torch.device("cpu"))
    named: dict[str, Order] = {
        "as stored": as_stored,
        "files shuffled": FileOrder(files.sizes, open_files),
        "fully random": example_at,
    }
    found: dict[str, list[float]] = {name: [] for name in named}
    for epoch in range(ROUNDS):
        for name, order in named.items():
            some = BATCH if name == "fully random" else events
            files._open.clear()
            began = time.perf_counter()
            for first in range(0, some, BATCH):
                make(order(0, epoch, np.arange(first, first + BATCH), len(files)))
            found[name].append(some / (time.perf_counter() - began))
    for name, rates in found.items():
        middle = statistics.median(rates)
        say(
            f"{name}: {middle:,.0f} events/s ({', '.join(f'{rate:,.0f}' for rate in rates)}), "
            f"{middle / statistics.median(found['as stored']):.3f} of as stored"
        )


def rates(study: Path) -> None:
    """What the finder suggests on raw and on normalised inputs, and what a training at that rate comes to."""
    sys.path.append(str(PEERS))
    from torch_lr_finder import LRFinder

    for path in sorted((study / "icecube-rates").iterdir()):
        about = read(path / "stage.json")
        config = RatesConfig.model_validate(about["configuration"])
        run = RunDirectory(study.parent, about["study"], about["stage"], about["fingerprint"])
        inputs = {role: StageInput(given, "") for role, given in run.reads(about["inputs"]).items()}
        prepared = Prepared.of(config, inputs["events"], inputs["look"], config.inputs)
        report = next((study / "icecube-report").glob("*/final_results.json"))
        ours = read(report)["recommended"][config.inputs]["rate"]
        say(f"{config.inputs}: ours recommends {ours}: {_trained(prepared, config, ours) if ours else 'none'}")
        for seed in range(ROUNDS):
            problem = prepared.problem(Trained(inputs=config.inputs), config.budget, seed)
            for group in problem.optimizer.param_groups:
                group["lr"] = 1e-6
            finder = LRFinder(_Angles(problem.model), problem.optimizer, _mean, device="cpu")
            finder.range_test(_Loader(problem.batch, len(prepared.data.train), seed), end_lr=1, num_iter=100)
            curve = finder.history
            steepest = int(np.gradient(np.array(curve["loss"])).argmin())  # as its `plot` suggests
            rate = float(curve["lr"][steepest])
            say(f"  torch-lr-finder, seed {seed}: {rate:.2g}: {_trained(prepared, config, rate, seed)}")


class _Angles(nn.Module):
    """The network for a finder that knows of inputs and labels: it gives the losses."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, batch: Batch) -> torch.Tensor:
        return losses(self.model, batch)


def _mean(losses: torch.Tensor, _: Any) -> torch.Tensor:
    return losses.mean()


class _Loader(torch.utils.data.DataLoader):
    """Batches as the finder iterates over them: (inputs, labels)."""

    def __init__(self, batch: Any, events: int, seed: int) -> None:
        self._batch, self._events, self._seed = batch, events, seed

    def __iter__(self) -> Any:
        chance = np.random.default_rng(self._seed)
        while True:
            batch = self._batch(chance.integers(0, self._events, BATCH), 0)
            yield batch, torch.zeros(len(batch))


def _trained(prepared: Prepared, config: RatesConfig, rate: float, seed: int = 0) -> str:
    """The mean angle after a training at this rate, or the step at which it was not finite."""
    budget = config.budget.model_copy(update={"learning_rate": rate, "steps": STEPS_OF_TRAINING})
    problem = prepared.problem(Trained(inputs=config.inputs), budget, seed)
    schedule = Schedule(budget, len(prepared.data.train))
    state = initial_state(problem, schedule)
    try:
        with micro_batches(problem.batch, schedule, problem.order, seed, 0, BATCH, 0) as batches:
            for _ in range(schedule.total_steps):
                optimizer_step(problem, schedule, state, batches, BATCH, seed)
    except NumericalFailure as error:
        return f"{error.tensor} is not finite at step {error.step}"
    problem.model.eval()
    files = prepared.data.validation
    found = judge(problem.model, prepared.batches(files), np.arange(len(files)), 500)
    return f"{found['angle_degrees']:.1f} degrees after {STEPS_OF_TRAINING} steps"


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--orders", type=Path)
    options.add_argument("--batches", type=int, default=9)
    options.add_argument("--open-files", type=int, default=2)
    options.add_argument("--events", type=int, default=20_000)
    options.add_argument("--rates", type=Path)
    given = options.parse_args()
    torch.set_num_threads(1)
    say(f"{len(FEATURES)} features, batches of {BATCH}, {ROUNDS} rounds, Python {sys.version.split()[0]}")
    if given.orders:
        orders(given.orders, given.batches, given.open_files, given.events)
    if given.rates:
        rates(given.rates)


if __name__ == "__main__":
    main()
