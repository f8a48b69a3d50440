"""poison-detect: which rows each score, and rules that are not told, would take away."""

from collections.abc import Mapping

import numpy as np

from storage import durable
from storage.records import read_each
from tasks.attacks.detectors import count_of, decisions
from tasks.attacks.poisoning import CLEAN, VERSION, Manifest
from tasks.poison.stages import MODELS, DetectConfig
from tasks.poison.study import Detection, Factors, Queries
from tasks.stage.run import StageInput, StageRun

Scores = dict[str, dict[str, np.ndarray]]
"""Model -> method -> scores of the training rows in the order of the manifest."""


def detect(run: StageRun, config: DetectConfig, data: StageInput, scores: StageInput) -> dict[str, float]:
    """Publishes `removed.json`: the ids of the rows to take away, by what chooses them."""
    manifest = Manifest.read(data.path)
    by_model = scores_of(scores, manifest, config.factors, config.queries)
    with run.publish_file("removed.json") as file:
        durable.write_json(file, chosen(manifest, by_model, config.factors.strategy, config.detection, config.seed))
    return {}


def chosen(manifest: Manifest, scores: Scores, strategy: str, how: Detection, seed: int) -> dict[str, list[str]]:
    """The ids of the rows to take away, by what chooses them."""
    ids, k = np.array([row["row_id"] for row in manifest.train]), count_of(how.assumed_share, len(manifest.train))
    first = {model: rules_of(scores[model], strategy, how)["top-k"] for model in MODELS}
    places = {"detected": first["victim"], "untrained": first["untrained"], "oracle": manifest.truth}
    places["random"] = np.random.default_rng([seed, 2]).permutation(len(ids))[:k]
    return {name: sorted(ids[of].tolist()) for name, of in places.items()}


def rules_of(scores: Mapping[str, np.ndarray], strategy: str, how: Detection) -> dict[str, np.ndarray]:
    """Rule -> which rows it suspects by the scores of one model."""
    kinds = np.stack([of for name, of in scores.items() if name.startswith(strategy)], axis=1)
    return decisions(scores[strategy], kinds, how.assumed_share, how.percentile)


def scores_of(given: StageInput, manifest: Manifest, factors: Factors, queries: Queries) -> Scores:
    """The records of poison-scores. CheckFailed unless each method scored each training row once."""
    ids, strategy = [row["row_id"] for row in manifest.train], factors.strategy
    versions = [f"{strategy}{VERSION}{number}" for number in range(queries.transforms)]
    of_model = [strategy, strategy + CLEAN, *versions, f"{strategy}-variance", "identity", f"identity{CLEAN}"]
    methods = {model: [*of_model, "loss", "spectral", "clustering"] for model in MODELS}
    methods["victim"] += ["tracin", f"tracin{CLEAN}"]
    methods["none"] = ["overlap", f"overlap{CLEAN}"]
    required = [(row, model, method) for model, every in methods.items() for method in every for row in ids]
    rows = read_each(given.path / "records.parquet", ("row_id", "model", "method"), required)
    return {
        model: {method: np.array([rows[row, model, method]["score"] for row in ids]) for method in every}
        for model, every in methods.items()
    }
