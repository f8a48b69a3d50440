"""The inversion study: does mining adversarial negatives help an energy network that learns to invert matrices?

    matrices -> pilot -> arms x seeds -> {probe, audit} -> report

Every arm is trained with every seed, with equal draws for equal seeds. The page below is the only description of the
DAG.

    python -m flows.inversion --profile quick
"""

from __future__ import annotations

from deployments.study_flow import study_flow
from deployments.sweep import SWEEP
from deployments.walk import Dispatcher, Handle
from tasks.inversion.stages import AuditConfig, MatricesConfig, PilotConfig, ProbeConfig, ReportConfig, TrainConfig
from tasks.inversion.study import Study
from tasks.stage.run import Stage
from tasks.sweep.configuration import SweepConfig

MATRICES = Stage("inversion-matrices", MatricesConfig, "tasks.inversion.fixed:matrices", needs="cpu")
PILOT = Stage("inversion-pilot", PilotConfig, "tasks.inversion.train:pilot")
TRAIN = Stage("inversion-train", TrainConfig, "tasks.inversion.train:train")
PROBE = Stage("inversion-probe", ProbeConfig, "tasks.inversion.probe:probe", needs="cpu")
AUDIT = Stage("inversion-audit", AuditConfig, "tasks.inversion.audit:audit", needs="cpu")
REPORT = Stage("inversion-report", ReportConfig, "tasks.inversion.report:report", version=3, needs="cpu")


def page(study: Study, stage: Dispatcher) -> Handle:
    """The study, top to bottom; returns the handle of its last stage."""
    data = stage(MATRICES, study.for_matrices())
    pilot = stage(PILOT, study.for_pilot(), data=data)

    cells = {role: stage(TRAIN, config, data=data, pilot=pilot) for role, config in study.for_cells().items()}
    looked_at = {arm: cells[role] for arm, role in study.first_cells().items()}
    probe = stage(PROBE, study.for_probe(), data=data, **looked_at)

    audit = stage(AUDIT, study.for_audit(), data=data, **cells)

    return stage(REPORT, study.for_report(), data=data, pilot=pilot, probe=probe, audit=audit, **cells)


NUMBERS_OF_A_SWEEP = ["trivial.*", "arms.*.mean", "differences.*.percent", "differences.*.p_adjusted"]


def sweep_stage(study: Study, config: SweepConfig) -> tuple[Stage, SweepConfig]:
    """The stage over the cells of a sweep, and the numbers that it shows."""
    return SWEEP, config.model_copy(update={"numbers": NUMBERS_OF_A_SWEEP})


inversion = study_flow(page)


if __name__ == "__main__":
    from flows.command import main

    raise SystemExit(main("flows.inversion"))
