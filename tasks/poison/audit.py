"""poison-audit: answers and scores again, from weights, factors and manifest, one example at a time by autograd in
fp64; scores by hidden states and by words, the rows that are taken away, beginnings and the factors of one seed, drawn,
by the stages' own functions."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from fnmatch import fnmatch
from itertools import chain, product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from scipy.linalg import block_diag
from torch.nn import functional

from storage import durable
from storage.errors import BadInput, require_equal
from storage.records import read_each
from storage.tensors import read_tensors
from tasks.findings.audit import Again, Asked, Audited, AuditResult, typical
from tasks.influence.factors import compute_factors
from tasks.influence.kept import complete
from tasks.influence.plan import KINDS
from tasks.language.classifiers import Classifier, kept_classifier, new_classifier, states_of
from tasks.poison.detect import Scores, chosen, clustering, overlap, scores_of, spectral, task_of
from tasks.poison.fit import CLEAN, Manifest, Texts, numbers_of, queries_of, snapshots_of, texts_of
from tasks.poison.stages import AUDITED, MODELS, OWN, REMOVED, TRAINED, EndConfig, FactorsConfig, FitConfig, FitResult
from tasks.stage.run import StageInput, StageRun
from tasks.stage.study import nested
from tasks.training.schedule import Schedule

HOW = "a plain path, example by example (hidden states, words, beginnings and factors by the stages' own functions)"
Arrays = dict[str, np.ndarray]
Inputs = Mapping[str, StageInput]
Recompute = Callable[[Any], Iterable[Again]]


def audit(run: StageRun, config: EndConfig, **inputs: StageInput) -> AuditResult:
    """CheckFailed names the first number that is another one than that of its record."""
    audited, by_role = Audited(run, HOW), nested(inputs)

    def ask(kind: str, apart: str, rows: Iterable[Any], again: Recompute, count: int | None = None) -> None:
        audited.ask(Asked(kind, [*rows], again, "of its usual size", AUDITED[kind], count), apart)

    anew = {model: config.seeds[audited.sample(model, len(config.seeds), 1)[0]] for model in MODELS}
    for done, seed in enumerate(config.seeds):
        run.step(done, len(config.seeds), "seeds")
        given = {role: by_seed[seed] for role, by_seed in by_role.items()}
        manifest, few = Manifest.read(given["data"].path), config.audit.examples
        for role in (*TRAINED, *(f"without-{rows}" for rows in REMOVED)):
            what = f"{role}-{seed}"
            ask("predictions", what, manifest.test, _answers(what, given[role], manifest), few)
        victim = given["victim"]
        rates = FitResult.read(victim).snapshots
        ask("beginnings", "", ("initial", *rates), _beginnings(victim, rates, manifest, run.cache))
        scores = scores_of(given["scores"], manifest, config.queries)
        ask("rows taken away", "", REMOVED, _taken(given["found"], scores, manifest, config, seed))
        for model, kind in product(MODELS, ("", CLEAN)):
            again = _scores(model, kind, given, scores, manifest, config, seed, not kind and seed == anew[model])
            ask("scores", f"{model}{kind}, seed {seed}", range(len(manifest.train)), again, few)
    return audited.result()


def _answers(what: str, fit: StageInput, manifest: Manifest) -> Recompute:
    recorded = read_each(fit.path / "records.parquet", ("row_id",), [row["row_id"] for row in manifest.test])
    model = _kept(fit.path / "model", manifest)

    def again(row: dict[str, Any]) -> Iterator[Again]:
        for key, of in (("clean", ""), ("asked", "given_")):
            logits, _ = plain(model, row[f"{of}text"], row[f"{of}label"])
            same = model.labels[int(logits.argmax())] == recorded[row["row_id"]][key]
            yield Again(f"the answer of {what} to {row['row_id']} ({key})", 1.0, float(same))

    return again


def _taken(found: StageInput, scores: Scores, manifest: Manifest, config: EndConfig, seed: int) -> Recompute:
    removed = durable.read_json(found.path / "removed.json")
    rows = chosen(manifest, scores, config.detection, seed)

    def again(name: str) -> Iterator[Again]:
        same = removed.get(name) == rows[name]
        yield Again(f"that the rows called {name} are those, seed {seed}", 1.0, float(same))

    return again


def _scores(
    model: str, kind: str, given: Inputs, scores: Scores, manifest: Manifest, config: EndConfig, seed: int, anew: bool
) -> Recompute:
    """Scores of a training row by the mean gradient of the queries, with curvature and without, and those of the kept
    steps; by its loss, and what the last layer reads; and, of no model, by words, with the stage's own functions of
    whole columns."""
    how, texts, victim = config.queries, texts_of(manifest.train), given["victim"].path
    queries = queries_of(manifest, config.poison.trigger, how.rows, how.transforms, seed)[kind]
    recorded, own = scores["none"] | scores[model], _kept(victim / MODELS[model], manifest)
    ids, labels = numbers_of(own, texts)
    hidden = states_of(own, ids, labels, config.execution.micro_batch_examples)[0]
    columns = {of.__name__: of(hidden, labels.numpy()) for of in (spectral, clustering)}
    columns[f"overlap{kind}"] = overlap(texts[0], queries[0])
    with TemporaryDirectory() as folder:
        factors = _factors(given[f"{model}_factors"], own, texts, Path(folder), anew)
        mean = _mean_gradient(own, queries)  # from here on the model is in fp64
        curved = divided(mean, factors, how.damping)
    parts = {f"identity{kind}": [(own, 1.0, mean)], f"{OWN}{kind}": [(own, 1.0, curved)]}
    if model == "victim":
        rates = FitResult.read(given["victim"]).snapshots
        steps = [(_kept(victim / folder, manifest), rate) for folder, rate in rates.items()]
        parts[f"tracin{kind}"] = [(of, rate, _mean_gradient(of, queries)) for of, rate in steps]

    def again(place: int) -> Iterator[Again]:
        text, label = (of[place] for of in texts)
        logits = plain(own, text, label)[0]
        found = {"loss": float(logits[own.labels.index(label)] - np.logaddexp.reduce(logits))}
        found |= {method: float(column[place]) for method, column in columns.items()}
        for method, each in parts.items():
            found[method] = sum(rate * _product(query, plain(of, text, label)[1]) for of, rate, query in each)
        for method, value in found.items():
            where = f"the score {method} of {manifest.train[place]['row_id']}, {model}, seed {seed}"
            yield Again(where, recorded[method][place], value, typical(recorded[method], value))

    return again


def _factors(stage: StageInput, model: Classifier, texts: Texts, folder: Path, anew: bool) -> Path:
    """Where the factors of a model lie; `anew`: the stage's own code computes them again, in `folder`."""
    if anew:
        how, train = stage.configuration(FactorsConfig), task_of(model, texts)
        plan, batch = complete(stage.path / "factors", model)[0], how.execution.micro_batch_examples
        compute_factors(train, np.arange(train.size), folder, plan, seed=how.seed, batch=batch)
    return folder if anew else stage.path / "factors"


