"""poison-audit: answers, scores and areas again, from weights, factors and manifest, one example at a time (of a small
classifier by numpy alone, of a T5 by autograd in fp64)."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from storage.records import read_records
from storage.tensors import read_tensors
from tasks.attacks.poisoning import CLEAN, Manifest, queries_of
from tasks.findings.audit import Audited, AuditResult, sample
from tasks.language.classifiers import Classifier, kept_classifier
from tasks.poison.detect import scores_of
from tasks.poison.results import DetectResult
from tasks.poison.stages import AUDIT_TOLERANCE, MODELS, REMOVED, TRAINED, EndConfig
from tasks.stage.run import StageInput, StageRun

Arrays = dict[str, np.ndarray]


def audit(run: StageRun, config: EndConfig, **inputs: StageInput) -> AuditResult:
    """CheckFailed names the first number that is another one than that of its record."""
    audited = Audited("a plain path, example by example", "of the largest, or of a share", AUDIT_TOLERANCE)
    for done, seed in enumerate(config.seeds):
        run.stop.check()
        run.progress.update(done, len(config.seeds), "seeds")
        given = {role.removesuffix(f"-{seed}"): of for role, of in inputs.items() if role.endswith(f"-{seed}")}
        manifest = Manifest.read(given["data"].path)
        for role in (*TRAINED, *(f"without-{rows}" for rows in REMOVED)):
            _answers(f"{role}-{seed}", given[role], manifest, config, audited)
        scores = scores_of(given["scores"], manifest)
        for model, measured in DetectResult.read(given["found"]).found.items():
            for method, measures in measured.items():
                pairs = scores[model][method][manifest.truth][:, None] - scores[model][method][~manifest.truth]
                area, where = ((pairs > 0) + (pairs == 0) / 2).mean(), f"the AUROC of {model}.{method}, seed {seed}"
                audited.compare("areas", where, measures["auroc"], float(area))
        for model, folder in MODELS.items():
            kept = kept_classifier(given["victim"].path / folder)
            _scores(f"{model}_factors", given, kept, scores[model], seed, config, audited)
    return audited.result()


def _answers(what: str, given: StageInput, manifest: Manifest, config: EndConfig, audited: Audited) -> None:
    said = {row["row_id"]: row for row in read_records(given.path / "records.parquet")}
    model = kept_classifier(given.path / "model")
    for row in (
        manifest.asked[place] for place in sample(config.seed, what, len(manifest.asked), config.audit.examples)
    ):
        for key, of in (("clean", ""), ("asked", "given_")):
            logits, _ = model.plain(row[f"{of}text"], row[f"{of}label"])
            same = model.labels[int(logits.argmax())] == said[row["row_id"]][key]
            audited.compare("predictions", f"the answer of {what} to {row['row_id']} ({key})", 1.0, float(same))


def _scores(
    role: str,
    given: dict[str, StageInput],
    model: Classifier,
    scores: Arrays,
    seed: int,
    config: EndConfig,
    audited: Audited,
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
        divided = {name: _divided(gradient, factors, name, how.damping) for name, gradient in mean.items()}
        for place in sample(config.seed, f"{what}{kind}", len(train), config.audit.examples):
            own = model.plain(train[place]["given_text"], train[place]["given_label"])[1]
            for method, query in ((f"identity{kind}", mean), (f"{config.factors.strategy}{kind}", divided)):
                again = sum(float((query[name] * own[name]).sum()) for name in own)
                where, largest = f"the score {method} of {train[place]['row_id']}", np.abs(scores[method]).max()
                audited.compare("scores", f"{where}, {what}", scores[method][place], again, float(largest))


def _arrays(file: Path) -> Arrays:
    return {name: tensor.double().numpy() for name, tensor in read_tensors(file).items()}


def _divided(gradient: np.ndarray, factors: Path, name: str, damping: float | None) -> np.ndarray:
    """A gradient by the curvature in the files of its module, damped."""
    kept = _arrays(factors / f"{name}.finished.safetensors")
    rows, columns = (kept.get(f"{side}.0", np.eye(size)) for side, size in zip(("rows", "columns"), gradient.shape))  # noqa: B905
    weight = kept["lambda"] + (0.1 * kept["lambda"].mean() if damping is None else damping)
    return rows @ (rows.T @ gradient @ columns / weight) @ columns.T
