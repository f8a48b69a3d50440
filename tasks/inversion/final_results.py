"""final_results.json of the inversion study: every number of its report. Errors are mean squares over entries."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np

from storage import markers
from storage.records import read_each
from tasks.findings.compare import compare
from tasks.findings.configuration import Metric
from tasks.findings.final_results import Origins, StudyResults, of_runs
from tasks.findings.gates import Gate, at_most, distinct
from tasks.findings.statistics.comparison import ArmMean, Comparison, arm_mean
from tasks.inversion import stages
from tasks.inversion.stages import INSIDE, OUTSIDE, SPLITS, SplitFacts, Trivial
from tasks.inversion.study import Mining
from tasks.stage.result import Result
from tasks.stage.run import StageInput, StageRun
from tasks.stage.study import nested
from tasks.training.trained import Trained

SAME = 1e-9
"""Relative: the kept weights give the best error again."""
ORIGINS = Origins(
    computed={
        **dict.fromkeys(("reference", "seeds.*", "rank", "min_seeds"), "stage.json"),
        **dict.fromkeys(("arms.*.mining.*", "confidence_level", "learned_ratio"), "stage.json"),
        "arms.*": "errors of the records",
        **dict.fromkeys(("differences.*", "out_of_distribution.*", "descent_parts.*"), "errors of the records"),
        "pilot.required_mse": "stage.json and what needs no learning",
    },
    asked={
        **dict.fromkeys(("arms.*.values.*", "arms.*.out_of_distribution.values.*"), "errors"),
        **dict.fromkeys(("arms.*.descent_*",), "dependence on how a matrix comes"),
        **dict.fromkeys(("splits.*", "trivial.*"), "facts of the fixed matrices"),
    },
    not_asked={
        "arms.*.cells.*": "metrics.jsonl alone tells the course of a training: its best and last step, validations on "
        "the way, gradients",
        **dict.fromkeys(("pilot.validation_mse", "gates.0.measured"), "no model of the pilot is kept"),
    },
)


class PilotFacts(Result):
    """The best error of the pilot, and the one that it must reach."""

    validation_mse: float
    required_mse: float


class ArmFacts(ArmMean):
    """The validation error of an arm over seeds, of the weights that were kept, and its error on harder matrices.

    `learned`: every seed came as low as was required. `descent_difference` is the largest of its seeds, None for an arm
    without a descent; `descent_defect` names on what that descent depends.
    """

    learned: bool
    cells: dict[str, Trained]
    mining: Mining
    out_of_distribution: ArmMean
    descent_difference: float | None
    descent_defect: str

    @property
    def late_divergence(self) -> tuple[float, str]:
        """The last value as a multiple of the best one, at most over seeds, and the seed."""
        return max((cell.last / self.values[seed], seed) for seed, cell in self.cells.items())

    @property
    def clipped_share(self) -> float:
        """Of the steps, in the mean over seeds."""
        return fmean(cell.clipped_share for cell in self.cells.values())


class DescentPart(Result):
    """The part of an arm's difference from the reference that is due to its published descent.

    In per cent of the mean of the reference: `whole` with the published descent, `without` it, with the corrected one.
    `shown`: whether the seeds show the difference of both.
    """

    published: str
    corrected: str
    whole: float
    without: float
    shown: bool

    @property
    def descent(self) -> float:
        return self.whole - self.without

    @property
    def share(self) -> float | None:
        """Per cent of the whole that the descent makes, where the seeds show it and it is a part."""
        part = self.descent / self.whole if self.shown and self.whole else 0.0
        return 100 * part if 0 < part <= 1 else None


class FinalResults(StudyResults):
    """Everything that the report says, as numbers; lower errors are better. With every seed an arm that learned came to
    `learned_ratio` of the lowest error that needs no learning, or below; the others are `unlearned`."""

    reference: str
    seeds: list[int]
    rank: int
    splits: dict[str, SplitFacts]
    trivial: Trivial
    pilot: PilotFacts
    arms: dict[str, ArmFacts]
    differences: list[Comparison]
    out_of_distribution: list[Comparison]
    descent_parts: list[DescentPart]
    confidence_level: float
    min_seeds: int
    learned_ratio: float

    @property
    def unlearned(self) -> list[str]:
        return [name for name, arm in self.arms.items() if not arm.learned]

    @property
    def cells(self) -> list[Trained]:
        return [cell for arm in self.arms.values() for cell in arm.cells.values()]

    @property
    def best_at_the_end(self) -> int:
        """So many trainings were best at their last step."""
        return sum(cell.best_step == cell.last_step for cell in self.cells)

    @property
    def mined_first(self) -> list[str]:
        """The arms, those with mined negatives before the others: they are what is asked about."""
        return sorted(self.arms, key=lambda name: not self.arms[name].mining.uses_descent)

    @property
    def against_reference(self) -> list[Comparison]:
        """The comparisons that answer: of arms with mined negatives, where there are any."""
        every = [comparison for comparison in self.differences if comparison.reference == self.reference]
        return [comparison for comparison in every if self.arms[comparison.arm].mining.uses_descent] or every

    @property
    def other_than_descents(self) -> list[Comparison]:
        parts = {(part.published, part.corrected) for part in self.descent_parts}
        return [difference for difference in self.differences if (difference.arm, difference.reference) not in parts]


def final_results(config: stages.ReportConfig, inputs: Mapping[str, StageInput], run: StageRun) -> FinalResults:
    """Every number of the study, after what can be computed again was."""
    data, given = inputs["data"], nested(inputs)
    fixed, asked = stages.MatricesResult.read(data), data.configuration(stages.MatricesConfig).matrices
    trivial, count = fixed.validation.trivial, asked.validation_matrices
    pilot = pilot_of(inputs["pilot"], trivial)
    cells = {
        arm: {str(n): Cell.of(f"{arm}, seed {n}", given[arm][n], count) for n in config.seeds} for arm in config.arms
    }
    every = {f"{arm}, seed {seed}": cell for arm, by_seed in cells.items() for seed, cell in by_seed.items()}
    required = config.learned_ratio * min(trivial.by_name.values())
    arms = {name: _arm(by_seed, required, config.confidence_level) for name, by_seed in cells.items()}
    differences = compare(
        {
            INSIDE: {name: arm.values for name, arm in arms.items()},
            OUTSIDE: {name: arm.out_of_distribution.values for name, arm in arms.items()},
        },
        dict.fromkeys(SPLITS, Metric(higher=False, pairs=config.comparisons)),
        config.confidence_level,
        config.min_seeds,
        [name for name, arm in arms.items() if not arm.learned],
    ).differences
    return FinalResults(
        **of_runs(run, inputs, stages.AUDITED, gates(pilot, every)),
        rank=asked.rank,
        splits={"validation": fixed.validation, "out_of_distribution": fixed.out_of_distribution},
        trivial=trivial,
        pilot=pilot,
        reference=config.reference,
        seeds=config.seeds,
        arms=arms,
        differences=differences[INSIDE],
        out_of_distribution=differences[OUTSIDE],
        descent_parts=descent_parts(config.reference, arms, differences[INSIDE]),
        confidence_level=config.confidence_level,
        min_seeds=config.min_seeds,
        learned_ratio=config.learned_ratio,
    )


def _arm(by_seed: Mapping[str, Cell], required: float, level: float) -> ArmFacts:
    descents = [cell.result for cell in by_seed.values() if cell.result.descent_difference is not None]
    worst = max(descents, key=lambda cell: cell.descent_difference or 0.0, default=None)
    values = {seed: cell.error[INSIDE] for seed, cell in by_seed.items()}
    return ArmFacts(
        **dict(arm_mean(values, level)),
        learned=all(value <= required for value in values.values()),
        cells={seed: cell.trained for seed, cell in by_seed.items()},
        mining=next(iter(by_seed.values())).config.mining,
        out_of_distribution=arm_mean({seed: cell.error[OUTSIDE] for seed, cell in by_seed.items()}, level),
        descent_difference=worst.descent_difference if worst else None,
        descent_defect=worst.descent_defect if worst else "",
    )


def descent_parts(reference: str, arms: Mapping[str, ArmFacts], differences: Sequence[Comparison]) -> list[DescentPart]:
    """A part for each arm with the published descent that has a corrected one beside it."""
    descents = {name: arm.mining.descent for name, arm in arms.items() if arm.mining.uses_descent}
    percent = {(comparison.arm, comparison.reference): comparison.percent or 0.0 for comparison in differences}
    return [
        DescentPart(
            published=pair.arm,
            corrected=pair.reference,
            whole=percent[pair.arm, reference],
            without=percent[pair.reference, reference],
            shown=pair.better or pair.worse,
        )
        for pair in differences
        if (descents.get(pair.arm), descents.get(pair.reference)) == ("as-published", "corrected")
    ]


def errors_of(cell: StageInput, matrices: int) -> dict[str, np.ndarray]:
    """Split -> the mean squared error of each matrix, fp64 [matrices]; CheckFailed unless each is there once."""
    required = [(split, matrix) for split in SPLITS for matrix in range(matrices)]
    rows = read_each(cell.path / "records.parquet", ("split", "matrix"), required)
    return {split: np.array([rows[split, matrix]["mse"] for matrix in range(matrices)]) for split in SPLITS}


@dataclass(frozen=True)
class Cell:
    """A training: its mean error on each split, its course, and what it says of its descent."""

    error: dict[str, float]
    trained: Trained
    config: stages.TrainConfig
    result: stages.TrainResult
    weights: str

    @classmethod
    def of(cls, what: str, stage: StageInput, matrices: int) -> Cell:
        config = stage.configuration(stages.TrainConfig)
        error = {split: float(errors.mean()) for split, errors in errors_of(stage, matrices).items()}
        weights = markers.digest(stage.run, "model/model.safetensors")
        return cls(error, _trained(what, stage, config), config, stages.TrainResult.read(stage), weights)


def pilot_of(stage: StageInput, trivial: Trivial) -> PilotFacts:
    config = stage.configuration(stages.PilotConfig)
    assert config.budget.not_learning is not None
    required = config.budget.not_learning.max_ratio * min(trivial.by_name.values())
    return PilotFacts(validation_mse=_trained("the pilot", stage, config).best, required_mse=required)


def _trained(what: str, stage: StageInput, config: stages.TrainsEnergy) -> Trained:
    """Matrices do not come twice: one epoch is the whole training."""
    assert config.budget.steps is not None
    seen = config.budget.steps * config.budget.effective_batch_examples
    return Trained.of(what, stage, "validation_mse", config.budget, seen)


def gates(pilot: PilotFacts, cells: Mapping[str, Cell]) -> Iterable[Gate]:
    """What must hold before a number is shown; `cells` by name."""
    away = {name: abs(cell.error[INSIDE] / cell.trained.best - 1) for name, cell in cells.items()}
    worst = max(away, key=lambda name: away[name])
    yield at_most("error of the pilot, which must learn", pilot.validation_mse, pilot.required_mse)
    yield at_most(f"kept weights give the best validation again, relative (worst: {worst})", away[worst], SAME)
    yield distinct("weights of the trainings", {name: cell.weights for name, cell in cells.items()})
    largest = max(cell.result.largest_difference for cell in cells.values())
    yield at_most("predictions of a matrix differ by how it comes, in fp64", largest, stages.TOLERANCE)
