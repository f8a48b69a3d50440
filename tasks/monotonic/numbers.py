"""The numbers of a study's trainings and of the order of its models, from their verified files, and what gates them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from pydantic import ValidationError

from storage import durable
from storage.errors import BadInput, require_close
from storage.records import read_each
from tasks.findings.gates import Gate, at_most, distinct, same
from tasks.language.blocks import Blocks
from tasks.language.checks import ROUNDING
from tasks.language.configuration import FromScratch
from tasks.language.losses import require_trained
from tasks.language.result import BaseResult, TrainedCheck
from tasks.language.stages import BaseConfig
from tasks.monotonic.arm import ARMS, BASELINE
from tasks.monotonic.result import ArmFacts, ArmResult, ModelOrder
from tasks.monotonic.stages import VALIDATION, ChooseConfig, Constraint, TrainConfig
from tasks.stage.result import Result
from tasks.stage.run import StageInput
from tasks.training.budget import Budget
from tasks.training.schedule import Schedule
from tasks.training.trained import Trained, number_kept, weights_of


class BaseFacts(Result):
    """Facts of the report on the base model."""

    architecture: str
    parameters: int
    source: str
    trained_check: TrainedCheck

    @classmethod
    def of(cls, base: StageInput, kind: type[BaseConfig], blocks: Blocks) -> BaseFacts:
        """CheckFailed where the base model is not trained, or its training is not the configured one."""
        config, result = base.configuration(kind), BaseResult.read(base)
        scratch = config.model if isinstance(config.model, FromScratch) else None
        wanted = {"base", *(name.removeprefix("max_ratio_to_") for name in type(config.checks).model_fields)}
        if missing := (wanted if scratch else wanted - {"untrained"}) - result.validation_losses.keys():
            raise BadInput(f"{base.run.result_file} lacks the validation loss of {', '.join(sorted(missing))}")
        if scratch:
            trained = _training("base", base, scratch.pretraining, blocks)
            _require_kept("base", result.validation_losses["base"], trained)
        return cls(
            architecture=durable.read_json(base.path / "model" / "config.json")["architectures"][0],
            parameters=number_kept(base.path / "model"),
            source=config.model.source,
            trained_check=require_trained(result.validation_losses, config.checks),
        )


def facts_of_arms(arms: Mapping[str, StageInput], constraint: Constraint, blocks: Blocks) -> dict[str, ArmFacts]:
    """What each arm spent, and what became of its constrained layers, beside those of the baseline."""
    results = {name: ArmResult.read(stage) for name, stage in arms.items()}
    moved, whole = results[BASELINE].movement.constrained, results[BASELINE].sublayers.rise_nats_per_token
    facts = {}
    for name, stage in arms.items():
        arm, config = results[name], _configured(stage, results[name].trials)
        trained = _training(name, stage, config.budget, blocks)
        _require_kept(name, arm.sublayers.loss_nats_per_token, trained)
        if arm.trials:
            lowest = min(arm.trials.values())
            require_close(f"{name} kept the best of its trials", trained.best, lowest, 0)
        signs, own = ARMS[name].signs, arm.movement.constrained
        facts[name] = ArmFacts(
            start=f"{signs}, {ARMS[name].started(constraint)}" if signs else None,
            by=config.by,
            budget=config.budget.scientific(),
            trials=arm.trials,
            steps=trained.last_step,
            tokens_trained=_tokens(trained.last_step, config.budget, blocks),
            best_step=trained.best_step,
            constraint=arm.constraint,
            sublayers=arm.sublayers,
            alive_share=arm.sublayers.rise_nats_per_token / whole if whole > 0 else 0.0,
            movement=arm.movement,
            movement_ratio=own / moved if own is not None and moved else None,
            weights_digest=weights_of(stage),
        )
    return facts


def _configured(arm: StageInput, trials: Mapping[str, float]) -> TrainConfig:
    """The configuration of an arm's training; of several rates that were tried, of the one that was kept."""
    if not trials:
        return arm.configuration(TrainConfig)
    arm.configuration(ChooseConfig)
    read = arm.run.reads(durable.read_json(arm.run.stage_file)["inputs"])
    configs = [StageInput(run, "").configuration(TrainConfig) for run in read.values()]
    kept = min(trials, key=trials.__getitem__)
    return next(config for config in configs if f"{config.budget.learning_rate:g}" == kept)


def _training(what: str, stage: StageInput, budget: Budget, blocks: Blocks) -> Trained:
    return Trained.of(what, stage, VALIDATION, budget, len(blocks))


def _require_kept(what: str, measured: float, trained: Trained) -> None:
    """The kept weights are those of the best validation, by their loss."""
    check = f"the validation loss of {what} is the best of its training"
    require_close(check, measured, trained.best, ROUNDING * trained.best)  # validations are made in no bf16


def _tokens(steps: int, budget: Budget, blocks: Blocks) -> int:
    schedule = Schedule(budget, len(blocks))
    return round(sum(schedule.window(step)[2] for step in range(1, steps + 1)) * blocks.predicted_tokens)


def gates(base: BaseFacts, arms: Mapping[str, ArmFacts]) -> Iterator[Gate]:
    """The base model is trained, and what `gates_of_arms` asks."""
    check = base.trained_check
    for name, limit in check.required_ratio.items():
        what = f"validation perplexity of base, as a multiple of that of {name.replace('_', ' ')}"
        yield at_most(what, check.ratio_of_perplexities[name], limit)
    yield from gates_of_arms(arms)


def gates_of_arms(arms: Mapping[str, ArmFacts]) -> Iterator[Gate]:
    """Arms spent alike, differ, and keep signs in the same layers."""
    yield distinct("weights of the arms", {name: arm.weights_digest for name, arm in arms.items()})
    done = {name: f"{arm.steps:,} on {arm.tokens_trained:,} tokens" for name, arm in arms.items()}
    yield same("steps of the arms", done)
    yield same("budgets of the arms, and rates that were tried", {name: _spent(arm) for name, arm in arms.items()})
    kept = {name: len(arm.constraint.layers) for name, arm in arms.items() if arm.constraint}
    if kept:
        yield same("layers in which arms keep signs", kept)
    yield same("sublayers that were replaced", {name: len(arm.sublayers.effective_rank) for name, arm in arms.items()})


def _spent(arm: ArmFacts) -> str:
    """A budget in words; where rates were tried out, these in place of the one that was kept."""
    rates = ", ".join(sorted(arm.trials)) or f"{arm.budget['learning_rate']:g}"
    others = ", ".join(f"{name} {value}" for name, value in arm.budget.items() if name != "learning_rate")
    return f"{others}, learning_rate {rates}"


def order_of(order: StageInput, models: list[str]) -> dict[str, ModelOrder]:
    """What was found on the order of each model."""
    file = order.path / "records.parquet"
    orders = {}
    for name, row in read_each(file, ("model",), models).items():
        try:
            orders[name] = ModelOrder.model_validate_json(row["order"])
        except ValidationError as error:
            raise BadInput(f"{file}: what stands there of {name} cannot be read: {error.errors()[0]['msg']}") from None
    return orders
