"""final_results.json of the poison study: every number of its report."""

from collections.abc import Mapping, Sequence
from itertools import chain, combinations
from statistics import fmean
from typing import Any

from storage.errors import require
from tasks.findings.compare import compare
from tasks.findings.configuration import Metric
from tasks.findings.final_results import Origins, StudyResults, of_runs
from tasks.findings.statistics.comparison import ArmMean, Comparison, arm_mean
from tasks.influence.kept import complete, degraded
from tasks.language.classifiers import kept_classifier
from tasks.poison.detect import Scores, found, scores_of
from tasks.poison.fit import CLEAN, VERSION, Manifest, fits_of, gates, manifest_of, require_backdoor, shares
from tasks.poison.stages import AUDITED, MODELS, OWN, REMOVED, TRAINED, EndConfig, Measures
from tasks.stage.run import StageInput, StageRun
from tasks.stage.study import nested

REFERENCES = ("untrained", "overlap", "loss", "identity", "tracin", "spectral", "clustering")
"""What influence is compared with."""


ORIGINS = Origins(
    computed={
        **dict.fromkeys(("seeds.*", "confidence_level", "min_seeds"), "stage.json"),
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
        "detectors.*-variance.*": "scores by versions of the queries",
        "degraded_modules.*": "factors/ alone tells how they came about",
        "gates.0.*": "metrics.jsonl alone tells the course of a training",
    },
)


class Detector(ArmMean):
    """AUROC by seed, means of further measures, and the AUROC of the same scores of an untrained model, if any."""

    auroc: float
    untrained_auroc: float | None
    average_precision: float


class Trained(ArmMean):
    """Success of the attack by seed, and means; `removed_share` of the poisoned rows were taken away before."""

    asked: float
    success: float
    without_trigger: float
    accuracy: float
    most_frequent: float
    removed_share: float


class FinalResults(StudyResults):
    """Everything that the report says, as numbers."""

    seeds: list[int]
    poison: Measures
    attack: dict[str, float | list[float]]
    trainings: dict[str, Trained]
    detectors: dict[str, Detector]
    degraded_modules: list[str]
    removal: dict[str, Trained]
    differences: list[Comparison]
    confidence_level: float
    min_seeds: int


def final_results(run: StageRun, config: EndConfig, inputs: Mapping[str, StageInput]) -> FinalResults:
    """Every number of the study, after what can be computed again was."""
    level, given = config.confidence_level, nested(inputs)
    manifests = {str(seed): manifest_of(data, given["pool"]) for seed, data in given["data"].items()}
    fits = fits_of(given, (*TRAINED, *(f"without-{rows}" for rows in REMOVED)))
    frame = of_runs(run, inputs, AUDITED, gates(fits))
    rates = {role: {seed: fit.rates for seed, fit in by_seed.items()} for role, by_seed in fits.items()}
    trainings = {role: Trained(**over_seeds(rates[role], "success", level)) for role in TRAINED}
    removal = {rows: Trained(**over_seeds(rates[f"without-{rows}"], "success", level)) for rows in REMOVED}
    scores = {
        seed: scores_of(given["scores"][int(seed)], manifest, config.queries) for seed, manifest in manifests.items()
    }
    areas, detectors = detected(config, manifests, scores)
    factors = {
        f"{model}, seed {seed}": complete(
            given[f"{model}_factors"][seed].path / "factors", kept_classifier(given["victim"][seed].path / folder)
        )[1]
        for seed in config.seeds
        for model, folder in MODELS.items()
    }
    drawn = [{row["row_id"] for row in manifest.train} for manifest in manifests.values()]
    of_seeds = [shares(manifest, config.poison) for manifest in manifests.values()]
    poison = means_of(of_seeds) | {name: of_seeds[0][name] for name in ("requested", "realised")}  # all have the same
    return FinalResults(
        **frame,
        seeds=config.seeds,
        poison=poison | {"shared_rows": fmean(len(one & other) / len(one) for one, other in combinations(drawn, 2))},
        attack=require_backdoor(rates["victim"], rates["control"], level),
        trainings=trainings,
        detectors=detectors,
        degraded_modules=[f"{name} ({cell})" for cell, modules in factors.items() for name in degraded(modules)],
        removal=removal,
        differences=compared(config, areas, removal),
        confidence_level=level,
        min_seeds=config.min_seeds,
    )


def detected(
    config: EndConfig, manifests: Mapping[str, Manifest], scores: Mapping[str, Scores]
) -> tuple[dict[str, Measures], dict[str, Detector]]:
    """The AUROC by seed of all that is compared, and what is said of each detector."""
    level = config.confidence_level

    def over(model: str, method: str) -> dict[str, Any]:
        of = {seed: (manifest.truth, scores[seed][model][method]) for seed, manifest in manifests.items()}
        return over_seeds({seed: found(*both) for seed, both in of.items()}, "auroc", level)

    methods = {model: [name for name in of if VERSION not in name] for model, of in next(iter(scores.values())).items()}
    untrained = {name: over("untrained", name) for name in methods.pop("untrained")}
    detectors = {
        name: Detector(**over(model, name), untrained_auroc=untrained.get(name, {}).get("auroc"))
        for model, names in methods.items()
        for name in names
    }
    areas = {name: of.values for name, of in detectors.items()}
    return areas | {"untrained": untrained[OWN]["values"]}, detectors


def means_of(of_seeds: Sequence[Measures]) -> Measures:
    return {name: fmean(measures[name] for measures in of_seeds) for name in of_seeds[0]}


def over_seeds(by_seed: Mapping[str, Measures], measure: str, level: float) -> dict[str, Any]:
    """The fields of an `ArmMean` of one measure, and the means of all."""
    values = {seed: measures[measure] for seed, measures in by_seed.items()}
    return dict(arm_mean(values, level)) | means_of([*by_seed.values()])


def compared(config: EndConfig, areas: Mapping[str, Measures], removal: Mapping[str, Trained]) -> list[Comparison]:
    """What is asked about beside each reference, all corrected together; higher is better. Both are shares of counts,
    which may be equal; CheckFailed where influence is a reference with every seed, and finds neither all nor none."""
    failed = {
        f"failure without {name}": {seed: 1 - value for seed, value in of.values.items()}
        for name, of in removal.items()
    }
    references = (*REFERENCES, f"{OWN}{CLEAN}")
    equal = (other for other in references if areas[OWN] == areas[other])
    same = [other for other in equal if not {*areas[other].values()} <= {0.0, 1.0}]
    what, advice = f"AUROC of {OWN} and of {', '.join(same)}", "What tells them apart has not reached the scores"
    require(not same, what, "the same with every seed", "different", advice)
    pairs = {
        "auroc": [[OWN, name] for name in references],
        "failed": [["failure without detected", f"failure without {name}"] for name in ("random", "untrained")],
    }
    metrics = {title: Metric(higher=True, pairs=of) for title, of in pairs.items()}
    values, how = {"auroc": areas, "failed": failed}, (config.confidence_level, config.min_seeds)
    return [*chain(*compare(values, metrics, *how, may_equal=True).differences.values())]
