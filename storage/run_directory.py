"""The directory of one stage's run, `<root>/<study>/<stage>/<fingerprint[:12]>/`, and the names in it."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from storage import durable
from storage.errors import BadInput, did_you_mean
from storage.reading import of_kind

SHORT_FINGERPRINT = 12
LATEST, SCRATCH = "latest", "scratch"
"""The link beside the stages of a study that leads to the run directory of its newest finished last stage."""
SHOWN = 12
"""Runs that a message lists."""


def fingerprint(stage: str, version: int, scientific: object, external: object, inputs: dict[str, str]) -> str:
    """sha256 over the canonical JSON of what determines a stage's result: never of results, places or times.

    `scientific` are the stage's scientific fields, `external` its inputs from outside by content, `inputs` the
    fingerprints of the stages it reads, by role.
    """
    return durable.sha256_json(
        {
            "stage": stage,
            "version": version,
            "scientific": scientific,
            "external": external,
            "inputs": inputs,
        }
    )


@dataclass(frozen=True)
class RunDirectory:
    """The names in one stage's run directory, which need not exist."""

    root: Path
    study: str
    stage: str
    fingerprint: str

    @property
    def path(self) -> Path:
        return self.root / self.study / self.stage / _short(self.fingerprint)

    @property
    def stage_file(self) -> Path:
        """Effective configuration, inputs, stage version, numerics; written before any work."""
        return self.path / "stage.json"

    @property
    def study_file(self) -> Path:
        """The page and the whole study that the newest attempt belongs to; outside the fingerprint."""
        return self.path / "study.json"

    @property
    def generation_file(self) -> Path:
        return self.path / "generation.json"

    @property
    def progress_file(self) -> Path:
        return self.path / "progress.json"

    @property
    def attempts(self) -> Path:
        return self.path / "attempts"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def metrics_file(self) -> Path:
        """Rows that are functions of configuration and data; cut back to the checkpoint on resume."""
        return self.path / "metrics.jsonl"

    @property
    def timing_file(self) -> Path:
        """Rows that a clock measured; outside every digest."""
        return self.path / "timing.jsonl"

    @property
    def result_file(self) -> Path:
        return self.path / "result.json"

    @property
    def marker_file(self) -> Path:
        return self.path / "COMPLETE.json"

    def reads(self, inputs: Mapping[str, Any] | None) -> dict[str, RunDirectory]:
        """The runs of its study that this one reads, by role, from the `inputs` of its stage.json.

        Raises BadInput where `inputs` names no runs, or a place elsewhere.
        """
        runs = {}
        try:
            for role, entry in (inputs or {}).items():
                match = re.fullmatch("([a-z0-9-]+)/([0-9a-f]+)", f"{entry['stage']}/{entry['fingerprint']}")
                runs[role] = RunDirectory(self.root, self.study, *match.groups())  # type: ignore[union-attr]
        except (AttributeError, KeyError, TypeError):
            raise BadInput(
                f"{self.stage_file} names inputs that are no runs of its study: copy it again from where it was made"
            ) from None
        return runs

    def refresh(self) -> None:
        """Has NFS list anew what another host may have left here; called by a new holder of the lock."""
        for folder in (self.path, self.attempts, self.checkpoints):
            durable.refresh(folder)


def read(file: Path) -> dict[str, Any]:
    """A JSON object of a run directory; empty where there is none to read, or one that Ratchet did not write."""
    try:
        return of_kind(file, durable.read_json(file))
    except (OSError, ValueError):
        return {}


def find_runs(root: Path) -> list[Path]:
    """Every run directory below `root`, by its stage.json, sorted; the link `latest` is a level higher."""
    return sorted(file.parent for file in root.glob("*/*/*/stage.json"))


def find_run(root: Path, name: str) -> RunDirectory:
    """The run that a person names by its folder, also relative to `root`, by the beginning of its fingerprint, or by
    its study, for its newest result. Raises BadInput, which lists the candidates, where that is not one run."""
    folders = (Path(name).expanduser(), root / name, root / name / LATEST)
    for folder in folders:
        if (folder / "stage.json").is_file():
            return run_in(folder.resolve())
    paths = find_runs(root)
    matches = [path for path in paths if re.fullmatch("[0-9a-f]+", name) and path.name.startswith(_short(name))]
    if name and not matches and (present := next(filter(os.path.lexists, folders), None)):
        raise BadInput(
            f"{present} is no run directory: it has no file stage.json. One is <root>/<study>/<stage>/<fingerprint>; "
            "`ratchet list ROOT` names those below a root"
        )
    if not paths:
        raise BadInput(f"{name} is no run directory, and there are no runs below {root}: give --root their folder")
    if len(matches) != 1:
        candidates = matches or paths
        lines = [str(path) for path in candidates[:SHOWN]] + (
            [f"and {len(candidates) - SHOWN} more"] if candidates[SHOWN:] else []
        )
        begin = f"{len(matches)} runs below {root} begin with" if matches else f"no run below {root} begins with"
        latest = [str(link.relative_to(root)) for link in root.glob(f"*/{LATEST}")]
        names = [label for path in paths for label in (path.name[: len(name)], str(path.relative_to(root)), str(path))]
        close = "" if matches else did_you_mean(name, latest + names)
        raise BadInput(
            f"{begin} {name!r}: {close}give a run directory, or as much of its fingerprint as tables print. There "
            "are:\n  " + "\n  ".join(lines)
        )
    run = run_in(matches[0])
    if not run.fingerprint.startswith(name):
        raise BadInput(f"{matches[0]} has the fingerprint {run.fingerprint}, which {name} does not begin")
    return run


def run_in(path: Path) -> RunDirectory:
    """The run of this directory, by its stage.json; BadInput where that is unreadable or names another folder."""
    try:
        stage = _read_stage(path / "stage.json")
        run = RunDirectory(path.parents[2], path.parts[-3], path.parts[-2], stage["fingerprint"])
        if run.path == path:
            run.reads(stage.get("inputs"))
            return run
        reason = f"it is that of {run.path.name}, copied here: name the run directory itself"
    except (OSError, ValueError, IndexError) as error:
        reason = str(error)
    raise BadInput(f"{path}/stage.json cannot be believed: {reason}")


def _read_stage(stage_file: Path) -> dict[str, Any]:
    stage = durable.read_json(stage_file)
    if not isinstance(stage, dict) or not isinstance(stage.get("fingerprint"), str):
        raise ValueError("it names no fingerprint")
    return stage


def _short(fingerprint_: str) -> str:
    return fingerprint_[:SHORT_FINGERPRINT]
