"""final_results.json of the calorimeter study: every number of its report, after what can be asked again was."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from statistics import fmean
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from pydantic import Field

from storage import markers
from storage.tensors import read_tensors
from tasks.calorimeter import stages
from tasks.calorimeter.fit import in_order, missed_by
from tasks.calorimeter.look import normaliser_of
from tasks.calorimeter.showers import TARGETS
from tasks.calorimeter.stages import EndConfig, FillConfig, FitResult, Measures, RegressConfig
from tasks.data.normaliser import Normaliser
from tasks.findings.arms import compare_arms
from tasks.findings.final_results import Origins, StudyResults, of_runs
from tasks.findings.gates import Gate, at_most, distinct
from tasks.findings.statistics.comparison import ArmMean, Comparison, arm_mean
from tasks.findings.statistics.seeds import OverSeeds, over_seeds
from tasks.sensors.events import Events
from tasks.sensors.filled import LIGHT, columns, mean_errors
from tasks.sensors.fitted import LOSS
from tasks.stage.run import StageInput, StageRun
from tasks.training.initial import TakenPart
from tasks.training.onnx_files import OnnxFile
from tasks.training.trained import Trained

WORST = 5
WEIGHTS = "model/model.safetensors"
SCORE, NEIGHBOURS, LONGEST = "all targets", "neighbours", "gradient_norm_max"
"""The first: the mean over the targets of what is missed, as a share of what predicting the mean misses."""
FILLS = {arm: (arm, "mae") for arm in stages.INPAINTERS} | {NEIGHBOURS: ("finetune", "neighbour_mae")}
"""What fills in -> the inpainter beside whose errors its own stand, and their name there."""
Errors = dict[str, dict[str, np.ndarray]]
"""Columns of errors by event, of each network that fills in."""


ORIGINS = Origins(
    computed={
        **dict.fromkeys(("seeds.*", "confidence_level", "min_seeds", "reason_for_more"), "stage.json"),
        "events": "the events of validation",
        **dict.fromkeys(("regressors.*", "missed.*", "worst.*"), "records of the regressors"),
        **dict.fromkeys(("pretraining.*", "inpainter.*", "filled.*"), "records of calorimeter-judge"),
        "differences.*": "records of the regressors and of calorimeter-judge",
        "normaliser_digest.*": "model/",
    },
    asked={
        "trivial.*": "residuals",
        "missed.*.values.*": "forwards",
        "filled.*.values.*": "sums",
        "repeated.*": "repeated events",
    },
    not_asked={
        f"regressors.*.{LONGEST}": "metrics.jsonl alone tells the course of a training",
        "taken.*": "the names of its tensors follow from the pretraining; the weights of a beginning are not kept",
        "exported.*": "the export's own gate compared them, the audit asks the files themselves",
    },
)


class FinalResults(StudyResults):
    """Everything that the report says, as numbers. `inpainter` is the one that begins as the masked autoencoder and is
    trained on; `missed` is by target and arm, `filled` by light and arm, `worst` the events of `worst_events`."""

    seeds: list[int]
    trivial: dict[str, Measures]
    regressors: dict[str, Measures]
    missed: dict[str, dict[str, ArmMean]]
    pretraining: Measures
    inpainter: Measures
    filled: dict[str, dict[str, ArmMean]]
    taken: dict[str, TakenPart]
    worst: list[Measures]
    normaliser_digest: dict[str, str]
    exported: dict[str, OnnxFile]
    differences: list[Comparison]
    confidence_level: float
    min_seeds: int
    events: int
    reason_for_more: str | None
    repeated: dict[str, int] = Field(default_factory=dict)


def final_results(run: StageRun, config: EndConfig, inputs: Mapping[str, StageInput]) -> FinalResults:
    """Every number of the study. CheckFailed names what another file or another stage says otherwise."""
    look, exported = stages.LookResult.read(inputs["look"]), stages.ExportResult.read(inputs["export"]).files
    events = {split: len(Events.open(inputs["data"], split)) for split in ("train", "validation")}
    others = ("data", "look", "judged", "export", "audit")
    fits = {role: Fit.of(role, given, events) for role, given in inputs.items() if role not in others}
    seeds, level = [*map(str, config.seeds)], config.confidence_level
    missed = {
        target: {arm: {seed: fits[f"{arm}-{seed}"].measures[target] for seed in seeds} for arm in stages.REGRESSORS}
        for target in TARGETS
    }
    shares = {
        arm: {seed: fmean(missed[of][arm][seed] / look.trivial[of] for of in TARGETS) for seed in seeds}
        for arm in stages.REGRESSORS
    }
    fillers = [role for role, fit in fits.items() if not fit.measures]
    judged, errors = judged_by(inputs, fillers, events["validation"])
    filled = {
        light: {
            f"{name}, {light}": {seed: judged[f"inpaint-{arm}-{seed}"][f"{of}_{light}"] for seed in seeds}
            for name, (arm, of) in FILLS.items()
        }
        for light in LIGHT
    }
    untaught = [arm for arm, of_seeds in shares.items() if any(share >= 1 for share in of_seeds.values())]
    over, means = partial(_over_events, errors, seeds, level), _over_seeds(filled, level)
    for light in LIGHT:
        for name, (arm, of) in FILLS.items():
            interval = {"interval": over(arm, light, of).interval}
            means[light][f"{name}, {light}"] = means[light][f"{name}, {light}"].model_copy(update=interval)
    audited = stages.AUDITED | ({stages.EXPORTED: stages.AUDIT_TOLERANCE} if exported else {})
    inpainters = [judged[f"inpaint-finetune-{seed}"] for seed in seeds]
    return FinalResults(
        **of_runs(run, inputs, audited, gates(inputs, fits, inputs["look"])),
        seeds=config.seeds,
        trivial={"predict_mean": look.trivial},
        regressors={
            arm: {target: fmean(missed[target][arm].values()) for target in TARGETS}
            | {LONGEST: max(fits[f"{arm}-{seed}"].trained.largest_gradient_norm for seed in seeds)}
            for arm in stages.REGRESSORS
        },
        missed=_over_seeds({SCORE: shares, **missed}, level),
        pretraining=judged["mae"],
        inpainter={name: fmean(of[name] for of in inpainters) for name in inpainters[0]},
        filled=means,
        taken={role: of.taken for role, of in fits.items() if of.taken and role.endswith(f"-{seeds[0]}")},
        worst=worst_events(inputs, [f"mae-init-{seed}" for seed in seeds], look.trivial),
        normaliser_digest={"look": normaliser_of(inputs["look"]).digest}
        | {role: fit.normaliser for role, fit in fits.items()},
        exported=exported,
        differences=_compared({SCORE: shares, **filled}, untaught, over, config),
        events=events["validation"],
        repeated=stages.ShowersResult.read(inputs["data"]).repeated,
        reason_for_more=config.limits.reason_for_more,
        confidence_level=level,
        min_seeds=config.min_seeds,
    )


def _compared(
    values: Mapping[str, Mapping[str, Measures]], untaught: list[str], over: Callable[..., OverSeeds], config: EndConfig
) -> list[Comparison]:
    """All comparisons, corrected together: of regressors over seeds, of what is filled in over seeds and events."""
    pairs = {light: [(f"finetune, {light}", f"{NEIGHBOURS}, {light}")] for light in LIGHT}
    pairs = {SCORE: [("mae-init", "scratch"), ("mae-init", "scratch-longer"), ("scratch", "raw")]} | pairs
    level, fewest = config.confidence_level, config.min_seeds
    same = [reference for light in LIGHT for _, reference in pairs[light]]  # all seeds see the same neighbours
    against = {
        light: {pair: over("finetune", light, "mae", "neighbour_mae") for pair in pairs[light]} for light in LIGHT
    }
    compared = compare_arms(values, pairs, level, fewest, untaught, allow_equal=same, sources=against)
    return [row for of in compared.values() for row in of]


def _over_events(errors: Errors, seeds: list[str], level: float, arm: str, light: str, *columns: str) -> OverSeeds:
    """The first column (less a second) a hidden sensor: an interval that knows of other seeds and other events."""
    of_seeds = [errors[f"inpaint-{arm}-{seed}"] for seed in seeds]
    of = [[table[f"{name}_{light}"] for name in columns] + [table[light]] for table in of_seeds]
    return over_seeds(lambda first, *more: (first - sum(more[:-1])) / more[-1], of, level)


def worst_events(inputs: Mapping[str, StageInput], roles: list[str], trivial: Measures) -> list[Measures]:
    """The events that these regressors miss most, by the mean over targets as a share of what predicting the mean
    misses: their truth, and by how much each target is missed, in the mean over the regressors."""
    tables = [pq.read_table(inputs[role].path / "records.parquet") for role in roles]
    missed = {of: np.mean([np.abs(table[of].to_numpy()) for table in tables], axis=0) for of in TARGETS}
    share = np.mean([missed[of] / trivial[of] for of in TARGETS], axis=0)
    truth = Events.open(inputs["data"], "validation").truth
    return [
        {"event": float(event), "share": float(share[event])}
        | dict(zip(TARGETS, truth[event].tolist(), strict=True))
        | {f"missed_{of}": float(missed[of][event]) for of in TARGETS}
        for event in np.argsort(-share, kind="stable")[:WORST].tolist()
    ]


@dataclass(frozen=True)
class Fit:
    """A training: by how much a regressor misses each target, its course, its normaliser, and its beginning."""

    measures: Measures
    trained: Trained
    normaliser: str
    taken: TakenPart | None

    @classmethod
    def of(cls, role: str, given: StageInput, events: Mapping[str, int]) -> Fit:
        regresses = (given.path / "records.parquet").exists()
        config = given.configuration(RegressConfig if regresses else FillConfig)
        trained = Trained.of(role, given, LOSS, config.budget, events["train"])
        measures = missed_by(given.path, events["validation"]) if regresses else {}
        normaliser = Normaliser.load(given.path / "model").digest
        return cls(measures, trained, normaliser, FitResult.read(given).taken)


def gates(inputs: Mapping[str, StageInput], fits: Mapping[str, Fit], look: StageInput) -> Iterator[Gate]:
    """What must hold before a number is shown."""
    ours, raw = normaliser_of(look).digest, normaliser_of(look, raw=True).digest
    others = sum(fit.normaliser != (raw if role.startswith("raw-") else ours) for role, fit in fits.items())
    yield at_most("models with another normaliser than their arm's", others, 0)
    frozen = [role for role in fits if role.startswith("inpaint-frozen-")]
    theirs = _encoder(inputs["mae"])
    moved = sum(not _encoder(inputs[role])[name].equal(theirs[name]) for role in frozen for name in theirs)
    yield at_most("tensors in which a frozen encoder differs from that of the pretraining", moved, 0)
    yield distinct("weights of the models", {role: markers.digest(inputs[role].run, WEIGHTS) for role in fits})


def _encoder(stage: StageInput) -> dict[str, Any]:
    tensors = read_tensors(stage.path / "model" / "model.safetensors")
    return {name: tensor for name, tensor in tensors.items() if name.startswith("encoder.")}


def judged_by(
    inputs: Mapping[str, StageInput], roles: Iterable[str], events: int
) -> tuple[dict[str, Measures], Errors]:
    """The measures of each network that fills in, and its errors by event, from which they follow."""
    file = inputs["judged"].path / "records.parquet"
    errors = {role: in_order(columns(file, model=role), events, f"the records of {role} in {file}") for role in roles}
    ratios = {role: inputs[role].configuration(FillConfig).filling.mask_ratio for role in roles}
    return {role: mean_errors(of, ratios[role]) for role, of in errors.items()}, errors


def _over_seeds(tables: Mapping[str, Mapping[str, Measures]], level: float) -> dict[str, dict[str, ArmMean]]:
    return {of: {arm: arm_mean(values, level) for arm, values in arms.items()} for of, arms in tables.items()}
