"""One training of a network with an encoder: from which encoder it begins, and what is kept of it."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from safetensors.torch import save_file
from torch import nn

from storage import durable
from tasks.sensors.batches import Batch, Batches
from tasks.sensors.configuration import Network
from tasks.stage.execution import Execution
from tasks.stage.run import StageInput, StageRun
from tasks.training.budget import Budget
from tasks.training.initial import TakenPart, load_part
from tasks.training.invariance import batchwise, require_invariant
from tasks.training.loop import train_problem
from tasks.training.optimizer import adamw
from tasks.training.problem import Problem
from tasks.training.schedule import Schedule

LOSS = "validation_loss"
CHECKED, TOLERANCE = 16, 1e-3
"""On how many events a prediction must not depend on how they come, to within so much of what is normalised."""
Losses = Callable[[torch.Tensor, Batch], torch.Tensor]


class Asked(Protocol):
    """What the configuration of a training has to say."""

    @property
    def network(self) -> Network: ...
    @property
    def budget(self) -> Budget: ...
    @property
    def seed(self) -> int: ...
    @property
    def execution(self) -> Execution: ...


def fitted(
    run: StageRun,
    config: Asked,
    batches: Sequence[Batches],
    network: Any,
    start: tuple[StageInput | None, str],
    losses: Losses,
    trivial: Mapping[str, float],
    frozen: bool = False,
) -> TakenPart | None:
    """Trains `network` on the first of `batches`, judges it on the second, and publishes it with its normaliser.

    It begins with the encoder of `start`, where there is one, which was trained on the named task; `frozen`: and keeps
    it. BadInput where that had another task, normaliser or shape, CheckFailed where an answer depends on the batch.
    """
    (given, judged), (begun, task), taken = batches, start, None
    if begun is not None:
        required = {"task": task, "normaliser_digest": judged.normaliser.digest}
        taken = load_part(network, begun.path / "model", "encoder.", required)
    network.encoder.requires_grad_(not frozen)
    network = network.to(judged.device)

    def of_batch(model: nn.Module, batch: Batch) -> torch.Tensor:
        return losses(model(batch.seen), batch)

    @torch.no_grad()
    def evaluate(model: nn.Module) -> float:
        run.progress.touch()
        return mean_of(of_batch(model, batch) for _, batch in judged.in_turn(config.execution.micro_batch_examples))

    schedule = Schedule(config.budget, len(given.events))
    optimizer = adamw(network.head if frozen else network, config.budget)
    problem = Problem(network, optimizer, given, of_batch, evaluate, decides=LOSS, trivial=dict(trivial))
    train_problem(run, problem, schedule, config.seed, config.execution)
    network.eval()
    with run.watched(config.execution.stall_minutes), torch.no_grad():
        ways = batchwise(lambda indices: network(judged(indices, 0).seen), CHECKED)
        require_invariant(ways, np.arange(min(CHECKED, len(judged.events))), TOLERANCE)
    with run.publish("model") as folder:
        save_file({name: of.cpu() for name, of in network.state_dict().items()}, folder / "model.safetensors")
        shape = {"task": run.run.stage, "network": config.network.model_dump()}
        durable.write_json(folder / "config.json", shape | {"normaliser_digest": judged.normaliser.digest})
        judged.normaliser.save(folder)
    return taken


def mean_of(parts: Iterator[torch.Tensor]) -> float:
    """The mean over all numbers of the parts."""
    return float(torch.cat([part.double().cpu() for part in parts]).mean())
