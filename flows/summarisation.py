"""The summarisation study: do non-negative weights make an encoder-decoder harder to attack, and what do they cost?

    pairs -> base -> {baseline, constrain -> {monotonic, placebos, repairs}}
          -> {evaluate, order, uat and hotflip of each model -> {transfer, rewrite}} -> audit -> report

base is the pretrained model, baseline the same fine-tuned. The page below is the only description of the DAG.

    python -m flows.summarisation --profile quick
"""

from deployments.dag.sweep import over_chance
from deployments.dag.walk import Handle
from deployments.functions import Stage, study
from tasks.attacks import stages as attacks
from tasks.attacks import swept
from tasks.findings.sweep.configuration import SweepConfig, Swept
from tasks.language.stages import PairBaseConfig, PairsConfig
from tasks.monotonic.arm import BASE
from tasks.monotonic.stages import ConstrainConfig, OrderConfig, TrainConfig
from tasks.summarisation import stages
from tasks.summarisation.study import Study

PAIRS = Stage("summarisation-pairs", PairsConfig, "tasks.language.setup:setup", needs="cpu", version=3)
BASE_MODEL = Stage("summarisation-base", PairBaseConfig, "tasks.language.base:base", version=3)
CONSTRAIN = Stage("summarisation-constrain", ConstrainConfig, "tasks.monotonic.arms:constrain", version=3)
TRAIN = Stage("summarisation-train", TrainConfig, "tasks.monotonic.arms:train_arm", version=4)
EVALUATE = Stage("summarisation-evaluate", stages.EvaluateConfig, "tasks.summarisation.evaluate:evaluate", version=3)
ORDER = Stage("summarisation-order", OrderConfig, "tasks.monotonic.order:order", version=4)
UAT = Stage("summarisation-uat", attacks.UatConfig, "tasks.attacks.uat:uat", version=5)
HOTFLIP = Stage("summarisation-hotflip", attacks.HotFlipConfig, "tasks.attacks.hotflip:hotflip", version=5)
TRANSFER = Stage("summarisation-transfer", attacks.TransferConfig, "tasks.attacks.transfer:transfer", version=2)
REWRITE = Stage("summarisation-rewrite", stages.RewriteConfig, "tasks.summarisation.rewrite:rewrite", version=4)
AUDIT = Stage("summarisation-audit", stages.AuditConfig, "tasks.summarisation.audit:audit", version=6)
REPORT = Stage("summarisation-report", stages.ReportConfig, "tasks.summarisation.report:report", needs="cpu", version=8)

SWEEP_SEEDS = Stage("sweep", SweepConfig, "tasks.summarisation.report:sweep_seeds", version=14, needs="cpu")


@study
def summarisation(study: Study) -> Handle:
    """The study, top to bottom; returns the stage call whose answer is shown."""
    text = PAIRS(tokenizer=study.tokenizer, attacked_tokens=study.attacked_tokens)
    base = BASE_MODEL(text=text, **study.base_fields)

    starts = {name: CONSTRAIN(text=text, base=base, **fields) for name, fields in study.start_fields.items()}
    models = {BASE: base}
    for arm in study.arms:
        (fields,) = study.training_fields(arm)
        models[arm] = TRAIN(text=text, start=starts.get(study.start_of(arm), base), **fields | {"cell": arm})

    evaluation = EVALUATE(models, text=text)
    order = ORDER(models, text=text, models=study.compared, variant=study.constraint.variant)

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

    places = {name: "/".join(place) for name, place in attacked.items()}
    rewritten = REWRITE(models | searched, text=text, models=places)
    seen = {"text": text, "evaluation": evaluation, "rewritten": rewritten, "order": order, "transfer": transfer}
    seen |= {**models, **searched, **{f"start-{name}": start for name, start in starts.items()}}
    return REPORT(seen, audit=AUDIT(seen))


METRICS_OF_A_SWEEP = [
    *swept.METRICS,
    Swept(title="ROUGE-1", numbers="models.{arm}.rouge1.value", higher=True, pairs=swept.PAIRS),
]

sweep_stage = over_chance(SWEEP_SEEDS)


if __name__ == "__main__":
    from flows.command import main

    raise SystemExit(main("flows.summarisation"))
