"""The Prefect flow of a study's page: what is deployed, and what the UI starts and shows a form for."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal

from prefect import Flow, flow
from prefect.exceptions import CancelledRun, CrashedRun, FailedRun
from prefect.logging import get_run_logger
from prefect.runtime import flow_run
from prefect.states import State
from pydantic import GetJsonSchemaHandler, TypeAdapter, ValidationError
from pydantic_core import CoreSchema

from deployments.dag.page import Page
from deployments.dag.sweep import Over
from deployments.dag.walk import Walk
from deployments.prefect.flow_run import add_tags, hold, prefect_state
from deployments.prefect.local import run_here
from deployments.slurm.study import study as study_file
from deployments.slurm.study.cancel import stop_cancelled
from deployments.slurm.study.flow_run import follow_in_flow
from deployments.slurm.study.study import SlurmStudy
from deployments.views.notes import notes
from storage.errors import BadInput
from storage.visible import log_visibly
from tasks.stage.configuration import Configuration
from tasks.stage.outcome import BAD_INPUT
from tasks.stage.study import StudyBase
from tasks.stage.validation import said, validated

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
        try:
            slurm = SlurmStudy.at_site(swept, study, root) if dispatch == "slurm" else None
            walk = slurm.walk if slurm else Walk(root or "runs", study.name, study.execution)
            if not slurm:
                swept.walk(study, walk)
                walk.close_to_others()
                swept.keep_sources(walk)
        except BadInput as error:  # a sentence, and no traceback
            return prefect_state(BAD_INPUT, str(error))
        hold(walk.root)
        own = [study_file.tag(slurm.file)] if slurm else []
        of_command = {*own} <= {*flow_run.tags} and flow_run.run_count == 1  # which gave it the tag, and started it
        add_tags([study.name, "sweep" if over else f"seed-{study.seed}", *own])
        for note in notes(walk.handles):
            get_run_logger().warning("%s", note)
        return follow_in_flow(slurm, of_command) if slurm else run_here(swept, study, walk)

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
    fields: list[tuple[str, Any, Any]] = [("root", str, root), ("dispatch", Dispatch, dispatch), ("over", Over, over)]
    for name, kind, value in fields:
        try:
            TypeAdapter(kind).validate_python(value, strict=True)
        except ValidationError as error:
            raise BadInput(f"the form's {name} is {value!r}: {said(error.errors()[0])}") from None


def _run_name() -> str:
    """By what the form says, which need not be valid."""
    parameters = flow_run.parameters
    study = parameters.get("study")
    study = study.model_dump() if isinstance(study, StudyBase) else study if isinstance(study, dict) else {}
    seed = study.get("seed", StudyBase.model_fields["seed"].default)
    return f"{study.get('name', flow_run.flow_name)}-" + ("sweep" if parameters.get("over") else f"s{seed}")


class Form:
    """The form of a study in the Prefect UI: what a person changes first, and nothing that belongs to the command line.

    Annotates the type of a flow's parameter: the schema of that study shows its CHANGED_FIRST.

    The UI keeps what its form does not show. Whoever starts a study by a command gives every key, and they fit: the
    schema's top level is open, and a key that is none is named when the run begins.
    """

    def __init__(self, model: type[StudyBase]) -> None:
        self._model = model

    def __get_pydantic_json_schema__(self, core_schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        schema = handler(core_schema)
        resolved = handler.resolve_ref_schema(schema)
        all_others = [name for name in resolved["properties"] if name not in ("sweep_seeds", "execution")]
        keys = self._model.CHANGED_FIRST or [*all_others, "execution"]
        resolved["properties"] = _shown(resolved["properties"], keys, handler, self._groups())
        resolved.pop("additionalProperties", None)
        return schema

    def _groups(self) -> dict[str, Any]:
        """The study's own defaults of its groups: they differ from those of the group's class, which its schema has."""
        defaults = {name: field.default for name, field in self._model.model_fields.items()}
        return {
            name: group.model_dump(mode="json") for name, group in defaults.items() if isinstance(group, Configuration)
        }


def _shown(
    properties: dict[str, Any], keys: Sequence[str], handler: GetJsonSchemaHandler, defaults: Mapping[str, Any]
) -> dict[str, Any]:
    """The properties that `keys` name, with these defaults; of a group (`budget.epochs`) only those named."""
    values: dict[str, Any] = {}
    for key in keys:
        name, _, inner = key.partition(".")
        if not inner:
            values[name] = properties[name] | ({"default": defaults[name]} if name in defaults else {})
            continue
        group = {"type": "object", "title": name.capitalize(), "description": properties[name].get("description", "")}
        shown = values.setdefault(name, group | {"properties": {}})
        whole = handler.resolve_ref_schema(properties[name])["properties"]
        shown["properties"] |= _shown(whole, [inner], handler, defaults.get(name) or {})
    return values
