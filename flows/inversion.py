"""The inversion study: does mining adversarial negatives help an energy network that learns to invert matrices?

    matrices -> pilot -> arms x seeds -> audit -> report

Every arm is trained with every seed, with equal draws for equal seeds. The page below is the only description of the
DAG.

    python -m flows.inversion --profile quick
"""

from deployments.dag.walk import Handle
from deployments.functions import Stage, study
from tasks.findings.sweep.configuration import Swept
from tasks.inversion import stages
from tasks.inversion.study import Study

MATRICES = Stage("inversion-matrices", stages.MatricesConfig, "tasks.inversion.matrices:matrices", needs="cpu")
PILOT = Stage("inversion-pilot", stages.PilotConfig, "tasks.inversion.train:pilot", version=2)
TRAIN = Stage("inversion-train", stages.TrainConfig, "tasks.inversion.train:train", version=2)
AUDIT = Stage("inversion-audit", stages.AuditConfig, "tasks.inversion.audit:audit", version=3, needs="cpu")
REPORT = Stage("inversion-report", stages.ReportConfig, "tasks.inversion.report:report", version=10, needs="cpu")


@study
def inversion(study: Study) -> Handle:
    """The study, top to bottom; returns the stage call whose answer is shown."""
    data = MATRICES()
    pilot = PILOT(data=data, budget=study.pilot_budget)

    cells = {
        arm.name: {
            seed: TRAIN(
                data=data, pilot=pilot, mining=arm.mining, budget=study.budget_of(arm), seed=seed,
                cell=f"{arm.name}, seed {seed}",
            )
            for seed in study.seeds
        }
        for arm in study.arms
    }  # fmt: skip
    audit = AUDIT(cells, data=data)

    arms = [arm.name for arm in study.arms]
    return REPORT(cells, data=data, pilot=pilot, audit=audit, arms=arms, comparisons=study.comparisons)


METRICS_OF_A_SWEEP = [
    Swept(title="validation error", numbers="arms.{arm}.mean", higher=False),
    Swept(title="error without learning", numbers="trivial.{arm}", higher=None),
]


if __name__ == "__main__":
    from flows.command import main

    raise SystemExit(main("flows.inversion"))
