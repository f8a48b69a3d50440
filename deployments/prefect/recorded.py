"""Runs of studies that no Prefect saw, shown afterwards: made from the run directories, each from its deployment, so
that a person can look at it, and retry it.

Prefect stamps its states with its own clock, so such a run is tagged `recorded`, and says itself when it ran.
"""

import logging
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.actions import LogCreate
from prefect.client.schemas.objects import FlowRun
from prefect.types import DateTime

from deployments.dag.page import Page
from deployments.dag.walk import Handle, Walk
from deployments.prefect.artifacts import StudyArtifacts
from deployments.prefect.flow_run import best_effort, flow_runs, prefect_state
from deployments.prefect.generate import Profile
from deployments.views.index import completed
from deployments.views.listing import date, standing
from storage import attempts, durable
from storage.errors import BadInput
from storage.run_directory import find_runs, read
from tasks.findings.table import Table
from tasks.stage.outcome import AWAITING_RETRY, COMPLETED, CRASHED, END_STATES, PrefectState, in_words, state_of_study
from tasks.stage.progress import duration
from tasks.stage.validation import validated

RECORDED = "recorded"


def record(client: SyncPrefectClient, profiles: Iterable[Profile], root: Path) -> None:
    """Makes a flow run of each study below the root that ran here without Prefect, of the pages of these profiles.

    One of which a stage is at work is left for the next time.
    """
    by_page: dict[str, list[Profile]] = {}
    for profile in profiles:
        by_page.setdefault(profile.page.place, []).append(profile)
    for origin in _origins(root):
        if known := by_page.get(str(origin.get("page"))):
            named = [profile for profile in known if profile.name == origin["study"].get("name")]
            best_effort(partial(_record, client, (named or known)[0], root, origin))


def _origins(root: Path) -> list[dict[str, Any]]:
    """What started the runs below the root, each once: page, study and what it varies."""
    known = (read(path / "study.json") for path in find_runs(root))
    return list({durable.canonical_json(origin): origin for origin in known if origin}.values())


def _record(client: SyncPrefectClient, profile: Profile, root: Path, origin: dict[str, Any]) -> None:
    page = replace(profile.page, over=origin.get("over") or {})
    handles = _walked(page, origin["study"], root)
    rows = [row for handle in handles for row in _rows(handle)]
    if not rows or any(standing(handle.run, handle.verdict)[0] == "running" for handle in handles):
        return
    began, ended, last = min(row.began for row in rows), max(row.ended for row in rows), max(row.began for row in rows)
    study = handles[0].run.study
    if any(_saw(run, last) for run in flow_runs(client, tags={"all_": [study]})):
        return
    state, message = _ended(handles)
    deployment = client.read_deployment_by_name(f"{page.name}/{profile.name}-local")
    seed, dispatch = origin["study"].get("seed"), "slurm" if any(row.job for row in rows) else "local"
    run = client.create_flow_run_from_deployment(
        deployment.id,
        parameters={"study": origin["study"], "root": str(root.absolute()), "dispatch": dispatch, "over": page.over},
        name=f"{study}-" + ("sweep" if page.over else f"s{seed}"),
        tags=[study, "sweep" if page.over else f"seed-{seed}", RECORDED],
        idempotency_key=f"{RECORDED}:{handles[-1].run.path}:{last}",
        state=prefect_state(state, f"ran without Prefect, {date(began)} to {date(ended)}\n{message}"),
    )
    level, now = logging.INFO if state == COMPLETED else logging.ERROR, DateTime.now("UTC")
    client.create_logs([LogCreate(name="study", level=level, message=message, timestamp=now, flow_run_id=run.id)])
    shown = StudyArtifacts(client, study, str(run.id))
    shown.text("stages", _table(rows).markdown(), "When each stage ran: Prefect shows the moment of recording")
    if handles[-1].finished:
        shown.results(handles[-1].run)


def _walked(page: Page, study: dict[str, Any], root: Path) -> list[Handle]:
    """Its stage calls. BadInput where the page, or what it reads, is another by now."""
    typed = validated(page.model, study, "study.json")
    walk = Walk(root, typed.name, typed.execution)
    page.walk(typed, walk)
    page.sweep_without_stopped(typed, walk)
    if not any(handle.run.path.exists() for handle in walk.handles):
        raise BadInput("its run directories have other fingerprints by now")
    return walk.handles


def _saw(run: FlowRun, moment: float) -> bool:
    """True where the flow run was there at that moment, or was recorded of what began then."""
    if str(run.idempotency_key).endswith(f":{moment}"):
        return True
    ended = run.end_time.timestamp() if run.end_time else time.time()
    return run.start_time is not None and run.start_time.timestamp() <= moment <= ended


def _ended(handles: list[Handle]) -> tuple[PrefectState, str]:
    unfinished = [handle for handle in handles if not handle.finished]
    if not unfinished:
        return COMPLETED, completed(handles)
    ends = [(handle, row) for handle in unfinished if (row := attempts.newest(handle.run.attempts))]
    states = [END_STATES[end].state if (end := row.get("end_state")) in END_STATES else CRASHED for _, row in ends]
    lines = [f"{handle.label}: {standing(handle.run, handle.verdict)[1]}" for handle, _ in ends]
    return state_of_study([AWAITING_RETRY, *states]), "\n".join(lines)


class Row(NamedTuple):
    label: str
    attempt: int
    began: float
    ended: float
    end: str
    host: str
    job: str


def _rows(handle: Handle) -> Iterator[Row]:
    folder = handle.run.attempts
    for row in attempts.records(folder):
        ended = attempts.ended_at(folder, row) or row["started_at"]
        where, began = (str(row["host"]), row.get("slurm_job_id") or ""), row["started_at"]
        yield Row(handle.label, row["attempt"], began, ended, in_words(row.get("end_state") or "killed"), *where)


def _table(rows: Sequence[Row]) -> Table:
    cells = [[*row[:2], date(row.began), duration(row.ended - row.began), *row[4:]] for row in rows]
    return Table("Attempts.", ["stage", "attempt", "began", "took", "end", "host", "job"], cells)
