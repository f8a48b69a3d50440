"""The robustness study: does forcing feed-forward weights to be non-negative make a language model harder to attack?

    setup -> base -> {train-baseline, constrain -> train-monotonic} -> {evaluate, uat, hotflip} -> aggregate

The page below is the only description of the DAG. Each call gives a stage its own configuration and the handles of
the stages that it reads, and returns a handle; what a call does (run here, or only say what would run) is the
dispatcher's business.

    python -m flows.robustness --profile quick
"""

from __future__ import annotations

from deployments.study_flow import study_flow
from deployments.sweep import SWEEP
from deployments.walk import Dispatcher, Handle
from flows import command
from tasks.robustness.study import (
    AggregateConfig,
    BaseConfig,
    ConstrainConfig,
    EvaluateConfig,
    HotFlipConfig,
    SetupConfig,
    Study,
    TrainConfig,
    UatConfig,
)
from tasks.stage.run import Stage
from tasks.sweep.configuration import SweepConfig

SETUP = Stage("setup", SetupConfig, "tasks.robustness.setup:setup", version=1, needs="gpu")
BASE = Stage("base", BaseConfig, "tasks.robustness.base:base", version=2)
CONSTRAIN = Stage("constrain", ConstrainConfig, "tasks.robustness.constrain:constrain", version=1, needs="gpu")
TRAIN_BASELINE = Stage("train-baseline", TrainConfig, "tasks.robustness.arms:train_baseline", version=2)
TRAIN_MONOTONIC = Stage("train-monotonic", TrainConfig, "tasks.robustness.arms:train_monotonic", version=2)
EVALUATE = Stage("evaluate", EvaluateConfig, "tasks.robustness.evaluate:evaluate", version=1, needs="gpu")
UAT = Stage("uat", UatConfig, "tasks.robustness.uat:uat", version=1, needs="gpu")
HOTFLIP = Stage("hotflip", HotFlipConfig, "tasks.robustness.hotflip:hotflip", version=1, needs="gpu")
SWEEP_SEEDS = Stage("sweep", SweepConfig, "tasks.robustness.sweep:sweep_seeds", needs="cpu")
AGGREGATE = Stage("aggregate", AggregateConfig, "tasks.robustness.aggregate:aggregate", version=2, needs="cpu")


def page(study: Study, stage: Dispatcher) -> Handle:
    """The study, top to bottom; returns the handle of its last stage."""
    text = stage(SETUP, study.for_setup())
    base = stage(BASE, study.for_base(), text=text)

    constrained = stage(CONSTRAIN, study.for_constrain(), text=text, base=base)
    baseline = stage(TRAIN_BASELINE, study.for_training("baseline"), text=text, start=base)
    monotonic = stage(TRAIN_MONOTONIC, study.for_training("monotonic"), text=text, start=constrained)

    models = {"base": base, "baseline": baseline, "monotonic": monotonic}
    evaluation = stage(EVALUATE, study.for_evaluation(), text=text, constrained=constrained, **models)
    uat = stage(UAT, study.for_uat(), text=text, **models)
    hotflip = stage(HOTFLIP, study.for_hotflip(), text=text, **models)

    return stage(
        AGGREGATE,
        study.for_aggregate(),
        text=text,
        constrained=constrained,
        **models,
        evaluation=evaluation,
        uat=uat,
        hotflip=hotflip,
    )


NUMBERS_OF_A_SWEEP = [
    "models.*.loss_nats_per_token",
    "attacks.*.effects.*.increase_nats_per_token.value",
    "attacks.hotflip.effects.*.success_rate.value",
]


def sweep_stage(study: Study, config: SweepConfig) -> tuple[Stage, SweepConfig]:
    """The stage over the cells of a sweep: two or more seeds, and nothing else, compare the arms."""
    config = config.model_copy(
        update={"confidence_level": study.evaluation.confidence_level, "numbers": NUMBERS_OF_A_SWEEP}
    )
    if config.keys == ["seed"] and len(config.present) > 1:
        return SWEEP_SEEDS, config.model_copy(update={"causes": {}})  # which its report does not show
    return SWEEP, config


robustness = study_flow(page)


if __name__ == "__main__":
    raise SystemExit(command.main("flows.robustness"))
