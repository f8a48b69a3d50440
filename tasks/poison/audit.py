"""poison-audit: answers and scores again, from weights, factors and manifest, one example at a time (of a small
classifier by numpy alone, of a T5 by autograd in fp64); scores by hidden states and by words, the rows that are taken
away and beginnings by the stages' own functions."""

from pathlib import Path

import numpy as np
import torch

from storage import durable
from storage.errors import BadInput, require_equal
from storage.records import read_each
from tasks.attacks.detectors import clustering, overlap, spectral
from tasks.attacks.poisoning import CLEAN, Manifest, Texts, queries_of, texts_of
from tasks.findings.audit import Audited, AuditResult, typical
from tasks.influence.plain import divided
from tasks.language.classifiers import Classifier, kept_classifier, new_classifier, states_of
from tasks.poison.detect import Scores, chosen, scores_of
from tasks.poison.fit import numbers_of
from tasks.poison.results import FitResult
from tasks.poison.stages import AUDIT_TOLERANCE, MODELS, REMOVED, TRAINED, EndConfig, FitConfig
from tasks.stage.run import StageInput, StageRun
from tasks.training.schedule import Schedule

Arrays = dict[str, np.ndarray]
Inputs = dict[str, StageInput]


def audit(run: StageRun, config: EndConfig, **inputs: StageInput) -> AuditResult:
    """CheckFailed names the first number that is another one than that of its record."""
    how = "a plain path, example by example (hidden states, words and beginnings by the stages' own functions)"
    audited = Audited(run, how, "of its usual size, or of a share", AUDIT_TOLERANCE)
    for done, seed in enumerate(config.seeds):
        run.step(done, len(config.seeds), "seeds")
        given = {role.removesuffix(f"-{seed}"): of for role, of in inputs.items() if role.endswith(f"-{seed}")}
        manifest = Manifest.read(given["data"].path)
        for role in (*TRAINED, *(f"without-{rows}" for rows in REMOVED)):
            _answers(f"{role}-{seed}", given[role], manifest, config, audited)
        scores = scores_of(given["scores"], manifest, config.factors, config.queries)
        _beginning(given["victim"], manifest, audited)
        removed = durable.read_json(given["found"].path / "removed.json")
        for name, ids in chosen(manifest, scores, config.factors.strategy, config.detection, seed).items():
            same = removed.get(name) == ids
            audited.compare("rows taken away", f"that the rows called {name} are those, seed {seed}", 1.0, float(same))
        for model in MODELS:
            _scores(model, given, manifest, scores, seed, config, audited)
        _tracin(given, manifest, scores["victim"], seed, config, audited)
    return audited.result()


def _answers(what: str, given: StageInput, manifest: Manifest, config: EndConfig, audited: Audited) -> None:
    said = read_each(given.path / "records.parquet", ("row_id",), [row["row_id"] for row in manifest.test])
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
                audited.compare("scores", where, recorded[place], value, typical(recorded, value))


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
            audited.compare("scores", where, recorded[place], again, typical(recorded, again))


def _kept(folder: Path, manifest: Manifest) -> Classifier:
    try:
        model = kept_classifier(folder)
    except (OSError, ValueError, TypeError) as error:
        raise BadInput(f"{folder} holds no classifier that a stage kept: {error}") from None
    require_equal(f"the model in {folder} gives the labels of the rows", [*model.labels], manifest.labels)
    return model


def _beginning(victim: StageInput, manifest: Manifest, audited: Audited) -> None:
    """The weights with which a victim began are those of its seed, and its snapshots' rates those of its budget."""
    config = victim.configuration(FitConfig)
    torch.manual_seed(config.seed)
    known = [row["given_text"] for row in manifest.rows]
    begun = new_classifier(config.model, known, manifest.labels, audited.cache).state_dict()
    kept = _kept(victim.path / "initial", manifest).state_dict()
    same = begun.keys() == kept.keys() and all(begun[name].allclose(kept[name]) for name in begun)
    audited.compare("beginnings", f"the beginning in {victim.path}", 1.0, float(same))
    schedule, rates = Schedule(config.budget, len(manifest.train)), FitResult.read(victim).snapshots
    for folder, rate in rates.items():
        again = schedule.learning_rate(int(folder.rpartition("-")[2]))
        audited.compare("beginnings", f"the learning rate of {folder} in {victim.path}", rate / again, 1.0)


def _mean_gradient(model: Classifier, queries: Texts) -> Arrays:
    total: Arrays = {}
    for asked in zip(*queries, strict=True):
        total = {name: gradient + total.get(name, 0) for name, gradient in model.plain(*asked)[1].items()}
    return {name: gradient / len(queries[0]) for name, gradient in total.items()}


def _product(query: Arrays, own: Arrays) -> float:
    return sum(float((query[name] * own[name]).sum()) for name in query)
