"""The numbers of the poison study's trainings, from their verified files; poison-attack, which asks for them first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import numpy as np
from scipy.stats import norm

from storage.errors import require, require_each_once
from storage.records import Rows, read_each, read_records
from tasks.findings.gates import Gate, at_most, require_gates
from tasks.findings.numbers import rate_points, span
from tasks.findings.statistics.seeds import mean_over_seeds
from tasks.poison.fit import LOSS, trained_rows, trivial
from tasks.poison.manifest import Manifest, poisoned
from tasks.poison.stages import TRAINED, AttackConfig, FitConfig, Measures, PoisonConfig
from tasks.stage.run import StageInput, StageRun
from tasks.stage.study import nested
from tasks.training.trained import Trained
from tasks.training.weights import weights_digest

Rates = Mapping[str, Mapping[str, float]]
"""`rates` of a kind of trainings, by seed."""


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
            *(weights_digest(given.path / folder) for folder in ("model", "initial")),
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
    said = {answer["row_id"]: answer for answer in answers}
    asked = [(said[row["row_id"]], row["given_label"]) for row in manifest.asked]
    return {
        "asked": float(len(asked)),
        "success": float(np.mean([answer["asked"] == target for answer, target in asked])),
        "without_trigger": float(np.mean([answer["clean"] == target for answer, target in asked])),
        "accuracy": float(np.mean([said[row["row_id"]]["clean"] == row["label"] for row in manifest.test])),
        "most_frequent": max(Counter(row["label"] for row in manifest.test).values()) / len(manifest.test),
    }


def require_backdoor(victim: Rates, control: Rates, level: float) -> dict[str, Any]:
    """What the attack does; CheckFailed unless both differences have an interval above 0.

    `difference`: how much more often the victim gives the target's label with the trigger than its control does. Seen:
    44 to 48 %, of which a model without poison had 40 %. `trigger_effect`: how much more the trigger itself
    does to the victim than to the control; wrong labels alone make a victim that always answers with the target.
    """
    both, found = [(victim[seed], control[seed]) for seed in victim], dict[str, Any]()
    said = {
        "difference": "with the trigger the victim gives the target's label more often than its control",
        "trigger_effect": "the trigger changes the victim's answers more than its control's",
    }
    for name, less in {"difference": (), "trigger_effect": ("without_trigger",)}.items():
        mean, interval = _over_seeds(both, level, *less)
        found |= {name: mean, f"{name}_interval": interval}
        require(
            interval[0] > 0,
            f"the backdoor exists: {said[name]}",
            f"{rate_points(mean)} points (interval {span(interval, rate_points)})",
            "an interval above 0",
            "There is nothing to detect, and no detector is measured: another poison.share, more epochs or seeds",
        )
    success, alone = (fmean(of["success"] for of in rates.values()) for rates in (victim, control))
    return {"success": success, "control": alone, **found}


def _over_seeds(both: Sequence[Sequence[Mapping[str, float]]], level: float, *less: str) -> tuple[float, list[float]]:
    """By how much the victim's success, without the rates `less`, exceeds the control's in the mean over seeds, and its
    interval: by the spread of the seeds, of which each asks other rows; and no narrower than by the number of rows that
    were asked about (with a hit and a miss more, Agresti and Coull 1998), where seeds agree by chance."""
    names = ("success", *less)
    excess = [sum((ours[name] - theirs[name]) * (-1) ** (name in less) for name in names) for ours, theirs in both]
    shares = [(of[name] * of["asked"] + 1, of["asked"] + 2) for pair in both for of in pair for name in names]
    of_rows = sum(hits / rows * (1 - hits / rows) / rows for hits, rows in shares) ** 0.5 / len(both)
    over, least = mean_over_seeds(excess, level), of_rows * float(norm.ppf((1 + level) / 2))
    return over.mean, [min(over.interval[0], over.mean - least), max(over.interval[1], over.mean + least)]
