"""The robustness study: does forcing feed-forward weights to be non-negative make a language model harder to attack?

    setup -> base -> {train-baseline, constrain -> {train-monotonic, train-placebo ...}}
          -> {evaluate, order, uat and hotflip of each model -> transfer} -> audit -> aggregate

The page below is the only description of the DAG. Each call gives a stage its own configuration and the stage calls
that it reads; what a call does (run here, or only say what would run) is decided by who walks the page.

    python -m flows.robustness --profile quick
"""

from deployments.dag.sweep import over_chance
from deployments.dag.walk import Handle
from deployments.functions import Stage, study
from tasks.attacks.stages import HotFlipConfig, TransferConfig, UatConfig
from tasks.attacks.swept import EFFECTS, METRICS, PAIRS
from tasks.findings.sweep.configuration import SweepConfig, Swept
from tasks.language.stages import BaseConfig, SetupConfig
from tasks.monotonic.arm import BASE, BASELINE, MONOTONIC
from tasks.monotonic.stages import ChooseConfig, ConstrainConfig, OrderConfig, TrainConfig
from tasks.robustness import stages
from tasks.robustness.study import Study

SETUP = Stage("setup", SetupConfig, "tasks.language.setup:setup", version=2, needs="gpu")
BASE_MODEL = Stage("base", BaseConfig, "tasks.language.base:base", version=5)
CONSTRAIN = Stage("constrain", ConstrainConfig, "tasks.monotonic.arms:constrain", version=4, needs="gpu")
TRAIN_BASELINE = Stage("train-baseline", TrainConfig, "tasks.monotonic.arms:train_arm", version=5)
TRAIN_MONOTONIC = Stage("train-monotonic", TrainConfig, "tasks.monotonic.arms:train_arm", version=5)
TRAIN_PLACEBO = Stage("train-placebo", TrainConfig, "tasks.monotonic.arms:train_arm", version=3)
CHOOSE = Stage("choose", ChooseConfig, "tasks.robustness.choose:choose", version=3, needs="cpu")
EVALUATE = Stage("evaluate", stages.EvaluateConfig, "tasks.robustness.evaluate:evaluate", version=3, needs="gpu")
ORDER = Stage("order", OrderConfig, "tasks.monotonic.order:order", version=5, needs="gpu")
UAT = Stage("uat", UatConfig, "tasks.attacks.uat:uat", version=7, needs="gpu")
HOTFLIP = Stage("hotflip", HotFlipConfig, "tasks.attacks.hotflip:hotflip", version=6, needs="gpu")
TRANSFER = Stage("transfer", TransferConfig, "tasks.attacks.transfer:transfer", version=3, needs="gpu")
SWEEP_SEEDS = Stage("sweep", SweepConfig, "tasks.robustness.aggregate:sweep_seeds", version=16, needs="cpu")
AUDIT = Stage("audit", stages.AuditConfig, "tasks.robustness.audit:audit", version=5, needs="gpu")
AGGREGATE = Stage("aggregate", stages.AggregateConfig, "tasks.robustness.aggregate:aggregate", version=21, needs="cpu")

TRAIN = {BASELINE: TRAIN_BASELINE, MONOTONIC: TRAIN_MONOTONIC}


@study
def robustness(study: Study) -> Handle:
    """The study, top to bottom; returns the stage call whose answer is shown."""
    text = SETUP(tokenizer=study.tokenizer)
    base = BASE_MODEL(text=text, **study.base_fields)

    starts = {name: CONSTRAIN(text=text, base=base, **fields) for name, fields in study.start_fields.items()}
    models = {BASE: base}
    for arm in study.arms:
        train, start = TRAIN.get(arm, TRAIN_PLACEBO), starts.get(study.start_of(arm), base)
        trials = [train(text=text, start=start, **fields) for fields in study.training_fields(arm)]
        models[arm] = CHOOSE({"trial": dict(enumerate(trials, 1))}, cell=arm) if len(trials) > 1 else trials[0]

    constrained, variant = starts[study.start_of(MONOTONIC)], study.constraint.variant
    evaluation = EVALUATE(models, text=text, constrained=constrained)
    order = ORDER(models, text=text, models=study.compared, variant=variant)

    attacked = study.attacked()
    searched = {
        f"{attack}-{name}": search(
            {"text": text, "model": models[trained]}, attack=settings, model=name, folder=folder, cell=name
        )
        for attack, search, settings in (("uat", UAT, study.uat), ("hotflip", HOTFLIP, study.hotflip))
        for name, (trained, folder) in attacked.items()
    }
    victims = {f"model-{name}": models[trained] for name, (trained, _) in attacked.items()}
    folders = {name: folder for name, (_, folder) in attacked.items()}
    transfer = TRANSFER(victims | searched, text=text, models=folders)

    began = {f"start-{name}": start for name, start in starts.items()}
    read = {"text": text, **began, **models, "evaluation": evaluation, "order": order, **searched, "transfer": transfer}
    return AGGREGATE(read, audit=AUDIT(read))


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


if __name__ == "__main__":
    from flows.command import main

    raise SystemExit(main("flows.robustness"))
