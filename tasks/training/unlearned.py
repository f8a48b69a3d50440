"""Which finished trainings are no better than what needs no learning, said wherever their study is shown.

Read from result.json, without torch: whatever a stage calls its training, `described` wrote the trivial values there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from storage.kinds import NUMBER, fits
from storage.run_directory import RunDirectory, read

SHOWN = 4


def unlearned(runs: Iterable[RunDirectory]) -> str:
    """A sentence over the trainings among these runs; empty where each beats its trivial values, or has none."""
    trainings, found, methods = 0, list[str](), list[str]()
    for run in sorted(set(runs), key=lambda one: one.path):
        for training in _trainings(read(run.result_file)):
            trainings += 1
            method, least = min(training["trivial"].items(), key=lambda item: item[1])
            if training["ratio_to_trivial"] * least >= least:
                cell = read(run.stage_file).get("configuration", {}).get("cell")
                found.append(f"{run.stage} {run.path.name}" + (f" ({cell})" if cell else ""))
                methods.append(method)
    if not found:
        return ""
    more = f" and {len(found) - SHOWN} more" if found[SHOWN:] else ""
    return (
        f"{len(found)} of {trainings} training{'s' * (trainings > 1)} {'are' if found[1:] else 'is'} no better than "
        f"{' or '.join(dict.fromkeys(methods))}, which learns nothing: {', '.join(found[:SHOWN])}{more}"
    )


def _trainings(found: Any) -> Iterator[dict[str, Any]]:
    if isinstance(found, list):
        for inner in found:
            yield from _trainings(inner)
    elif isinstance(found, dict):
        trivial = found.get("trivial")
        if isinstance(trivial, dict) and trivial:
            numbers = [*trivial.values(), found.get("ratio_to_trivial")]
            yield from [found] if all(fits(one, NUMBER) for one in numbers) else []
        for name, inner in found.items():
            if name != "validations":  # of these the best stands above them
                yield from _trainings(inner)
