"""The poison study: do influence functions find poisoned training texts, better than what costs nothing?

    pool -> poison -> {victim, control} -> attack -> factors of {victim, untrained} -> scores -> detect
         -> remove {detected, random, oracle, untrained} -> audit -> report

of every seed. Nothing is detected where the attack is not above its control. The page below is the only description of
the DAG.

    python -m flows.poison --profile quick
"""

from collections import defaultdict

from deployments.dag.walk import Handle
from deployments.functions import Stage, study
from tasks.findings.sweep.configuration import Swept
from tasks.language.stages import LabelledConfig
from tasks.poison import stages
from tasks.poison.stages import Study

POOL = Stage("poison-pool", LabelledConfig, "tasks.language.labelled:labelled", version=2, needs="cpu")
POISON = Stage("poison-poison", stages.PoisonConfig, "tasks.poison.fit:poison", version=2, needs="cpu")
FIT = Stage("poison-fit", stages.FitConfig, "tasks.poison.fit:fit", version=4)
ATTACK = Stage("poison-attack", stages.AttackConfig, "tasks.poison.fit:attack", version=4, needs="cpu")
FACTORS = Stage("poison-factors", stages.FactorsConfig, "tasks.poison.detect:factors", version=7)
SCORES = Stage("poison-scores", stages.ScoresConfig, "tasks.poison.detect:scores", version=5)
DETECT = Stage("poison-detect", stages.DetectConfig, "tasks.poison.detect:detect", version=3, needs="cpu")
REMOVE = Stage("poison-remove", stages.FitConfig, "tasks.poison.fit:fit", version=4)
AUDIT = Stage("poison-audit", stages.EndConfig, "tasks.poison.audit:audit", version=8, needs="cpu")
REPORT = Stage("poison-report", stages.EndConfig, "tasks.poison.report:report", version=8, needs="cpu")


@study
def poison(study: Study) -> Handle:
    """The study, top to bottom; returns the stage call whose answer is shown."""
    pool = POOL()
    by_role: dict[str, dict[int, Handle]] = defaultdict(dict)
    for seed in study.seeds:
        data = by_role["data"][seed] = POISON(pool=pool, seed=seed, cell=f"seed {seed}")
        for rows in stages.TRAINED:
            snapshots, cell = study.snapshots if rows == "victim" else 0, f"{rows}, seed {seed}"
            by_role[rows][seed] = FIT(data=data, rows=rows, snapshots=snapshots, seed=seed, cell=cell)
    attack = ATTACK(by_role)

    fewer = study.budget.of_a_share(1 - max(study.detection.assumed_share, study.poison.share))
    for seed in study.seeds:
        of_seed, cell = {"seed": seed, "data": by_role["data"][seed]}, f"seed {seed}"
        victim = {"victim": by_role["victim"][seed]}
        factors = {
            f"{name}_factors": FACTORS(victim, attack=attack, folder=folder, **of_seed, cell=f"{name}, {cell}")
            for name, folder in stages.MODELS.items()
        }
        scores = SCORES(victim | factors, **of_seed, cell=cell)
        detected = DETECT(scores=scores, **of_seed, cell=cell)
        without = {
            f"without-{rows}": REMOVE(
                found=detected, rows=rows, snapshots=0, budget=fewer, **of_seed, cell=f"without {rows}, {cell}"
            )
            for rows in stages.REMOVED
        }
        for role, handle in {**factors, "scores": scores, "found": detected, **without}.items():
            by_role[role][seed] = handle

    audit = AUDIT(by_role)
    return REPORT({**by_role, "audit": audit}, pool=pool, attack=attack)


METRICS_OF_A_SWEEP = [
    Swept(title="AUROC", numbers="detectors.{arm}.auroc", higher=True),
    Swept(title="AUROC of an untrained model", numbers="detectors.{arm}.untrained_auroc", higher=None),
    Swept(title="success after a removal", numbers="removal.{arm}.success", higher=False),
    Swept(title="the attack", numbers="attack.{arm}", higher=None),
]

if __name__ == "__main__":
    from flows.command import main

    raise SystemExit(main("flows.poison"))
