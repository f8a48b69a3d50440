"""train-baseline and train-monotonic: one training function and one budget for both.

The arms differ in where they start and in what is optimised: W itself, or V with W = softplus(V) in the constrained
layers. Everything else is the same code with the same numbers.
"""

from __future__ import annotations

from functools import partial

import torch
from safetensors.torch import load_file
from torch import nn
from transformers import PreTrainedModel

from tasks.language import model as language
from tasks.language.training import train_language_model
from tasks.monotonic import constraint
from tasks.monotonic.guards import movement_checks
from tasks.robustness.results import BaselineResult, ConstrainResult, MonotonicResult
from tasks.robustness.study import TrainConfig
from tasks.stage.run import StageInput, StageRun
from tasks.training.optimizer import adamw
from tasks.training.schedule import Schedule


def train_baseline(run: StageRun, config: TrainConfig, text: StageInput, start: StageInput) -> BaselineResult:
    """Trains the base model as it is. Publishes `model/`."""
    model = language.load(start.path / "model")
    training = train_language_model(run, model, text, config.budget, config.seed, config.execution)
    return BaselineResult(training=training, weights_digest=_publish(run, model, text))


def train_monotonic(run: StageRun, config: TrainConfig, text: StageInput, start: StageInput) -> MonotonicResult:
    """Trains the constrained model through V and proves W >= 0 afterwards. Publishes `model/` with W baked in."""
    variant = ConstrainResult.read(start).variant
    initial = start.path / "initial" / "v.safetensors"
    model = language.load(start.path / "model")
    constraint.constrain(model, variant)
    free = constraint.free_parameters(model, variant)
    with torch.no_grad():
        for name, v in load_file(initial).items():
            free[name].copy_(v)  # exactly constrain's V, not the inverse of its rounded W

    def optimizer(network: nn.Module, schedule: Schedule) -> torch.optim.Optimizer:
        stepper = adamw(network, schedule.budget, undecayed=free)
        constraint.decay_effective_weights(stepper, list(free.values()), schedule)
        return stepper

    training = train_language_model(
        run,
        model,
        text,
        config.budget,
        config.seed,
        config.execution,
        make_optimizer=optimizer,
        make_checks=partial(movement_checks, initial, variant),
    )
    verified = constraint.verify(model, variant)
    constraint.bake(model, variant)
    return MonotonicResult(training=training, constraint=verified, weights_digest=_publish(run, model, text))


def _publish(run: StageRun, model: PreTrainedModel, text: StageInput) -> str:
    """Writes `model/`; returns the digest of its weights as they were written."""
    with run.publish("model") as folder:
        language.save(model, text.path / "text" / "tokenizer", folder)
    return language.weights_digest(run.directory / "model")
