"""Diagnoses for people: kept in an attempt's record and in the journal of a stage's jobs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Literal, cast, get_args

Level = Literal["info", "warning", "error"]
Category = Literal[
    # of an attempt
    "bad input",
    "check failed",
    "crash",
    "directory gone",
    "disk full",
    "no progress",
    "not learning",
    "numerical failure",
    "stalled",
    "taken over",
    # of a job
    "cancelled",
    "deadline",
    "ended",
    "environment",
    "finished",
    "held",
    "killed",
    "lost",
    "node failure",
    "not now",
    "not submitted",
    "out of memory",
    "output folder",
    "preempted",
    "refused",
    "revoked",
    "time limit",
    # of a record that another version of this code wrote
    "other",
]
"""The categories of a diagnosis. Code decides by them, never by the text of a diagnosis."""


@dataclass(frozen=True)
class Diagnosis:
    """A diagnosis: the cause (`summary`, `detail`) and the remedy (`resolution`, empty: none needed)."""

    level: Level
    category: Category
    summary: str
    detail: str = ""
    resolution: str = ""

    @property
    def text(self) -> str:
        """The diagnosis in sentences."""
        return " ".join(part.rstrip(".") + "." for part in (self.summary, self.detail, self.resolution) if part)

    def as_dict(self) -> dict[str, str]:
        return asdict(self)

    @classmethod
    def read(cls, values: Mapping[str, object] | None) -> Diagnosis | None:
        """Reads the diagnosis of a record or a journal; None when it has none.

        Another version of this code may have written it: an unknown category is read as `other`, a level as `error`.
        """
        if not values:
            return None
        level, category = values.get("level"), values.get("category")
        texts = (str(values.get(name) or "") for name in ("summary", "detail", "resolution"))
        return cls(
            cast("Level", level) if level in get_args(Level) else "error",
            cast("Category", category) if category in get_args(Category) else "other",
            *texts,
        )
