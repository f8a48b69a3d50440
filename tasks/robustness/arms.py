"""train-baseline, train-monotonic, train-placebo: one training function and one budget for every arm.

The arms differ in where they start and in what keeps the signs of the constrained layers. Everything else is the same
code with the same numbers.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import nn
from transformers import PreTrainedModel

from tasks.language import model as language
from tasks.language.blocks import Blocks
from tasks.language.snapshots import snapshot_checks, snapshot_losses
from tasks.language.training import Checks, train_language_model
from tasks.monotonic import keep
from tasks.monotonic.constraint import verify
from tasks.monotonic.guards import movement_checks
from tasks.monotonic.liveness import measure_liveness
from tasks.monotonic.movement import measure_movement
from tasks.monotonic.result import Liveness
from tasks.monotonic.signs import AllowedSigns
from tasks.robustness.results import ArmResult
from tasks.robustness.stages import TrainConfig
from tasks.robustness.study import snapshot_folder
from tasks.stage.execution import Execution
from tasks.stage.numerics import device
from tasks.stage.run import StageInput, StageRun
from tasks.training.optimizer import adamw
from tasks.training.schedule import Schedule
from tasks.training.weights import weights_digest


def train_arm(run: StageRun, config: TrainConfig, text: StageInput, start: StageInput) -> ArmResult:
    """Trains the model of `start`, the base model's stage or constrain's. Publishes `model/` and `snapshots/`.

    Unless `config.by` is free, `start` is constrain's: its `signs/` are kept, and verified afterwards.
    """
    load_start = partial(language.load, start.path / "model")
    model = load_start()
    allowed = None if config.by == "free" else AllowedSigns.load(start.path / "signs")
    if allowed:
        keep.prepare(model, config.variant, allowed, config.by)
    snapshots = {snapshot_folder(share): share for share in config.snapshots}

    def optimizer(_: nn.Module, schedule: Schedule) -> torch.optim.Optimizer:
        if allowed is None:
            return adamw(model, schedule.budget)
        return keep.optimizer(model, config.variant, allowed, config.by, schedule)

    def checks(schedule: Schedule) -> Checks:
        found = snapshot_checks(run, text, snapshots, schedule)
        if allowed:
            moving = movement_checks(load_start, config.variant, allowed, config.required_movement, schedule)
            for step, moved in moving.items():
                found.setdefault(step, []).extend(moved)
        return found

    training = train_language_model(
        run,
        model,
        text,
        config.budget,
        config.seed,
        config.execution,
        make_optimizer=optimizer,
        make_checks=checks,
        replaced=config.replaced,
    )
    verified = verify(model, config.variant, allowed) if allowed else None
    keep.bake(model, config.variant)
    with run.publish("model") as folder:
        language.save(model, text.path / "text" / "tokenizer", folder)
    return ArmResult(
        by=config.by,
        training=training,
        constraint=verified,
        sublayers=_liveness(run, model, text, config.variant, config.execution),
        movement=measure_movement(model, config.variant, load_start()),
        snapshots=snapshot_losses(run, text, snapshots, config.execution),
        weights_digest=weights_digest(run.directory / "model"),
    )


def _liveness(run: StageRun, model: PreTrainedModel, text: StageInput, variant: str, execution: Execution) -> Liveness:
    """Of the sublayers that the variant names, on the validation split."""
    validation = Blocks(text.path / "text", "validation")
    loss = partial(
        language.validation_loss,
        blocks=validation,
        batch_size=execution.micro_batch_examples,
        after_batch=run.progress.touch,
    )
    return measure_liveness(model.to(device(execution)), variant, loss)
