"""In what a run that was killed differs from an undisturbed one: rows, checkpoints, and tensors where bytes differ."""

from __future__ import annotations

import math
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from storage import durable
from storage.run_directory import read

OF_THE_CLOCK = ("elapsed", "seconds", "log_history", "scratch", "files", "sha256", "metrics", "reported")
"""Names in the state of a checkpoint that say when it was made, or digests of what is compared itself."""
SHOWN = 3


def differences(whole: Path, killed: Path) -> str:
    """What differs, in words; empty for nothing, `not ...` where there is nothing to compare."""
    ends = [(run / "COMPLETE.json").exists() for run in (whole, killed)]
    if ends[0] != ends[1]:
        return f"{'the killed' if ends[0] else 'the undisturbed'} run was not finished, and the other one was"
    pairs = dict(_outputs(whole, killed) if all(ends) else _kept(whole, killed))
    if not pairs:
        return "not shown: it kept nothing to compare"
    differing = [f"{name} ({how})" for name, (one, other) in sorted(pairs.items()) if (how := _differing(one, other))]
    more = f" and {len(differing) - SHOWN} more" if differing[SHOWN:] else ""
    return ", ".join(differing[:SHOWN]) + more


def _outputs(whole: Path, killed: Path) -> Iterator[tuple[str, tuple[Path, Path]]]:
    names = {name for run in (whole, killed) for name in read(run / "COMPLETE.json").get("outputs", {})}
    yield from ((name, (whole / name, killed / name)) for name in names - {"stage.json"})


def _kept(whole: Path, killed: Path) -> Iterator[tuple[str, tuple[Path, Path]]]:
    """Rows, parts of records, and the newest checkpoint of a step that both have."""
    for name in {file.name for run in (whole, killed) for file in run.glob("records/*.parquet")}:
        yield f"records/{name}", (whole / "records" / name, killed / "records" / name)
    steps = [{int(file.name) for file in run.glob("checkpoints/[0-9]*")} for run in (whole, killed)]
    if not (common := steps[0] & steps[1]):
        return
    places = [run / "checkpoints" / str(max(common)) for run in (whole, killed)]
    yield from _files("checkpoint", *places)
    states = [read(place / "state.json") for place in places]
    if all("scratch" in state for state in states):
        yield from _files(
            "checkpoint",
            *(run / "scratch" / state["scratch"] for run, state in zip((whole, killed), states, strict=True)),
        )
    lengths = [(state.get("metrics") or {}).get("length") for state in states]
    if all(lengths) and lengths[0] == lengths[1]:
        yield "metrics.jsonl", (whole / "metrics.jsonl", killed / "metrics.jsonl")


def _files(name: str, one: Path, other: Path) -> Iterator[tuple[str, tuple[Path, Path]]]:
    if not one.is_dir():
        yield f"{name}/{one.name}", (one, other)
        return
    names = {file.relative_to(place) for place in (one, other) for file in place.rglob("*") if file.is_file()}
    for file in names - {Path("manifest.json")}:
        yield f"{name}/{file}", (one / file, other / file)


def _differing(one: Path, other: Path) -> str:
    """How two files differ; empty where they say the same."""
    if missing := next((path for path in (one, other) if not path.exists()), None):
        return f"missing in the {'undisturbed' if missing == one else 'killed'} run"
    first, second = one.read_bytes(), other.read_bytes()
    length = min(len(first), len(second)) if one.name == "metrics.jsonl" else max(len(first), len(second))
    if first[:length] == second[:length]:
        return ""
    if one.suffix == ".json":
        return _place(_without_clock(durable.read_json(one)), _without_clock(durable.read_json(other)), "")
    if zipfile.is_zipfile(one) and zipfile.is_zipfile(other):
        members = [_members(file) for file in (one, other)]
        names = [name for name in {**members[0], **members[1]} if members[0].get(name) != members[1].get(name)]
        return ", ".join(f"tensor {name[5:]}" if name.startswith("data/") else "values" for name in names[:SHOWN])
    return "bytes"


def _members(file: Path) -> dict[str, bytes]:
    """The tensors and the rest of a file of torch.save, which is a zip file; no pickle is loaded."""
    with zipfile.ZipFile(file) as archive:
        members = {name.partition("/")[2]: archive.read(name) for name in archive.namelist()}
    return {name: data for name, data in members.items() if not name.endswith("serialization_id")}


def _without_clock(value: Any) -> Any:
    if isinstance(value, dict):
        kept = {name: inner for name, inner in value.items() if not any(word in name for word in OF_THE_CLOCK)}
        return {name: _without_clock(inner) for name, inner in kept.items()}
    return [_without_clock(inner) for inner in value] if isinstance(value, list) else value


def _place(one: Any, other: Any, place: str) -> str:
    """The first place in which two values differ."""
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        if one.keys() != other.keys():
            return f"{place}: names"
        return next((found for name in one if (found := _place(one[name], other[name], f"{place}[{name!r}]"))), "")
    if isinstance(one, list | tuple) and isinstance(other, list | tuple) and len(one) == len(other):
        pairs = enumerate(zip(one, other, strict=True))
        return next((found for number, (a, b) in pairs if (found := _place(a, b, f"{place}[{number}]"))), "")
    both_nan = isinstance(one, float) and isinstance(other, float) and math.isnan(one) and math.isnan(other)
    return "" if both_nan or (type(one) is type(other) and one == other) else f"{place}: {one} and {other}"
