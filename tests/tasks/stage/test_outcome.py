"""The table of end states: DESIGN section 4, row by row, and what a study makes of the ends of its stages."""

from itertools import combinations
from typing import get_args

import pytest

from storage import attempts
from tasks.stage import outcome
from tasks.stage.outcome import (
    END_STATES,
    PRECEDENCE,
    Category,
    Diagnosis,
    Follows,
    in_words,
    state_named,
    state_of_study,
    stops,
)

# end state: exit code, name and type of the Prefect state where it ran, what follows on SLURM, in words
DESIGN = {
    "finished": (0, "Completed", "COMPLETED", "Completed", "finished"),
    "out_of_time": (75, "AwaitingRetry", "CANCELLED", "AwaitingRetry", "stopped at its limit"),
    "sigterm": (75, "AwaitingRetry", "CANCELLED", "AwaitingRetry", "stopped by SIGTERM"),
    "interrupted": (130, "Cancelled", "CANCELLED", "Cancelled", "interrupted"),
    "check_failed": (1, "Failed", "FAILED", "Failed", "check failed"),
    "not_learning": (1, "Failed", "FAILED", "Failed", "not learning"),
    "no_progress": (1, "Failed", "FAILED", "Failed", "no progress"),
    "numerical_failure": (1, "Failed", "FAILED", "Failed", "numerical failure"),
    "bad_input": (2, "BadInput", "FAILED", "Failed", "bad input"),
    "held": (2, "Held", "FAILED", "AwaitingRetry", "held"),
    "crashed": (1, "Crashed", "CRASHED", "AwaitingRetry", "crashed"),
}


def test_the_table_is_that_of_the_design():
    assert {
        name: (end.exit_code, end.state.name, end.state.type, end.follows, end.words)
        for name, end in END_STATES.items()
    } == DESIGN


@pytest.mark.parametrize("name", END_STATES)
def test_a_row_agrees_with_itself(name):
    end = END_STATES[name]
    assert end.follows in get_args(Follows) and end.state in PRECEDENCE
    assert (end.exit_code == 0) == (name == "finished"), "what is not finished never exits 0"
    assert not (end.goes_on and end.stops) and stops(name) is end.stops
    if end.stops:
        assert end.exit_code in (1, 2) and end.words in get_args(Category), "its diagnosis is of this category"
    if end.exit_code == 75:
        assert end.goes_on
    assert in_words(name) == end.words
    if end.state == outcome.CANCELLED:
        assert name in attempts.ENDED_BY_A_PERSON, "such an attempt does not count as one without progress"


def test_an_end_state_of_another_version_is_read():
    assert in_words("ended_some_way") == "ended some way"
    assert not stops("ended_some_way") and not stops(None)


def test_a_study_has_the_worst_state_of_its_stages():
    """Bad input first; a stage that is held needs no correction, so it hides no other that does."""
    codes = [state.exit_code for state in PRECEDENCE]
    assert codes == [2, 1, 1, 2, 130, 75, 0]
    for worse, better in combinations(PRECEDENCE, 2):
        assert state_of_study([better, worse, better]) == state_of_study([worse, better]) == worse
    assert state_of_study([]) == outcome.COMPLETED


def test_states_are_known_by_name_and_one_that_only_prefect_gives_is_a_failure():
    assert [state_named(state.name) for state in PRECEDENCE] == list(PRECEDENCE)
    assert state_named("TimedOut") == state_named(None) == outcome.FAILED


@pytest.mark.parametrize(
    ("written", "read"),
    [
        (None, None),
        ({}, None),
        ({"level": "info", "category": "lost"}, Diagnosis("info", "lost", "")),
        ({"level": "fatal", "category": "no_progress", "summary": "s", "more": 1}, Diagnosis("error", "other", "s")),
        ({"category": ["crash"], "summary": None}, Diagnosis("error", "other", "")),
    ],
)
def test_a_diagnosis_of_another_version_is_read(written, read):
    assert Diagnosis.read(written) == read
