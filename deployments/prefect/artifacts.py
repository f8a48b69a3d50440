"""Artifacts of a study and its stages in the Prefect UI: made from run directories alone, wherever they ran."""

import base64
import math
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from uuid import UUID
from xml.etree import ElementTree

from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.actions import ArtifactCreate, ArtifactUpdate
from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterFlowRunId

from deployments.prefect.report_pages import link_of
from deployments.views.curves import curves_of
from deployments.views.estimate import Estimate
from storage import attempts, durable, markers, reading
from storage.lineage import leaves
from storage.run_directory import RunDirectory, read
from tasks.findings.table import without_links
from tasks.stage.progress import described

DRAW_EVERY_SECONDS = 120.0
"""Curves take a tenth of a second to draw, and a worker shows hundreds of trainings."""


class Artifacts:
    """The artifacts of one flow run's page (and of its task, where they are of one): each is kept up to date."""

    def __init__(
        self, client: SyncPrefectClient, name: str, flow_run: UUID | str, task_run: UUID | str | None = None
    ) -> None:
        """`name` begins the key by which a person finds each of them."""
        self._client, self._name = client, name
        self._page: dict[str, Any] = {"flow_run_id": flow_run, "task_run_id": task_run}
        self._made: dict[str, UUID] = {}
        self._shown: dict[str, Any] = {}

    def shows(self, what: str) -> bool:
        """True where this object has shown `what`."""
        return what in self._shown

    def clear(self) -> None:
        """Removes what an earlier start of the flow run left on its page: it would be shown as if it were so now."""
        of_page = ArtifactFilter(flow_run_id=ArtifactFilterFlowRunId(any_=[UUID(str(self._page["flow_run_id"]))]))
        while page := self._client.read_artifacts(artifact_filter=of_page):
            for artifact in page:
                self._client.delete_artifact(artifact.id)

    def text(self, what: str, markdown: str, description: str = "") -> None:
        """A text that is replaced when it changes."""
        self._keep("markdown", what, markdown, description)

    def _of(self) -> str:
        return self._name

    def _keep(self, kind: str, what: str, data: Any, description: str) -> None:
        """Creates the artifact, or updates the one made before; nothing when it shows this already."""
        description = without_links(description)
        if self._shown.get(what) == (data, description):
            return
        if made := self._made.get(what):
            self._client.update_artifact(made, ArtifactUpdate(data=data, description=description))
        else:
            key = re.sub(r"[^a-z0-9]+", "-", f"{self._of()}-{what}".lower()).strip("-")  # all that Prefect allows
            create = ArtifactCreate(key=key, type=kind, data=data, description=description, **self._page)
            self._made[what] = self._client.create_artifact(create).id
        self._shown[what] = (data, description)

    def _tables_and_figures(self, run: RunDirectory, result: dict[str, Any]) -> None:
        """Shows a stage's tables and figures: only outputs that its marker lists, since others may read them here."""
        for table in result.get("tables", []):
            file = markers.output(run, table)
            self._keep("markdown", file.stem, without_links(reading.read_bytes(file).decode()), f"`{file}`")
        if figures := [markers.output(run, name) for name in result.get("figures", [])]:
            self._keep("markdown", "figures", as_markdown(figures), f"`{figures[0].parent}`")


class StageArtifacts(Artifacts):
    """Artifacts of one stage, from its run directory alone."""

    def __init__(
        self, client: SyncPrefectClient, run: RunDirectory, flow_run: UUID | str, task_run: UUID | str | None = None
    ) -> None:
        super().__init__(client, f"{run.study}-{run.stage}", flow_run, task_run)
        self._run = run
        self._measured, self._drawn_at = 0, -math.inf

    def _of(self) -> str:
        """Name with the stage's cell, which it writes down when it begins: two arms are not one artifact's versions."""
        cell = read(self._run.stage_file).get("configuration", {}).get("cell", "")
        return f"{self._name}-{cell}" if cell else self._name

    def progress(self) -> None:
        """progress.json as a progress bar, with what is done and how long it still takes; full at a finished stage."""
        now = durable.read_json(self._run.progress_file)
        ended = (attempts.newest(self._run.attempts) or {}).get("end_state")
        finished = ended == "finished"
        if ended:  # nothing is under way that would take so long still
            now["eta_seconds"] = None
        share = 100.0 if finished else 100.0 * now["step"] / now["total"] if now["total"] else 0.0
        self._keep("progress", "progress", share, f"{self._run.stage}: {'finished' if finished else described(now)}")

    def curves(self, at_once: bool = False) -> None:
        """A training's curves so far, drawn again when more was measured; not too often, but for `at_once`."""
        file = self._run.metrics_file
        size, now = file.stat().st_size if file.exists() else 0, time.monotonic()
        if size == self._measured or (now - self._drawn_at < DRAW_EVERY_SECONDS and not at_once):
            return
        self._measured, self._drawn_at = size, now
        if drawn := curves_of(file):
            self._keep("markdown", "curves", _images({f"curve-{i}": svg for i, svg in enumerate(drawn)}), f"`{file}`")

    def results(self) -> None:
        """The stage's result as a table, the tables that it made, its figures, and a training's curves."""
        result = durable.read_json(markers.output(self._run, self._run.result_file.name))
        rows = [{"what": without_links(name), "value": without_links(str(value))} for name, value in leaves(result)]
        self._keep("table", "result", rows, f"`{self._run.path}`")
        self._tables_and_figures(self._run, result)
        self.curves(at_once=True)


class StudyArtifacts(Artifacts):
    """Artifacts of a study, on its own flow run's page."""

    def __init__(self, client: SyncPrefectClient, study: str, flow_run: UUID | str) -> None:
        super().__init__(client, study, flow_run)

    def progress(self, now: Estimate) -> None:
        """How many stages are finished, and how long the others take."""
        self._keep("progress", "study", now.share, f"the whole study: {now.words}")

    def results(self, last: RunDirectory) -> None:
        """Shows what the study's last stage made: where its report is, its figures, its tables."""
        result = durable.read_json(markers.output(last, last.result_file.name))
        if report := result.get("report"):
            verdict, *numbers = result.get("answer") or [result.get("headline", "")]
            not_shown = result.get("not_shown", [])
            lines = [f"**{without_links(verdict)}**" if verdict else "", _points(numbers)]
            lines += [f"Not shown, and to keep in mind:\n\n{_points(not_shown)}"] if not_shown else []
            file = markers.output(last, report)
            link = link_of(file.absolute(), str(self._client.api_url).rstrip("/"))
            lines += [f"[Open the report]({link})" if link else "", f"It is the file `{file}`"]
            self.text("report", "\n\n".join(filter(None, lines)), "the answer; the report is one page, without network")
        self._tables_and_figures(last, result)


def _points(texts: list[str]) -> str:
    return "\n".join(f"- {without_links(text)}" for text in texts)


def as_markdown(figures: list[Path]) -> str:
    """SVG files as Markdown that holds them: an image artifact would also print the whole data URI below the image."""
    return _images({file.stem: reading.read_bytes(file).decode() for file in figures})


def _images(svgs: Mapping[str, str]) -> str:
    shown = []
    for name, svg in svgs.items():
        caption = ElementTree.fromstring(svg).get("aria-label", "")
        image = base64.b64encode(svg.encode()).decode()
        shown.append(f"![{without_links(name)}](data:image/svg+xml;base64,{image})\n\n{without_links(caption)}")
    return "\n\n".join(shown)
