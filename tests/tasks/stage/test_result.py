"""A result is written as it always was, and read as a type: another version's is refused by file and field."""

import json
from pathlib import Path
from typing import Any

import pytest

from storage import durable
from storage.errors import BadInput
from storage.run_directory import RunDirectory, fingerprint
from tasks.stage.attempt import attempt
from tasks.stage.configuration import Configuration, scientific
from tasks.stage.outcome import Outcome
from tasks.stage.result import Result
from tasks.stage.run import Stage, StageInput, StageRun
from tasks.stage.study import StageConfiguration


class Settings(Configuration):
    rate: float = scientific(0.5, description="A rate.")
    limit: int | None = scientific(None, description="A limit.")


class Part(Result):
    value: float
    interval: list[float] | None


class Whole(Result):
    name: str
    parts: dict[str, Part]
    settings: Settings
    warning: str | None = None
    count: int


WHOLE = Whole(name="é", parts={"b": Part(value=0.1, interval=None)}, settings=Settings(), count=3)
WRITTEN = {
    "name": "é",
    "parts": {"b": {"value": 0.1, "interval": None}},
    "settings": {"rate": 0.5, "limit": None},
    "count": 3,
}


def finished(folder: Path, values: Any) -> StageInput:
    """A stage that left these values as its result."""
    run = RunDirectory(folder, "study", "weigh", "f" * 64)
    run.path.mkdir(parents=True)
    durable.write_json(run.result_file, values)
    return StageInput(run, "")


def test_json_has_the_fields_in_their_order_and_leaves_out_what_did_not_happen():
    assert list(WHOLE.as_json().items()) == list(WRITTEN.items())
    warned = WHOLE.model_copy(update={"warning": "hot"})
    assert list(warned.as_json()) == ["name", "parts", "settings", "warning", "count"]


def test_what_was_written_is_read_as_it_was(tmp_path):
    assert Whole.read(finished(tmp_path, WHOLE.as_json())) == WHOLE


def test_what_the_frame_noted_is_no_field_and_is_given_beside_it(tmp_path):
    stage = finished(tmp_path, WRITTEN | {"numerics_changes": [{"cpu_threads": 9}]})
    assert Whole.read(stage) == WHOLE
    assert stage.numerics_changes == [{"cpu_threads": 9}]
    assert finished(tmp_path / "other", WRITTEN).numerics_changes == []


@pytest.mark.parametrize(
    ("edit", "named"),
    [
        ({"count": "3"}, "count: must be a whole number"),
        ({"count": 3.5}, "count: must be a whole number"),
        ({"count": True}, "count: must be a whole number"),
        ({"parts": {"b": {"value": 0.1}}}, "parts.b.interval: is missing"),
        ({"settings": {"rate": "fast"}}, "settings.rate: must be a number"),
        ({"weights": 1}, "weights: Extra inputs are not permitted"),
    ],
)
def test_a_result_of_another_version_is_refused_with_file_field_and_what_to_do(tmp_path, edit, named):
    stage = finished(tmp_path, WRITTEN | edit)
    with pytest.raises(BadInput) as caught:
        Whole.read(stage)
    text = str(caught.value)
    assert text.startswith(f"{stage.run.result_file} was written by another version of Ratchet")
    assert f"\n  {named}" in text and text.count("\n") == 2
    assert "move that folder away and start the same command: the stage weigh runs again" in text


def test_a_missing_field_and_a_file_that_holds_no_object_are_refused(tmp_path):
    with pytest.raises(BadInput, match=r"  count: is missing"):
        Whole.read(finished(tmp_path, {key: value for key, value in WRITTEN.items() if key != "count"}))
    with pytest.raises(BadInput, match=r"result\.json.*\n  result\.json: must be a group of keys and values"):
        Whole.read(finished(tmp_path / "list", [1]))


class WeighConfig(StageConfiguration):
    """A stage without fields of its own."""


def weigh(run: StageRun, config: WeighConfig) -> Result:
    return WHOLE


def weigh_as_a_dictionary(run: StageRun, config: WeighConfig) -> dict[str, Any]:
    return {"whole": WHOLE, "count": 3}


@pytest.mark.parametrize(
    ("work", "written"), [("weigh", WRITTEN), ("weigh_as_a_dictionary", {"whole": WRITTEN, "count": 3})]
)
def test_the_frame_writes_what_a_stage_returns_as_json(tmp_path, work, written):
    stage = Stage("weigh", WeighConfig, f"{__name__}:{work}")
    print_ = fingerprint(stage.name, stage.version, WeighConfig().scientific(), {}, {})
    run = RunDirectory(tmp_path, "study", "weigh", print_)
    assert attempt(stage, WeighConfig(), run, {}) == Outcome("finished")
    assert run.result_file.read_text() == json.dumps(written, indent=2, ensure_ascii=False) + "\n"
