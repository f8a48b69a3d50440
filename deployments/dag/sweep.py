"""A sweep: the same study once for each combination of values, and a stage that shows these cells side by side."""

import itertools
import json
from collections.abc import Callable
from typing import Any

from deployments.dag.walk import Cell, Handle, Walk
from storage import attempts
from storage.errors import BadInput
from tasks.findings.sweep.configuration import SweepConfig
from tasks.stage.outcome import in_words, stops
from tasks.stage.run import Stage
from tasks.stage.study import StudyBase
from tasks.stage.validation import set_key, validated

Over = dict[str, list[Any]]
"""Values of each key that is varied. Their combinations are the cells."""
SWEEP = Stage("sweep", SweepConfig, "tasks.findings.sweep.sweep:sweep", version=12, needs="cpu")
"""The stage over the cells of a study that names none of its own."""


CHANCE = {"seed", "model.init_seed"}
"""Keys that vary chance alone: cells over them are repetitions of one study."""


def over_chance(own: Stage) -> Callable[[Any, SweepConfig], tuple[Stage, SweepConfig]]:
    """The choice of a page whose stage `own` compares the arms over two or more cells of chance alone."""

    def chosen(study: Any, config: SweepConfig) -> tuple[Stage, SweepConfig]:
        config = config.model_copy(update={"confidence_level": study.evaluation.confidence_level})
        if set(config.keys) <= CHANCE and len(config.present) > 1:
            return own, config.model_copy(update={"chance": sorted(CHANCE)})
        return SWEEP, config

    return chosen


def cells_of(over: Over) -> dict[Cell, list[Any]]:
    """Each cell, by what it is called, with its value of each key. BadInput for one cell, and for equal values."""
    for key, values in over.items():
        shown = [_shown(value) for value in values]
        if twice := [value for value in shown if shown.count(value) > 1]:
            raise BadInput(f"a sweep needs different values, and {key} has {twice[0]} twice: give each value once")
    combinations = itertools.product(*over.values())
    cells = {
        tuple(f"{key} {_shown(value)}" for key, value in zip(over, combination, strict=True)): [*combination]
        for combination in combinations
    }
    if len(cells) < 2:
        raise BadInput(
            f"a sweep needs two or more cells, and {over} gives {len(cells)}: give a key several values, such as "
            'seed=42,1337 on the command line and {"seed": [42, 1337]} in a form'
        )
    return cells


def studies_of(study: StudyBase, over: Over) -> dict[Cell, Any]:
    """The study of each cell. BadInput names the cell, the key, and what would be valid."""
    return {
        cell: _study_of(study, dict(zip(over, values, strict=True)), cell) for cell, values in cells_of(over).items()
    }


def stopped_cells(over: Over, walk: Walk) -> dict[Cell, str]:
    """The cells of which a stage stopped, and why: nothing happens there until a person acts on the cause.

    A stage that was killed or crashed is none of these: it goes on when the same command is started again.
    """
    causes = {cell: [cause for handle in walk.cells[cell] if (cause := _cause(handle))] for cell in cells_of(over)}
    return {cell: of_cell[0] for cell, of_cell in causes.items() if of_cell}


def configuration(study: StudyBase, over: Over, missing: dict[Cell, str]) -> SweepConfig:
    """Configuration of the stage over the cells; `missing`: why each cell that it does without stopped."""
    return SweepConfig(
        cell=f"without {' and '.join(map(name_of, missing))}" if missing else "",
        study=study.name,
        keys=list(over),
        cells={name_of(cell): values for cell, values in cells_of(over).items()},
        missing=[name_of(cell) for cell in missing],
        causes={name_of(cell): cause for cell, cause in missing.items()},
        execution=study.execution,
    )


def name_of(cell: Cell) -> str:
    """A cell as the stage over all cells calls it: "seed 42, constraint.variant mlp_in"."""
    return ", ".join(cell)


def _study_of(study: StudyBase, changes: dict[str, Any], cell: Cell) -> Any:
    values = study.model_dump(mode="json")
    for key, value in changes.items():
        set_key(values, key, value, f"the sweep over {key}")
    return validated(type(study), values, f"the cell ({name_of(cell)}) of the sweep")


def _cause(handle: Handle) -> str:
    """Which stage stopped and how it ended; empty for one that did not stop."""
    end_state = (attempts.newest(handle.run.attempts) or {}).get("end_state") or ""
    return f"{handle.stage.name}: {in_words(end_state)}" if not handle.finished and stops(end_state) else ""


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, default=str)
