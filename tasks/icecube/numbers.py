"""The numbers of the direction study, from the verified files of its stages."""

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import get_args

import numpy as np
import pyarrow.parquet as pq

from storage import markers
from storage.errors import CheckFailed, require, require_equal
from storage.records import read_each
from tasks.data.gate import ends
from tasks.data.normaliser import Normaliser
from tasks.findings.gates import Gate, at_most, distinct
from tasks.icecube.batches import FEATURES
from tasks.icecube.configuration import RateLimits, Split
from tasks.icecube.final_results import LEARNED_RATIO, BatchFacts, Training, TrialFacts, TrialSeed
from tasks.icecube.look import normaliser_of, scaled_by
from tasks.icecube.results import LookResult, OverfitResult, SplitFacts, TrainResult
from tasks.icecube.stages import AUDIT_TOLERANCE, LookConfig, OverfitConfig, RatesConfig, TrainConfig, TrialConfig
from tasks.stage.run import StageInput
from tasks.training.budget import Budget
from tasks.training.schedule import Schedule
from tasks.training.trained import Trained, metric_rows
from tasks.training.trials.findings import Ended, RateRow, Recommendation, TrialEnd, Tried, rate_row, recommended

ANGLE = "angle_degrees"
WEIGHTS = "model/model.safetensors"
SAME = 1e-3
"""By so much of a unit vector predictions may differ however an event comes."""


def rates_of(stage: StageInput) -> list[RateRow]:
    """The row of each rate, from the records of icecube-rates."""
    table, columns = stage.configuration(RatesConfig).table, Tried.model_fields
    tries = product(table.rates, table.seeds)
    rows = read_each(stage.path / "records.parquet", ("rate", "seed"), tries, optional=("change", "failed"))
    return [
        rate_row(rate, [Tried(**{name: rows[rate, seed][name] for name in columns}) for seed in table.seeds])
        for rate in table.rates
    ]


def recommendation(rates: StageInput, limits: RateLimits) -> Recommendation:
    """The rate to take, or why there is none."""
    return recommended(rates_of(rates), limits.max_gradient_norm, limits.min_gain_degrees)


def budget_of(config: TrainConfig, rates: StageInput | None) -> tuple[Budget, str]:
    """The budget with its rate, and why it is that one. CheckFailed where the table recommends none."""
    if rates is None or config.rate_limits is None:
        return config.budget, "as configured (budget.learning_rate)"
    advice = recommendation(rates, config.rate_limits)
    if advice.rate is None:
        raise CheckFailed(
            "a learning rate is recommended for the training",
            "none",
            "one",
            f"{advice.because}. Try other rates (rates.rates) or more steps (rates.steps); or take one without a "
            "recommendation: take_recommended_rate=false, and budget.learning_rate",
        )
    return config.budget.model_copy(update={"learning_rate": advice.rate}), advice.because


def angles_of(stage: StageInput) -> np.ndarray:
    """The recorded angles, fp64 [events of validation]; the audit asks of which events they are."""
    angles: np.ndarray = pq.read_table(stage.path / "records.parquet", columns=[ANGLE])[ANGLE].to_numpy()
    return angles


def training_of(inputs: Mapping[str, StageInput], events: Mapping[Split, SplitFacts]) -> Training:
    stage = inputs["trained"]
    budget, because = budget_of(stage.configuration(TrainConfig), inputs["normalised_rates"])
    result, angles = TrainResult.read(stage), angles_of(stage)
    return Training(
        learning_rate=budget.learning_rate,
        rate_because=because,
        mean_degrees=float(angles.mean()),
        median_degrees=float(np.median(angles)),
        outputs=result.outputs,
        largest_difference=result.largest_difference,
        course=Trained.of("the training", stage, ANGLE, budget, events["train"].events),
    )


def trial_of(what: str, stage: StageInput, train_events: int, trivial: float) -> TrialSeed:
    """One training of a trial; CheckFailed unless its metric rows end where its budget or its failure has them end."""
    config, end = stage.configuration(TrialConfig), TrialEnd.read(stage)
    schedule, rows, failure = Schedule(config.budget, train_events), metric_rows(stage.run.metrics_file), end.failure
    validations = [[float(row["step"]), row[ANGLE]] for row in rows if ANGLE in row]
    last = rows[-1]["step"] if rows else 0
    require_equal(f"{what} left records, or failed", (stage.path / "records.parquet").exists(), failure is None)
    ended: Ended = "numerical_failure" if failure else _end(what, schedule, validations, last, trivial)
    return TrialSeed(
        trained=config.trained,
        learning_rate=config.budget.learning_rate,
        warmup_ratio=config.budget.warmup_ratio,
        seed=config.seed,
        ended=ended,
        validation_angle_degrees=None if failure else validations[-1][1],
        failure=failure,
        gradient_norm_max=end.gradient_norm_max,
        validations=validations,
    )


