"""Where everything of one stage lies: `<root>/<study>/<stage>/<fingerprint[:12]>/`, and its names."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from storage import durable

SHORT_FINGERPRINT = 12


def fingerprint(stage: str, version: int, scientific: Any, external: Any, inputs: dict[str, str]) -> str:
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
    """One stage's run directory: the names in it. Whether anything is there is another question."""

    root: Path
    study: str
    stage: str
    fingerprint: str

    @property
    def path(self) -> Path:
        return self.root / self.study / self.stage / self.fingerprint[:SHORT_FINGERPRINT]

    @property
    def stage_file(self) -> Path:
        """Effective configuration, inputs, stage version, numerics; written before any work."""
        return self.path / "stage.json"

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

    def refresh(self) -> None:
        """Has NFS list anew what another host may have left here: for whoever has just come to hold the lock."""
        for folder in (self.path, self.attempts, self.checkpoints):
            durable.refresh(folder)


def find_runs(root: Path) -> list[Path]:
    """Every run directory below `root`, found by its stage.json, sorted."""
    return sorted(file.parent for file in root.glob("*/*/*/stage.json"))
