"""The numbers of the poison study's trainings, from their verified files; poison-attack, which asks for them first."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from storage.errors import require_equal
from storage.records import read_each, read_records
from tasks.attacks.poisoning import Manifest, poisoned, rates, require_backdoor, require_manifest
from tasks.findings.gates import Gate, at_most, require_gates
from tasks.poison.fit import LOSS, trained_rows, trivial
from tasks.poison.results import Measures
from tasks.poison.stages import TRAINED, AttackConfig, FitConfig, PoisonConfig
from tasks.stage.run import StageInput, StageRun
from tasks.training.trained import Trained
from tasks.training.weights import weights_digest


@dataclass(frozen=True)
class Fit:
    """A training: rates of its answers, its loss as a share of that of label frequencies, its rows, its weights and
    those of its beginning."""

    rates: Measures
    loss: float
    rows: frozenset[tuple[str, str]]
    removed_poisoned: int
    weights: str
    initial: str

    @classmethod
    def of(cls, what: str, given: StageInput, data: StageInput, found: StageInput | None = None) -> Fit:
        """CheckFailed where it did not spend its budget, or did not answer to each test row once."""
        config, manifest = given.configuration(FitConfig), Manifest.read(data.path)
        rows, removed = trained_rows(manifest, config, found)
        trained = Trained.of(what, given, LOSS, config.budget, len(rows[0]))
        asked = [row["row_id"] for row in manifest.test]
        records = read_each(given.path / "records.parquet", ("row_id",), asked)
        return cls(
            rates([*records.values()], manifest),
            trained.best / min(trivial(rows[1]).values()),
            frozenset(zip(*rows, strict=True)),
            sum(row["changed"] for row in removed),
            *(weights_digest(given.path / folder) for folder in ("model", "initial")),
        )


def gates(fits: Mapping[str, Fit]) -> Iterator[Gate]:
    """Trainings learned, and none has the weights of another that had other rows."""
    worst = max(fits, key=lambda role: fits[role].loss)
    yield at_most(f"loss as a share of that of label frequencies, at most over trainings: {worst}", fits[worst].loss, 1)
    still = [role for role, fit in fits.items() if fit.weights == fit.initial]
    yield at_most(f"trainings whose weights never moved {still or ''}".rstrip(), len(still), 0)
    first = {fit.weights: fit.rows for fit in reversed([*fits.values()])}
    others = [role for role, fit in fits.items() if fit.rows != first[fit.weights]]
    yield at_most(f"trainings that have the weights of one on other rows {others or ''}".rstrip(), len(others), 0)


def attack(run: StageRun, config: AttackConfig, **inputs: StageInput) -> dict[str, float]:
    """CheckFailed where a victim was not trained, or the backdoor does not exist: then nothing is detected."""
    fits = {
        f"{rows}-{seed}": Fit.of(f"{rows}-{seed}", inputs[f"{rows}-{seed}"], inputs[f"data-{seed}"])
        for rows in TRAINED
        for seed in config.seeds
    }
    require_gates(gates(fits))
    victim, control = ({str(seed): fits[f"{rows}-{seed}"].rates for seed in config.seeds} for rows in TRAINED)
    require_backdoor(victim, control, config.confidence_level)
    return {}


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
