"""The calorimeter study in seconds, finished once in a test run."""

from __future__ import annotations

from tests.tasks.smoke import Smoke

SMOKE = Smoke("calorimeter")
finished = SMOKE.finished
