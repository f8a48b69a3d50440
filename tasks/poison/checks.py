"""poison-attack, and the gates before a number is used: a stage's own words beside its files, and the manifest."""

from __future__ import annotations

from storage.errors import require, require_close, require_each_once, require_equal
from storage.records import read_records, records_digest
from tasks.attacks.poisoning import Manifest, rates, require_backdoor, require_manifest, shares
from tasks.poison.fit import LOSS, trained_rows, trivial
from tasks.poison.results import AttackResult, FitResult, PoisonResult
from tasks.poison.stages import TRAINED, AttackConfig, FitConfig, PoisonConfig
from tasks.stage.run import StageInput, StageRun
from tasks.training.logged import require_trained
from tasks.training.weights import weights_digest

SAME = 1e-9


def attack(run: StageRun, config: AttackConfig, **inputs: StageInput) -> AttackResult:
    """CheckFailed where a victim was not trained, or the backdoor does not exist: then nothing is detected."""
    victim, control = (
        {
            str(seed): require_fit(f"{rows}-{seed}", inputs[f"{rows}-{seed}"], inputs[f"data-{seed}"]).rates
            for seed in config.seeds
        }
        for rows in TRAINED
    )
    return AttackResult(**require_backdoor(victim, control, config.confidence_level))


def require_data(what: str, data: StageInput, pool: StageInput) -> PoisonResult:
    """The manifest is made of the pool's rows, and its result is what it says."""
    told, manifest, config = PoisonResult.read(data), Manifest.read(data.path), data.configuration(PoisonConfig)
    rows = list(read_records(pool.path / "records.parquet"))
    require_manifest(manifest, rows, config.poison, config.train_rows, config.test_rows)
    require_equal(f"the shares of {what} follow from the manifest", told.shares, shares(manifest, config.poison))
    return told


def require_fit(what: str, given: StageInput, data: StageInput, found: StageInput | None = None) -> FitResult:
    """A training was made on its rows as asked for, learned, and its rates follow from its answers to test rows."""
    told, config, manifest = FitResult.read(given), given.configuration(FitConfig), Manifest.read(data.path)
    (_, labels), removed = trained_rows(manifest, config, found)
    file, least, ratio = given.run.metrics_file, trivial(labels), told.training["ratio_to_trivial"]
    require_trained(what, file, told.training, LOSS, config.budget, len(labels), trivial=least)
    for name, said in (("initial", told.initial_digest), ("model", told.weights_digest)):
        require_equal(f"{name}/ of {what} holds the weights that it left", weights_digest(given.path / name), said)
    learned = ratio < 1 and told.weights_digest != told.initial_digest
    measured = f"{ratio:.3f} of the loss of label frequencies"
    require(learned, f"{what} was trained", measured, "below 1, and other weights than at the beginning")
    poisoned = sum(row["changed"] for row in removed)
    require_equal(f"what {what} left out", (told.removed, told.removed_poisoned), (len(removed), poisoned))
    file = given.path / "records.parquet"
    records, ids = list(read_records(file)), [row["row_id"] for row in manifest.test]
    require_each_once(f"{what} answered to each test row once", (row["row_id"] for row in records), ids, f" in {file}")
    require_equal(f"the digest of the records of {what}", told.records_digest, records_digest(file, ("row_id",)))
    for name, rate in rates(records, manifest).items():
        require_close(f"the {name} of {what} follows from the records", told.rates[name], rate, SAME)
    return told
