"""final_results.json of the poison study: every number of its report."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations
from statistics import fmean
from typing import Any

from storage import durable
from storage.errors import require, require_equal
from tasks.attacks.poisoning import CLEAN, Manifest, require_backdoor
from tasks.findings.final_results import StudyResults, of_runs
from tasks.findings.statistics.comparison import ArmMean, Comparison, Pair, arm_mean, compare_together
from tasks.poison.checks import require_data, require_fit
from tasks.poison.results import AttackResult, DetectResult, FactorsResult, Measures
from tasks.poison.stages import AUDITED, MODELS, REMOVED, TRAINED, EndConfig
from tasks.stage.run import StageInput, StageRun

REFERENCES = ("untrained", "overlap", "loss", "identity", "tracin", "spectral", "clustering")
"""What influence is compared with."""


class Detector(ArmMean):
    """AUROC by seed, means of further measures, and the AUROC of the same scores of an untrained model, if any."""

    auroc: float
    untrained_auroc: float | None
    average_precision: float
    f1_at_k: float


class Trained(ArmMean):
    """Success of the attack by seed, and means; `removed_share` of the poisoned rows were taken away before."""

    asked: float
    success: float
    without_trigger: float
    accuracy: float
    most_frequent: float
    removed_share: float


class FinalResults(StudyResults):
    """Everything that the report says, as numbers. `rules` are by model and name."""

    seeds: list[int]
    strategy: str
    poison: Measures
    attack: dict[str, Any]
    trainings: dict[str, Trained]
    detectors: dict[str, Detector]
    rules: dict[str, dict[str, Measures]]
    modules: list[dict[str, Any]]
    degraded_modules: list[str]
    removal: dict[str, Trained]
    differences: list[Comparison]
    confidence_level: float
    min_seeds: int


def final_results(run: StageRun, config: EndConfig, inputs: Mapping[str, StageInput]) -> FinalResults:
    """Every number of the study, after what can be computed again was."""
    level, seeds, strategy = config.confidence_level, [*map(str, config.seeds)], config.factors.strategy
    data = {seed: require_data(f"data-{seed}", inputs[f"data-{seed}"], inputs["pool"]) for seed in seeds}
    found = {seed: DetectResult.read(inputs[f"found-{seed}"]) for seed in seeds}

    rates, weights = dict[str, dict[str, Measures]](), dict[str, tuple[object, str]]()

    def trained(role: str) -> Trained:
        of = {}
        for seed in seeds:
            by = None if role in TRAINED else inputs[f"found-{seed}"]
            fit = require_fit(f"{role}-{seed}", inputs[f"{role}-{seed}"], inputs[f"data-{seed}"], by)
            rows = by and durable.read_json(by.path / "removed.json")[role.removeprefix("without-")]
            trained_on = (seed, rows or role)
            same, other = weights.setdefault(fit.weights_digest, (trained_on, f"{role}-{seed}"))
            advice = f"They are those of {other}, which was trained on other rows"
            require(same == trained_on, f"the weights of {role}-{seed}", fit.weights_digest, "others", advice)
            of[seed] = fit.rates | {"removed_share": fit.removed_poisoned / data[seed].shares["poisoned"]}
        rates[role] = of
        return Trained(**over_seeds(of, "success", level))

    def detector(model: str, method: str) -> Detector:
        of = {seed: one.found[model][method] for seed, one in found.items()}
        others = [one.found["untrained"][method]["auroc"] for one in found.values() if method in one.found["untrained"]]
        untrained = fmean(others) if others else None
        return Detector(**over_seeds(of, "auroc", level), untrained_auroc=untrained)

    trainings = {role: trained(role) for role in TRAINED}
    attack = require_backdoor(rates["victim"], rates["control"], level)
    require_equal("the attack is that of the trainings", AttackResult.read(inputs["attack"]).as_json(), attack)
    drawn = [{row["row_id"] for row in Manifest.read(inputs[f"data-{seed}"].path).train} for seed in seeds]
    shared = fmean(len(one & other) / len(one) for one, other in combinations(drawn, 2))
    asked = {name: data[seeds[0]].shares[name] for name in ("requested", "realised")}  # the same, by the gate
    first, removal = found[seeds[0]], {rows: trained(f"without-{rows}") for rows in REMOVED}
    detectors = {method: detector(model, method) for model in ("victim", "none") for method in first.found[model]}
    areas = {name: of.values for name, of in detectors.items()} | {"untrained": detector("untrained", strategy).values}
    cells = {f"{model}, seed {seed}": f"{model}_factors-{seed}" for seed in seeds for model in MODELS}
    factors = {cell: FactorsResult.read(inputs[role]) for cell, role in cells.items()}
    return FinalResults(
        **of_runs(run, inputs, AUDITED),
        seeds=config.seeds,
        strategy=strategy,
        poison=means_of([of.shares for of in data.values()]) | asked | {"shared_rows": shared},
        attack=attack | {"success": trainings["victim"].success, "control": trainings["control"].success},
        trainings=trainings,
        detectors=detectors,
        rules={
            model: {rule: means_of([one.decided[model][rule] for one in found.values()]) for rule in rules}
            for model, rules in first.decided.items()
        },
        modules=[{"of": of} | module for of, one in factors.items() for module in one.modules],
        degraded_modules=[f"{name} ({of})" for of, one in factors.items() for name in one.degraded],
        removal=removal,
        differences=compared(config, areas, removal),
        confidence_level=level,
        min_seeds=config.min_seeds,
    )


def means_of(values: list[Measures]) -> Measures:
    return {name: fmean(of[name] for of in values) for name in values[0]}


def over_seeds(of: Mapping[str, Measures], measure: str, level: float) -> dict[str, Any]:
    """The fields of an `ArmMean` of one measure, and the means of all."""
    return dict(arm_mean({seed: values[measure] for seed, values in of.items()}, level)) | means_of([*of.values()])


def compared(config: EndConfig, areas: Mapping[str, Measures], removal: Mapping[str, Trained]) -> list[Comparison]:
    """What is asked about beside each reference, all corrected together; higher is better. Both are shares of counts,
    which may be equal; CheckFailed where influence is a reference with every seed, and finds neither all nor none."""
    strategy = config.factors.strategy
    failed = {
        f"failure without {name}": {seed: 1 - value for seed, value in of.values.items()}
        for name, of in removal.items()
    }
    pairs: dict[str, list[Pair]] = {"auroc": [(strategy, name) for name in (*REFERENCES, f"{strategy}{CLEAN}")]}
    equal = (other for one, other in pairs["auroc"] if areas[one] == areas[other])
    same = [other for other in equal if not {*areas[other].values()} <= {0.0, 1.0}]
    what, advice = f"AUROC of {strategy} and of {', '.join(same)}", "What tells them apart has not reached the scores"
    require(not same, what, "the same with every seed", "different", advice)
    pairs["failed"] = [("failure without detected", f"failure without {name}") for name in ("random", "untrained")]
    how = (config.confidence_level, config.min_seeds, (), [*pairs], True)
    rows = compare_together({"auroc": areas, "failed": failed}, pairs, *how)
    return [row for of in rows.values() for row in of]
