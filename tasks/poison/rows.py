"""poison-poison: the rows of one seed, some of them poisoned."""

from storage.records import read_records
from tasks.attacks.poisoning import poisoned
from tasks.poison.stages import PoisonConfig
from tasks.stage.run import StageInput, StageRun


def poison(run: StageRun, config: PoisonConfig, pool: StageInput) -> dict[str, float]:
    """Records: the manifest. CheckFailed where fewer rows are poisoned than was asked for."""
    rows = list(read_records(pool.path / "records.parquet"))
    found = poisoned(rows, config.poison, config.train_rows, config.test_rows, config.seed)
    run.merge_records(run.each([found.rows], list, "rows"), ("row_id",))
    return {}
