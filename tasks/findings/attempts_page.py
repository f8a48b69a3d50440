"""`attempts.html` beside a report: when and where each stage worked, how long, and what it used of the machine.

All of it comes from clocks and machines and differs between any two runs: so it stands on a page of its own, outside
the stage's outputs and every digest, and the report has the same bytes after any kill.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from storage import durable
from storage.attempts import exactness, records
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
    attempts = []
    for record in records(directory / "attempts"):
        started, ended = record["started_at"], record.get("ended_at")
        attempts.append(
            Attempt(
                number=record["attempt"],
                started_at=started,
                ended_at=ended or max(started, _last_sign_of_life(directory, record["attempt"])),
                end=in_words(end_state) if (end_state := record.get("end_state")) else "killed",
                host=record.get("host") or "unknown",
                device=(record.get("numerics") or {}).get("device_model") or "-",
                job=record.get("slurm_job_id") or "-",
                cpu_seconds=record.get("cpu_seconds") or 0.0,
                peak_memory_bytes=record.get("peak_memory_bytes") or 0,
            )
        )
    return attempts


def publish_attempts(run: StageRun, dag: Dag) -> None:
    """Writes `attempts.html` about every run of `dag` but this one, which is still at work."""
    attempts = {name: attempts_of(node.path) for name, node in dag.nodes.items() if node.path != run.directory}
    times = {name: told(rows_at_the_end(dag.nodes[name].path / "timing.jsonl")) for name in attempts}
    run.lock.check()
    others = [node for node in dag.nodes.values() if node.path != run.directory]
    exact = [f"{node.label}: {said}." for node in others if (said := exactness(_run(node.path)))]
    durable.write_bytes(run.directory / ATTEMPTS, _page(run.run.study, dag, attempts, times, exact).encode())


def _last_sign_of_life(directory: Path, number: int) -> float:
    try:
        return float(durable.read_json(directory / "locks" / f"{number:d}.alive")["at"])
    except (OSError, ValueError, KeyError, TypeError):
        return 0.0


def _run(path: Path) -> RunDirectory:
    return RunDirectory(path.parents[2], path.parts[-3], path.parts[-2], path.name)


def _page(
    title: str,
    dag: Dag,
    attempts: Mapping[str, Sequence[Attempt]],
    times: Mapping[str, Sequence[str]],
    exact: Sequence[str],
) -> str:
    took = {name: duration(_seconds(of_run)) for name, of_run in attempts.items() if of_run}
    labels = {name: dag.nodes[name].label for name in attempts}
    sections = [
        Section("Every stage", figures=[dag_figure(dag.with_notes(took))], tables=[_stage_table(labels, attempts)]),
        Section("Every attempt", tables=[_attempt_table(labels, attempts)]),
    ]
    if rows := [[labels[name], "; ".join(lines), name] for name, lines in times.items() if lines]:
        told_of = "The time of each training by phase; of a long one, of the newest of its steps."
        sections.insert(1, Section("Every training", tables=[Table(told_of, ["stage", "time by phase", "run"], rows)]))
    document = Document(
        f"{title}: attempts",
        question="When and where each stage worked, how long, and what it used. Nothing here is part of a result: "
        "another run gives the same results in another time. The stage that wrote this page is not on it: it was still "
        "at work. Dates are in UTC, by the clocks of the hosts.",
        facts=[*_totals([attempt for of_run in attempts.values() for attempt in of_run]), *exact],
        sections=sections,
    )
    return html_page(document, beside=[Link("report.html", "report.html")])


def _totals(attempts: Sequence[Attempt]) -> list[str]:
    if not attempts:
        return []
    begun, ended = min(attempt.started_at for attempt in attempts), max(attempt.ended_at for attempt in attempts)
    hosts = ", ".join(dict.fromkeys(attempt.host for attempt in attempts))
    return [
        f"{len(attempts):,} attempts worked for {duration(_seconds(attempts))} together (processors: "
        f"{duration(_cpu_seconds(attempts))}), on {hosts}. The first began {_date(begun)}, the last ended "
        f"{_date(ended)}. The most memory that a process of them had was {_gigabytes(attempts)} GB."
    ]


def _stage_table(labels: Mapping[str, str], attempts: Mapping[str, Sequence[Attempt]]) -> Table:
    rows = []
    for name, of_run in attempts.items():
        if of_run:
            dates = [_date(of_run[0].started_at), _date(of_run[-1].ended_at)]
            used = [_minutes(_seconds(of_run)), _minutes(_cpu_seconds(of_run)), _gigabytes(of_run)]
            machines = zip(*((attempt.host, attempt.device) for attempt in of_run), strict=True)
            where = [", ".join(dict.fromkeys(names)) for names in machines]
            rows.append([labels[name], *dates, len(of_run), *used, *where, name])
    return Table(
        "Each stage: when its first attempt began and its last one ended, minutes of all attempts together and of the "
        "processors, the most memory that its process had by then in GB (not that of a GPU), and on what it ran.",
        ["stage", "began", "ended", "attempts", "minutes", "processor", "memory", "host", "device", "run"],
        rows,
    )


def _attempt_table(labels: Mapping[str, str], attempts: Mapping[str, Sequence[Attempt]]) -> Table:
    rows = []
    for name, of_run in attempts.items():
        for one in of_run:
            when = [_date(one.started_at), _minutes(one.seconds), one.end]
            rows.append([labels[name], one.number, *when, one.host, one.device, one.job, name])
    return Table(
        "Each attempt: how it ended (one that was killed, at its last sign of life), and its job on SLURM.",
        ["stage", "attempt", "began", "minutes", "ended", "host", "device", "job", "run"],
        rows,
    )


def _seconds(attempts: Sequence[Attempt]) -> float:
    return sum(attempt.seconds for attempt in attempts)


def _cpu_seconds(attempts: Sequence[Attempt]) -> float:
    return sum(attempt.cpu_seconds for attempt in attempts)


def _date(at: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(at))


def _minutes(seconds: float) -> str:
    return f"{seconds / 60:,.2f}"


def _gigabytes(attempts: Sequence[Attempt]) -> str:
    return f"{max(attempt.peak_memory_bytes for attempt in attempts) / 1e9:.2f}"
