"""The room on the disk that the study takes, estimated before any of it is taken."""

from __future__ import annotations

from tasks.language.memory import BYTES_PER_PARAMETER, TENSORS_PER_CHECKPOINT

BYTES_PER_CHARACTER = 8  # text twice in Parquet (cache, splits) and packed tokens, generously


def text_bytes(characters: int) -> int:
    """What setup writes at most, roughly."""
    return characters * BYTES_PER_CHARACTER


def model_bytes(parameters: int, *, models: int, trainings: int, keep_checkpoints: int) -> int:
    """What all other stages of a study write at most, roughly: its models, and the checkpoints of each training.

    A training holds the kept checkpoints, what was best at each of them, the last that was read, and the one being
    written. Records and logs are small beside these.
    """
    checkpoints = trainings * TENSORS_PER_CHECKPOINT * (2 * keep_checkpoints + 2)
    return parameters * BYTES_PER_PARAMETER * (models + checkpoints)
