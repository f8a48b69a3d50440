"""The room on the disk that the study takes, estimated before any of it is taken."""

from __future__ import annotations

from tasks.language.memory import BYTES_PER_PARAMETER, TENSORS_PER_CHECKPOINT

BYTES_PER_CHARACTER = 8  # text twice in Parquet (cache, splits) and packed tokens, generously
MODELS = 5  # untrained, base, constrained, and the two arms
TRAININGS = 3  # base and the two arms


def estimate_disk_bytes(*, characters: int, parameters: int, keep_checkpoints: int) -> int:
    """What a study writes at most, roughly: text and blocks, models, and the checkpoints of each training.

    A training holds the kept checkpoints, what was best at each of them, the last that was read, and the one being
    written. Records and logs are small beside these.
    """
    checkpoints = TRAININGS * TENSORS_PER_CHECKPOINT * (2 * keep_checkpoints + 2)
    return characters * BYTES_PER_CHARACTER + parameters * BYTES_PER_PARAMETER * (MODELS + checkpoints)
