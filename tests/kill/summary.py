"""Shows at the end of a test run where its kills hit: a pytest plugin."""

from __future__ import annotations

import pytest

from tests.side_by_side import COUNTED

SEED = 20261122
KILLS, WHERE = "kills", "killed: "
IN_A_WRITE = "in a checkpoint's write: "


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """A histogram; nothing when no training was killed."""
    if not COUNTED[KILLS]:
        return
    where = {name.removeprefix(WHERE): count for name, count in COUNTED.items() if name.startswith(WHERE)}
    inside = sum(count for name, count in where.items() if name.startswith(IN_A_WRITE))
    terminalreporter.section("training, killed")
    terminalreporter.line(
        f"seed {SEED}: {COUNTED[KILLS]} kills of {COUNTED['killed runs']} runs; {inside} inside a checkpoint's write; "
        f"{COUNTED['kills from outside']} from outside, the others at fault points; "
        f"{COUNTED['kills of a fresh process']} of a fresh process; "
        f"{COUNTED['kills in a window']} with gradients of a window accumulated; "
        f"{COUNTED['kills that left metric rows']} left metric rows to be cut back"
    )
    for name, count in sorted(where.items(), key=lambda item: -item[1]):
        terminalreporter.line(f"{count:5} {'#' * count if count <= 60 else '#' * 59 + '+'} {name}")
