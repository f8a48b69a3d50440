"""What the records of icecube-rates say, for the stage itself, the training and the report: no torch."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from storage.records import read_records
from tasks.icecube.configuration import RateLimits
from tasks.training.trials.findings import RateRow, Recommendation, Tried
from tasks.training.trials.rate_table import rate_row, recommended


def rate_rows(directory: Path, rates: Sequence[float]) -> list[RateRow]:
    """The row of each rate, from the records in the run directory."""
    records = list(read_records(directory / "records.parquet"))
    tried = {rate: [record for record in records if record["rate"] == rate] for rate in rates}
    return [
        rate_row(rate, [Tried(**{name: record[name] for name in Tried.model_fields}) for record in some])
        for rate, some in tried.items()
    ]


def recommendation(rows: Sequence[RateRow], limits: RateLimits) -> Recommendation:
    """The rate to take, or why there is none."""
    return recommended(rows, limits.max_gradient_norm, limits.min_gain_degrees)
