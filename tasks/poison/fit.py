"""poison-poison: the rows of one seed, some of them poisoned. poison-fit and poison-remove: one training on them; all
of a seed begin alike."""

from collections import Counter
from functools import partial

import torch
from scipy.stats import entropy
from torch.nn import functional

from storage import durable
from storage.records import Rows, read_records
from tasks.language.classifiers import Classifier, logits_of, new_classifier
from tasks.poison.manifest import Manifest, Texts, poisoned, texts_of
from tasks.poison.stages import FitConfig, FitResult, PoisonConfig
from tasks.stage.numerics import device
from tasks.stage.run import StageInput, StageRun
from tasks.training.loop import train_problem
from tasks.training.optimizer import adamw
from tasks.training.problem import Problem
from tasks.training.schedule import Schedule

LOSS = "training_loss"
"""The metric that decides, in nats: influence asks about a minimum of the loss that was trained on."""


def poison(run: StageRun, config: PoisonConfig, pool: StageInput) -> dict[str, float]:
    """Records: the manifest. CheckFailed where fewer rows are poisoned than was asked for."""
    rows = list(read_records(pool.path / "records.parquet"))
    found = poisoned(rows, config.poison, config.train_rows, config.test_rows, config.seed)
    run.merge_records(run.each([found.rows], list, "rows"), ("row_id",))
    return {}


def fit(run: StageRun, config: FitConfig, data: StageInput, found: StageInput | None = None) -> FitResult:
    """Publishes `model/`, `initial/` and snapshots. Records: the labels of test rows, as they are and as asked."""
    manifest, where = Manifest.read(data.path), device(config.execution)
    rows, _ = trained_rows(manifest, config, found)
    torch.manual_seed(config.seed)
    known = [row["given_text"] for row in manifest.rows]
    model = new_classifier(config.model, known, manifest.labels, run.cache).to(where)
    ids, labels = (of.to(where) for of in numbers_of(model, rows))
    schedule, batch = Schedule(config.budget, len(ids)), config.execution.micro_batch_examples
    _publish(run, "initial", model)
    parts = range(1, config.snapshots + 1)
    steps = sorted({max(1, round(part / config.snapshots * schedule.total_steps)) for part in parts})
    snapshots = {f"snapshot-{step:07d}": step for step in steps}
    problem = Problem(
        model,
        adamw(model, config.budget),
        batch=lambda indices, epoch: (ids[torch.from_numpy(indices)], labels[torch.from_numpy(indices)]),
        losses=lambda network, batch: functional.cross_entropy(network(batch[0]), batch[1], reduction="none"),
        evaluate=lambda _: functional.cross_entropy(logits_of(model, ids, batch), labels).item(),
        checks={step: [partial(_publish, run, name)] for name, step in snapshots.items()},
        decides=LOSS,
        trivial=trivial(rows[1]),
    )
    train_problem(run, problem, schedule, config.seed, config.execution)
    run.outputs.extend(name for name in snapshots if name not in run.outputs)  # what an attempt before this one kept
    _publish(run, "model", model.eval().cpu())
    run.merge_records(run.each([answers(model, manifest, batch)], list, "rows"), ("row_id",))
    return FitResult(snapshots={name: schedule.learning_rate(step) for name, step in snapshots.items()})


def trained_rows(manifest: Manifest, config: FitConfig, found: StageInput | None) -> tuple[Texts, Rows]:
    """What is trained on, and the rows that were taken away."""
    without = set(durable.read_json(found.path / "removed.json")[config.rows]) if found else set()
    rows = [row for row in manifest.train if row["row_id"] not in without]
    removed = [row for row in manifest.train if row["row_id"] in without]
    return texts_of(rows, "" if config.rows == "control" else "given_"), removed


def trivial(labels: list[str]) -> dict[str, float]:
    """The loss of whoever knows the frequencies of the labels alone, in nats."""
    return {"label frequencies": float(entropy([*Counter(labels).values()]))}


def _publish(run: StageRun, name: str, model: Classifier) -> None:
    """Steps that a kill took away are trained again, to the same bytes."""
    with run.publish(name) as folder:
        model.save(folder)


def numbers_of(model: Classifier, texts: Texts) -> tuple[torch.Tensor, torch.Tensor]:
    """What the model reads, [N, longest], and numbers of labels, [N]."""
    return model.encoded(texts[0]), torch.tensor([model.labels.index(label) for label in texts[1]])


def answers(model: Classifier, manifest: Manifest, batch: int) -> Rows:
    """The labels that each test row gets as it is and as it is asked about."""
    ids = (model.encoded([row[key] for row in manifest.test]) for key in ("text", "given_text"))
    said = ([model.labels[place] for place in logits_of(model, of, batch).argmax(1).tolist()] for of in ids)
    rows = zip(manifest.test, *said, strict=True)
    return [{"row_id": row["row_id"], "clean": clean, "asked": asked} for row, clean, asked in rows]
