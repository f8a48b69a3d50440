"""A loop of one's own goes on: over items, each kept by itself, or by a state that is saved, with all generators."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from deployments.dag.walk import Handle
from storage import durable
from tasks.stage.configuration import scientific
from tasks.stage.run import Stage, StageRun
from tasks.stage.study import StageConfiguration
from tests.tasks.tiny import Here

HOOK: dict[str, Callable[..., Any]] = {}
"""`work` is what the stage does."""


class LoopConfig(StageConfiguration):
    """loops: what a test says."""

    seed: int = scientific(1, ge=0, description="Of the draws.")


def loops(run: StageRun, config: LoopConfig) -> dict[str, Any]:
    return HOOK["work"](run)


LOOP = Stage("loops", LoopConfig, f"{__name__}:loops")


def attempted(root: Path, work: Callable[[StageRun], Any]) -> Handle:
    HOOK["work"] = work
    return Here(root, "own")(LOOP, LoopConfig())


def drawn() -> list[float]:
    return [random.random(), float(np.random.rand()), torch.rand(()).item()]


def over_items(run: StageRun, dies_at: tuple[int, ...] = (), done: list[str] | None = None) -> dict[str, Any]:
    for letter in run.resume("abc"):
        for take in range(2):
            run.row(letter=letter, take=take, draws=drawn())
        (done := [] if done is None else done).append(letter)
        if len(done) in dies_at:
            raise MemoryError("killed")
    for number in run.resume([1, 2]):
        run.row(letter=str(number), take=0, draws=drawn())
    rows = run.rows()
    return {"rows": rows, "letters": [row["letter"] for row in rows]}


def test_of_items_a_kill_costs_one_and_each_draws_what_it_would_have_drawn(tmp_path: Path) -> None:
    whole = attempted(tmp_path / "whole", over_items)
    assert durable.read_json(whole.run.result_file)["letters"] == ["a", "a", "b", "b", "c", "c", "1", "2"]
    done: list[str] = []
    ends = [
        attempted(tmp_path / "killed", lambda run: over_items(run, (1, 3), done)).outcome.end_state for _ in range(3)
    ]
    assert (ends, done) == (["crashed", "crashed", "finished"], ["a", "a", "b", "b", "c"])
    for name in ("result.json", "records.parquet"):
        killed = (tmp_path / "killed" / whole.run.path.relative_to(tmp_path / "whole") / name).read_bytes()
        assert killed == (whole.run.path / name).read_bytes()


def test_an_item_of_which_nothing_is_told_and_a_row_of_no_item_are_refused(tmp_path: Path) -> None:
    outcome = attempted(tmp_path, lambda run: [letter for letter in run.resume("ab")]).outcome
    assert (outcome.end_state, outcome.exit_code) == ("bad_input", 2)
    assert "the work on 'a' told run.row nothing" in outcome.message
    outcome = attempted(tmp_path, lambda run: run.row(letter="a")).outcome
    assert "run.row belongs into a loop over run.resume(items)" in outcome.message


VALUES = {
    "count": 3,
    "name": "ä",
    "best": math.inf,
    "nothing": None,
    "pair": (1, [2.5, -math.inf]),
    "array": np.arange(3, dtype=np.int16),
    "state": {0: {"step": torch.tensor(2.0), "average": torch.arange(4.0).view(2, 2).T}, "groups": [{"lr": 1e-3}]},
}


def test_what_was_saved_comes_back_as_it_was(tmp_path: Path) -> None:
    def work(run: StageRun) -> dict[str, Any]:
        assert run.saved(count=0) == {"count": 0}, "nothing was saved yet"
        run.save(1, **VALUES)
        back = run.saved()
        assert {name: back[name] for name in ("count", "name", "best", "nothing", "pair")} == {
            name: VALUES[name] for name in ("count", "name", "best", "nothing", "pair")
        }
        assert back["array"].dtype == np.int16 and back["array"].tolist() == [0, 1, 2]
        assert back["state"]["groups"] == [{"lr": 1e-3}] and torch.equal(
            back["state"][0]["average"], VALUES["state"][0]["average"]
        )
        return {}

    assert attempted(tmp_path, work).outcome.end_state == "finished"


def test_a_value_that_cannot_be_saved_is_named_with_its_place(tmp_path: Path) -> None:
    outcome = attempted(tmp_path, lambda run: run.save(1, state={"a": [0, object()]})).outcome
    assert (outcome.end_state, outcome.exit_code) == ("bad_input", 2)
    assert "run.save: state['a'][1] is a object: keep numbers" in outcome.message


def test_a_loop_that_is_killed_anywhere_goes_on_with_the_draws_of_an_undisturbed_one(tmp_path: Path) -> None:
    turns: list[int] = []

    def work(run: StageRun, dies_at: tuple[int, ...] = ()) -> dict[str, Any]:
        state = run.saved(turn=0, draws=[])
        for turn in range(state["turn"], 6):
            state["draws"] = [*state["draws"], drawn()]
            turns.append(turn)
            if len(turns) in dies_at:
                raise MemoryError("killed")
            if turn % 2:
                run.save(turn + 1, turn=turn + 1, draws=state["draws"])
        return {"draws": state["draws"]}

    whole = attempted(tmp_path / "whole", work)
    turns.clear()
    ends = [attempted(tmp_path / "killed", lambda run: work(run, (3, 6))).outcome.end_state for _ in range(3)]
    assert (ends, turns) == (["crashed", "crashed", "finished"], [0, 1, 2, 2, 3, 4, 4, 5])
    killed = tmp_path / "killed" / whole.run.path.relative_to(tmp_path / "whole") / "result.json"
    assert killed.read_bytes() == whole.run.result_file.read_bytes()


@pytest.mark.parametrize("heeds", ["save", "resume"])
def test_a_request_to_stop_is_heeded_where_nothing_is_lost(tmp_path: Path, heeds: str) -> None:
    done: list[int] = []

    def work(run: StageRun) -> dict[str, Any]:
        turns = run.resume(range(4)) if heeds == "resume" else range(run.saved(turn=0)["turn"], 4)
        for turn in turns:
            done.append(turn)
            run.stop._cause = run.stop._because = "sigterm" if turn == 1 and len(done) == 2 else ""
            run.row(turn=turn) if heeds == "resume" else run.save(turn + 1, turn=turn + 1)
        return {}

    ends = [attempted(tmp_path, work).outcome.end_state for _ in range(2)]
    assert (ends, done) == (["sigterm", "finished"], [0, 1, 2, 3])
