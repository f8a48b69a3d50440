"""final_results.json of the calorimeter study: every number of its report, after what can be asked again was."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from statistics import fmean

import numpy as np
import pyarrow.parquet as pq
from pydantic import Field

from storage.errors import require, require_equal
from storage.records import records_digest
from storage.tensors import read_tensors
from tasks.calorimeter import stages
from tasks.calorimeter.export import FOLDER
from tasks.calorimeter.fit import missed_by
from tasks.calorimeter.judge import KEY, OF_SENSOR, PREDICTIONS
from tasks.calorimeter.look import normaliser_of
from tasks.calorimeter.showers import TARGETS
from tasks.calorimeter.stages import EndConfig, FillConfig, FitResult, Measures, RegressConfig
from tasks.findings.final_results import StudyResults, of_runs
from tasks.findings.statistics.comparison import ArmMean, Comparison, arm_mean, compare_together, judge_with_sources
from tasks.findings.statistics.seeds import OverSeeds, over_seeds
from tasks.sensors.events import Events
from tasks.sensors.filled import LIGHT, columns, mean_errors
from tasks.sensors.fitted import LOSS
from tasks.stage.run import StageInput, StageRun
from tasks.training.initial import TakenPart
from tasks.training.logged import require_trained
from tasks.training.onnx_files import OnnxFile, require_as_checked
from tasks.training.weights import weights_digest

WORST = 5
SCORE, NEIGHBOURS, LONGEST = "all targets", "neighbours", "gradient_norm_max"
"""The first: the mean over the targets of what is missed, as a share of what predicting the mean misses."""
FILLS = {arm: (arm, "mae") for arm in stages.INPAINTERS} | {NEIGHBOURS: ("finetune", "neighbour_mae")}
"""What fills in -> the inpainter beside whose errors its own stand, and their name there."""
Errors = dict[str, dict[str, np.ndarray]]
"""Columns of errors by event, of each network that fills in."""


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
    look, made = stages.LookResult.read(inputs["look"]), stages.ShowersResult.read(inputs["data"])
    exported = stages.ExportResult.read(inputs["export"]).files
    require_as_checked(exported, inputs["export"].path / FOLDER)
    others = ("data", "look", "judged", "export", "audit")
    fits = {role: require_fit(role, inputs, made) for role in inputs if role not in others}
    seeds, level = [*map(str, config.seeds)], config.confidence_level
    missed = {
        target: {arm: {seed: fits[f"{arm}-{seed}"].measures[target] for seed in seeds} for arm in stages.REGRESSORS}
        for target in TARGETS
    }
    shares = {
        arm: {seed: fmean(missed[of][arm][seed] / look.trivial[of] for of in TARGETS) for seed in seeds}
        for arm in stages.REGRESSORS
    }
    judged, errors = require_judged(inputs)
    filled = {
        light: {
            f"{name}, {light}": {seed: judged[f"inpaint-{arm}-{seed}"][f"{of}_{light}"] for seed in seeds}
            for name, (arm, of) in FILLS.items()
        }
        for light in LIGHT
    }
    untaught = [arm for arm in shares if any(fits[f"{arm}-{seed}"].training["ratio_to_trivial"] >= 1 for seed in seeds)]
    over, means = partial(_over_events, errors, seeds, level), _over_seeds(filled, level)
    for light in LIGHT:
        for name, (arm, of) in FILLS.items():
            interval = {"interval": over(arm, light, of).interval}
            means[light][f"{name}, {light}"] = means[light][f"{name}, {light}"].model_copy(update=interval)
    inpainters = [judged[f"inpaint-finetune-{seed}"] for seed in seeds]
    return FinalResults(
        **of_runs(run, inputs, stages.AUDITED | ({stages.EXPORTED: stages.AUDIT_TOLERANCE} if exported else {})),
        seeds=config.seeds,
        trivial={"predict_mean": look.trivial},
        regressors={
            arm: {target: fmean(missed[target][arm].values()) for target in TARGETS}
            | {LONGEST: max(epoch[LONGEST] for seed in seeds for epoch in fits[f"{arm}-{seed}"].training["gradients"])}
            for arm in stages.REGRESSORS
        },
        missed=_over_seeds({SCORE: shares, **missed}, level),
        pretraining=judged["mae"],
        inpainter={name: fmean(of[name] for of in inpainters) for name in inpainters[0]},
        filled=means,
        taken={role: of.taken for role, of in fits.items() if of.taken and role.endswith(f"-{seeds[0]}")},
        worst=worst_events(inputs, [f"mae-init-{seed}" for seed in seeds], look.trivial),
        normaliser_digest={"look": look.normaliser_digest} | {role: of.normaliser_digest for role, of in fits.items()},
        exported=exported,
        differences=_compared({SCORE: shares, **filled}, untaught, over, config),
        events=made.events["validation"],
        repeated=made.repeated,
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
    compared = compare_together(values, pairs, level, fewest, untaught, allow_equal=same)
    rows = [row for of in compared.values() for row in of]
    against = {
        place: over("finetune", light, "mae", "neighbour_mae")
        for place, light in enumerate(LIGHT, len(rows) - len(LIGHT))
    }
    return judge_with_sources(rows, against, level, fewest)


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


def require_fit(role: str, inputs: Mapping[str, StageInput], made: stages.ShowersResult) -> FitResult:
    """A training spent its budget, has the normaliser of the study and the encoder that it was to begin with, and its
    measures follow from its records."""
    given, told = inputs[role], FitResult.read(inputs[role])
    kind: type[RegressConfig | FillConfig] = RegressConfig if "u_cm" in told.measures else FillConfig
    config = given.configuration(kind)
    require_trained(role, given.run.metrics_file, told.training, LOSS, config.budget, made.events["train"])
    for what, measured, required in (
        ("weights of model/", weights_digest(given.path / "model"), told.weights_digest),
        ("normaliser", told.normaliser_digest, normaliser_of(inputs["look"], raw=config.arm == "raw").digest),
    ):
        require_equal(f"the {what} of {role}", measured, required)
    if kind is RegressConfig:
        digest = records_digest(given.path / "records.parquet", ("event",))
        require_equal(f"the digest of the records of {role}", digest, told.records_digest)
        require_equal(f"the measures of {role} follow from its records", told.measures, missed_by(given.path))
    begun = config.arm in ("mae-init", "frozen", "finetune")
    require_equal(f"{role} began with another model's encoder", told.taken is not None, begun)
    if config.arm == "frozen":
        ours, theirs = (read_tensors(inputs[of].path / "model" / "model.safetensors") for of in (role, "mae"))
        same = all(ours[name].equal(theirs[name]) for name in theirs if name.startswith("encoder."))
        require(same, f"the encoder of {role} is that of the pretraining", "another one", "the same")
    return told


def require_judged(inputs: Mapping[str, StageInput]) -> tuple[dict[str, Measures], Errors]:
    """The measures of each network that fills in, and its errors by event, from which they follow."""
    given, told = inputs["judged"], stages.JudgeResult.read(inputs["judged"])
    for name, key, digest in (
        ("records.parquet", KEY, told.records_digest),
        (PREDICTIONS, OF_SENSOR, told.predictions_digest),
    ):
        require_equal(f"the digest of {name} of judged", records_digest(given.path / name, key), digest)
    errors = {role: columns(given.path / "records.parquet", model=role) for role in told.measures}
    for role, of in errors.items():
        again = mean_errors(of, inputs[role].configuration(FillConfig).filling.mask_ratio)
        require_equal(f"the measures of {role} follow from its records", told.measures[role], again)
    return told.measures, errors


def _over_seeds(tables: Mapping[str, Mapping[str, Measures]], level: float) -> dict[str, dict[str, ArmMean]]:
    return {of: {arm: arm_mean(values, level) for arm, values in arms.items()} for of, arms in tables.items()}
