"""What a person chooses of what stands before a report."""

from __future__ import annotations

from tasks.stage.configuration import Configuration, scientific


class Audit(Configuration):
    """How much is computed again."""

    examples: int = scientific(
        2,
        ge=1,
        description="Examples of each split, drawn by the seed, of which every recorded number is computed again.",
    )
