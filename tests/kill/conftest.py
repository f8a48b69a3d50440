"""Shows at the end of a test run where its kills hit."""

from __future__ import annotations

import pytest

from tests.kill.killing import IN_A_WRITE, SEED, TALLY


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """A histogram; nothing when no training was killed."""
    if not TALLY.where:
        return
    inside = sum(count for where, count in TALLY.where.items() if where.startswith(IN_A_WRITE))
    terminalreporter.section("training, killed")
    terminalreporter.line(
        f"seed {SEED}: {TALLY.where.total()} kills of {TALLY.runs} runs, up to {TALLY.most_in_one_run} of one; "
        f"{inside} inside a checkpoint's write; {TALLY.from_outside} from outside, the others at fault points; "
        f"{TALLY.fresh} of a fresh process; {TALLY.with_gradients_accumulated} with gradients of a window accumulated; "
        f"{TALLY.with_rows_to_cut} left metric rows to be cut back"
    )
    for where, count in sorted(TALLY.where.items(), key=lambda item: -item[1]):
        terminalreporter.line(f"{count:5} {'#' * count if count <= 60 else '#' * 59 + '+'} {where}")
