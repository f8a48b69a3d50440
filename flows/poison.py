"""The poison study: do influence functions find poisoned training texts, better than what costs nothing?

    pool -> poison -> {victim, control} -> attack -> factors of {victim, untrained} -> scores -> detect
         -> remove {detected, random, oracle, untrained} -> audit -> report

of every seed. Nothing is detected where the attack is not above its control. The page below is the only description of
the DAG.

    python -m flows.poison --profile quick
"""

from typing import Any, TypeVar

from deployments.dag.walk import Dispatcher, Handle
from deployments.study_flow import study_flow
from tasks.findings.sweep.configuration import Swept
from tasks.language.stages import LabelledConfig
from tasks.poison import stages
from tasks.poison.study import Study
from tasks.stage.run import Stage
from tasks.stage.study import StageConfiguration

Config = TypeVar("Config", bound=StageConfiguration)

POOL = Stage("poison-pool", LabelledConfig, "tasks.language.labelled:labelled", needs="cpu")
POISON = Stage("poison-poison", stages.PoisonConfig, "tasks.poison.rows:poison", version=2, needs="cpu")
FIT = Stage("poison-fit", stages.FitConfig, "tasks.poison.fit:fit", version=4)
ATTACK = Stage("poison-attack", stages.AttackConfig, "tasks.poison.numbers:attack", version=4, needs="cpu")
FACTORS = Stage("poison-factors", stages.FactorsConfig, "tasks.poison.influence:factors", version=6)
SCORES = Stage("poison-scores", stages.ScoresConfig, "tasks.poison.influence:scores", version=5)
DETECT = Stage("poison-detect", stages.DetectConfig, "tasks.poison.detect:detect", version=3, needs="cpu")
REMOVE = Stage("poison-remove", stages.FitConfig, "tasks.poison.fit:fit", version=4)
AUDIT = Stage("poison-audit", stages.EndConfig, "tasks.poison.audit:audit", version=5, needs="cpu")
REPORT = Stage("poison-report", stages.EndConfig, "tasks.poison.report:report", version=4, needs="cpu")


def page(study: Study, stage: Dispatcher) -> Handle:
    """The study, top to bottom; returns the handle of its last stage. Roles end with the seed."""
    pool = stage(POOL, LabelledConfig.of(study))
    found: dict[str, Handle] = {}

    def of(kind: type[Config], seed: int, what: str = "", **more: Any) -> Config:
        return kind.of(study, seed=seed, cell=f"{what}, seed {seed}".lstrip(", "), **more)

    for seed in study.seeds:
        data = found[f"data-{seed}"] = stage(POISON, of(stages.PoisonConfig, seed), pool=pool)
        for rows in stages.TRAINED:
            snapshots = study.snapshots if rows == "victim" else 0
            config = of(stages.FitConfig, seed, rows, rows=rows, snapshots=snapshots)
            found[f"{rows}-{seed}"] = stage(FIT, config, data=data)
    attack = stage(ATTACK, stages.AttackConfig.of(study), **found)

    for seed in study.seeds:
        data, victim = found[f"data-{seed}"], found[f"victim-{seed}"]
        factors = {
            f"{name}_factors": stage(
                FACTORS, of(stages.FactorsConfig, seed, name, folder=folder), data=data, victim=victim, attack=attack
            )
            for name, folder in stages.MODELS.items()
        }
        scores = stage(SCORES, of(stages.ScoresConfig, seed), data=data, victim=victim, **factors)
        detected = stage(DETECT, of(stages.DetectConfig, seed), data=data, scores=scores)
        fewer = study.budget.of_a_share(1 - max(study.detection.assumed_share, study.poison.share))
        without = {}
        for rows in stages.REMOVED:
            config = of(stages.FitConfig, seed, f"without {rows}", rows=rows, snapshots=0, budget=fewer)
            without[f"without-{rows}"] = stage(REMOVE, config, data=data, found=detected)
        of_seed = {**factors, "scores": scores, "found": detected, **without}
        found |= {f"{role}-{seed}": handle for role, handle in of_seed.items()}

    audit = stage(AUDIT, stages.EndConfig.of(study), **found)
    return stage(REPORT, stages.EndConfig.of(study), pool=pool, attack=attack, audit=audit, **found)


METRICS_OF_A_SWEEP = [
    Swept(title="AUROC", numbers="detectors.{arm}.auroc", higher=True),
    Swept(title="AUROC of an untrained model", numbers="detectors.{arm}.untrained_auroc", higher=None),
    Swept(title="success after a removal", numbers="removal.{arm}.success", higher=False),
    Swept(title="the attack", numbers="attack.{arm}", higher=None),
]

poison = study_flow(page)


if __name__ == "__main__":
    from flows.command import main

    raise SystemExit(main("flows.poison"))
