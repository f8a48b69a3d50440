"""What a stage shows in the Prefect UI: made from its run directory alone, wherever it ran."""

from __future__ import annotations

import base64
import re
from pathlib import Path
from typing import Any
from uuid import UUID
from xml.etree import ElementTree

from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.actions import ArtifactCreate, ArtifactUpdate

from storage import attempts, durable
from storage.differences import leaves
from storage.run_directory import RunDirectory
from tasks.stage.progress import described


class Artifacts:
    """The artifacts of one stage on the page of one flow run (and of its task, where the stage is one)."""

    def __init__(
        self, client: SyncPrefectClient, run: RunDirectory, flow_run: UUID | str, task_run: UUID | str | None = None
    ) -> None:
        self._client, self._run = client, run
        self._page: dict[str, Any] = {"flow_run_id": flow_run, "task_run_id": task_run}
        self._made: dict[str, UUID] = {}
        self._shown: dict[str, Any] = {}

    def shows(self, what: str) -> bool:
        """Whether `what` was shown by this object."""
        return what in self._shown

    def progress(self) -> None:
        """progress.json as a progress bar, with what is done and how long it still takes; full at a finished stage."""
        now = durable.read_json(self._run.progress_file)
        finished = (attempts.newest(self._run.attempts) or {}).get("end_state") == "finished"
        share = 100.0 if finished else 100.0 * now["step"] / now["total"] if now["total"] else 0.0
        self._keep("progress", "progress", share, f"{self._run.stage}: {'finished' if finished else described(now)}")

    def text(self, what: str, markdown: str, description: str = "") -> None:
        """A text that is replaced when it changes."""
        self._keep("markdown", what, markdown, description)

    def results(self) -> None:
        """The stage's result as a table, the tables that it made, and its figures."""
        result = durable.read_json(self._run.result_file)
        rows = [{"what": name, "value": str(value)} for name, value in leaves(result)]
        self._keep("table", "result", rows, f"`{self._run.path}`")
        for table in result.get("tables", []):
            file = self._run.path / table
            self._keep("markdown", file.stem, file.read_text(), f"`{file}`")
        if figures := [self._run.path / name for name in result.get("figures", [])]:
            self._keep("markdown", "figures", as_markdown(figures), f"`{figures[0].parent}`")

    def _keep(self, kind: str, what: str, data: Any, description: str) -> None:
        """Creates the artifact, or updates the one made before; nothing when it shows this already."""
        if self._shown.get(what) == (data, description):
            return
        if made := self._made.get(what):
            self._client.update_artifact(made, ArtifactUpdate(data=data, description=description))
        else:
            create = ArtifactCreate(
                key=_key(self._run, what), type=kind, data=data, description=description, **self._page
            )
            self._made[what] = self._client.create_artifact(create).id
        self._shown[what] = (data, description)


def as_markdown(figures: list[Path]) -> str:
    """SVG files as Markdown that holds them: an image artifact would also print the whole data URI below the image."""
    shown = []
    for file in figures:
        svg = file.read_bytes()
        caption = ElementTree.fromstring(svg).get("aria-label", "")
        image = base64.b64encode(svg).decode()
        shown.append(f"![{file.stem}](data:image/svg+xml;base64,{image})\n\n{caption}")
    return "\n\n".join(shown)


def _key(run: RunDirectory, what: str) -> str:
    """Prefect allows lower-case letters, digits and dashes."""
    return re.sub(r"[^a-z0-9]+", "-", f"{run.study}-{run.stage}-{what}".lower()).strip("-")
