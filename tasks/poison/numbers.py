"""The numbers of the poison study's trainings, from their verified files; poison-attack, which asks for them first."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from storage.errors import require_equal
from storage.records import read_each, read_records
from tasks.attacks.poisoning import Manifest, poisoned, rates, require_backdoor, require_manifest
from tasks.findings.gates import Gate, at_most, require_gates
from tasks.poison.fit import LOSS, trained_rows, trivial
from tasks.poison.stages import TRAINED, AttackConfig, FitConfig, Measures, PoisonConfig
from tasks.stage.run import StageInput, StageRun
from tasks.stage.study import nested
from tasks.training.trained import Trained
from tasks.training.weights import weights_digest


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
    backdoor_of(fits, config.confidence_level)
    return {}


def backdoor_of(fits: Mapping[str, Mapping[str, Fit]], level: float) -> dict[str, Any]:
    """What the attack does; CheckFailed where that is not shown."""
    victim, control = ({seed: fit.rates for seed, fit in fits[role].items()} for role in TRAINED)
    return require_backdoor(victim, control, level)


def manifest_of(data: StageInput, pool: StageInput) -> Manifest:
    """The manifest of a seed. CheckFailed where it is not the one that the configuration draws of the pool's rows."""
    manifest, config = Manifest.read(data.path), data.configuration(PoisonConfig)
    rows, asked = list(read_records(pool.path / "records.parquet")), (config.train_rows, config.test_rows)
    require_manifest(manifest, rows, config.poison, *asked)
    drawn = {row["row_id"]: row for row in poisoned(rows, config.poison, *asked, config.seed).rows}
    for row in manifest.rows:
        what = f"row {row['row_id']} of the manifest is the one that its seed draws, in {data.path}"
        require_equal(what, row, drawn.get(row["row_id"]))
    return manifest
