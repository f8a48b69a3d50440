"""Names the finished trainings that are no better than a method without learning, and the runs that went on in a way
that nothing shows to be exact, wherever their study is shown.

It reads metric rows, without torch.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from storage.attempts import exactness
from storage.reading import NUMBER, fits
from storage.rows import rows_of
from storage.run_directory import RunDirectory, read

SHOWN = 4


def unlearned(runs: Iterable[RunDirectory]) -> str:
    """A sentence on the unlearned trainings of these runs, and one on each that is not shown to be exact."""
    runs = sorted(set(runs), key=lambda run: run.path)
    doubted = [f"{run.stage} {run.path.name} {doubt}" for run in runs if (doubt := exactness(run))]
    more = [f"and {len(doubted) - SHOWN} more"] if doubted[SHOWN:] else []
    return "; ".join(filter(None, [_unlearned(runs), *doubted[:SHOWN], *more]))


def _unlearned(runs: Sequence[RunDirectory]) -> str:
    """A sentence on the unlearned trainings of these runs; empty where each beats its trivial values, or has none."""
    trainings, names, methods = 0, list[str](), list[str]()
    for run in runs:
        for row in [row for row in best_row(run) if row.get("trivial")]:
            trainings += 1
            higher = row.get("higher_is_better") is True
            method, best = (max if higher else min)(row["trivial"].items(), key=lambda item: item[1])
            reached = row["ratio_to_trivial"] * best
            if reached <= best if higher else reached >= best:
                cell = read(run.stage_file).get("configuration", {}).get("cell")
                names.append(f"{run.stage} {run.path.name}" + (f" ({cell})" if cell else ""))
                methods.append(method)
    if not names:
        return ""
    more = f" and {len(names) - SHOWN} more" if names[SHOWN:] else ""
    return (
        f"{len(names)} of {trainings} training{'s' * (trainings > 1)} {'are' if names[1:] else 'is'} no better than "
        f"{' or '.join(dict.fromkeys(methods))}, which learns nothing: {', '.join(names[:SHOWN])}{more}"
    )


def best_row(run: RunDirectory) -> list[dict[str, Any]]:
    """The metric row of the best validation, by its trivial values where it has some; none of what is no training."""
    rows = rows_of(run.metrics_file)
    if beside := [row for row in rows if row.get("trivial") and fits(row.get("ratio_to_trivial"), NUMBER)]:
        higher = beside[0].get("higher_is_better") is True
        return [(max if higher else min)(beside, key=lambda row: row["ratio_to_trivial"])]
    return sorted((row for row in rows if "validation_loss" in row), key=lambda row: row["validation_loss"])[:1]
