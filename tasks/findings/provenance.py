"""The origin of every number of a report: run directories, fingerprints, digests, numerics, commits and versions."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pydantic import JsonValue

from storage import attempts, durable
from tasks.findings.again import reproduction
from tasks.findings.dag import Dag
from tasks.findings.document import Folded, Section
from tasks.findings.table import Link, Table
from tasks.stage.result import Result
from tasks.stage.run import StageInput, StageRun

ROOT_OF_RUNS = "../../.."
"""The root of all runs, seen from a run directory."""
SHOWN_FILES = 20
"""More files than these are shown as their number and one digest."""


class Provenance(Result):
    """The inputs of which a stage's results are a function, and the digest of its outputs as they were verified."""

    fingerprint: str
    stage_version: int
    outputs_digest: str
    numerics: dict[str, JsonValue]
    external: dict[str, Any]


def provenance(stages: Mapping[str, StageInput]) -> dict[str, Provenance]:
    """Stage -> its provenance."""
    rows = {}
    for name, stage in stages.items():
        description = durable.read_json(stage.run.stage_file)
        rows[name] = Provenance(
            fingerprint=stage.run.fingerprint,
            stage_version=description["version"],
            outputs_digest=stage.outputs_digest,
            numerics=description["numerics"],
            external=description["external"],
        )
    return rows


def _recorded(stages: Mapping[str, StageInput], field: str) -> dict[str, dict[str, Any]]:
    """Stage -> its `source`, or `versions`, in the record of the attempt that finished it. The report shows them, and
    `final_results.json` does not hold them, as they are facts of no result."""
    records: dict[str, Any] = {name: attempts.newest(stage.run.attempts) or {} for name, stage in stages.items()}
    return {name: record.get(field) or {} for name, record in records.items()}


def run_directories(stages: Mapping[str, StageInput], root: Path) -> dict[str, str]:
    """Stage -> its run directory below the root of all runs."""
    return {name: stage.path.relative_to(root).as_posix() for name, stage in stages.items()}


def beside(published: Iterable[str]) -> list[Link]:
    """Links to the files that lie beside a report."""
    return [Link(name, name) for name in (*published, "final_results.json")]


def run_name(directory: str) -> str:
    """The last part of a run directory: the beginning of the fingerprint, which no other run has."""
    return directory.rsplit("/", 1)[-1]


def provenance_section(run: StageRun, stages: Mapping[str, StageInput], dag: Dag) -> Section:
    """The origin of every number: the runs, what each read and wrote, and how they are made again."""
    runs, origins, sources = run_directories(stages, run.run.root), provenance(stages), _recorded(stages, "source")
    tables = [
        _stage_table(runs, origins, sources),
        _reading_table(dag),
        _own_table(sources),
        _external_table(origins),
        _table_by_value(
            "Numerics of every stage: on what the bits of a result depend beside configuration and data.",
            {stage: origin.numerics for stage, origin in origins.items()},
        ),
        _table_by_value(
            "Versions, as the attempt recorded them that finished the stage.", _recorded(stages, "versions")
        ),
    ]
    in_full = {
        stage: {"fingerprint": origin.fingerprint, "outputs_digest": origin.outputs_digest, "source": sources[stage]}
        for stage, origin in origins.items()
    }
    return Section(
        "Provenance",
        texts=[
            "A row of numbers that came from one run ends with the name of its directory. Before anything was "
            "computed, every byte of these runs was hashed and compared with its marker. When and where "
            "a run worked, how long, and in how many attempts, is no result: `ratchet show RUN` says it."
        ],
        tables=[table for table in tables if table.rows],
        details=[
            *reproduction(run.run, dag),
            Folded("Fingerprints and digests in full", json.dumps(in_full, indent=2)),
        ],
    )


def _stage_table(
    runs: Mapping[str, str], provenance: Mapping[str, Provenance], sources: Mapping[str, dict[str, Any]]
) -> Table:
    rows = []
    for stage, directory in runs.items():
        origin, source = provenance[stage], sources[stage]
        commit, dirty = source.get("commit") or "unknown", source.get("dirty_digest") or "none"
        place = Link(directory, f"{ROOT_OF_RUNS}/{directory}/")
        rows.append([stage, place, origin.stage_version, origin.outputs_digest[:12], commit[:12], dirty[:12]])
    return Table(
        "Run directories below the root of all runs, and what the stages read and wrote.",
        ["stage", "run directory", "version", "outputs digest", "Ratchet's commit", "its uncommitted changes"],
        rows,
        ids=[f"run-{run_name(directory)}" for directory in runs.values()],
    )


def _reading_table(dag: Dag) -> Table:
    return Table(
        "Every run, and those that it read, as it wrote down before it began.",
        ["stage", "run", "read"],
        [[node.label, name, ", ".join(node.inputs) or "-"] for name, node in dag.nodes.items()],
    )


def _own_table(sources: Mapping[str, dict[str, Any]]) -> Table:
    return Table(
        "Code of one's own: the study's file, the digest of what it is made of, which .sources of the root keeps by "
        "this name, and the repository in which it lies.",
        ["stage", "file", "digest of the files", "commit of the file", "uncommitted changes there"],
        [
            [
                stage,
                source["own_page"],
                (source.get("own_digest") or "unknown")[:12],
                (source.get("own_commit") or ("none" if "own_commit" in source else "unknown"))[:12],
                (source.get("own_dirty_digest") or ("none" if source.get("own_commit") else "not known to git"))[:16],
            ]
            for stage, source in sources.items()
            if source.get("own_page")
        ],
    )


def _external_table(provenance: Mapping[str, Provenance]) -> Table:
    return Table(
        "What the stages read from outside: packages by version, files by digest.",
        ["stage", "key", "name", "version or digest"],
        [
            [stage, key, *entry]
            for stage, origin in provenance.items()
            for key, read in origin.external.items()
            for listing in read.values()
            for entry in _entries(listing)
        ],
    )


def _entries(listing: list[str] | dict[str, str]) -> list[list[str]]:
    """Name and version or digest of each package or file; many files as one digest over all."""
    pairs = [entry.split("==") for entry in listing] if isinstance(listing, list) else sorted(listing.items())
    if len(pairs) > SHOWN_FILES:
        return [[f"{len(pairs):,} files", durable.sha256_json(listing)[:12]]]
    return [[name, version[:12]] for name, version in pairs]


def _table_by_value(caption: str, by_stage: Mapping[str, Mapping[str, object]]) -> Table:
    """One row for each key and value, with the stages that have this value; those without the key are not named."""
    rows = []
    for key in dict.fromkeys(key for values in by_stage.values() for key in values):
        stages: dict[str, list[str]] = {}
        for stage, values in by_stage.items():
            if key in values:
                stages.setdefault(str(values[key]), []).append(stage)
        for value, having in stages.items():
            rows.append(
                [key.replace("_", " "), value, "all stages" if len(having) == len(by_stage) else ", ".join(having)]
            )
    return Table(caption, ["what", "value", "stages"], rows)
