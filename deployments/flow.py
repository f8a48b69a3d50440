"""The Prefect flow of a study's page: what is deployed, and what the UI starts and shows a form for."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Annotated, Any, Literal

from prefect import Flow, flow
from prefect.exceptions import CancelledRun, CrashedRun, FailedRun
from prefect.logging import get_run_logger
from prefect.runtime import flow_run
from prefect.states import State
from pydantic import TypeAdapter, ValidationError

from deployments.form import Form
from deployments.liveness import hold
from deployments.local import run_here
from deployments.notes import notes
from deployments.page import Page
from deployments.slurm.study.cancel import stop_cancelled
from deployments.slurm.study.flow_run import follow_in_flow
from deployments.states import prefect_state
from deployments.sweep import Over
from deployments.walk import Walk
from storage.errors import BadInput
from storage.visible import log_visibly
from tasks.stage.outcome import BAD_INPUT
from tasks.stage.study import StudyBase
from tasks.stage.validation import validated

ONE_STUDY: Over = {}
Dispatch = Literal["local", "slurm"]


class _EndsAreNoSurprise(logging.Filter):
    """Keeps the traceback out of a run's log that Prefect's engine writes for each returned state but Completed.

    The state says why the study ended, and the log's last line is to say it too.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        of_engine = record.msg == "Engine execution exited with unexpected exception"
        return not (of_engine and isinstance(error, FailedRun | CancelledRun | CrashedRun))


logging.getLogger("prefect.flow_runs").addFilter(_EndsAreNoSurprise())


def flow_of(page: Page) -> Flow[..., Any]:
    def run(study, root="", dispatch="local", over=ONE_STUDY):
        """Runs the study stage by stage; finished stages are not run again.

        Args:
            study: What one changes first. Every other key is as the deployment's profile says: "Use JSON input" (the
                three dots beside "Parameters") shows them all, and "ratchet run STUDY --keys" says what each means.
            root: Folder that holds the run directories; empty: "runs", on SLURM the site's.
            dispatch: Where stages run: in this process, or each as a SLURM job of the pool that the site names.
            over: A sweep: the values of each key that it varies, such as {"seed": [1, 2, 3], "budget.epochs":
                [1, 2]}. Every combination of values is a cell. {} runs one study.
        """
        log_visibly()
        try:  # here and not by Prefect, which ends a wrong form with a traceback
            study = study if isinstance(study, page.model) else validated(page.model, study, "the form")
            _require_form(root, dispatch, over)
        except BadInput as error:
            return prefect_state(BAD_INPUT, str(error))
        swept = replace(page, over=over)
        if dispatch == "slurm":
            return follow_in_flow(swept, study, root)
        walk = Walk(root or "runs", study.name, study.execution)
        try:
            swept.walk(study, walk)
            walk.close_to_others()
        except BadInput as error:  # a sentence, and no traceback
            return prefect_state(BAD_INPUT, str(error))
        hold(walk.root)
        for note in notes(walk.handles):
            get_run_logger().warning("%s", note)
        tag = "sweep" if over else f"seed-{study.seed}"
        return run_here(walk, [tag], lambda: swept.sweep_without_stopped(study, walk))

    run.__annotations__ = {
        "study": Annotated[page.model, Form(page.model)],
        "root": str,
        "dispatch": Dispatch,
        "over": Over,
        "return": State,
    }
    as_flow = flow(
        name=page.name,
        flow_run_name=_run_name,
        persist_result=False,
        validate_parameters=False,
        on_cancellation=[stop_cancelled(page)],
    )
    return as_flow(run)


def _require_form(root: Any, dispatch: Any, over: Any) -> None:
    """BadInput that names the value that is not what the form asks for."""
    given: list[tuple[str, Any, Any]] = [("root", str, root), ("dispatch", Dispatch, dispatch), ("over", Over, over)]
    for name, kind, value in given:
        try:
            TypeAdapter(kind).validate_python(value, strict=True)
        except ValidationError as error:
            raise BadInput(f"the form's {name} is {value!r}: {error.errors()[0]['msg']}") from None


def _run_name() -> str:
    """By what the form says, which need not be valid."""
    given = flow_run.parameters
    study = given.get("study")
    study = study.model_dump() if isinstance(study, StudyBase) else study if isinstance(study, dict) else {}
    seed = study.get("seed", StudyBase.model_fields["seed"].default)
    return f"{study.get('name', flow_run.flow_name)}-" + ("sweep" if given.get("over") else f"s{seed}")
