"""The list in docs/guarantees.md of what the audits ask, by study, made of what the studies declare.

python -m tests.docs.origins     writes it anew
"""

import importlib
from collections.abc import Iterator, Mapping

from tests.conftest import REPOSITORY

PAGE = REPOSITORY / "docs" / "guarantees.md"
BEGIN, END = "<!-- origins: python -m tests.docs.origins -->\n", "<!-- origins end -->\n"
STUDIES = ("robustness", "icecube", "inversion", "summarisation", "poison", "calorimeter")


def listing() -> str:
    return "\n".join(line for study in STUDIES for line in _of(study)) + "\n"


def _of(study: str) -> Iterator[str]:
    origins = importlib.import_module(f"tasks.{study}.final_results").ORIGINS
    allowed = importlib.import_module(f"tasks.{study}.stages").AUDITED
    within = {pattern: f"{kind}, to within {allowed[kind]:g}" for pattern, kind in origins.asked.items()}
    yield f"- **{study}**, asked again: {_grouped(within)}."
    yield f"  Not asked: {_grouped(origins.not_asked)}."


def _grouped(patterns: Mapping[str, str]) -> str:
    """Patterns of JSON pointers, by why."""
    by_why: dict[str, list[str]] = {}
    for pattern, why in patterns.items():
        by_why.setdefault(why, []).append(f"`/{pattern.replace('.', '/')}`")
    return "; ".join(f"{', '.join(names)} ({why})" for why, names in by_why.items())


def with_listing(text: str) -> str:
    before, rest = text.split(BEGIN)
    return f"{before}{BEGIN}{listing()}{END}{rest.split(END)[1]}"


if __name__ == "__main__":
    PAGE.write_text(with_listing(PAGE.read_text()))
