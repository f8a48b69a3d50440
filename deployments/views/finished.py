"""What a finished study leaves for people, wherever it ran: the link `latest` and the index page of the root."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from deployments.dag.walk import Handle
from deployments.views.index import write_index
from deployments.views.listing import ended_at
from storage import durable
from storage.errors import MESSAGE_SHOWN, BadInput, cut
from storage.run_directory import LATEST, RunDirectory, read
from tasks.training.unlearned import unlearned

LOG = logging.getLogger("ratchet.finished")


def completed(handles: Sequence[Handle]) -> str:
    """What the state of a finished study says: its answer, where its results are, which trainings learned nothing."""
    run = handles[-1].run
    where = f"all {len(handles)} stages are finished; results in {run.path}"
    answer = cut(str(read(run.result_file).get("headline") or ""), MESSAGE_SHOWN)
    return "\n".join(filter(None, [answer, where, unlearned(handle.run for handle in handles)]))


def leave_for_people(last: Handle) -> None:
    """Links and lists the finished last stage of a study. What cannot be written is only logged: nothing needs it."""
    try:
        _link_latest(last.run)
    except OSError as error:
        LOG.info("there is no link %s to the newest result: %s", LATEST, error)
    try:
        write_index(last.run.root)
    except BadInput as error:
        LOG.warning("there is no new index page: %s", error)


def _link_latest(run: RunDirectory) -> None:
    """Links `<study>/latest` to the run, unless it leads to one that was finished later."""
    link = run.root / run.study / LATEST
    linked = link.resolve()
    later = (linked / "COMPLETE.json").exists() and ended_at(linked) > ended_at(run.path)
    if not later:
        durable.replace_link(link, run.path)
