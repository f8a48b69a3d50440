"""A study of nothing but stages that are ready at once: each rests for some seconds."""

import time
from typing import Any

from deployments.dag.walk import Dispatcher, Handle
from deployments.study_flow import study_flow
from tasks.stage.configuration import execution, scientific
from tasks.stage.execution import Execution
from tasks.stage.run import Stage, StageRun
from tasks.stage.study import StageConfiguration, StudyBase


class CellConfig(StageConfiguration):
    """One cell."""

    number: int = scientific(0, description="Tells it from another cell.")
    seconds: float = execution(0.0, description="How long it rests.")


class GatherConfig(StageConfiguration):
    """Nothing to choose."""


class Study(StudyBase):
    """So many cells."""

    cells: int = scientific(8, description="How many.")
    seconds: float = execution(0.0, description="How long each rests.")
    execution: Execution = execution(Execution(cpu_threads=1), description="How, and what its jobs ask for.")


CELL = Stage("cell", CellConfig, "benchmarks.cells:rest", needs="cpu")
GATHER = Stage("gather", GatherConfig, "benchmarks.cells:gather", needs="cpu")


def page(study: Study, stage: Dispatcher) -> Handle:
    cells = {
        f"cell_{number}": stage(CELL, CellConfig(number=number, seconds=study.seconds)) for number in range(study.cells)
    }
    return stage(GATHER, GatherConfig(), **cells)


cells = study_flow(page)


def rest(run: StageRun, config: CellConfig) -> dict[str, Any]:
    time.sleep(config.seconds)
    return {"number": config.number}


def gather(run: StageRun, config: GatherConfig, **cells: Any) -> dict[str, Any]:
    return {"cells": len(cells)}
