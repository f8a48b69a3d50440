"""poison-audit: answers, scores and areas again, from weights, factors and manifest, one example at a time (of a small
classifier by numpy alone, of a T5 by autograd in fp64)."""

from __future__ import annotations

import numpy as np

from storage import durable
from storage.records import read_records
from tasks.attacks.detectors import count_of, measured_plainly, require_removed
from tasks.attacks.poisoning import CLEAN, Manifest, queries_of
from tasks.findings.audit import Audited, AuditResult
from tasks.influence.plain import divided
from tasks.language.classifiers import Classifier, kept_classifier
from tasks.poison.detect import scores_of
from tasks.poison.results import DetectResult
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
        scores, k = scores_of(given["scores"], manifest), count_of(config.detection.assumed_share, len(manifest.train))
        for model, measured in DetectResult.read(given["found"]).found.items():
            for method, measures in measured.items():
                for name, again in measured_plainly(manifest.truth, scores[model][method], k).items():
                    audited.compare("measures", f"{name} of {model}.{method}, seed {seed}", measures[name], again)
        by_model = {"detected": scores["victim"], "untrained": scores["untrained"]}
        require_removed(
            durable.read_json(given["found"].path / "removed.json"),
            [row["row_id"] for row in manifest.train],
            manifest.truth,
            {name: of[config.factors.strategy] for name, of in by_model.items()},
            f"seed {seed}",
        )
        for model, folder in MODELS.items():
            kept = kept_classifier(given["victim"].path / folder)
            _scores(f"{model}_factors", given, kept, scores[model], seed, config, audited)
    return audited.result()


def _answers(what: str, given: StageInput, manifest: Manifest, config: EndConfig, audited: Audited) -> None:
    said = {row["row_id"]: row for row in read_records(given.path / "records.parquet")}
    model = kept_classifier(given.path / "model")
    for place in audited.sample(what, len(manifest.asked), config.audit.examples):
        row = manifest.asked[place]
        for key, of in (("clean", ""), ("asked", "given_")):
            logits, _ = model.plain(row[f"{of}text"], row[f"{of}label"])
            same = model.labels[int(logits.argmax())] == said[row["row_id"]][key]
            audited.compare("predictions", f"the answer of {what} to {row['row_id']} ({key})", 1.0, float(same))


def _scores(
    role: str, given: Inputs, model: Classifier, scores: Arrays, seed: int, config: EndConfig, audited: Audited
) -> None:
    """Scores of some training rows by the mean gradient of the queries, with curvature and without."""
    how, manifest, factors = config.queries, Manifest.read(given["data"].path), given[role].path / "factors"
    train, what = manifest.train, f"{role}, seed {seed}"
    queries = queries_of(manifest, config.poison.trigger, how.rows, how.transforms, seed)
    for kind in ("", CLEAN):
        total: Arrays = {}
        for asked in zip(*queries[kind], strict=True):
            total = {name: gradient + total.get(name, 0) for name, gradient in model.plain(*asked)[1].items()}
        mean = {name: gradient / len(queries[kind][0]) for name, gradient in total.items()}
        by_curvature = divided(mean, factors, how.damping)
        for place in audited.sample(f"{what}{kind}", len(train), config.audit.examples):
            own = model.plain(train[place]["given_text"], train[place]["given_label"])[1]
            for method, query in ((f"identity{kind}", mean), (f"{config.factors.strategy}{kind}", by_curvature)):
                again = sum(float((query[name] * own[name]).sum()) for name in query)
                where, largest = f"the score {method} of {train[place]['row_id']}", np.abs(scores[method]).max()
                audited.compare("scores", f"{where}, {what}", scores[method][place], again, float(largest))
