"""final_results.json of the poison study: every number of its report."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations
from statistics import fmean
from typing import Any

from storage.errors import require
from tasks.attacks.detectors import count_of, decided, found
from tasks.attacks.poisoning import CLEAN, VERSION, Manifest, require_backdoor, shares
from tasks.findings.final_results import Origins, StudyResults, of_runs
from tasks.findings.statistics.comparison import ArmMean, Comparison, Pair, arm_mean, compare_together
from tasks.influence.kept import ModuleStatistics, complete, degraded
from tasks.language.classifiers import kept_classifier
from tasks.poison.detect import Scores, rules_of, scores_of
from tasks.poison.numbers import Fit, gates, manifest_of
from tasks.poison.results import Measures
from tasks.poison.stages import AUDITED, MODELS, REMOVED, TRAINED, EndConfig
from tasks.stage.run import StageInput, StageRun

REFERENCES = ("untrained", "overlap", "loss", "identity", "tracin", "spectral", "clustering")
"""What influence is compared with."""


ORIGINS = Origins(
    computed={
        **dict.fromkeys(("seeds.*", "strategy", "confidence_level", "min_seeds"), "stage.json"),
        "poison.*": "the manifests",
        **dict.fromkeys(("attack.*", "trainings.*"), "answers of the trainings"),
        "removal.*": "answers of the trainings and removed.json",
        "detectors.*": "scores and manifests",
        "differences.*": "scores, manifests and answers",
    },
    asked={
        **dict.fromkeys(("trainings.*.values.*", "removal.*.values.*"), "predictions"),
        "removal.*.removed_share": "rows taken away",
        "detectors.*.values.*": "scores",
    },
    not_asked={
        **dict.fromkeys(("detectors.*-variance.*", "rules.*"), "scores by versions of the queries"),
        **dict.fromkeys(("modules.*", "degraded_modules.*"), "factors/ alone tells how they came about"),
        "gates.0.*": "metrics.jsonl alone tells the course of a training",
    },
)


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
    manifests = {seed: manifest_of(inputs[f"data-{seed}"], inputs["pool"]) for seed in seeds}
    chosen_by = {**dict.fromkeys(TRAINED), **{f"without-{rows}": "found" for rows in REMOVED}}

    def fit(role: str, seed: str) -> Fit:
        by = inputs[f"{chosen_by[role]}-{seed}"] if chosen_by[role] else None
        return Fit.of(f"{role}-{seed}", inputs[f"{role}-{seed}"], inputs[f"data-{seed}"], by)

    fits = {role: {seed: fit(role, seed) for seed in seeds} for role in chosen_by}
    every = {f"{role}-{seed}": fit for role, by_seed in fits.items() for seed, fit in by_seed.items()}
    frame = of_runs(run, inputs, AUDITED, gates(every))

    def trained(role: str) -> Trained:
        poisoned = {seed: manifest.truth.sum() for seed, manifest in manifests.items()}
        shares = {seed: float(fit.removed_poisoned / poisoned[seed]) for seed, fit in fits[role].items()}
        of = {seed: fit.rates | {"removed_share": shares[seed]} for seed, fit in fits[role].items()}
        return Trained(**over_seeds(of, "success", level))

    trainings = {role: trained(role) for role in TRAINED}
    victim, control = ({seed: fit.rates for seed, fit in fits[role].items()} for role in TRAINED)
    attack = require_backdoor(victim, control, level)
    drawn = [{row["row_id"] for row in manifest.train} for manifest in manifests.values()]
    of_seeds = [shares(manifest, config.poison) for manifest in manifests.values()]
    same = {name: of_seeds[0][name] for name in ("requested", "realised")}  # by the manifests' own check
    poison = means_of(of_seeds) | same
    how = (config.factors, config.queries)
    scores = {seed: scores_of(inputs[f"scores-{seed}"], manifests[seed], *how) for seed in seeds}
    judged = Judged(config, manifests, scores)
    detectors = judged.detectors()
    areas = {name: of.values for name, of in detectors.items()}
    areas["untrained"] = judged.detector("untrained", strategy).values
    removal = {rows: trained(f"without-{rows}") for rows in REMOVED}
    cells = {f"{model}, seed {seed}": (model, seed) for seed in seeds for model in MODELS}
    factors = {cell: _factors(inputs, *of) for cell, of in cells.items()}
    return FinalResults(
        **frame,
        seeds=config.seeds,
        strategy=strategy,
        poison=poison | {"shared_rows": fmean(len(one & other) / len(one) for one, other in combinations(drawn, 2))},
        attack=attack | {"success": trainings["victim"].success, "control": trainings["control"].success},
        trainings=trainings,
        detectors=detectors,
        rules={model: judged.rules(model) for model in MODELS},
        modules=[{"of": cell} | _module(module) for cell, modules in factors.items() for module in modules],
        degraded_modules=[f"{name} ({cell})" for cell, modules in factors.items() for name in degraded(modules)],
        removal=removal,
        differences=compared(config, areas, removal),
        confidence_level=level,
        min_seeds=config.min_seeds,
    )


@dataclass(frozen=True)
class Judged:
    """Scores of the training rows, beside what the manifest of each seed calls poisoned."""

    config: EndConfig
    manifests: Mapping[str, Manifest]
    scores: Mapping[str, Scores]

    def detector(self, model: str, method: str) -> Detector:
        share, of = self.config.detection.assumed_share, dict[str, Measures]()
        for seed, manifest in self.manifests.items():
            of[seed] = found(manifest.truth, self.scores[seed][model][method], count_of(share, len(manifest.train)))
        beside = model != "untrained" and method in next(iter(self.scores.values()))["untrained"]
        untrained = self.detector("untrained", method).auroc if beside else None
        return Detector(**over_seeds(of, "auroc", self.config.confidence_level), untrained_auroc=untrained)

    def detectors(self) -> dict[str, Detector]:
        scores = next(iter(self.scores.values()))
        models = {method: model for model in ("victim", "none") for method in scores[model] if VERSION not in method}
        return {method: self.detector(model, method) for method, model in models.items()}

    def rules(self, model: str) -> dict[str, Measures]:
        how = (self.config.factors.strategy, self.config.detection)
        suspected = {seed: rules_of(of[model], *how) for seed, of in self.scores.items()}
        truth = {seed: manifest.truth for seed, manifest in self.manifests.items()}
        rules = next(iter(suspected.values()))
        return {rule: means_of([decided(truth[seed], of[rule]) for seed, of in suspected.items()]) for rule in rules}


def _factors(inputs: Mapping[str, StageInput], model: str, seed: str) -> list[ModuleStatistics]:
    victim, folder = inputs[f"victim-{seed}"], inputs[f"{model}_factors-{seed}"].path / "factors"
    return complete(folder, kept_classifier(victim.path / MODELS[model]))[1]


def _module(module: ModuleStatistics) -> dict[str, Any]:
    rungs = [f"{side['module']}: {rung}" for side in module.sides for rung in side["rungs"]]
    return {"name": module.name, "status": module.status, "examples": module.examples, "rungs": rungs}


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
