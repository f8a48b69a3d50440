"""`attempts.html` beside a report: when and where each stage worked, how long, and what it used of the machine.

All of it is what clocks and machines said, which differs between any two runs: so it stands on a page of its own,
outside the stage's outputs and every digest, and the report has the same bytes after any kill.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from storage import durable
from storage.attempts import records
from tasks.findings.dag import Dag
from tasks.findings.dag_figure import dag_figure
from tasks.findings.document import Document, Section
from tasks.findings.page import html_page
from tasks.findings.provenance import ATTEMPTS
from tasks.findings.table import Link, Table
from tasks.stage.outcome import in_words
from tasks.stage.progress import duration
from tasks.stage.run import StageRun


@dataclass(frozen=True)
class Attempt:
    """What an attempt's record says; `ended_at` of one that was killed is its last sign of life."""

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
    found = []
    for record in records(directory / "attempts"):
        started, ended = record["started_at"], record.get("ended_at")
        found.append(
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
    return found


def publish_attempts(run: StageRun, dag: Dag) -> None:
    """Writes `attempts.html` about every run of `dag` but this one, which is still at work."""
    known = {name: attempts_of(node.path) for name, node in dag.nodes.items() if node.path != run.directory}
    run.lock.check()
    durable.write_bytes(run.directory / ATTEMPTS, _page(run.run.study, dag, known).encode())


def _last_sign_of_life(directory: Path, number: int) -> float:
    try:
        return float(durable.read_json(directory / "locks" / f"{number:d}.alive")["at"])
    except (OSError, ValueError, KeyError, TypeError):
        return 0.0


def _page(title: str, dag: Dag, known: Mapping[str, Sequence[Attempt]]) -> str:
    took = {name: duration(sum(one.seconds for one in own)) for name, own in known.items() if own}
    every = [one for own in known.values() for one in own]
    labels = {name: dag.nodes[name].label for name in known}
    sections = [
        Section("Every stage", figures=[dag_figure(dag.noted(took))], tables=[_stage_table(labels, known)]),
        Section("Every attempt", tables=[_attempt_table(labels, known)]),
    ]
    document = Document(
        f"{title}: attempts",
        question="When and where each stage worked, how long, and what it used. Nothing here is part of a result: "
        "another run gives the same results in another time. The stage that wrote this page is not on it: it was still "
        "at work. Dates are in UTC, by the clocks of the hosts.",
        facts=_totals(every),
        sections=sections,
    )
    return html_page(document, beside=[Link("report.html", "report.html")])


def _totals(every: Sequence[Attempt]) -> list[str]:
    if not every:
        return []
    begun, ended = min(one.started_at for one in every), max(one.ended_at for one in every)
    hosts = ", ".join(dict.fromkeys(one.host for one in every))
    return [
        f"{len(every):,} attempts worked for {duration(sum(one.seconds for one in every))} together (processors: "
        f"{duration(sum(one.cpu_seconds for one in every))}), on {hosts}. The first began {_date(begun)}, the last "
        f"ended {_date(ended)}. The most memory that a process of them had was {_gigabytes(every)} GB."
    ]


def _stage_table(labels: Mapping[str, str], known: Mapping[str, Sequence[Attempt]]) -> Table:
    rows = [
        [
            labels[name],
            _date(own[0].started_at),
            _date(own[-1].ended_at),
            len(own),
            _minutes(sum(one.seconds for one in own)),
            _minutes(sum(one.cpu_seconds for one in own)),
            _gigabytes(own),
            ", ".join(dict.fromkeys(one.host for one in own)),
            ", ".join(dict.fromkeys(one.device for one in own)),
            name,
        ]
        for name, own in known.items()
        if own
    ]
    return Table(
        "Each stage: when its first attempt began and its last one ended, minutes of all attempts together and of the "
        "processors, the most memory that its process had by then in GB (not that of a GPU), and on what it ran.",
        ["stage", "began", "ended", "attempts", "minutes", "processor", "memory", "host", "device", "run"],
        rows,
    )


def _attempt_table(labels: Mapping[str, str], known: Mapping[str, Sequence[Attempt]]) -> Table:
    return Table(
        "Each attempt: how it ended (one that was killed, at its last sign of life), and its job on SLURM.",
        ["stage", "attempt", "began", "minutes", "ended", "host", "device", "job", "run"],
        [
            [
                labels[name],
                one.number,
                _date(one.started_at),
                _minutes(one.seconds),
                one.end,
                one.host,
                one.device,
                one.job,
                name,
            ]
            for name, own in known.items()
            for one in own
        ],
    )


def _date(at: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(at))


def _minutes(seconds: float) -> str:
    return f"{seconds / 60:,.2f}"


def _gigabytes(attempts: Sequence[Attempt]) -> str:
    return f"{max(one.peak_memory_bytes for one in attempts) / 1e9:.2f}"
