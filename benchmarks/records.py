"""What merging and digesting records costs in memory and time: by row groups, and all rows at once in the same run.

python -m benchmarks.records --rows 1000000
"""

import argparse
import hashlib
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks import language
from storage import locks
from storage.records import RecordParts
from tests.records import plain_digest

KEY = ("model", "example_id")
PART_ROWS = 50_000


def rows(first: int, end: int) -> Iterator[dict[str, Any]]:
    for n in range(first, end):
        example_id = hashlib.sha256(str(n).encode()).hexdigest()
        yield {"model": "base", "example_id": example_id, "tokens_scored": n % 97, "loss_sum_nats": n / 7}


def write(folder: Path, parts: list[str], count: int) -> None:
    lock = locks.acquire(folder / "locks")
    for number, part in enumerate(parts):
        first = number * PART_ROWS
        RecordParts(folder / "records", {}, lock).write(part, rows(first, min(count, first + PART_ROWS)))
    lock.release()


def by_row_groups(folder: Path, parts: list[str]) -> str:
    lock = locks.acquire(folder / "locks")
    try:
        return RecordParts(folder / "records", {}, lock).merge(parts, folder / "records.parquet", KEY)
    finally:
        lock.release()


def all_at_once(folder: Path, parts: list[str]) -> str:
    """What Ratchet did before: every row as a dictionary, sorted."""
    tables = [pq.read_table(folder / "records" / f"{part}.parquet") for part in parts]
    pq.write_table(pa.concat_tables(tables), folder / "peer.parquet")
    return plain_digest(pq.read_table(folder / "peer.parquet").to_pylist(), KEY)


def measured(work: Callable[..., Any], *given: Any) -> tuple[Any, float, float]:
    """What `work` returns, its seconds, and by how many MB it raised the peak memory of this process."""
    before, began = _peak_mb(), time.monotonic()
    returned = work(*given)
    return returned, time.monotonic() - began, _peak_mb() - before


def _peak_mb() -> float:
    status = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in status if line.startswith("VmHWM")).split()[1]) / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--folder", default=".", help="where the records are written")
    options = parser.parse_args()
    digests = {}
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        folder, parts = Path(name), [f"part-{number:05d}" for number in range(-(-options.rows // PART_ROWS))]
        works = {
            "written by row groups": (write, folder, parts, options.rows),
            "merged and digested by row groups": (by_row_groups, folder, parts),
            "merged and digested all at once": (all_at_once, folder, parts),
        }
        for told, work in works.items():
            with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as fresh:  # a peak is never taken back
                digests[told], seconds, growth = fresh.submit(measured, *work).result()
            sys.stdout.write(f"{told}: {growth:,.0f} MB more at the peak, {options.rows / seconds:,.0f} rows/s\n")
            sys.stdout.flush()
    _, ours, peer = digests.values()
    assert ours == peer
    sys.stdout.write(f"the same digest of {options.rows:,} rows\n{language.machine()}\n")


if __name__ == "__main__":
    main()
