"""final_results.json of the calorimeter study: every number of its report, after what can be asked again was."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from statistics import fmean
from typing import Any

import numpy as np
from pydantic import Field

from storage import markers
from storage.errors import require
from storage.tensors import read_tensors
from tasks.calorimeter import stages
from tasks.calorimeter.fit import LOSS, normaliser_of, residuals
from tasks.calorimeter.judge import GUESSES, LIGHT, columns, mean_errors
from tasks.calorimeter.showers import TARGETS
from tasks.calorimeter.stages import EndConfig, FillConfig, Measures, RegressConfig
from tasks.data.normaliser import Normaliser
from tasks.findings.compare import compare
from tasks.findings.configuration import Metric
from tasks.findings.final_results import Origins, StudyResults, of_runs
from tasks.findings.gates import Gate, at_most, distinct
from tasks.findings.statistics.comparison import ArmMean, Comparison, arm_mean
from tasks.findings.statistics.seeds import OverSeeds, over_seeds
from tasks.sensors.xenon import Events
from tasks.stage.run import StageInput, StageRun
from tasks.stage.study import nested
from tasks.training.onnx_files import OnnxFile
from tasks.training.trained import Trained

WEIGHTS = "model/model.safetensors"
SCORE, NEIGHBOURS = "all targets", "neighbours"
"""The first: the mean over the targets of what is missed, as a share of what predicting the mean misses."""
PAIRS = [["mae-init", "scratch"], ["mae-init", "scratch-longer"], ["scratch", "raw"]]
"""Regressors, and what each is compared with."""
FILLS = {arm: (arm, "mae") for arm in stages.INPAINTERS} | {NEIGHBOURS: ("finetune", "neighbour_mae")}
"""What fills in -> the inpainter beside whose errors its own stand, and their name there."""


ORIGINS = Origins(
    computed={
        **dict.fromkeys(("seeds.*", "confidence_level", "min_seeds"), "stage.json"),
        "events": "the events of validation",
        **dict.fromkeys(("regressors.*", "missed.*"), "records of the regressors"),
        **dict.fromkeys(("pretraining.*", "inpainter.*", "filled.*"), "records of calorimeter-judge"),
        "differences.*": "records of the regressors and of calorimeter-judge",
    },
    asked={
        "trivial.*": "residuals",
        "missed.*.values.*": "forwards",
        "filled.*.values.*": "sums",
        "repeated.*": "repeated events",
    },
    not_asked={
        "exported.*": "the export's own gate compared them, the audit asks the files themselves",
    },
)


class FinalResults(StudyResults):
    """Everything that the report says, as numbers. `inpainter` is the one that begins as the masked autoencoder and is
    trained on; `missed` is by target and arm, `filled` by light and arm."""

    seeds: list[int]
    trivial: dict[str, Measures]
    regressors: dict[str, Measures]
    missed: dict[str, dict[str, ArmMean]]
    pretraining: Measures
    inpainter: Measures
    filled: dict[str, dict[str, ArmMean]]
    exported: dict[str, OnnxFile]
    differences: list[Comparison]
    confidence_level: float
    min_seeds: int
    events: int
    repeated: dict[str, int] = Field(default_factory=dict)


def final_results(run: StageRun, config: EndConfig, inputs: Mapping[str, StageInput]) -> FinalResults:
    """Every number of the study. CheckFailed names what another file or another stage says otherwise."""
    look, exported = stages.LookResult.read(inputs["look"]), stages.ExportResult.read(inputs["export"]).files
    events = {split: len(Events.open(inputs["data"], split)) for split in ("train", "validation")}
    others, level = ("data", "look", "judged", "export", "audit"), config.confidence_level
    fits = {role: Fit.of(role, given, events) for role, given in inputs.items() if role not in others}
    kinds = stages.AUDITED | ({stages.EXPORTED: stages.AUDIT_TOLERANCE} if exported else {})
    regressors: dict[str, dict[int, Fit]] = {arm: nested(fits)[arm] for arm in stages.REGRESSORS}
    scores = {
        arm: {
            seed: fit.missed | {SCORE: fmean(fit.missed[of] / look.trivial[of] for of in TARGETS)}
            for seed, fit in by_seed.items()
        }
        for arm, by_seed in regressors.items()
    }
    missed = {of: {arm: _by_seed(by_seed, of) for arm, by_seed in scores.items()} for of in (SCORE, *TARGETS)}
    filled = Filled.of(inputs, [role for role, fit in fits.items() if not fit.missed], events["validation"])
    inpainters = [*filled.measures["inpaint-finetune"].values()]
    return FinalResults(
        **of_runs(run, inputs, kinds, gates(inputs, fits)),
        seeds=config.seeds,
        trivial={"predict_mean": look.trivial},
        regressors={arm: {target: fmean(missed[target][arm].values()) for target in TARGETS} for arm in regressors},
        missed={of: {arm: arm_mean(values, level) for arm, values in arms.items()} for of, arms in missed.items()},
        pretraining=filled.measures["mae"],
        inpainter={name: fmean(of[name] for of in inpainters) for name in inpainters[0]},
        filled=filled.arms(level),
        exported=exported,
        differences=compared({SCORE: missed[SCORE], **filled.values()}, partial(filled.over, level), config),
        events=events["validation"],
        repeated=stages.ShowersResult.read(inputs["data"]).repeated,
        confidence_level=level,
        min_seeds=config.min_seeds,
    )


def _by_seed(measures: Mapping[int, Any], measure: str) -> Measures:
    return {str(seed): values[measure] for seed, values in measures.items()}


@dataclass(frozen=True)
class Fit:
    """A training: by how much a regressor misses each target, and its normaliser."""

    missed: Measures
    normaliser: str

    @classmethod
    def of(cls, role: str, given: StageInput, events: Mapping[str, int]) -> Fit:
        file = given.path / "records.parquet"
        config = given.configuration(RegressConfig if file.exists() else FillConfig)
        Trained.of(role, given, LOSS, config.budget, events["train"])  # refuses what did not spend its budget
        missed = {}
        if file.exists():
            rows = _in_order(columns(file), events["validation"], f"the records in {given.path}")
            missed = residuals(np.column_stack([rows[name] for name in TARGETS]))
        return cls(missed, Normaliser.load(given.path / "model").digest)


def _in_order(rows: dict[str, np.ndarray], events: int, what: str) -> dict[str, np.ndarray]:
    """The rows by column. CheckFailed unless each event is there once, in its place."""
    there = rows.get("event", np.array([]))
    finite = all(np.isfinite(column).all() for column in rows.values() if column.dtype.kind == "f")
    require(finite, f"{what} are finite", "one that is none", "numbers")
    require(np.array_equal(there, np.arange(events)), f"{what} are of each event once", f"{len(there)} rows", events)
    return rows


@dataclass(frozen=True)
class Filled:
    """The mean errors of each network that fills in, by arm and seed, and its sums by event, of which they are."""

    measures: dict[str, Any]
    sums: dict[str, Any]

    @classmethod
    def of(cls, inputs: Mapping[str, StageInput], roles: Sequence[str], events: int) -> Filled:
        file = inputs["judged"].path / "records.parquet"
        sums = {
            role: _in_order(columns(file, model=role), events, f"the records of {role} in {file}") for role in roles
        }
        ratios = {role: inputs[role].configuration(FillConfig).filling.mask_ratio for role in roles}
        return cls(nested({role: mean_errors(of, ratios[role]) for role, of in sums.items()}), nested(sums))

    def values(self) -> dict[str, dict[str, Measures]]:
        """The mean errors by light, by what fills in, and seed."""
        return {
            light: {
                f"{name}, {light}": _by_seed(self.measures[f"inpaint-{arm}"], f"{column}_{light}")
                for name, (arm, column) in FILLS.items()
            }
            for light in LIGHT
        }

    def over(self, level: float, arm: str, light: str, *names: str) -> OverSeeds:
        """The first column (less a second) a hidden sensor: an interval that knows of other seeds and other events."""
        by_seed = self.sums[f"inpaint-{arm}"].values()
        sums = [[table[f"{name}_{light}"] for name in names] + [table[light]] for table in by_seed]
        return over_seeds(lambda first, *more: (first - sum(more[:-1])) / more[-1], sums, level)

    def arms(self, level: float) -> dict[str, dict[str, ArmMean]]:
        return {
            light: {
                name: ArmMean(**dict(arm_mean(by, level)) | {"interval": self.over(level, arm, light, column).interval})
                for (name, by), (arm, column) in zip(by_name.items(), FILLS.values(), strict=True)
            }
            for light, by_name in self.values().items()
        }


def compared(
    values: Mapping[str, Mapping[str, Measures]], over: Callable[..., OverSeeds], config: EndConfig
) -> list[Comparison]:
    """All comparisons, corrected together: of regressors over seeds, of what is filled in over seeds and events."""
    filled = {light: (f"finetune, {light}", f"{NEIGHBOURS}, {light}") for light in LIGHT}
    metrics = {light: Metric(higher=False, pairs=[[*pair]]) for light, pair in filled.items()}
    metrics[SCORE] = Metric(higher=False, pairs=PAIRS)
    same = [neighbours for _, neighbours in filled.values()]  # all seeds see the same
    sources = {light: {pair: over("finetune", light, *GUESSES)} for light, pair in filled.items()}
    untaught = [arm for arm, by_seed in values[SCORE].items() if any(score >= 1 for score in by_seed.values())]
    how = (config.confidence_level, config.min_seeds, untaught, same, sources)
    return [*chain(*compare(values, metrics, *how).differences.values())]


def gates(inputs: Mapping[str, StageInput], fits: Mapping[str, Fit]) -> Iterator[Gate]:
    """What must hold before a number is shown."""
    ours, raw = (normaliser_of(inputs["look"], raw=raw).digest for raw in (False, True))
    others = sum(fit.normaliser != (raw if role.startswith("raw-") else ours) for role, fit in fits.items())
    yield at_most("models with another normaliser than their arm's", others, 0)
    frozen = [read_tensors(inputs[role].path / WEIGHTS) for role in fits if role.startswith("inpaint-frozen-")]
    encoder = [*read_tensors(inputs["mae"].path / WEIGHTS).items()]
    moved = sum(not own[name].equal(kept) for own in frozen for name, kept in encoder if name.startswith("encoder."))
    yield at_most("tensors in which a frozen encoder differs from that of the pretraining", moved, 0)
    yield distinct("weights of the models", {role: markers.digest(inputs[role].run, WEIGHTS) for role in fits})
