"""Every source of a finished study edited, sealed again, and asked of its audit and its report: what is accepted?

python -m tests.tasks.tampering STUDY FOLDER     a table of all of them, for the folder of a finished smoke study
"""

import importlib
import os
import random
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from safetensors.numpy import load_file, save_file

from storage import durable
from storage.errors import BadInput, CheckFailed
from storage.lineage import leaves as of_dictionaries
from tasks.findings.final_results import Origins
from tasks.stage.reopened import Reopened, reopen
from tasks.stage.result import as_json
from tasks.training.trained import metric_rows
from tests.tasks.resealed import seal

A_ROW_LESS, A_ROW_TWICE = "(a row less)", "(a row twice)"
LEFT = ("checkpoints", "records", "jobs")


class Source(NamedTuple):
    """A key of a file of a stage: a column, a tensor, a name in JSON whose places in lists are left out."""

    stage: str
    file: str
    key: str


FRAME = ("study", "runs.*", "provenance.*", "audit.*", "gates.*", "numerics_changes.*")
"""What every report has (`StudyResults`), computed of the runs and of the other numbers."""


def leaves(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """The numbers and texts of a JSON value, by their names such as `arms.none.values.0`."""
    for inner, below in of_dictionaries(value, name):
        if isinstance(below, list):
            for place, item in enumerate(below):
                yield from leaves(item, f"{inner}.{place}")
        else:
            yield inner, below


def origin_of(origins: Origins, name: str) -> str:
    """`computed`, `asked` or `not asked`; empty where no pattern fits."""
    groups = {"computed": [*FRAME, *origins.computed], "asked": origins.asked, "not asked": origins.not_asked}
    fitting = [(len(one), group) for group, patterns in groups.items() for one in patterns if fnmatchcase(name, one)]
    return max(fitting, default=(0, ""))[1]


def general(name: str) -> str:
    return re.sub(r"(?<=\.)\d+(?=\.|$)", "*", name)


def runs_of(folder: Path) -> dict[str, list[Path]]:
    """Stage -> the run directories of a study's folder."""
    found: dict[str, list[Path]] = {}
    for marker in sorted(folder.glob("*/*/COMPLETE.json")):
        if not marker.parent.is_symlink():
            found.setdefault(marker.parents[1].name, []).append(marker.parent)
    return found


def sources(folder: Path) -> list[Source]:
    """All of them, but of the audit and the report themselves."""
    return sorted(
        {
            Source(stage, name, key)
            for stage, runs in runs_of(folder).items()
            if not (stage.endswith("audit") or (runs[0] / "final_results.json").exists())
            for run in runs
            for name in durable.read_json(run / "COMPLETE.json")["outputs"]
            if name != "stage.json"
            for key in _keys(run / name)
        }
    )


def _keys(file: Path) -> Iterator[str]:
    if not file.exists():
        return
    if file.suffix == ".json" and file.name not in ("tokenizer.json", "config.json"):
        yield from (general(name) for name, value in leaves(durable.read_json(file)) if value is not None)
    elif file.suffix == ".jsonl":
        yield from {general(name) for row in metric_rows(file) for name, value in leaves(row) if value is not None}
    elif file.suffix == ".parquet":
        yield from (*pq.read_schema(file).names, A_ROW_LESS, A_ROW_TWICE)
    elif file.suffix == ".safetensors":
        yield from load_file(file)
    elif file.suffix == ".npy":
        yield "values"


def edit(folder: Path, source: Source, draw: random.Random) -> Path:
    """Edits the source in one run of its stage, and seals that again."""
    runs = [run for run in runs_of(folder)[source.stage] if source.key in _keys(run / source.file)]
    run = draw.choice(runs)
    file = run / source.file
    if file.suffix == ".json":
        value = _changed(durable.read_json(file), source.key)
        file.unlink()
        durable.write_json(file, value)
    elif file.suffix == ".jsonl":
        rows = [_changed(row, source.key) for row in metric_rows(file)]
        file.unlink()
        file.write_bytes(b"".join(durable.canonical_json(row) + b"\n" for row in rows))
    elif file.suffix == ".parquet":
        table = _other_table(pq.read_table(file), source.key)
        file.unlink()
        pq.write_table(table, file)
    elif file.suffix == ".safetensors":
        tensors = load_file(file)
        tensors[source.key] = _other_array(tensors[source.key])
        file.unlink()
        save_file(tensors, file)
    else:
        array = _other_array(np.load(file))
        file.unlink()
        np.save(file, array)
    seal(run)
    return run


def _other_table(table: pa.Table, key: str) -> pa.Table:
    if key in (A_ROW_LESS, A_ROW_TWICE):
        return table.slice(1) if key == A_ROW_LESS else pa.concat_tables([table.slice(0, 1), table])
    values, place = table[key].to_pylist(), table.schema.get_field_index(key)
    names = sorted({*values}) if isinstance(values[0], str) else []
    others = dict(zip(names, names[1:] + names[:1], strict=True)) if len(names) > 1 else {}  # so that every row changes
    other = [others.get(value, _other(value)) if names else _other(value) for value in values]
    return table.set_column(place, table.schema.field(place), pa.array(other, table.schema.types[place]))


def _changed(value: Any, key: str, name: str = "") -> Any:
    if isinstance(value, dict):
        return {inner: _changed(each, key, f"{name}.{inner}" if name else inner) for inner, each in value.items()}
    if isinstance(value, list):
        return [_changed(each, key, f"{name}.*") for each in value]
    return _other(value) if general(name) == key else value


def _other(value: Any) -> Any:
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + 1
    if isinstance(value, float):
        return -1.25 * value - 0.01
    if isinstance(value, list):
        return [_other(each) for each in value]
    return f"{value} again" if isinstance(value, str) else value


def _other_array(array: np.ndarray) -> np.ndarray:
    if array.dtype.kind in "iu":
        return np.roll(array, 1)
    return (~array if array.dtype == bool else array * 1.1 + 0.01).astype(array.dtype)


class Published(NamedTuple):
    """What a report says: all its numbers, and the lines that a person reads first."""

    numbers: dict[str, Any]
    answer: list[str]


def asked_again(folder: Path) -> Published:
    """What audit and report of a study's folder say now; CheckFailed or BadInput where they refuse."""
    last = next(runs[0] for runs in runs_of(folder).values() if (runs[0] / "final_results.json").exists())
    audit = next((runs[0] for stage, runs in runs_of(folder).items() if stage.endswith("audit")))
    durable.write_json(audit / "result.json", _made(reopen(audit))[0])
    seal(audit)
    result, numbers = _made(reopen(last))
    return Published(dict(leaves(numbers)), [result.get("headline", ""), *result.get("answer", [])])


def _made(stage: Reopened) -> tuple[dict[str, Any], Any]:
    identity = {"inputs": {role: given.outputs_digest for role, given in stage.inputs.items()}}
    with stage.elsewhere(identity) as (work, config):
        work.run = replace(work.run, root=stage.run.root)  # runs are named relative to their own root
        result = stage.stage.function()(work, config, **stage.inputs)
        file = work.directory / "final_results.json"
        return as_json(result), durable.read_json(file) if file.exists() else None


def copy(folder: Path, place: Path) -> Path:
    """The study's folder in other names for the same bytes."""
    root = place / "runs" / folder.name
    return Path(
        shutil.copytree(folder, root, symlinks=True, copy_function=os.link, ignore=shutil.ignore_patterns(*LEFT))
    )


def accepted(folder: Path, source: Source, before: Published, draw: random.Random) -> str | list[str]:
    """Why the edited source is refused, or which numbers are others now (`answer`: what is read first)."""
    with tempfile.TemporaryDirectory(prefix="ratchet-tampered-") as place:
        root = copy(folder, Path(place))
        edit(root, source, draw)
        try:
            now = asked_again(root)
        except (CheckFailed, BadInput) as error:
            return str(error)
    names = before.numbers.keys() | now.numbers.keys()
    changed = sorted(name for name in names if before.numbers.get(name) != now.numbers.get(name))
    return changed + ["answer"] * (now.answer != before.answer)


def origins_of(study: str) -> Origins:
    return importlib.import_module(f"tasks.{study}.final_results").ORIGINS


def unnamed(study: str, names: list[str]) -> list[str]:
    """Those of the numbers that an accepted edit changed which nobody is told of."""
    origins = origins_of(study)
    ours = [name for name in names if not name.startswith(("audit.", "provenance.", "runs."))]
    return [name for name in ours if name == "answer" or origin_of(origins, name) != "not asked"]


def table(study: str, folder: Path, chosen: list[Source]) -> Iterator[tuple[Source, str, str]]:
    """Of each source: `refused` and why, or `accepted` or `not named` and which numbers are others then."""
    with tempfile.TemporaryDirectory(prefix="ratchet-untampered-") as place:
        before = asked_again(copy(folder, Path(place)))
    for source in chosen:
        answer = accepted(folder, source, before, random.Random(str(source)))
        if isinstance(answer, str):
            yield source, "refused", answer.splitlines()[0]
        else:
            wrong = unnamed(study, answer)
            numbers = ", ".join(sorted({general(name) for name in wrong or answer}))
            yield source, "not named" if wrong else "accepted", numbers


if __name__ == "__main__":
    finished = Path(sys.argv[2]).resolve()
    for row in table(sys.argv[1], finished, sources(finished)):
        sys.stdout.write(f"| {' '.join(row[0])} | {row[1]} | {row[2]} |\n")
        sys.stdout.flush()
