"""The public names for a study of your own, as in docs/your-own-study.md: `from ratchet import Stage, study_flow`.

A name is imported when it is used, so that a page loads neither torch nor Prefect.
"""

# ruff: noqa: F401
from __future__ import annotations

import ast
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # the table of public names: `_public` reads it too
    from deployments.dag.walk import Dispatcher, Handle
    from deployments.functions import knob, report, stage, study
    from deployments.study_flow import study_flow
    from deployments.views.opened import opened as open
    from storage.errors import BadInput, CheckFailed
    from tasks.findings.document import Document, Excerpt, Figure, Folded, Section
    from tasks.findings.figures import Curve, Dots, Estimated, curves, dots, forest
    from tasks.findings.publish import publish, publish_report, require_verified
    from tasks.findings.sweep.configuration import Swept
    from tasks.findings.table import Table
    from tasks.stage.command import Script
    from tasks.stage.configuration import Configuration, LocalPath, execution, scientific
    from tasks.stage.execution import Execution
    from tasks.stage.numerics import Numerics, device
    from tasks.stage.result import Result
    from tasks.stage.run import Stage, StageInput, StageRun
    from tasks.stage.study import StageConfiguration, StudyBase
    from tasks.training.budget import Budget, LearningGate, SpikeGuard
    from tasks.training.lightning_trainer import train_lightning
    from tasks.training.loop import train_problem
    from tasks.training.on_tensors import train
    from tasks.training.problem import Problem, adamw
    from tasks.training.result import described as training_result
    from tasks.training.schedule import Schedule
    from tasks.training.transformers_trainer import train_transformers


def _public() -> dict[str, tuple[str, str]]:
    """Maps each public name to its module and its name there."""
    (table,) = (node for node in ast.parse(Path(__file__).read_text()).body if isinstance(node, ast.If))
    imports = (node for node in table.body if isinstance(node, ast.ImportFrom) and node.module)
    return {alias.asname or alias.name: (str(node.module), alias.name) for node in imports for alias in node.names}


_PUBLIC = _public()
__all__ = [*_PUBLIC]


def __dir__() -> list[str]:
    return [*_PUBLIC]


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        from storage.errors import did_you_mean

        raise AttributeError(f"ratchet has no {name!r}; {did_you_mean(name, _PUBLIC)}it has {', '.join(_PUBLIC)}")
    module, attribute = _PUBLIC[name]
    return getattr(import_module(module), attribute)
