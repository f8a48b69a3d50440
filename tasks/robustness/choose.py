"""choose: of the trainings of an arm with different learning rates, the best."""

import shutil

from storage import durable
from storage.errors import require_equal
from tasks.language.stages import snapshot_folder
from tasks.monotonic.result import ArmResult
from tasks.monotonic.stages import VALIDATION, ChooseConfig, TrainConfig
from tasks.stage.run import StageInput, StageRun
from tasks.training.trained import Trained, metric_rows


def choose(run: StageRun, config: ChooseConfig, **trials: StageInput) -> ArmResult:
    """Publishes the chosen training's `model/`, snapshots and metrics as its own; of equals the first."""
    results = {role: ArmResult.read(stage) for role, stage in trials.items()}
    configs = {role: stage.configuration(TrainConfig) for role, stage in trials.items()}
    numerics = {role: durable.read_json(stage.run.stage_file)["numerics"] for role, stage in trials.items()}
    first = next(iter(trials))
    for role, stage in trials.items():
        same = f"all trials of an arm ran on the same numerics throughout, {stage.run.path} as {trials[first].run.path}"
        require_equal(same, (numerics[role], stage.numerics_changes), (numerics[first], []))
    rows = {role: metric_rows(stage.run.metrics_file) for role, stage in trials.items()}
    losses = {role: Trained.of_rows(of_trial, VALIDATION).best for role, of_trial in rows.items()}
    best = min(losses, key=losses.__getitem__)
    for name in ["model", *map(snapshot_folder, configs[best].snapshots)]:
        with run.publish(name) as folder:
            shutil.copytree(trials[best].path / name, folder, copy_function=shutil.copyfile, dirs_exist_ok=True)
    with run.publish_file("metrics.jsonl") as file:
        shutil.copyfile(trials[best].run.metrics_file, file)
    return results[best].model_copy(
        update={
            "numerics": numerics[first],
            "trials": {f"{configs[role].budget.learning_rate:g}": loss for role, loss in losses.items()},
        }
    )
