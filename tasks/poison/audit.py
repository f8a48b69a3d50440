"""poison-audit: answers, scores and areas again, from weights, factors and manifest, one example at a time (of a small
classifier by numpy alone, of a T5 by autograd in fp64)."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from storage import durable
from storage.errors import require_equal
from storage.records import read_records
from tasks.attacks.detectors import clustering, overlap, spectral
from tasks.attacks.poisoning import CLEAN, Manifest, Texts, queries_of, texts_of
from tasks.findings.audit import Audited, AuditResult
from tasks.influence.plain import divided
from tasks.language.classifiers import Classifier, kept_classifier, states_of
from tasks.poison.detect import Scores, chosen, scores_of
from tasks.poison.fit import numbers_of
from tasks.poison.results import FitResult
from tasks.poison.stages import AUDIT_TOLERANCE, MODELS, REMOVED, TRAINED, EndConfig
from tasks.stage.run import StageInput, StageRun

Arrays = dict[str, np.ndarray]
Inputs = dict[str, StageInput]


def audit(run: StageRun, config: EndConfig, **inputs: StageInput) -> AuditResult:
    """CheckFailed names the first number that is another one than that of its record."""
    audited = Audited(run, "a plain path, example by example", "of the largest, or of a share", AUDIT_TOLERANCE)
    for done, seed in enumerate(config.seeds):
        run.step(done, len(config.seeds), "seeds")
        given = {role.removesuffix(f"-{seed}"): of for role, of in inputs.items() if role.endswith(f"-{seed}")}
        manifest = Manifest.read(given["data"].path)
        for role in (*TRAINED, *(f"without-{rows}" for rows in REMOVED)):
            _answers(f"{role}-{seed}", given[role], manifest, config, audited)
        scores = scores_of(given["scores"], manifest, config.factors, config.queries)
        removed = durable.read_json(given["found"].path / "removed.json")
        for name, ids in chosen(manifest, scores, config.factors.strategy, config.detection, seed).items():
            same = removed[name] == ids
            audited.compare("rows taken away", f"that the rows called {name} are those, seed {seed}", 1.0, float(same))
        for model in MODELS:
            _scores(model, given, manifest, scores, seed, config, audited)
        _tracin(given, manifest, scores["victim"], seed, config, audited)
    return audited.result()


def _answers(what: str, given: StageInput, manifest: Manifest, config: EndConfig, audited: Audited) -> None:
    said = {row["row_id"]: row for row in read_records(given.path / "records.parquet")}
    model = _kept(given.path / "model", manifest)
    for place in audited.sample(what, len(manifest.test), config.audit.examples):
        row = manifest.test[place]
        for key, of in (("clean", ""), ("asked", "given_")):
            logits, _ = model.plain(row[f"{of}text"], row[f"{of}label"])
            same = model.labels[int(logits.argmax())] == said[row["row_id"]][key]
            audited.compare("predictions", f"the answer of {what} to {row['row_id']} ({key})", 1.0, float(same))


def _scores(
    name: str, given: Inputs, manifest: Manifest, said: Scores, seed: int, config: EndConfig, audited: Audited
) -> None:
    """Scores of some training rows: by the mean gradient of the queries, with curvature and without, by their loss; by
    what the last layer reads, and, of no model, by words, with the stage's own functions of whole columns."""
    how, factors, train = config.queries, given[f"{name}_factors"].path / "factors", manifest.train
    model, scores, what = _kept(given["victim"].path / MODELS[name], manifest), said[name], f"{name}, seed {seed}"
    queries = queries_of(manifest, config.poison.trigger, how.rows, how.transforms, seed)
    texts, strategy = texts_of(train), config.factors.strategy
    ids, labels = numbers_of(model, texts)
    columns = zip(("spectral", "clustering"), (spectral, clustering), strict=True)
    hidden = states_of(model, ids, labels, config.execution.micro_batch_examples)[0]
    whole = {method: of(hidden, labels.numpy()) for method, of in columns}
    for kind in ("", CLEAN):
        mean = _mean_gradient(model, queries[kind])
        directions = {f"identity{kind}": mean, f"{strategy}{kind}": divided(mean, factors, how.damping)}
        words = overlap(texts[0], queries[kind][0])
        for place in audited.sample(f"{what}{kind}", len(train), config.audit.examples):
            logits, own = model.plain(train[place]["given_text"], train[place]["given_label"])
            right = model.labels.index(train[place]["given_label"])
            again = {method: _product(query, own) for method, query in directions.items()}
            again |= {"loss": float(logits[right] - np.logaddexp.reduce(logits)), f"overlap{kind}": float(words[place])}
            again |= {method: float(column[place]) for method, column in whole.items()}
            for method, value in again.items():
                recorded = said["none"][method] if method.startswith("overlap") else scores[method]
                where = f"the score {method} of {train[place]['row_id']}, {what}"
                audited.compare("scores", where, recorded[place], value, float(np.abs(recorded).max()) or 1.0)


def _tracin(given: Inputs, manifest: Manifest, scores: Arrays, seed: int, config: EndConfig, audited: Audited) -> None:
    """Scores of some training rows by the gradients of all snapshots."""
    how, train = config.queries, manifest.train
    queries = queries_of(manifest, config.poison.trigger, how.rows, how.transforms, seed)
    steps = FitResult.read(given["victim"]).snapshots
    models = {folder: _kept(given["victim"].path / folder, manifest) for folder in steps}
    for kind in ("", CLEAN):
        means = {folder: _mean_gradient(model, queries[kind]) for folder, model in models.items()}
        recorded = scores[f"tracin{kind}"]
        for place in audited.sample(f"tracin{kind}, seed {seed}", len(train), config.audit.examples):
            asked = train[place]["given_text"], train[place]["given_label"]
            again = sum(rate * _product(means[of], models[of].plain(*asked)[1]) for of, rate in steps.items())
            where = f"the score tracin{kind} of {train[place]['row_id']}, seed {seed}"
            audited.compare("scores", where, recorded[place], again, float(np.abs(recorded).max()) or 1.0)


def _kept(folder: Path, manifest: Manifest) -> Classifier:
    model = kept_classifier(folder)
    require_equal(f"the model in {folder} gives the labels of the rows", [*model.labels], manifest.labels)
    return model


def _mean_gradient(model: Classifier, queries: Texts) -> Arrays:
    total: Arrays = {}
    for asked in zip(*queries, strict=True):
        total = {name: gradient + total.get(name, 0) for name, gradient in model.plain(*asked)[1].items()}
    return {name: gradient / len(queries[0]) for name, gradient in total.items()}


def _product(query: Arrays, own: Arrays) -> float:
    return sum(float((query[name] * own[name]).sum()) for name in query)
