"""`attempts.html` beside a report: when and where each stage worked, how long, and what it used of the machine.

All of it comes from clocks and machines and differs between any two runs: so it stands on a page of its own, outside
the stage's outputs and every digest, and the report has the same bytes after any kill.
"""

import time
from collections.abc import Sequence
from pathlib import Path

from storage import attempts, durable
from storage.attempts import AttemptRow
from storage.run_directory import RunDirectory
from tasks.findings.dag import Dag
from tasks.findings.dag_figure import dag_figure
from tasks.findings.document import Document, Section
from tasks.findings.page import html_page
from tasks.findings.provenance import ATTEMPTS
from tasks.findings.table import Link, Table
from tasks.stage.outcome import in_words
from tasks.stage.progress import duration
from tasks.stage.run import StageRun
from tasks.training.phases import rows_at_the_end, told


def attempts_of(directory: Path) -> list[AttemptRow]:
    """The attempts at a stage that left a record in its run directory, in their order; one that was killed ended at its
    last sign of life."""
    folder = directory / "attempts"
    return [
        {**record, "ended_at": attempts.ended_at(folder, record) or record["started_at"]}
        for record in attempts.records(folder)
    ]


def seconds(record: AttemptRow) -> float:
    """The time of an attempt."""
    return max((record["ended_at"] or 0.0) - record["started_at"], 0.0)


def publish_attempts(run: StageRun, dag: Dag) -> None:
    """Writes `attempts.html` about every run of `dag` but this one, which is still at work."""
    run.lock.check()
    durable.write_bytes(run.directory / ATTEMPTS, _page(run, dag).encode())


def _page(run: StageRun, dag: Dag) -> str:
    nodes = {name: node for name, node in dag.nodes.items() if node.path != run.directory}
    by_run = {name: attempts_of(node.path) for name, node in nodes.items()}
    took = {name: duration(sum(map(seconds, of_run))) for name, of_run in by_run.items() if of_run}
    runs = {name: RunDirectory(node.path.parents[2], *node.path.parts[-3:]) for name, node in nodes.items()}
    exact = [f"{nodes[name].label}: {text}." for name, runs_of in runs.items() if (text := attempts.exactness(runs_of))]
    times = {name: told(rows_at_the_end(runs_of.timing_file)) for name, runs_of in runs.items()}
    phases = [[nodes[name].label, "; ".join(lines), name] for name, lines in times.items() if lines]
    rows = [
        [
            *(nodes[name].label, record["attempt"], _date(record["started_at"]), f"{seconds(record) / 60:,.2f}"),
            in_words(end) if (end := record.get("end_state")) else "killed",
            f"{(record.get('cpu_seconds') or 0) / 60:,.2f}",
            f"{(record.get('peak_memory_bytes') or 0) / 1e9:.2f}",
            record.get("host") or "unknown",
            (record.get("numerics") or {}).get("device_model") or "-",
            record.get("slurm_job_id") or "-",
            name,
        ]
        for name, of_run in by_run.items()
        for record in of_run
    ]
    of_attempts = (
        "Each attempt: minutes, how it ended (one that was killed, at its last sign of life), minutes of processors, "
        "the most memory that its process had by then in GB (not that of a GPU), on what it ran, its job on SLURM."
    )
    head = ["stage", "attempt", "began", "minutes", "ended", "processor", "memory", "host", "device", "job", "run"]
    of_phases = "The time of each training by phase; of a long one, of the newest of its steps."
    document = Document(
        f"{run.run.study}: attempts",
        question="When and where each stage worked, how long, and what it used. Nothing here is part of a result: "
        "another run gives the same results in another time. The stage that wrote this page is not on it: it was still "
        "at work. Dates are in UTC, by the clocks of the hosts.",
        facts=[*_totals([row for of_run in by_run.values() for row in of_run]), *exact],
        sections=[
            Section("Every stage", figures=[dag_figure(dag.with_notes(took))]),
            *[Section("Every training", tables=[Table(of_phases, ["stage", "time by phase", "run"], phases)])]
            * bool(phases),
            Section("Every attempt", tables=[Table(of_attempts, head, rows)]),
        ],
    )
    return html_page(document, beside=[Link("report.html", "report.html")])


def _totals(every: Sequence[AttemptRow]) -> list[str]:
    if not every:
        return []
    hosts = ", ".join(dict.fromkeys(record.get("host") or "unknown" for record in every))
    peak = max(record.get("peak_memory_bytes") or 0 for record in every)
    return [
        f"{len(every):,} attempts worked for {duration(sum(map(seconds, every)))} together (processors: "
        f"{duration(sum(record.get('cpu_seconds') or 0 for record in every))}), on {hosts}. The first began "
        f"{_date(min(record['started_at'] for record in every))}, the last ended "
        f"{_date(max(record['ended_at'] or 0.0 for record in every))}. The most memory that a process of them had was "
        f"{peak / 1e9:.2f} GB."
    ]


def _date(at: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(at))
