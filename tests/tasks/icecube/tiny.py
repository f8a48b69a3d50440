"""The direction study in seconds, finished once in a test run."""

from tests.tasks.smoke import Smoke

SMOKE = Smoke("icecube")
PAGE, smoke, run, run_until, finished = SMOKE.page, SMOKE.study, SMOKE.run, SMOKE.run_until, SMOKE.finished
