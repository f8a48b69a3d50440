"""Where each number of a study's final_results.json comes from, and so what a reader may hold it to.

A number is computed in the report from records and configurations, or asked again of the models by the audit on a
sample, or nobody asks for it again. A study says which, by patterns of names; a test counts every number, and edits
every source of one, and docs/guarantees.md lists those that are not asked.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

FRAME = {
    "study": "the folder of the runs",
    "runs.*": "the folders of the runs",
    "provenance.*": "the runs' own files",
    "audit.*": "the audit",
    "gates.*": "the numbers that it names",
    "numerics_changes.*": "stage.json and metrics.jsonl of the runs",
}
"""What every report has (`StudyResults`)."""


@dataclass(frozen=True)
class Origins:
    """Patterns of names (`arms.*.mean`) -> from what it is computed, the kind that the audit asks, why it is not."""

    computed: Mapping[str, str]
    asked: Mapping[str, str]
    not_asked: Mapping[str, str]

    def of(self, leaf: str) -> str:
        """`computed`, `asked` or `not asked`, by the longest pattern; empty where none fits."""
        groups = {"computed": {**FRAME, **self.computed}, "asked": self.asked, "not asked": self.not_asked}
        fitting = [
            (len(pattern), group)
            for group, patterns in groups.items()
            for pattern in patterns
            if fnmatchcase(leaf, pattern)
        ]
        return max(fitting, default=(0, ""))[1]


def leaves(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """The numbers and texts of a JSON value, by their names such as `arms.none.values.0`."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else None
    if inner is None:
        yield name, value
    for key, each in inner or ():
        yield from leaves(each, f"{name}.{key}" if name else str(key))
