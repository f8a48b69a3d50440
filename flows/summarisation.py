"""The summarisation study: do non-negative weights make an encoder-decoder harder to attack, and what do they cost?

    pairs -> base -> {baseline, constrain -> {monotonic, placebos, repairs}}
          -> {evaluate, order, uat and hotflip of each model -> {transfer, rewrite}} -> audit -> report

base is the pretrained model, baseline the same fine-tuned. The page below is the only description of the DAG.

    python -m flows.summarisation --profile quick
"""

from deployments.dag.sweep import over_chance
from deployments.dag.walk import Dispatcher, Handle
from deployments.study_flow import study_flow
from tasks.attacks import stages as attacks
from tasks.attacks import swept
from tasks.findings.sweep.configuration import SweepConfig, Swept
from tasks.language.stages import PairBaseConfig, PairsConfig
from tasks.monotonic.arm import ARMS, BASE
from tasks.monotonic.stages import ConstrainConfig, OrderConfig, TrainConfig
from tasks.stage.run import Stage
from tasks.summarisation import stages
from tasks.summarisation.study import Study

PAIRS = Stage("summarisation-pairs", PairsConfig, "tasks.language.setup:setup", needs="cpu", version=3)
BASE_MODEL = Stage("summarisation-base", PairBaseConfig, "tasks.language.base:base", version=2)
CONSTRAIN = Stage("summarisation-constrain", ConstrainConfig, "tasks.monotonic.arms:constrain", version=2)
TRAIN = Stage("summarisation-train", TrainConfig, "tasks.monotonic.arms:train_arm", version=3)
EVALUATE = Stage("summarisation-evaluate", stages.EvaluateConfig, "tasks.summarisation.evaluate:evaluate", version=3)
ORDER = Stage("summarisation-order", OrderConfig, "tasks.monotonic.order:order", version=2)
UAT = Stage("summarisation-uat", attacks.UatConfig, "tasks.attacks.uat:uat", version=4)
HOTFLIP = Stage("summarisation-hotflip", attacks.HotFlipConfig, "tasks.attacks.hotflip:hotflip", version=4)
TRANSFER = Stage("summarisation-transfer", attacks.TransferConfig, "tasks.attacks.transfer:transfer", version=2)
REWRITE = Stage("summarisation-rewrite", stages.RewriteConfig, "tasks.summarisation.rewrite:rewrite", version=4)
AUDIT = Stage("summarisation-audit", stages.AuditConfig, "tasks.summarisation.audit:audit", version=5)
REPORT = Stage("summarisation-report", stages.ReportConfig, "tasks.summarisation.report:report", needs="cpu", version=5)

SWEEP_SEEDS = Stage("sweep", SweepConfig, "tasks.summarisation.report:sweep_seeds", version=11, needs="cpu")


def page(study: Study, stage: Dispatcher) -> Handle:
    """The study, top to bottom; returns the handle of its last stage."""
    text = stage(PAIRS, stages.for_pairs(study))
    base = stage(BASE_MODEL, attacks.for_base(study, PairBaseConfig), text=text)

    starts = {
        name: stage(CONSTRAIN, config, text=text, base=base) for name, config in attacks.for_starts(study).items()
    }
    models = {BASE: base}
    for arm in study.arms:
        start = starts[study.start_of(arm)] if ARMS[arm].signs else base
        (config,) = attacks.for_trainings(study, arm)
        models[arm] = stage(TRAIN, config.model_copy(update={"cell": arm}), text=text, start=start)

    evaluation = stage(EVALUATE, stages.EvaluateConfig.of(study), text=text, **models)
    order = stage(ORDER, attacks.for_order(study), text=text, **models)

    attacked = study.attacked()
    searched = {
        f"{attack}-{name}": stage(search, of(study, name), text=text, model=models[trained])
        for attack, search, of in (("uat", UAT, attacks.for_uat), ("hotflip", HOTFLIP, attacks.for_hotflip))
        for name, (trained, _) in attacked.items()
    }
    victims = {f"model-{name}": models[trained] for name, (trained, _) in attacked.items()}
    transfer = stage(TRANSFER, attacks.for_transfer(study), text=text, **victims, **searched)

    rewritten = stage(REWRITE, stages.for_rewrite(study), text=text, **models, **searched)
    seen = {"text": text, "evaluation": evaluation, "rewritten": rewritten, "order": order, "transfer": transfer}
    seen |= {**models, **searched, **{f"start-{name}": start for name, start in starts.items()}}
    audit = stage(AUDIT, stages.AuditConfig.of(study), **seen)
    return stage(REPORT, stages.ReportConfig.of(study), **seen, audit=audit)


METRICS_OF_A_SWEEP = [
    *swept.METRICS,
    Swept(title="ROUGE-1", numbers="models.{arm}.rouge1.value", higher=True, pairs=swept.PAIRS),
]

sweep_stage = over_chance(SWEEP_SEEDS)

summarisation = study_flow(page)


if __name__ == "__main__":
    from flows.command import main

    raise SystemExit(main("flows.summarisation"))
