"""What the audit of the direction study asks of other events, and that the report says so."""

import pytest

from tasks.findings.audit import AuditResult
from tasks.stage.reopened import reopen
from tests.tasks.icecube.tiny import finished


@pytest.mark.parametrize("entropy", [1, 2, 3])
def test_angles_of_other_events_agree_too(entropy: int):
    audit = reopen(finished().path("icecube-audit"))
    with audit.elsewhere({"entropy": entropy}) as (work, _):
        found = audit.stage.function()(work, audit.config, **audit.inputs)
    assert found.numbers["angles"] == 3 * audit.config.audit.examples and found.numbers["failures"] == 3
    assert found.worst.largest_difference < found.worst.tolerance / 10


def test_the_report_says_what_was_computed_again():
    said = AuditResult.read(finished().input("icecube-audit")).in_words
    assert said in (finished().path("icecube-report") / "table.md").read_text() and "3 failures" in said
