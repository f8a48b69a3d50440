"""The direction study: why did a network on raw detector pulses learn nothing for hours, and what heals it?

    pulses -> look -> {rates raw, rates normalised, overfit, trials} -> train -> audit -> report

Each suspicion of the recorded failure is a trial with one change, whose own failure is a result; before the training
stand the gates that the recorded one lacked. The page below is the only description of the DAG.

    python -m flows.icecube --profile quick
"""

from __future__ import annotations

from typing import get_args

from deployments.dag.walk import Dispatcher, Handle
from deployments.study_flow import study_flow
from tasks.findings.sweep.configuration import Swept
from tasks.icecube import stages
from tasks.icecube.configuration import Inputs
from tasks.icecube.study import Study
from tasks.stage.run import Stage

PULSES = Stage("icecube-pulses", stages.PulsesConfig, "tasks.icecube.pulses:pulses", needs="cpu")
LOOK = Stage("icecube-look", stages.LookConfig, "tasks.icecube.look:look", version=2, needs="cpu")
RATES = Stage("icecube-rates", stages.RatesConfig, "tasks.icecube.trials:rates", version=3, needs="gpu")
OVERFIT = Stage("icecube-overfit", stages.OverfitConfig, "tasks.icecube.trials:overfit", needs="gpu")
TRIAL = Stage("icecube-trial", stages.TrialConfig, "tasks.icecube.trials:trial", version=3)
TRAIN = Stage("icecube-train", stages.TrainConfig, "tasks.icecube.train:train")
AUDIT = Stage("icecube-audit", stages.AuditConfig, "tasks.icecube.audit:audit", version=2, needs="gpu")
REPORT = Stage("icecube-report", stages.ReportConfig, "tasks.icecube.report:report", version=8, needs="cpu")


def page(study: Study, stage: Dispatcher) -> Handle:
    """The study, top to bottom; returns the handle of its last stage."""
    events = stage(PULSES, stages.PulsesConfig.of(study))
    look = stage(LOOK, stages.for_look(study), events=events)
    seen = {"events": events, "look": look}

    rates = {inputs: stage(RATES, stages.for_rates(study, inputs), **seen) for inputs in get_args(Inputs)}
    overfit = stage(OVERFIT, stages.for_overfit(study), **seen)
    trials = {role: stage(TRIAL, config, **seen) for role, config in stages.for_trials(study).items()}
    taken = {"rates": rates["normalised"]} if study.take_recommended_rate else {}
    trained = stage(TRAIN, stages.for_training(study), **seen, **taken, overfit=overfit)

    audit = stage(AUDIT, stages.AuditConfig.of(study), **seen, trained=trained)

    return stage(
        REPORT,
        stages.for_report(study),
        **seen,
        **{f"rates-{inputs}": table for inputs, table in rates.items()},
        overfit=overfit,
        **trials,
        trained=trained,
        audit=audit,
    )


METRICS_OF_A_SWEEP = [
    Swept(title="mean error", numbers="training.mean_degrees", higher=False, unit="degrees"),
    Swept(title="median error", numbers="training.median_degrees", higher=False, unit="degrees"),
    Swept(title="learning rate", numbers="training.learning_rate", higher=None),
    Swept(title="error of a trial", numbers="trials.{arm}.validation_angle_degrees", higher=False, unit="degrees"),
    Swept(title="learned seeds of a trial", numbers="trials.{arm}.learned_seeds", higher=True),
    Swept(title="best constant", numbers="trivial.best_constant_degrees", higher=None, unit="degrees"),
]

icecube = study_flow(page)


if __name__ == "__main__":
    from flows.command import main

    raise SystemExit(main("flows.icecube"))
