"""`ratchet list`: each study below a root with its results, newest last, and what is not finished."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from deployments.listing import ListedResult, date, read_root


def listing(root: Path) -> Iterator[str]:
    """The lines for a person. BadInput where there are no runs."""
    for study in read_root(root):
        yield f"{study.name} ({study.finished} of {study.begun} begun stages are finished)"
        for result in study.results:
            yield from _result(result)
        if study.unlearned:
            yield f"  {study.unlearned}"
        for work in study.work:
            yield f"  {work.state:<12} {work.line}"


def _result(result: ListedResult) -> Iterator[str]:
    yield f"  {date(result.ended_at)}  {', '.join([result.run.stage, *result.of])}"
    if result.headline:
        yield f"    {result.headline}"
    yield f"    {result.shown}"
