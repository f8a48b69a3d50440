"""The inversion study in seconds, finished once in a test run."""

from tests.tasks.smoke import Smoke

SMOKE = Smoke("inversion")
smoke, run, run_until, finished = SMOKE.study, SMOKE.run, SMOKE.run_until, SMOKE.finished
