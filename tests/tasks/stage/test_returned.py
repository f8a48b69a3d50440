"""What a stage's function takes and returns: a sentence with file and line, not a traceback."""

import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from storage import durable
from tasks.stage.outcome import Outcome
from tasks.stage.run import Stage, StageRun
from tasks.stage.study import StageConfiguration
from tests.tasks.tiny import Here


class NothingConfig(StageConfiguration):
    """Nothing to choose."""


RETURNED: list[Any] = []


def work(run: StageRun, config: NothingConfig) -> Any:
    return RETURNED[0]


def wants_another(run: StageRun, config: NothingConfig, text: Any) -> dict[str, Any]:
    return {}


def attempted(root: Path, function: Callable[..., Any]) -> tuple[Outcome, Path]:
    here = Here(root, "toy")
    handle = here(Stage("only", NothingConfig, f"{__name__}:{function.__name__}"), NothingConfig())
    return handle.outcome, handle.run.path


@pytest.mark.parametrize(
    ("returned", "told"),
    [
        ({"loss": np.float32(1)}, "result['loss'] is a numpy.float32: return a plain value, such as float(...)"),
        ({"a": [1, {"b": np.zeros(2)}]}, "result['a'][1]['b'] is a numpy.ndarray: return a plain value"),
        ({"loss": math.nan}, "result['loss'] is nan, which JSON cannot hold"),
        ({3: 1.0}, "result has the key 3, a int: return text"),
        ({"path": Path("x")}, "result['path'] is a pathlib"),
    ],
)
def test_what_is_no_json_is_named_with_its_place(returned, told, tmp_path):
    RETURNED[:] = [returned]
    outcome, folder = attempted(tmp_path, work)
    assert outcome.end_state == "bad_input" and not (folder / "COMPLETE.json").exists()
    assert f"{__file__}:{work.__code__.co_firstlineno}: work returned what is no JSON: {told}" in outcome.message


def test_what_is_no_dictionary_is_refused(tmp_path):
    RETURNED[:] = [None]
    assert "work returned a NoneType: a stage returns a dictionary" in attempted(tmp_path, work)[0].message


def test_plain_values_are_kept_as_they_are(tmp_path):
    RETURNED[:] = [{"a": [1, 2.5, None, True], "b": {"c": "d"}, "e": np.float64(1.5), "f": (1, 2)}]
    outcome, folder = attempted(tmp_path, work)
    assert outcome.end_state == "finished"
    kept = durable.read_json(folder / "result.json")
    assert kept == {"a": [1, 2.5, None, True], "b": {"c": "d"}, "e": 1.5, "f": [1, 2]}


def test_a_function_that_wants_another_input_is_refused_before_it_is_called(tmp_path):
    outcome, _ = attempted(tmp_path, wants_another)
    assert outcome.end_state == "bad_input"
    assert "wants_another of the stage only is called with run, config: missing a required argument: 'text'" in (
        outcome.message
    )


def ends_the_process(run: StageRun, config: NothingConfig) -> dict[str, Any]:
    sys.exit(0)  # as the main() of many scripts does


def test_an_exit_with_0_is_no_result(tmp_path):
    """The study ended with exit code 0, unfinished and without a word."""
    outcome, folder = attempted(tmp_path, ends_the_process)
    assert (outcome.end_state, outcome.exit_code) == ("crashed", 1) and not (folder / "COMPLETE.json").exists()
    assert "called sys.exit(0)" in durable.read_json(folder / "attempts" / "0001.json")["diagnosis"]["summary"]
