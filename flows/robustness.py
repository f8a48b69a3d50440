"""The robustness study: does forcing feed-forward weights to be non-negative make a language model harder to attack?

    setup -> base -> {train-baseline, constrain -> {train-monotonic, train-placebo ...}}
          -> {evaluate, order, uat and hotflip of each model -> transfer} -> audit -> aggregate

The page below is the only description of the DAG. Each call gives a stage its own configuration and the handles of
the stages that it reads, and returns a handle; what a call does (run here, or only say what would run) is the
dispatcher's business.

    python -m flows.robustness --profile quick
"""

from deployments.dag.sweep import over_chance
from deployments.dag.walk import Dispatcher, Handle
from deployments.study_flow import study_flow
from tasks.attacks import stages as attacks
from tasks.attacks.stages import HotFlipConfig, TransferConfig, UatConfig
from tasks.attacks.swept import EFFECTS, METRICS, PAIRS
from tasks.findings.sweep.configuration import SweepConfig, Swept
from tasks.language.stages import BaseConfig, SetupConfig
from tasks.monotonic.arm import ARMS, BASE, BASELINE, MONOTONIC
from tasks.monotonic.stages import ChooseConfig, ConstrainConfig, OrderConfig, TrainConfig
from tasks.robustness import stages
from tasks.robustness.study import Study
from tasks.stage.run import Stage

SETUP = Stage("setup", SetupConfig, "tasks.language.setup:setup", version=2, needs="gpu")
BASE_MODEL = Stage("base", BaseConfig, "tasks.language.base:base", version=4)
CONSTRAIN = Stage("constrain", ConstrainConfig, "tasks.monotonic.arms:constrain", version=3, needs="gpu")
TRAIN_BASELINE = Stage("train-baseline", TrainConfig, "tasks.monotonic.arms:train_arm", version=4)
TRAIN_MONOTONIC = Stage("train-monotonic", TrainConfig, "tasks.monotonic.arms:train_arm", version=4)
TRAIN_PLACEBO = Stage("train-placebo", TrainConfig, "tasks.monotonic.arms:train_arm", version=2)
CHOOSE = Stage("choose", ChooseConfig, "tasks.monotonic.arms:choose", version=2, needs="cpu")
EVALUATE = Stage("evaluate", stages.EvaluateConfig, "tasks.robustness.evaluate:evaluate", version=3, needs="gpu")
ORDER = Stage("order", OrderConfig, "tasks.monotonic.order:order", version=3, needs="gpu")
UAT = Stage("uat", UatConfig, "tasks.attacks.uat:uat", version=6, needs="gpu")
HOTFLIP = Stage("hotflip", HotFlipConfig, "tasks.attacks.hotflip:hotflip", version=5, needs="gpu")
TRANSFER = Stage("transfer", TransferConfig, "tasks.attacks.transfer:transfer", version=3, needs="gpu")
SWEEP_SEEDS = Stage("sweep", SweepConfig, "tasks.robustness.sweep:sweep_seeds", version=13, needs="cpu")
AUDIT = Stage("audit", stages.AuditConfig, "tasks.robustness.audit:audit", version=4, needs="gpu")
AGGREGATE = Stage("aggregate", stages.AggregateConfig, "tasks.robustness.aggregate:aggregate", version=18, needs="cpu")

TRAIN = {BASELINE: TRAIN_BASELINE, MONOTONIC: TRAIN_MONOTONIC}


def page(study: Study, stage: Dispatcher) -> Handle:
    """The study, top to bottom; returns the handle of its last stage."""
    text = stage(SETUP, stages.for_setup(study))
    base = stage(BASE_MODEL, attacks.for_base(study), text=text)

    starts = {
        name: stage(CONSTRAIN, config, text=text, base=base) for name, config in attacks.for_starts(study).items()
    }
    models = {BASE: base}
    for arm in study.arms:
        start = starts[study.start_of(arm)] if ARMS[arm].signs else base
        trials = {
            f"trial-{number}": stage(TRAIN.get(arm, TRAIN_PLACEBO), config, text=text, start=start)
            for number, config in enumerate(attacks.for_trainings(study, arm), 1)
        }
        models[arm] = (
            stage(CHOOSE, ChooseConfig.of(study, cell=arm), **trials) if len(trials) > 1 else trials["trial-1"]
        )

    constrained = starts[study.start_of(MONOTONIC)]
    evaluation = stage(EVALUATE, stages.EvaluateConfig.of(study), text=text, constrained=constrained, **models)
    order = stage(ORDER, attacks.for_order(study), text=text, **models)

    attacked = study.attacked()
    searched = {
        f"{attack}-{name}": stage(search, of(study, name), text=text, model=models[trained])
        for attack, search, of in (("uat", UAT, attacks.for_uat), ("hotflip", HOTFLIP, attacks.for_hotflip))
        for name, (trained, _) in attacked.items()
    }
    victims = {f"model-{name}": models[trained] for name, (trained, _) in attacked.items()}
    transfer = stage(TRANSFER, attacks.for_transfer(study), text=text, **victims, **searched)

    began = {f"start-{name}": start for name, start in starts.items()}
    read = {"text": text, **began, **models, "evaluation": evaluation, "order": order, **searched, "transfer": transfer}
    audit = stage(AUDIT, stages.AuditConfig.of(study), **read)
    return stage(AGGREGATE, stages.AggregateConfig.of(study), **read, audit=audit)


SHOWN = {
    "movement": "arms.{arm}.movement_ratio",
    "learning rate": "arms.{arm}.budget.learning_rate",
    "best step": "arms.{arm}.best_step",
    "{of} loss of {attack}": f"{EFFECTS}.{{of}}_loss_nats_per_token",
    "{of} increase by {attack}": f"{EFFECTS}.{{of}}_increase_nats_per_token.value",
}
METRICS_OF_A_SWEEP = [
    *METRICS,
    Swept(title="success rate", numbers=f"{EFFECTS}.success_rate.value", higher=False, pairs=PAIRS),
    *(Swept(title=title, numbers=numbers, higher=None, compared=False) for title, numbers in SHOWN.items()),
]
sweep_stage = over_chance(SWEEP_SEEDS)

robustness = study_flow(page)


if __name__ == "__main__":
    from flows.command import main

    raise SystemExit(main("flows.robustness"))
