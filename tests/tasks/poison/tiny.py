"""The poison study in seconds, finished once in a test run."""

from tests.tasks.smoke import Smoke

SMOKE = Smoke("poison")
finished = SMOKE.finished
