"""icecube-trial: a training as the recorded study did it, with one change; how it ends is the result."""

from __future__ import annotations

from tasks.icecube.results import TrialResult
from tasks.icecube.stages import TrialConfig
from tasks.icecube.training import Prepared
from tasks.stage.run import StageInput, StageRun
from tasks.training.schedule import Schedule
from tasks.training.trials.trial import trial as train_as_trial


def trial(run: StageRun, config: TrialConfig, events: StageInput, look: StageInput) -> TrialResult:
    """Trains to whatever end."""
    prepared = Prepared.of(config, events, look, config.trained.inputs)
    problem = prepared.problem(config.trained, config.budget, config.seed, touch=run.progress.touch)
    schedule = Schedule(config.budget, len(prepared.data.train))
    found = train_as_trial(run, problem, schedule, config.seed, config.execution)
    return TrialResult(
        trained=config.trained,
        learning_rate=config.budget.learning_rate,
        warmup_ratio=config.budget.warmup_ratio,
        seed=config.seed,
        ended=found.ended,
        step=found.step,
        steps_of_budget=schedule.total_steps,
        validation_angle_degrees=found.metric,
        tensor=found.tensor,
        module=found.module,
        event_ids=[int(prepared.data.train.event_ids[index]) for index in found.examples],
        together=found.together,
        of_events=found.of_examples,
        gradient_norm_max=found.gradient_norm_max,
        validations=found.validations,
    )
