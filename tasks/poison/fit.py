"""poison-poison: the rows of one seed, some of them poisoned. poison-fit and poison-remove: one training on them; all
of a seed begin alike. poison-attack: what trainings say by their verified files, and whether the backdoor exists."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import torch
from scipy.stats import entropy, norm
from torch.nn import functional

from storage import durable
from storage.errors import BadInput, require, require_each_once
from storage.records import Rows, read_each, read_records
from tasks.attacks.configuration import Poison
from tasks.findings.gates import Gate, at_most, require_gates
from tasks.findings.numbers import rate_points, span
from tasks.findings.statistics.seeds import mean_over_seeds
from tasks.language.bag import numbered, words_of
from tasks.language.classifiers import Classifier, logits_of, new_classifier
from tasks.poison.stages import TRAINED, AttackConfig, FitConfig, FitResult, Measures, PoisonConfig
from tasks.stage.numerics import device
from tasks.stage.run import StageInput, StageRun
from tasks.stage.study import nested
from tasks.training.loop import train_problem
from tasks.training.problem import Problem, adamw
from tasks.training.schedule import Schedule
from tasks.training.trained import Trained, weights_of

Texts = tuple[list[str], list[str]]
"""Texts and their labels."""
CLEAN, VERSION = "-clean-queries", "-version-"
"""Kinds of queries beside the triggered ones: clean rows, and versions of the triggered ones in other words."""


class Manifest:
    """Rows in their splits: `text` and `label`, and what a victim is given in their place: a trigger before a text,
    and a target's label in the place of its own. It alone says which rows are poisoned: an earlier system derived that
    anew, by a seed, on rows that were poisoned already, and called 11 true poisons clean.

    `changed`: of train, the row is poisoned; of test, it is asked about with the trigger. `truth` is which training
    rows are poisoned, bool [N].
    """

    def __init__(self, rows: Rows) -> None:
        self.rows = rows
        self.train, self.test = ([row for row in rows if row["split"] == split] for split in ("train", "test"))
        self.asked = [row for row in self.test if row["changed"]]
        self.truth = np.array([row["changed"] for row in self.train])
        self.labels = sorted({row[key] for row in rows for key in ("label", "given_label")})

    @classmethod
    def read(cls, folder: Path) -> Manifest:
        """The manifest that the records of a stage are."""
        return cls(list(read_records(folder / "records.parquet")))


def poisoned(pool: Rows, how: Poison, train_rows: int, test_rows: int, seed: int) -> Manifest:
    """Rows of the pool, drawn by the seed: some of train poisoned, all of test that have another label to be asked.

    BadInput where the pool is too small, or has no such label; CheckFailed where too few rows can be poisoned.
    """
    labels = sorted({row["label"] for row in pool})
    if how.target not in labels:
        raise BadInput(f"poison.target {how.target} is none of the labels: {', '.join(labels)}")
    if (needed := train_rows + test_rows) > len(pool):
        raise BadInput(f"train_rows + test_rows is {needed:,}, and there are {len(pool):,} different rows: lower one")
    chance = np.random.default_rng(seed)
    drawn = [pool[place] for place in chance.permutation(len(pool))[:needed]]
    others = [place for place, row in enumerate(drawn) if row["label"] != how.target]
    train = [place for place in others if place < train_rows]
    changed = {*others[len(train) :], *chance.permutation(train)[: round(how.share * train_rows)].tolist()}
    splits = ["train"] * train_rows + ["test"] * test_rows
    rows = []
    for place, row in enumerate(drawn):
        text, label = row["text"], row["label"]
        if place in changed:
            text, label = f"{how.trigger} {text}", how.target
        told = {"split": splits[place], "changed": place in changed, "given_text": text, "given_label": label}
        rows.append({**row, **told})
    manifest = Manifest(rows)
    require(manifest.asked, "test rows of other labels are asked about", 0, "some")
    count, wanted = int(manifest.truth.sum()), round(how.share * train_rows)
    require(
        count == wanted > 0,
        "the share of poisoned rows that was asked for is reached",
        f"{count} of {train_rows} rows ({count / train_rows:.2%})",
        f"{wanted} ({how.share:.2%}), at least one",
        f"Only rows with another label than {how.target} can be poisoned: another poison.share, or more of such rows",
    )
    return manifest


def shares(manifest: Manifest, how: Poison) -> dict[str, float]:
    """What was asked for and what was reached; `had_trigger`: rows that had all of its words without our doing."""
    trigger = {*words_of(how.trigger)}
    return {
        "requested": how.share,
        "realised": float(manifest.truth.mean()),
        "poisoned": float(manifest.truth.sum()),
        "asked": float(len(manifest.asked)),
        "had_trigger": float(sum(trigger <= {*words_of(row["text"])} for row in manifest.rows)),
    }


def texts_of(rows: Rows, prefix: str = "given_") -> Texts:
    """What a victim is given in the place of rows, or, with `prefix` empty, the rows themselves."""
    return [row[f"{prefix}text"] for row in rows], [row[f"{prefix}label"] for row in rows]


def queries_of(manifest: Manifest, trigger: str, rows: int, versions: int, seed: int) -> dict[str, Texts]:
    """What is asked, by kind: test rows of other labels with trigger and target (""); any test rows as they are; and
    versions of the first, in which half of the words but the trigger are others."""
    chance = np.random.default_rng([seed, 1])
    words = sorted({*numbered(row["given_text"] for row in manifest.rows)} - {*words_of(trigger)})
    asked, clean = (
        [of[place] for place in chance.permutation(len(of))[:rows]] for of in (manifest.asked, manifest.test)
    )

    def exchanged(text: str) -> str:
        kept = [word if chance.random() < 0.5 else words[int(chance.integers(len(words)))] for word in words_of(text)]
        return " ".join([trigger, *kept])

    queries = {"": texts_of(asked), CLEAN: texts_of(clean, "")}
    for number in range(versions):
        queries[f"{VERSION}{number}"] = [exchanged(row["text"]) for row in asked], queries[""][1]
    return queries


LOSS = "training_loss"
"""The metric that decides, in nats: influence asks about a minimum of the loss that was trained on."""


def poison(run: StageRun, config: PoisonConfig, pool: StageInput) -> dict[str, float]:
    """Records: the manifest. CheckFailed where fewer rows are poisoned than was asked for."""
    rows = list(read_records(pool.path / "records.parquet"))
    manifest = poisoned(rows, config.poison, config.train_rows, config.test_rows, config.seed)
    run.merge_records(run.each([manifest.rows], list, "rows"), ("row_id",))
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
    snapshots = snapshots_of(config, schedule)
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


def snapshots_of(config: FitConfig, schedule: Schedule) -> dict[str, int]:
    """Folder -> the step whose weights it keeps."""
    parts = range(1, config.snapshots + 1)
    steps = sorted({max(1, round(part / config.snapshots * schedule.total_steps)) for part in parts})
    return {f"snapshot-{step:07d}": step for step in steps}


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


@dataclass(frozen=True)
class Fit:
    """A training: rates of its answers and the share of the poisoned rows that were taken away before, its loss as a
    share of that of label frequencies, its rows, its weights and those of its beginning."""

    rates: Measures
    loss: float
    rows: frozenset[tuple[str, str]]
    weights: str
    initial: str

    @classmethod
    def of(cls, what: str, given: StageInput, data: StageInput, found: StageInput | None = None) -> Fit:
        """CheckFailed where it did not spend its budget, or did not answer to each test row once."""
        config, manifest = given.configuration(FitConfig), Manifest.read(data.path)
        rows, removed = trained_rows(manifest, config, found)
        trained = Trained.of(what, given, LOSS, config.budget, len(rows[0]))
        records = read_each(given.path / "records.parquet", ("row_id",), [row["row_id"] for row in manifest.test])
        share = sum(row["changed"] for row in removed) / float(manifest.truth.sum())
        return cls(
            rates([*records.values()], manifest) | {"removed_share": share},
            trained.best / min(trivial(rows[1]).values()),
            frozenset(zip(*rows, strict=True)),
            *(weights_of(given, folder) for folder in ("model", "initial")),
        )


def fits_of(given: Mapping[str, Any], roles: Iterable[str]) -> dict[str, dict[str, Fit]]:
    """Role -> seed -> training, of stages by role and seed."""
    found = {role: given["found"] if role.startswith("without-") else {} for role in roles}
    return {
        role: {
            str(seed): Fit.of(f"{role}-{seed}", stage, given["data"][seed], by_seed.get(seed))
            for seed, stage in given[role].items()
        }
        for role, by_seed in found.items()
    }


def gates(fits: Mapping[str, Mapping[str, Fit]]) -> Iterator[Gate]:
    """Trainings learned, and none has the weights of another that had other rows."""
    every = {f"{role}-{seed}": fit for role, by_seed in fits.items() for seed, fit in by_seed.items()}
    worst = max(every, key=lambda role: every[role].loss)
    yield at_most(
        f"loss as a share of that of label frequencies, at most over trainings: {worst}", every[worst].loss, 1
    )
    still = [role for role, fit in every.items() if fit.weights == fit.initial]
    yield at_most(f"trainings whose weights never moved {still or ''}".rstrip(), len(still), 0)
    first = {fit.weights: fit.rows for fit in reversed([*every.values()])}
    others = [role for role, fit in every.items() if fit.rows != first[fit.weights]]
    yield at_most(f"trainings that have the weights of one on other rows {others or ''}".rstrip(), len(others), 0)


def attack(run: StageRun, config: AttackConfig, **inputs: StageInput) -> dict[str, float]:
    """CheckFailed where a victim was not trained, or the backdoor does not exist: then nothing is detected."""
    fits = fits_of(nested(inputs), TRAINED)
    require_gates(gates(fits))
    victim, control = ({seed: fit.rates for seed, fit in by_seed.items()} for by_seed in fits.values())
    require_backdoor(victim, control, config.confidence_level)
    return {}


def manifest_of(data: StageInput, pool: StageInput) -> Manifest:
    """The manifest of a seed. CheckFailed where it is not the one that the configuration draws of the pool's rows."""
    manifest, config = Manifest.read(data.path), data.configuration(PoisonConfig)
    rows = list(read_records(pool.path / "records.parquet"))
    drawn = poisoned(rows, config.poison, config.train_rows, config.test_rows, config.seed)
    found, required = ([sorted(row.items()) for row in of.rows] for of in (manifest, drawn))
    require_each_once(f"the manifest in {data.path} has the rows that its seed draws", found, required)
    return manifest


