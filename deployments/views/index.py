"""Output of a finished study for people, wherever it ran: its answer, the link `latest` to it, and the index page of
the root, with links to what came out of every study below it."""

import logging
import time
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote

from deployments.dag.walk import Handle
from deployments.views.listing import ListedResult, ListedStudy, date, ended_at, headline_of, read_root
from storage import durable, reading
from storage.errors import BadInput
from storage.run_directory import LATEST, RunDirectory, read
from tasks.findings.document import Document, Section
from tasks.findings.page import html_page
from tasks.findings.table import Link, Table
from tasks.training.unlearned import unlearned

LOG = logging.getLogger("ratchet.finished")
INDEX = "index.html"
TITLE = "Ratchet studies"


def completed(handles: Sequence[Handle]) -> str:
    """Message of a finished study's state: its answer, where its results are, which trainings learned nothing."""
    run = handles[-1].run
    where = f"all {len(handles)} stages are finished; results in {run.path}"
    answer = headline_of(read(run.result_file))
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


def write_index(root: Path) -> Path:
    """Writes `index.html` below `root`, in the place of an older one.

    BadInput where there are no runs, where a page of somebody else has the name, and where nothing can be written.
    """
    studies = sorted(
        read_root(root), key=lambda study: max((0.0, *(result.ended_at for result in study.results))), reverse=True
    )
    results = sum(len(study.results) for study in studies)
    document = Document(
        TITLE,
        question=f"below {root.absolute()}",
        facts=[
            f"{len(studies)} {'studies' if studies[1:] else 'study'}, {results} result{'s' * (results != 1)}, newest "
            "first.",
            f"As it stood on {date(time.time())}: written when a study finishes, and by the command ratchet index.",
        ],
        sections=[_section(study, root) for study in studies],
    )
    file = root / INDEX
    try:
        if file.exists() and f"<title>{TITLE}</title>".encode() not in reading.read_bytes(file):
            raise BadInput(f"{file} is not the page of an earlier time: move it away, and it is written")
        durable.write_bytes(file, html_page(document).encode())
    except OSError as error:
        raise BadInput(f"{file} cannot be written: {error.strerror or error}") from None
    except ValueError as error:
        raise BadInput(f"{error}, or move it away") from None
    return file


def _section(study: ListedStudy, root: Path) -> Section:
    text = f"{study.finished} of {study.begun} begun stages are finished."
    points = [f"**{work.state}**: {work.line}" for work in study.work]
    points += [f"**{study.unlearned}**"] if study.unlearned else []
    return Section(study.name, [text], points, tables=[_table(study.results, root)] if study.results else [])


def _table(results: Sequence[ListedResult], root: Path) -> Table:
    """Newest first."""
    header = ["result", "finished", "of", "stage", "run"]
    rows = [
        [
            Link(result.headline or result.shown.name, _below(root, result.shown)),
            date(result.ended_at),
            ", ".join(result.of) or "-",
            result.run.stage,
            Link(result.run.path.name, _below(root, result.run.path)),
        ]
        for result in reversed(results)
    ]
    return Table("Results, newest first; each leads to its report.", header, rows)


def _below(root: Path, path: Path) -> str:
    """Link of the page to `path`; the name of no folder is taken for a scheme or an anchor."""
    return quote(path.relative_to(root).as_posix())
