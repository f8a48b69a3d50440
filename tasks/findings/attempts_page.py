"""`attempts.html` beside a report: when and where each stage worked, how long, and what it used of the machine.

All of it comes from clocks and machines and differs between any two runs: so it stands on a page of its own, outside
the stage's outputs and every digest, and the report has the same bytes after any kill.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from storage import attempts, durable
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


@dataclass(frozen=True)
class Attempt:
    """The record of an attempt; `ended_at` of one that was killed is its last sign of life."""

    number: int
    started_at: float
    ended_at: float
    end: str
    host: str
    device: str
    job: str
    cpu_seconds: float
    peak_memory_bytes: int

    @property
    def seconds(self) -> float:
        return max(self.ended_at - self.started_at, 0.0)


def attempts_of(directory: Path) -> list[Attempt]:
    """The attempts at a stage that left a record in its run directory, in their order."""
    folder = directory / "attempts"
    return [
        Attempt(
            number=record["attempt"],
            started_at=record["started_at"],
            ended_at=attempts.ended_at(folder, record) or record["started_at"],
            end=in_words(end_state) if (end_state := record.get("end_state")) else "killed",
            host=record.get("host") or "unknown",
            device=(record.get("numerics") or {}).get("device_model") or "-",
            job=record.get("slurm_job_id") or "-",
            cpu_seconds=record.get("cpu_seconds") or 0.0,
            peak_memory_bytes=record.get("peak_memory_bytes") or 0,
        )
        for record in attempts.records(folder)
    ]


def publish_attempts(run: StageRun, dag: Dag) -> None:
    """Writes `attempts.html` about every run of `dag` but this one, which is still at work."""
    run.lock.check()
    durable.write_bytes(run.directory / ATTEMPTS, _page(run, dag).encode())


def _page(run: StageRun, dag: Dag) -> str:
    nodes = {name: node for name, node in dag.nodes.items() if node.path != run.directory}
    by_run = {name: attempts_of(node.path) for name, node in nodes.items()}
    took = {name: duration(sum(row.seconds for row in of_run)) for name, of_run in by_run.items() if of_run}
    runs = {name: RunDirectory(node.path.parents[2], *node.path.parts[-3:]) for name, node in nodes.items()}
    exact = [f"{nodes[name].label}: {text}." for name, runs_of in runs.items() if (text := attempts.exactness(runs_of))]
    times = {name: told(rows_at_the_end(runs_of.timing_file)) for name, runs_of in runs.items()}
    phases = [[nodes[name].label, "; ".join(lines), name] for name, lines in times.items() if lines]
    rows = [
        [
            *(nodes[name].label, row.number, _date(row.started_at), f"{row.seconds / 60:,.2f}", row.end),
            *(
                f"{row.cpu_seconds / 60:,.2f}",
                f"{row.peak_memory_bytes / 1e9:.2f}",
                row.host,
                row.device,
                row.job,
                name,
            ),
        ]
        for name, of_run in by_run.items()
        for row in of_run
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


def _totals(every: Sequence[Attempt]) -> list[str]:
    if not every:
        return []
    hosts = ", ".join(dict.fromkeys(row.host for row in every))
    return [
        f"{len(every):,} attempts worked for {duration(sum(row.seconds for row in every))} together (processors: "
        f"{duration(sum(row.cpu_seconds for row in every))}), on {hosts}. The first began "
        f"{_date(min(row.started_at for row in every))}, the last ended {_date(max(row.ended_at for row in every))}. "
        f"The most memory that a process of them had was {max(row.peak_memory_bytes for row in every) / 1e9:.2f} GB."
    ]


def _date(at: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(at))
