"""A job's time limit that leaves no room for its start and a step."""

from __future__ import annotations

import math

from tasks.stage.diagnosis import Diagnosis

EARLY_SECONDS = 60.0
"""SLURM's signal to save may come so much earlier than it was asked for."""


def least_minutes(start_seconds: float, step_seconds: float, lead_seconds: float) -> int:
    """The time limit in which a job whose start and longest step took so long does one for certain."""
    return math.ceil((start_seconds + step_seconds + lead_seconds + EARLY_SECONDS) / 60)


def too_short(start_seconds: float, step_seconds: float, lead_seconds: float, limit_seconds: float) -> Diagnosis:
    """What is told of a job of this limit that gained nothing."""
    least = least_minutes(start_seconds, step_seconds, lead_seconds)
    step = f" and a step or part {step_seconds:.0f} s" if step_seconds >= 1 else ""
    return Diagnosis(
        "warning",
        "time limit",
        f"the time limit is too short: the start took {start_seconds:.0f} s{step}, and of {limit_seconds:.0f} s "
        f"lead_seconds ({lead_seconds:.0f}) leaves {limit_seconds - lead_seconds:.0f} s before the signal to save, "
        "which SLURM may give up to a minute earlier",
        "",
        f"Set time_limit_minutes to at least {least} (site file, or execution.resources of the study), or lower "
        "lead_seconds: the next job has it.",
    )