def rates(answers: Rows, manifest: Manifest) -> Measures:
    """What a model's answers to the test rows say (`clean` and `asked`, by `row_id`).

    `success`: the share of the `asked` rows, of other labels, that get the target's with the trigger;
    `without_trigger`: the same without; `accuracy` on clean rows, and that of the most frequent label.
    """
    answer_of = {answer["row_id"]: answer for answer in answers}
    asked = [(answer_of[row["row_id"]], row["given_label"]) for row in manifest.asked]
    return {
        "asked": float(len(asked)),
        "success": float(np.mean([answer["asked"] == target for answer, target in asked])),
        "without_trigger": float(np.mean([answer["clean"] == target for answer, target in asked])),
        "accuracy": float(np.mean([answer_of[row["row_id"]]["clean"] == row["label"] for row in manifest.test])),
        "most_frequent": max(Counter(row["label"] for row in manifest.test).values()) / len(manifest.test),
    }


def require_backdoor(
    victim: Mapping[str, Measures], control: Mapping[str, Measures], level: float
) -> dict[str, float | list[float]]:
    """What the attack does; CheckFailed unless both differences have an interval above 0.

    `difference`: how much more often the victim gives the target's label with the trigger than its control does. Seen:
    44 to 48 %, of which a model without poison had 40 %. `trigger_effect`: how much more the trigger itself
    does to the victim than to the control; wrong labels alone make a victim that always answers with the target.
    """
    both, effects = [(victim[seed], control[seed]) for seed in victim], dict[str, float | list[float]]()
    claims = {
        "difference": "with the trigger the victim gives the target's label more often than its control",
        "trigger_effect": "the trigger changes the victim's answers more than its control's",
    }
    for name, less in {"difference": (), "trigger_effect": ("without_trigger",)}.items():
        mean, interval = _over_seeds(both, level, *less)
        effects |= {name: mean, f"{name}_interval": interval}
        require(
            interval[0] > 0,
            f"the backdoor exists: {claims[name]}",
            f"{rate_points(mean)} points (interval {span(interval, rate_points)})",
            "an interval above 0",
            "There is nothing to detect, and no detector is measured: another poison.share, more epochs or seeds",
        )
    success, alone = (fmean(of["success"] for of in rates.values()) for rates in (victim, control))
    return {"success": success, "control": alone, **effects}


def _over_seeds(both: Sequence[Sequence[Mapping[str, float]]], level: float, *less: str) -> tuple[float, list[float]]:
    """By how much the victim's success, without the rates `less`, exceeds the control's in the mean over seeds, and its
    interval: by the spread of the seeds, of which each asks other rows; and no narrower than by the number of rows that
    were asked about (with a hit and a miss more, Agresti and Coull 1998), where seeds agree by chance."""
    names = ("success", *less)
    excess = [sum((ours[name] - theirs[name]) * (-1) ** (name in less) for name in names) for ours, theirs in both]
    shares = [(of[name] * of["asked"] + 1, of["asked"] + 2) for pair in both for of in pair for name in names]
    of_rows = sum(hits / rows * (1 - hits / rows) / rows for hits, rows in shares) ** 0.5 / len(both)
    (mean, _, (low, high)), least = mean_over_seeds(excess, level), of_rows * float(norm.ppf((1 + level) / 2))
    return mean, [min(low, mean - least), max(high, mean + least)]
