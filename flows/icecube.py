"""The direction study: why did a network on raw detector pulses learn nothing for hours, and what heals it?

    pulses -> look -> {rates raw, rates normalised, overfit, trials} -> train -> audit -> report

Each suspicion of the recorded failure is a trial with one change, whose own failure is a result; before the training
stand the gates that the recorded one lacked. The page below is the only description of the DAG.

    python -m flows.icecube --profile quick
"""

from deployments.dag.walk import Handle
from deployments.functions import Stage, study
from tasks.findings.sweep.configuration import Swept
from tasks.icecube import stages
from tasks.icecube.study import RateLimits, RateTries, Study, Trained

PULSES = Stage("icecube-pulses", stages.PulsesConfig, "tasks.icecube.pulses:pulses", version=2, needs="cpu")
LOOK = Stage("icecube-look", stages.LookConfig, "tasks.icecube.look:look", version=4, needs="cpu")
RATES = Stage("icecube-rates", stages.RatesConfig, "tasks.icecube.train:rates", version=5, needs="gpu")
OVERFIT = Stage("icecube-overfit", stages.OverfitConfig, "tasks.icecube.train:overfit", version=3, needs="gpu")
TRIAL = Stage("icecube-trial", stages.TrialConfig, "tasks.icecube.train:trial", version=4)
TRAIN = Stage("icecube-train", stages.TrainConfig, "tasks.icecube.train:train", version=2)
AUDIT = Stage("icecube-audit", stages.AuditConfig, "tasks.icecube.audit:audit", version=3, needs="gpu")
REPORT = Stage("icecube-report", stages.ReportConfig, "tasks.icecube.report:report", version=12, needs="cpu")


@study
def icecube(study: Study) -> Handle:
    """The study, top to bottom; returns the stage call whose answer is shown."""
    events = PULSES()
    seen = {"events": events, "look": LOOK(events=events, max_absolute_z=study.limits.max_absolute_z)}

    tries = study.rates.part(RateTries)
    raw, normalised = (
        RATES(seen, inputs=inputs, table=tries, budget=study.rates_budget(budget), dropout=dropout, cell=inputs)
        for inputs, budget, dropout in (("raw", study.trial_budget, 0.0), ("normalised", study.budget, study.dropout))
    )
    overfit = OVERFIT(seen, batch=study.overfit, budget=study.overfit_budget)
    trials = {
        trial.name: {
            seed: TRIAL(
                seen, trained=trial.trained, budget=study.budget_of(trial), seed=seed, cell=f"{trial.name}, seed {seed}"
            )
            for seed in study.trial_seeds
        }
        for trial in study.trials
    }
    limits = study.rates.part(RateLimits) if study.take_recommended_rate else None
    rates = {"rates": normalised} if limits else {}
    trained = TRAIN(seen | rates, overfit=overfit, trained=Trained(dropout=study.dropout), rate_limits=limits)

    audit = AUDIT(seen | trials, trained=trained)
    changes = {trial.name: study.changes_of(trial) for trial in study.trials}
    return REPORT(
        seen | trials, raw_rates=raw, normalised_rates=normalised, overfit=overfit, trained=trained, audit=audit,
        trials=[*changes], changes=changes,
    )  # fmt: skip


METRICS_OF_A_SWEEP = [
    Swept(title="mean error", numbers="training.mean_degrees", higher=False, unit="degrees"),
    Swept(title="median error", numbers="training.median_degrees", higher=False, unit="degrees"),
    Swept(title="learning rate", numbers="training.learning_rate", higher=None),
    Swept(title="error of a trial", numbers="trials.{arm}.validation_angle_degrees", higher=False, unit="degrees"),
    Swept(title="learned seeds of a trial", numbers="trials.{arm}.learned_seeds", higher=True),
]


if __name__ == "__main__":
    from flows.command import main

    raise SystemExit(main("flows.icecube"))
