"""Exit codes of a job that left no record of its end; otherwise it has the attempt's (`tasks.stage.outcome`)."""

from tasks.stage import outcome

BAD_INPUT = outcome.BAD_INPUT.exit_code
"""The study file, or what the stage reads, is not what it should be."""
ENDED_BEFORE = 70
"""An error of ours, before the attempt began."""
SETUP_FAILED = 71
"""A setup line of the site failed."""
DISK_FULL = 73
"""There was no room to write, perhaps not even the record that says so."""
HELD = 72
"""Another process works in the run directory."""