def _end(what: str, schedule: Schedule, validations: list[list[float]], last: int, trivial: float) -> Ended:
    """The end of a training that did not fail, by its validations [step, value] and its last step."""
    gate, patience = schedule.budget.not_learning, schedule.budget.patience_validations
    best_step, best = min(validations, key=lambda point: point[1], default=[0.0, math.inf])
    early = patience is not None and sum(step > best_step for step, _ in validations) >= patience
    stopped = gate is not None and last <= gate.by_step and not best <= gate.max_ratio * trivial
    planned = schedule.total_steps if not (gate and stopped) else gate.by_step
    ends = bool(validations) and validations[-1][0] == last and (last == planned or (early and last < planned))
    require(ends, f"{what} ends as its budget has it", f"step {last}, validated: {validations[-1:]}", f"step {planned}")
    return "not_learning" if stopped else "finished"


def trial_facts(changes: list[str], by_seed: Sequence[TrialSeed], healed_ratio: float, trivial: float) -> TrialFacts:
    """The trial over its seeds; the worst one stands for it."""

    def angle(trial: TrialSeed) -> float:
        last = trial.validation_angle_degrees
        return math.inf if last is None else last

    def seeds_below(ratio: float) -> int:
        return sum(trial.ended == "finished" and angle(trial) <= ratio * trivial for trial in by_seed)

    worst = max(by_seed, key=lambda trial: (get_args(Ended).index(trial.ended), angle(trial)))
    return TrialFacts(
        changes=changes,
        seed=worst.seed,
        validation_angle_degrees=worst.validation_angle_degrees,
        healed=seeds_below(healed_ratio) == len(by_seed),
        learned_seeds=seeds_below(LEARNED_RATIO),
        seeds={str(trial.seed): trial for trial in by_seed},
    )


def batch_of(stage: StageInput) -> BatchFacts:
    """The one batch that was fitted."""
    asked, result = stage.configuration(OverfitConfig).batch, OverfitResult.read(stage)
    required = asked.max_ratio * result.trivial_degrees
    return BatchFacts(events=asked.events, after=result.after, required_degrees=required)


def ranges(look: StageInput) -> dict[str, list[float]]:
    """The lowest and the highest value of each column after normalising."""
    normaliser = normaliser_of(look)
    return {column.name: list(ends(column, normaliser)) for column in LookResult.read(look).columns}


def gates(
    inputs: Mapping[str, StageInput], kept: Mapping[str, float], training: Training, batch: BatchFacts
) -> Iterator[Gate]:
    """What must hold before a number is shown; `kept`: role -> the angle of the validation that weights are kept of."""
    look, config = inputs["look"], inputs["trained"].configuration(TrainConfig)
    asked = look.configuration(LookConfig)
    yield at_most("angle on one batch, which must be fitted, in degrees", batch.after, batch.required_degrees)
    largest = float(np.abs([*ranges(look).values()]).max())
    yield at_most("largest input after normalising", largest, asked.max_absolute_z or math.inf)
    normaliser = scaled_by(asked.scaling, LookResult.read(look).columns)
    normalisers = {"normalised": normaliser, "raw": Normaliser.none(FEATURES)}
    wrong = int(normaliser_of(look) != normaliser)
    for role in kept:
        trained = config if role == "trained" else inputs[role].configuration(TrialConfig)
        wrong += Normaliser.load(inputs[role].path / "model") != normalisers[trained.trained.inputs]
    yield at_most("normalisers other than that of the statistics of the inputs", wrong, 0)
    away = {role: abs(float(angles_of(inputs[role]).mean()) - angle) for role, angle in kept.items()}
    worst = max(away, key=lambda role: away[role])
    yield at_most(f"kept weights give their validation again, degrees (worst: {worst})", away[worst], AUDIT_TOLERANCE)
    yield distinct("weights of the trainings", {role: markers.digest(inputs[role].run, WEIGHTS) for role in kept})
    spread, least = training.outputs.spread_ratio, config.min_spread_ratio
    name, required = "spread of the outputs, as a share of the truth's", f"at least {least:.4g}"
    yield Gate(name=name, measured=f"{spread:.4g}", required=required, passed=spread >= least)
    dead = max(training.outputs.dead_shares.values())
    yield at_most("largest share of dead units in a layer", dead, config.max_dead_share)
    yield at_most("a prediction differs by how its event comes, of a unit vector", training.largest_difference, SAME)
