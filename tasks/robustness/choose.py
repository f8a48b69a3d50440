"""choose: of one arm's trainings with different learning rates, the one with the lowest validation loss.

Every arm has the same number of trials, and the test split is not looked at.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from storage import durable
from storage.errors import require_equal
from tasks.robustness.results import ArmResult
from tasks.robustness.stages import ChooseConfig
from tasks.robustness.study import snapshot_folder
from tasks.stage.run import StageInput, StageRun


def choose(run: StageRun, config: ChooseConfig, **trials: StageInput) -> ArmResult:
    """Publishes the chosen training's `model/`, snapshots and metrics as its own; of equals the first."""
    found = {role: ArmResult.read(given) for role, given in trials.items()}
    numerics = {role: durable.read_json(given.run.stage_file)["numerics"] for role, given in trials.items()}
    first = next(iter(trials))
    for role, given in trials.items():
        same = f"all trials of an arm ran on the same numerics throughout, {given.run.path} as {trials[first].run.path}"
        require_equal(same, (numerics[role], given.numerics_changes), (numerics[first], []))
    best = min(found, key=lambda role: found[role].training.best_validation_loss_nats_per_token)
    for name in ["model", *(snapshot_folder(float(share)) for share in found[best].snapshots)]:
        with run.publish(name) as folder:
            _copy(trials[best].path / name, folder)
    with run.publish_file("metrics.jsonl") as file:
        shutil.copyfile(trials[best].run.metrics_file, file)
    return found[best].model_copy(
        update={
            "numerics": numerics[first],
            "trials": {
                f"{arm.training.budget['learning_rate']:g}": arm.training.best_validation_loss_nats_per_token
                for arm in found.values()
            },
        }
    )


def _copy(source: Path, folder: Path) -> None:
    for file in sorted(source.iterdir()):
        shutil.copyfile(file, folder / file.name)
