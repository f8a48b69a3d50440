"""final_results.json of the direction study: every number of its report, from the verified files of its stages. Angles
are in degrees."""

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import Literal, get_args

import numpy as np
import pyarrow.parquet as pq

from storage import markers
from storage.errors import CheckFailed, require, require_equal
from storage.records import read_each
from tasks.data.gate import ends
from tasks.data.normaliser import Normaliser
from tasks.data.statistics import Column
from tasks.findings.final_results import Origins, StudyResults
from tasks.findings.gates import Gate, at_most, distinct
from tasks.icecube.batches import FEATURES
from tasks.icecube.look import FIXED, NORMALISER
from tasks.icecube.results import ANGLE, Constant, LookResult, OverfitResult, SplitFacts, TrainResult
from tasks.icecube.stages import (
    AUDIT_TOLERANCE,
    LookConfig,
    OverfitConfig,
    RatesConfig,
    ReportConfig,
    TrainConfig,
    TrialConfig,
)
from tasks.icecube.study import Changes, Inputs, RateLimits, Split
from tasks.stage.result import Result
from tasks.stage.run import StageInput
from tasks.training.budget import Budget
from tasks.training.schedule import Schedule
from tasks.training.trained import Trained as Course
from tasks.training.trained import metric_rows
from tasks.training.trials import findings
from tasks.training.trials.findings import Ended, RateRow, Recommendation

WEIGHTS = "model/model.safetensors"
SAME = 1e-3
"""By so much of a unit vector predictions may differ however an event comes."""
LEARNED_RATIO = 0.9
"""A network that ends above this share of the trivial angle has learned nothing that chance would not show."""

SCALING = ({"inputs"}, {"batch_norm"})
"""Changes of a trial that scale its inputs, and change nothing else."""

OF_COURSES = "metrics.jsonl alone tells the course of a training: its steps, validations on the way, gradients"
ORIGINS = Origins(
    computed={
        **dict.fromkeys(("source", "seed"), "stage.json"),
        **dict.fromkeys(("healed_ratio", "learned_ratio", "rate_steps"), "stage.json"),
        **dict.fromkeys(("trials.*.changes.*", "trials.*.seed"), "stage.json"),
        "trials.*": "stage.json, records and how the trial ended",
        **dict.fromkeys(("training.learning_rate", "training.rate_because"), "stage.json, or the table of rates"),
    },
    asked={
        **dict.fromkeys(("splits.*",), "events and pulses of files"),
        **dict.fromkeys(("training.mean_degrees", "training.median_degrees"), "angles"),
        **dict.fromkeys(("trials.*.validation_angle_degrees", "trials.*.healed"), "angles"),
        **dict.fromkeys(("trials.*.ended", "trials.*.learned_seeds"), "failures"),
        "trivial.*": "trivial angle",
        **dict.fromkeys(("training.model.*",), "outputs of the training"),
    },
    not_asked={
        **dict.fromkeys(("columns.*", "gates.1.*"), "they take every pulse of train, read once more"),
        **dict.fromkeys(("rates.*", "recommended.*"), "no weights of the short tries are kept"),
        **dict.fromkeys(("overfit.*", "gates.0.*"), "no weights of the one batch are kept"),
        "trials.*.failed": "where it begins depends on the processor",
        **dict.fromkeys(("training.course.*", "trials.*.gradient_norm_max"), OF_COURSES),
    },
)


class TrialSeed(Result):
    """One training of a trial. `validation_angle_degrees` is its last validation, None where it `failed`: what was not
    finite there, and at which step."""

    seed: int
    ended: Ended
    validation_angle_degrees: float | None
    failed: str | None
    gradient_norm_max: float


class TrialFacts(Result):
    """One trial over its seeds; `seed` and `validation_angle_degrees` are of the worst of them.

    `changes`: the keys that it was given otherwise than the training as it was found; the control none. `healed`: with
    every seed it ended at most at healed_ratio of the trivial angle. `learned_seeds`: with so many it came below the
    trivial angle by the margin that a training must have.
    """

    changes: Changes
    seed: int
    validation_angle_degrees: float | None
    healed: bool
    learned_seeds: int
    seeds: dict[str, TrialSeed]

    @property
    def scales_inputs(self) -> bool:
        return bool(self.changes.keys() & {"inputs", "batch_norm"})

    @property
    def angles(self) -> list[float]:
        """Angles of the seeds that came to an end, lowest first."""
        ends = (trial.validation_angle_degrees for trial in self.seeds.values() if trial.ended == "finished")
        return sorted(angle for angle in ends if angle is not None)


class Training(Result):
    """The training; `rate_because` says why the rate was taken."""

    learning_rate: float
    rate_because: str
    mean_degrees: float
    median_degrees: float
    model: TrainResult
    course: Course


