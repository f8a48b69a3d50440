"""A study of cells that do nothing: each is a chain of three stages that rest for some seconds."""

import time
from typing import Any

from deployments.dag.walk import Dispatcher, Handle
from deployments.study_flow import study_flow
from tasks.stage.configuration import execution, scientific
from tasks.stage.execution import Execution
from tasks.stage.run import Stage, StageRun
from tasks.stage.study import StageConfiguration, StudyBase


class CellConfig(StageConfiguration):
    """One stage of a cell."""

    number: int = scientific(0, description="Tells the cell from another one.")
    seconds: float = execution(0.0, description="How long it rests.")


class GatherConfig(StageConfiguration):
    """Nothing to choose."""


class Study(StudyBase):
    """So many cells."""

    cells: int = scientific(8, description="How many.")
    seconds: float = execution(0.0, description="How long each stage rests.")
    execution: Execution = execution(Execution(cpu_threads=1), description="How, and what its jobs ask for.")


FIRST, SECOND, THIRD = (
    Stage(name, CellConfig, "benchmarks.cells:rest", needs="cpu") for name in ("first", "second", "third")
)
GATHER = Stage("gather", GatherConfig, "benchmarks.cells:gather", needs="cpu")


def page(study: Study, stage: Dispatcher) -> Handle:
    ends = {}
    for number in range(study.cells):
        config = CellConfig(number=number, seconds=study.seconds)
        ends[f"cell_{number}"] = stage(THIRD, config, given=stage(SECOND, config, given=stage(FIRST, config)))
    return stage(GATHER, GatherConfig(), **ends)


cells = study_flow(page)


def rest(run: StageRun, config: CellConfig, given: Any = None) -> dict[str, Any]:
    time.sleep(config.seconds)
    return {"number": config.number}


def gather(run: StageRun, config: GatherConfig, **cells: Any) -> dict[str, Any]:
    return {"cells": len(cells)}
