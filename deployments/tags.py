"""The tags of a flow run, by which a person filters runs."""

from __future__ import annotations

from collections.abc import Sequence

from prefect.client.orchestration import get_client
from prefect.runtime import flow_run


def add_tags(tags: Sequence[str]) -> None:
    """Adds tags to the present flow run: those of its deployment, or a person's, stay."""
    with get_client(sync_client=True) as client:
        client.update_flow_run(flow_run.id, tags=list(dict.fromkeys([*flow_run.tags, *tags])))
