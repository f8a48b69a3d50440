"""The inversion study: does mining adversarial negatives help an energy network that learns to invert matrices?

    matrices -> pilot -> arms x seeds -> {probe, audit} -> report

Every arm is trained with every seed, with equal draws for equal seeds. The page below is the only description of the
DAG.

    python -m flows.inversion --profile quick
"""

from __future__ import annotations

from deployments.dag.walk import Dispatcher, Handle
from deployments.study_flow import study_flow
from tasks.findings.sweep.configuration import Swept
from tasks.inversion import stages
from tasks.inversion.study import Study, cell_role
from tasks.stage.run import Stage

MATRICES = Stage("inversion-matrices", stages.MatricesConfig, "tasks.inversion.matrices:matrices", needs="cpu")
PILOT = Stage("inversion-pilot", stages.PilotConfig, "tasks.inversion.train:pilot", version=2)
TRAIN = Stage("inversion-train", stages.TrainConfig, "tasks.inversion.train:train", version=2)
PROBE = Stage("inversion-probe", stages.ProbeConfig, "tasks.inversion.probe:probe", version=2, needs="cpu")
AUDIT = Stage("inversion-audit", stages.AuditConfig, "tasks.inversion.audit:audit", version=2, needs="cpu")
REPORT = Stage("inversion-report", stages.ReportConfig, "tasks.inversion.report:report", version=6, needs="cpu")


def page(study: Study, stage: Dispatcher) -> Handle:
    """The study, top to bottom; returns the handle of its last stage."""
    data = stage(MATRICES, stages.MatricesConfig.of(study))
    pilot = stage(PILOT, stages.for_pilot(study), data=data)

    cells = {role: stage(TRAIN, config, data=data, pilot=pilot) for role, config in stages.for_cells(study).items()}
    looked_at = {arm.name: cells[cell_role(arm.name, study.seeds[0])] for arm in study.arms}
    probe = stage(PROBE, stages.ProbeConfig.of(study), data=data, **looked_at)

    audit = stage(AUDIT, stages.AuditConfig.of(study), data=data, probe=probe, **cells)

    return stage(REPORT, stages.for_report(study), data=data, pilot=pilot, probe=probe, audit=audit, **cells)


METRICS_OF_A_SWEEP = [
    Swept(title="validation error", numbers="arms.{arm}.mean", higher=False),
    Swept(title="error without learning", numbers="trivial.{arm}", higher=None),
]

inversion = study_flow(page)


if __name__ == "__main__":
    from flows.command import main

    raise SystemExit(main("flows.inversion"))
