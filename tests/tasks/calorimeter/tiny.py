"""The calorimeter study in seconds, finished once in a test run."""

from tests.tasks.smoke import Smoke

SMOKE = Smoke("calorimeter")
finished = SMOKE.finished
