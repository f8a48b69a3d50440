"""A stage that does almost nothing, in every way in which a stage can end."""

import contextlib
import os
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any

from storage import locks
from storage.errors import BadInput, CheckFailed, NumericalFailure, Stop
from storage.run_directory import RunDirectory, fingerprint
from tasks.stage.attempt import attempt
from tasks.stage.configuration import scientific
from tasks.stage.outcome import Outcome
from tasks.stage.run import Stage, StageInput, StageRun
from tasks.stage.study import StageConfiguration

MODEL_BYTES = 400_000


class ToyConfig(StageConfiguration):
    seed: int = scientific(0, description="Tells two runs apart.")


def stage(function: str) -> Stage:
    """The same stage, whatever its work does: the fingerprint does not depend on it."""
    return Stage("toy", ToyConfig, f"{__name__}:{function}")


def run_directory(root: Path, config: ToyConfig | None = None) -> RunDirectory:
    config = config or ToyConfig()
    toy = stage("finishes")
    return RunDirectory(root, "study", toy.name, fingerprint(toy.name, toy.version, config.scientific(), {}, {}))


def try_once(root: Path, function: str = "finishes", inputs: dict[str, StageInput] | None = None) -> Outcome:
    return attempt(stage(function), ToyConfig(), run_directory(root), inputs or {})


def finishes(work: StageRun, config: ToyConfig) -> dict[str, Any]:
    work.metrics.cut_back(None)
    work.metrics.append({"step": 1, "loss": 0.5})
    with work.publish("model") as folder:
        (folder / "weights").write_bytes(bytes([config.seed]) * MODEL_BYTES)
    return {"bytes": MODEL_BYTES}


def saves_a_checkpoint(work: StageRun, config: ToyConfig) -> dict[str, Any]:
    import torch

    if work.checkpoints.newest_verified() is None:
        work.checkpoints.save(1, {"model": {"weight": torch.ones(10)}}, {})
    work.checkpoints.save(2, {"model": {"weight": torch.zeros(MODEL_BYTES // 4)}}, {})
    return finishes(work, config)


def is_taken_over(work: StageRun, config: ToyConfig) -> dict[str, Any]:
    """While it fills its output folder, another process takes the run for dead."""
    with work.publish("model") as folder:
        (folder / "weights").write_bytes(b"late")
        (work.directory / "locks" / f"{work.lock.number + 1}.json").write_text("{}")
    return {}


def is_taken_over_at_the_end(work: StageRun, config: ToyConfig) -> dict[str, Any]:
    result = finishes(work, config)
    (work.directory / "locks" / f"{work.lock.number + 1}.json").write_text("{}")
    work.run.result_file.write_text('{"of": "the new holder"}')
    return result


def loses_its_root(work: StageRun, config: ToyConfig) -> dict[str, Any]:
    """A person removes the root while it works; what it saves next finds no folder."""
    shutil.rmtree(work.run.root)
    return saves_a_checkpoint(work, config)


def fails_its_check(work: StageRun, config: ToyConfig) -> dict[str, Any]:
    raise CheckFailed("losses go down", 3.0, "below 2.0")


def is_not_finite(work: StageRun, config: ToyConfig) -> dict[str, Any]:
    raise NumericalFailure(3, [1], "the loss")


def finds_bad_input(work: StageRun, config: ToyConfig) -> dict[str, Any]:
    raise BadInput("there is no text")


def is_interrupted(work: StageRun, config: ToyConfig) -> dict[str, Any]:
    os.kill(os.getpid(), signal.SIGINT)
    work.stop.check()
    raise AssertionError("the signal did not arrive")


def runs_out_of_time(work: StageRun, config: ToyConfig) -> dict[str, Any]:
    raise Stop("out_of_time", "this run's share is done")


def breaks(work: StageRun, config: ToyConfig) -> dict[str, Any]:
    raise RuntimeError("broken")


def names_an_output_that_is_not_there(work: StageRun, config: ToyConfig) -> dict[str, Any]:
    work.outputs.append("records.parquet")
    return finishes(work, config)


def finds_its_disk_read_only(work: StageRun, config: ToyConfig) -> dict[str, Any]:
    """The disk becomes read-only under the running stage, as one with errors does.

    A read-only view is mounted over it, since a disk with a file open for writing cannot be remounted so.
    """
    root = str(work.run.root)
    subprocess.run(["mount", "--bind", root, root], check=True)
    subprocess.run(["mount", "-o", "remount,bind,ro", root], check=True)
    return finishes(work, config)


def fill(disk: Path) -> None:
    """Leaves not one byte free."""
    with contextlib.suppress(OSError), (disk / "filler").open("wb", buffering=0) as file:
        while file.write(b"x" * 4096):
            pass


def take_over(run: RunDirectory) -> locks.Lock:
    """A later attempt's lock."""
    return locks.acquire(run.path / "locks")


def finds_its_disk_filled(work: StageRun, config: ToyConfig) -> dict[str, Any]:
    """Another program takes the last byte of the disk, and keeps it."""
    fill(work.run.root)
    work.log.info("x" * 1000)
    return finishes(work, config)
