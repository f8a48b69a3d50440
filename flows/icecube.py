"""The direction study: why did a network on raw detector pulses learn nothing for hours, and what heals it?

    pulses -> look -> {rates raw, rates normalised, overfit, trials} -> train -> audit -> report

Each suspicion of the recorded failure is a trial with one change, whose own failure is a result; before the training
stand the gates that the recorded one lacked. The page below is the only description of the DAG.

    python -m flows.icecube --profile quick
"""

from typing import get_args

from deployments.dag.walk import Dispatcher, Handle
from deployments.study_flow import study_flow
from tasks.findings.sweep.configuration import Swept
from tasks.icecube import stages
from tasks.icecube.configuration import Inputs, RateLimits, Trained
from tasks.icecube.study import Study
from tasks.stage.run import Stage

PULSES = Stage("icecube-pulses", stages.PulsesConfig, "tasks.icecube.pulses:pulses", version=2, needs="cpu")
LOOK = Stage("icecube-look", stages.LookConfig, "tasks.icecube.look:look", version=3, needs="cpu")
RATES = Stage("icecube-rates", stages.RatesConfig, "tasks.icecube.trials:rates", version=4, needs="gpu")
OVERFIT = Stage("icecube-overfit", stages.OverfitConfig, "tasks.icecube.trials:overfit", version=2, needs="gpu")
TRIAL = Stage("icecube-trial", stages.TrialConfig, "tasks.icecube.trials:trial", version=4)
TRAIN = Stage("icecube-train", stages.TrainConfig, "tasks.icecube.train:train", version=2)
AUDIT = Stage("icecube-audit", stages.AuditConfig, "tasks.icecube.audit:audit", version=3, needs="gpu")
REPORT = Stage("icecube-report", stages.ReportConfig, "tasks.icecube.report:report", version=9, needs="cpu")


def page(study: Study, stage: Dispatcher) -> Handle:
    """The study, top to bottom; returns the handle of its last stage."""
    events = stage(PULSES, stages.PulsesConfig.of(study))
    look = stage(LOOK, stages.LookConfig.of(study, max_absolute_z=study.limits.largest), events=events)
    seen = {"events": events, "look": look}

    rates = {inputs: stage(RATES, stages.for_rates(study, inputs), **seen) for inputs in get_args(Inputs)}
    overfit = stage(OVERFIT, stages.for_overfit(study), **seen)
    trials = {role: stage(TRIAL, config, **seen) for role, config in stages.for_trials(study).items()}
    limits = study.rates.part(RateLimits) if study.take_recommended_rate else None
    taken = {"rates": rates["normalised"]} if limits else {}
    trained = stage(
        TRAIN,
        stages.TrainConfig.of(study, trained=Trained(dropout=study.dropout), rate_limits=limits),
        **seen,
        **taken,
        overfit=overfit,
    )

    audit = stage(AUDIT, stages.AuditConfig.of(study), **seen, trained=trained, **trials)

    changes = {trial.name: study.changes_of(trial) for trial in study.trials}
    return stage(
        REPORT,
        stages.ReportConfig.of(study, trials=list(changes), changes=changes),
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