class FinalResults(StudyResults):
    """Everything that the report says, as numbers."""

    source: Literal["generated", "files"]
    splits: dict[Split, SplitFacts]
    columns: list[Column]
    trivial: Constant
    trials: dict[str, TrialFacts]
    healed_ratio: float
    learned_ratio: float
    rates: dict[Inputs, list[RateRow]]
    rate_steps: int
    recommended: dict[Inputs, Recommendation]
    overfit: OverfitResult
    seed: int
    training: Training

    @property
    def trivial_degrees(self) -> float:
        return self.trivial.best_constant_degrees

    @property
    def control(self) -> TrialFacts | None:
        """The training as it was found, if it is a trial."""
        return next((trial for trial in self.trials.values() if not trial.changes), None)

    @property
    def seeds(self) -> list[str]:
        """Those of every trial."""
        return [*next(iter(self.trials.values())).seeds]

    @property
    def healed(self) -> dict[str, TrialFacts]:
        return {name: trial for name, trial in self.trials.items() if trial.healed}

    @property
    def others(self) -> dict[str, TrialFacts]:
        """The trials but the one as found."""
        return {name: trial for name, trial in self.trials.items() if trial.changes}

    @property
    def not_healed(self) -> dict[str, TrialFacts]:
        return {name: trial for name, trial in self.others.items() if not trial.healed}

    @property
    def raw(self) -> dict[str, TrialFacts]:
        """The trials on raw inputs but the one as found."""
        return {name: trial for name, trial in self.others.items() if not trial.scales_inputs}

    @property
    def scaling_heals(self) -> bool:
        """Scaling the inputs heals, and nothing else does, each trial against the one as found."""
        alone = [trial for trial in self.trials.values() if {*trial.changes} in SCALING]
        known = bool(self.control and alone and self.raw)
        return known and all(trial.healed for trial in alone) and not self.raw.keys() & self.healed.keys()


def rates_of(stage: StageInput) -> list[RateRow]:
    """The row of each rate, from the records of icecube-rates."""
    table, columns = stage.configuration(RatesConfig).table, findings.Tried.model_fields
    tries = product(table.rates, table.seeds)
    rows = read_each(stage.path / "records.parquet", ("rate", "seed"), tries, optional=("change", "failed"))
    return [
        findings.rate_row(
            rate, [findings.Tried(**{name: rows[rate, seed][name] for name in columns}) for seed in table.seeds]
        )
        for rate in table.rates
    ]


def recommendation(rates: StageInput, limits: RateLimits) -> Recommendation:
    """The rate to take, or why there is none."""
    return findings.recommended(rates_of(rates), limits.max_gradient_norm, limits.min_gain_degrees)


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
    angles = angles_of(stage)
    return Training(
        learning_rate=budget.learning_rate,
        rate_because=because,
        mean_degrees=float(angles.mean()),
        median_degrees=float(np.median(angles)),
        model=TrainResult.read(stage),
        course=Course.of("the training", stage, ANGLE, budget, events["train"].events),
    )


def trial_of(what: str, stage: StageInput, train_events: int, trivial: float) -> TrialSeed:
    """One training of a trial; CheckFailed unless its metric rows end where its budget or its failure has them end."""
    config, end = stage.configuration(TrialConfig), findings.TrialEnd.read(stage)
    schedule, rows, failure = Schedule(config.budget, train_events), metric_rows(stage.run.metrics_file), end.failure
    validations = [[float(row["step"]), row[ANGLE]] for row in rows if ANGLE in row]
    last = rows[-1]["step"] if rows else 0
    require_equal(f"{what} left records, or failed", (stage.path / "records.parquet").exists(), failure is None)
    ended: Ended = "numerical_failure" if failure else _end(what, schedule, validations, last, trivial)
    return TrialSeed(
        seed=config.seed,
        ended=ended,
        validation_angle_degrees=None if failure else validations[-1][1],
        failed=f"{failure.tensor} at step {failure.step}" if failure else None,
        gradient_norm_max=end.gradient_norm_max,
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


def trial_facts(changes: Changes, by_seed: Sequence[TrialSeed], healed_ratio: float, trivial: float) -> TrialFacts:
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


def gates(
    inputs: Mapping[str, StageInput],
    config: ReportConfig,
    kept: Mapping[str, float],
    training: Training,
) -> Iterator[Gate]:
    """What must hold before a number is shown; `kept`: role -> the angle of the validation that weights are kept of."""
    look, batch = inputs["look"], OverfitResult.read(inputs["overfit"])
    limit = inputs["overfit"].configuration(OverfitConfig).batch.max_ratio * batch.trivial_degrees
    yield at_most("angle on one batch, which must be fitted, in degrees", batch.after, limit)
    largest = float(np.abs([ends(column, FIXED) for column in LookResult.read(look).columns]).max())
    yield at_most("largest input after normalising", largest, look.configuration(LookConfig).max_absolute_z)
    normalisers = {"normalised": FIXED, "raw": Normaliser.none(FEATURES)}
    wrong = int(Normaliser.load(look.path / NORMALISER) != FIXED)
    for role in kept:
        stage = inputs[role]
        asked = stage.configuration(TrainConfig) if role == "trained" else stage.configuration(TrialConfig)
        wrong += Normaliser.load(inputs[role].path / "model") != normalisers[asked.trained.inputs]
    yield at_most("normalisers other than the recorded one", wrong, 0)
    away = {role: abs(float(angles_of(inputs[role]).mean()) - angle) for role, angle in kept.items()}
    worst = max(away, key=lambda role: away[role])
    yield at_most(f"kept weights give their validation again, degrees (worst: {worst})", away[worst], AUDIT_TOLERANCE)
    yield distinct("weights of the trainings", {role: markers.digest(inputs[role].run, WEIGHTS) for role in kept})
    spread, least = training.model.outputs.spread_ratio, config.min_spread_ratio
    name, required = "spread of the outputs, as a share of the truth's", f"at least {least:.4g}"
    yield Gate(name=name, measured=f"{spread:.4g}", required=required, passed=spread >= least)
    dead = max(training.model.outputs.dead_shares.values())
    yield at_most("largest share of dead units in a layer", dead, config.max_dead_share)
    yield at_most(
        "a prediction differs by how its event comes, of a unit vector", training.model.largest_difference, SAME
    )
