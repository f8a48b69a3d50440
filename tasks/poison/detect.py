"""poison-detect: how well each score finds the rows that the manifest calls poisoned, and rules that are not told."""

from __future__ import annotations

import numpy as np

from storage import durable
from storage.errors import require_each_once
from storage.records import read_records
from tasks.attacks.detectors import count_of, decided, decisions, found
from tasks.attacks.poisoning import VERSION, Manifest
from tasks.poison.results import DetectResult
from tasks.poison.stages import DetectConfig
from tasks.stage.run import StageInput, StageRun


def detect(run: StageRun, config: DetectConfig, data: StageInput, scores: StageInput) -> DetectResult:
    """Publishes `removed.json`: the ids of the rows to take away, by what chooses them."""
    manifest, how, strategy = Manifest.read(data.path), config.detection, config.factors.strategy
    by_model, truth, rules = scores_of(scores, manifest), manifest.truth, dict[str, dict[str, np.ndarray]]()
    for model in ("victim", "untrained"):
        kinds = np.stack([of for name, of in by_model[model].items() if name.startswith(strategy)], axis=1)
        rules[model] = decisions(by_model[model][strategy], kinds, how.assumed_share, how.percentile)
    ids, k = np.array([row["row_id"] for row in manifest.train]), count_of(how.assumed_share, len(truth))
    places = {"detected": rules["victim"]["top-k"], "untrained": rules["untrained"]["top-k"], "oracle": truth}
    places["random"] = np.random.default_rng([config.seed, 2]).permutation(len(ids))[:k]
    with run.publish_file("removed.json") as file:
        durable.write_json(file, {name: sorted(ids[of].tolist()) for name, of in places.items()})
    return DetectResult(
        found={
            model: {name: found(truth, values, k) for name, values in of.items() if VERSION not in name}
            for model, of in by_model.items()
        },
        decided={model: {rule: decided(truth, rows) for rule, rows in of.items()} for model, of in rules.items()},
    )


def scores_of(given: StageInput, manifest: Manifest) -> dict[str, dict[str, np.ndarray]]:
    """Model -> method -> scores of the training rows in the order of the manifest."""
    rows, ids = list(read_records(given.path / "records.parquet")), [row["row_id"] for row in manifest.train]
    by_key = {(row["model"], row["method"], row["row_id"]): row["score"] for row in rows}
    kinds = list(dict.fromkeys((model, method) for model, method, _ in by_key))
    expected = [(*kind, row_id) for kind in kinds for row_id in ids]
    keys = [(row["model"], row["method"], row["row_id"]) for row in rows]
    require_each_once("the scores hold each training row once, by model and method", keys, expected)
    models = dict[str, dict[str, np.ndarray]]()
    for model, method in kinds:
        models.setdefault(model, {})[method] = np.array([by_key[model, method, row_id] for row_id in ids])
    return models