def _kept(folder: Path, manifest: Manifest) -> Classifier:
    try:
        model = kept_classifier(folder)
    except (OSError, ValueError, TypeError) as error:
        raise BadInput(f"{folder} holds no classifier that a stage kept: {error}") from None
    require_equal(f"the model in {folder} gives the labels of the rows", [*model.labels], manifest.labels)
    return model


def _beginnings(victim: StageInput, rates: dict[str, float], manifest: Manifest, cache: Path) -> Recompute:
    """The weights with which a victim began are those of its seed, and its snapshots' rates those of its budget."""
    config = victim.configuration(FitConfig)
    schedule = Schedule(config.budget, len(manifest.train))
    require_equal(f"the snapshots that {victim.path} kept", sorted(rates), sorted(snapshots_of(config, schedule)))

    def again(folder: str) -> Iterator[Again]:
        if folder in rates:
            rate = schedule.learning_rate(int(folder.rpartition("-")[2]))
            yield Again(f"the learning rate of {folder} in {victim.path}", rates[folder], rate, rate)
            return
        torch.manual_seed(config.seed)
        known = [row["given_text"] for row in manifest.rows]
        begun = new_classifier(config.model, known, manifest.labels, cache).state_dict()
        kept = _kept(victim.path / folder, manifest).state_dict()
        same = begun.keys() == kept.keys() and all(begun[name].allclose(kept[name]) for name in begun)
        yield Again(f"the beginning in {victim.path}", 1.0, float(same))

    return again


def plain(model: Classifier, text: str, label: str) -> tuple[np.ndarray, Arrays]:
    """Logits of one text, and the gradient of its loss by each module that influence asks of, a bias as a column more:
    in fp64, in which the model stays, by autograd alone, and nothing padded."""
    model.cpu().double()
    modules = {
        name: [*module.parameters()]
        for name, module in model.named_modules()
        if KINDS.get(type(module)) in model.kinds and not any(fnmatch(name, pattern) for pattern in model.excluded)
    }
    logits = model(model.encoded([text]))
    loss = functional.cross_entropy(logits, torch.tensor([model.labels.index(label)]))
    by_weight = iter(torch.autograd.grad(loss, [*chain(*modules.values())]))
    gradients = {name: [next(by_weight) for _ in weights] for name, weights in modules.items()}
    columns = {name: torch.cat([of.reshape(len(of), -1) for of in each], 1) for name, each in gradients.items()}
    return logits[0].detach().numpy(), {name: of.numpy() for name, of in columns.items()}


def _mean_gradient(model: Classifier, queries: Texts) -> Arrays:
    total: Arrays = {}
    for asked in zip(*queries, strict=True):
        total = {name: gradient + total.get(name, 0) for name, gradient in plain(model, *asked)[1].items()}
    return {name: gradient / len(queries[0]) for name, gradient in total.items()}


def _product(query: Arrays, own: Arrays) -> float:
    return sum(float((query[name] * own[name]).sum()) for name in query)


def divided(gradients: Arrays, folder: Path, damping: float | None) -> Arrays:
    """Gradients [rows, columns] of modules by their damped curvature, by numpy from the files of factors; without those
    that `scores` leaves out."""
    by_module = {}
    for name, gradient in gradients.items():
        if durable.read_json(folder / f"{name}.json")["status"] in ("not_finite", "no_curvature"):
            continue
        tensors = read_tensors(folder / f"{name}.finished.safetensors").items()
        kept = {key: tensor.double().numpy() for key, tensor in tensors}
        rows, columns = _basis(kept, "rows", len(gradient)), _basis(kept, "columns", gradient.shape[1])
        weight = kept["lambda"] + (0.1 * kept["lambda"].mean() if damping is None else damping)
        by_module[name] = rows @ (rows.T @ gradient @ columns / weight) @ columns.T
    return by_module


def _basis(kept: Arrays, side: str, size: int) -> np.ndarray:
    """The eigenvectors of a side, block by block; without any, the axes."""
    blocks = [kept[key] for key in sorted(kept, key=lambda key: (len(key), key)) if key.startswith(f"{side}.")]
    return block_diag(*blocks) if blocks else np.eye(size)
