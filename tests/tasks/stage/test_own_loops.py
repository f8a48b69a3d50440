"""A loop of one's own goes on: over items, each kept by itself, or by a state that is saved, with all generators."""

import math
import os
import random
import re
import signal
from collections import Counter, defaultdict, namedtuple
from collections.abc import Callable
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from deployments.dag.walk import Handle
from storage import durable
from storage.errors import BadInput
from storage.records import read_records
from tasks.stage import alone, saved
from tasks.stage.configuration import scientific
from tasks.stage.run import Stage, StageRun
from tasks.stage.study import StageConfiguration
from tests.forks import Forks
from tests.tasks.tiny import Here
from tests.test_going_on import Study

HOOK: dict[str, Callable[..., Any]] = {}
"""`work` is what the stage does."""


class LoopConfig(StageConfiguration):
    """loops: what a test says."""

    seed: int = scientific(1, ge=0, description="Of the draws.")


def loops(run: StageRun, config: LoopConfig) -> dict[str, Any]:
    return HOOK["work"](run)


LOOP = Stage("loops", LoopConfig, f"{__name__}:loops")


@pytest.fixture(autouse=True)
def _no_time_for_a_fresh_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would not know what `work` is; those of `between` have the time."""
    monkeypatch.setattr(alone, "IMPORTS_SECONDS", math.inf)


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


def test_of_items_a_kill_costs_one_and_each_draws_what_it_would_have_drawn(tmp_path):
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


def test_an_item_of_which_nothing_is_told_and_a_row_of_no_item_are_refused(tmp_path):
    outcome = attempted(tmp_path, lambda run: [letter for letter in run.resume("ab")]).outcome
    assert (outcome.end_state, outcome.exit_code) == ("bad_input", 2)
    assert "the work on 'a' told run.row nothing" in outcome.message
    outcome = attempted(tmp_path, lambda run: run.row(letter="a")).outcome
    assert "run.row belongs into a loop over run.resume(items)" in outcome.message


def killed(root: Path, work: Callable[[StageRun], Any]) -> int:
    """The exit status of a process of its own that attempts it; the work may kill it."""
    if child := os.fork():
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    attempted(root, work)
    os._exit(0)


def test_arms_whose_order_changes_between_starts_do_not_get_one_anothers_rows(tmp_path):
    """As over a set of texts, whose order differs in each process."""

    def arms(run: StageRun, order: tuple[str, ...], folds: Callable[[str], Any], dies: bool = False) -> dict[str, Any]:
        for arm in order:
            for fold in run.resume(folds(arm)[0], unit="folds", name=folds(arm)[1]):
                if dies and fold == 2:
                    os.kill(os.getpid(), signal.SIGKILL)
                run.row(arm=arm, fold=fold)
        return {"rows": [f"{row['arm']} {row['fold']}" for row in run.rows()]}

    told: dict[str, Callable[[str], Any]] = {
        "unlike": lambda arm: (range(3 if arm == "full" else 4), ""),
        "named": lambda arm: (range(3), arm),
    }
    for kind, folds in told.items():
        assert killed(tmp_path / kind, partial(arms, order=("scratch", "full"), folds=folds, dies=True)) == -9
        outcome = attempted(tmp_path / kind, partial(arms, order=("full", "scratch"), folds=folds)).outcome
        assert outcome.exit_code == 2 and "loop 1 over run.resume has other items, or another name" in outcome.message
        rows = attempted(tmp_path / kind, partial(arms, order=("scratch", "full"), folds=folds))
        whole = attempted(tmp_path / f"{kind}-whole", partial(arms, order=("scratch", "full"), folds=folds))
        assert rows.run.result_file.read_bytes() == whole.run.result_file.read_bytes()
    outcome = attempted(tmp_path / "same", partial(arms, order=("full", "scratch"), folds=lambda arm: (range(3), "")))
    assert "two loops over run.resume have the same 3 items" in outcome.outcome.message


def test_items_that_are_known_by_a_place_in_memory_are_refused_by_number(tmp_path):
    outcome = attempted(tmp_path, lambda run: [run.row(a=1) for _ in run.resume(["a", drawn])]).outcome
    assert (outcome.end_state, outcome.exit_code) == ("bad_input", 2)
    assert re.match("item 1 of run.resume is <function drawn at 0x.*>, known by a place in memory", outcome.message)


@pytest.mark.parametrize("asks", [True, False])
def test_a_loop_that_is_left_before_its_end_is_refused_and_loses_no_row_of_the_items_before(tmp_path, asks):
    def early(run: StageRun, least: int) -> dict[str, Any]:
        for arm in ("a", "b"):
            for number in run.resume(range(4), name=arm):
                run.row(arm=arm, number=number)
                if arm == "b" and number == least:
                    break
        return {"rows": len(run.rows()) if asks else 8}

    outcome = attempted(tmp_path, partial(early, least=2)).outcome
    assert (outcome.end_state, outcome.exit_code) == ("bad_input", 2)
    assert "the loop over run.resume was left at 2, 3 of 4 items" in outcome.message
    finished = attempted(tmp_path, partial(early, least=9))
    assert durable.read_json(finished.run.result_file) == {"rows": 8}


def test_a_loop_within_a_loop_is_refused_before_its_work_and_so_are_no_rows(tmp_path):
    worked: list[int] = []

    def nested(run: StageRun) -> None:
        for _ in run.resume([1, 2]):
            worked.extend(run.resume(range(2)))

    outcome = attempted(tmp_path, nested).outcome
    assert (outcome.exit_code, worked) == (2, [])
    assert "the loop over run.resume is at 1: another one, or run.rows, has no place within it" in outcome.message
    outcome = attempted(tmp_path, lambda run: run.rows()).outcome
    assert outcome.exit_code == 2 and "no loop over run.resume came before it" in outcome.message


@pytest.mark.parametrize("asks_after", [None, 1])
def test_rows_that_nobody_asks_for_are_an_output_too(tmp_path, asks_after):
    def work(run: StageRun) -> dict[str, Any]:
        for loop in (1, 2):
            for number in run.resume(range(loop)):
                run.row(number=number)
            if loop == asks_after:
                run.rows()
        return {}

    finished = attempted(tmp_path, work)
    assert "records.parquet" in durable.read_json(finished.run.marker_file)["outputs"]
    assert [row["number"] for row in read_records(finished.run.path / "records.parquet")] == [0, 0, 1]


BETWEEN = """
import os, random, signal, time
import numpy as np
import torch
import ratchet as r

rng = random.Random(1)

@r.stage(needs="cpu", torch=False)
def go(run, kind: str = "pure"):
    def dies_once():
        if run.lock.number == 1:
            os.kill(os.getpid(), signal.SIGKILL)

    total, seen, draws = 0, {}, [np.random.default_rng(3)]
    own = type("Own", (), {})()
    own.rng, seeds = torch.Generator(), np.random.SeedSequence(5)
    results = []
    for place, number in enumerate(run.resume(range(4))):
        results.append(number)
        x = float(np.random.default_rng([3, number]).random()) + random.random()
        total += number
        drawn = {
            "module": lambda: rng.random(), "list": lambda: draws[0].random(), "spawned": lambda: len(seeds.spawn(1)),
            "attribute": lambda: torch.rand((), generator=own.rng).item(),
        }.get(kind, lambda: 0)()
        if kind == "file":
            with (run.scratch / "log").open("a") as log:
                log.write("x")
        more = {
            "sum": total, "numpy": np.float32(total), "place": place,
            "cache": seen.setdefault(number % 2, number), "clock": time.time(),
            "file": kind == "file" and (run.scratch / "log").stat().st_size,
        }.get(kind, 0)
        note = {"note": "first"} if number == 0 and kind == "missing" else {}
        run.row(number=number, x=x, more=more if kind == "numpy" else float(more), drawn=float(drawn), **note)
        if number == 2:
            dies_once()
    for number in run.resume(range(2), name="second"):
        run.row(number=number, x=float(max(results, default=9)) if kind == "chain" else 0.0, more=0.0, drawn=0.0)
    return {"results": len(results) if kind == "list of results" else len(run.rows())}

@r.study
def mine():
    return go()
"""


@pytest.fixture(scope="module")
def between(tmp_path_factory: pytest.TempPathFactory, forks: Forks) -> Study:
    return Study(tmp_path_factory.mktemp("mine"), {"mine.py": BETWEEN}, forks)


@pytest.mark.parametrize(
    ("kind", "end"),
    [
        ("pure", ""),
        ("clock", "more of item 3 is .* alone, and another value each time: a clock's"),
        ("sum", "measured more of item 3 is 5.0 after others, and 3.0 alone"),
        ("place", "measured more of item 3 is 1.0 after others, and 0.0 alone"),
        ("file", "measured more of item 3 is 5.0 after others, and 1.0 alone"),
        ("cache", "more of item 1 is 1.0 after others, and 3.0 alone; another attempt computed it"),
        ("numpy", "measured more of item 3 is 5.0 after others, and 3.0 alone"),
        ("missing", ""),
        ("list of results", "measured results: 2 there, 0 here"),
    ],
)
def test_items_that_depend_on_those_before_them_are_found_where_a_loop_goes_on(between, tmp_path, kind, end):
    """Seen: `total += i`, or enumerate(run.resume(...)), gave other numbers after a kill, without a word."""
    assert between.run(tmp_path, changes=(f"kind={kind}",)) == -9
    failed = bool(end) and kind not in ("clock", "cache")
    assert between.run(tmp_path, changes=(f"kind={kind}",)) == int(failed)
    (record,) = (durable.read_json(file) for file in tmp_path.glob("mine/mine-go/*/attempts/0002.json"))
    said = record["diagnosis"]["summary"] if failed else record["went_on"]["run.resume, loop 1"]
    assert re.search(end, said) if end else said == ""


@pytest.mark.parametrize("kind", ["module", "list", "attribute", "spawned"])
def test_a_generator_that_was_made_before_the_loop_and_draws_in_it_is_refused_at_the_first_item(
    between, tmp_path, kind
):
    assert between.run(tmp_path, changes=(f"kind={kind}",)) == 2
    (record,) = (durable.read_json(file) for file in tmp_path.glob("mine/mine-go/*/attempts/0001.json"))
    named = {"module": "rng", "list": "draws[0]", "attribute": "own.rng", "spawned": "seeds"}[kind]
    assert f"{named} was made before the loop over run.resume and drew in it" in record["diagnosis"]["summary"]


@pytest.mark.parametrize(
    ("rows", "refused"),
    [
        ([{"a": 1}, {"b": 2}], "b=2 is new, and rows before have a alone"),
        ([{"a": 1}, {"a": "x"}], "a='x', of str, cannot stand in records, and in rows before it was int64"),
        ([{"a": datetime(2026, 10, 25)}], "a=datetime.datetime(2026, 10, 25, 0, 0), of datetime, cannot stand"),
        ([{"a": [1.0, math.nan]}], "a=[1.0, nan], of list, cannot stand"),
        ([{"a": {1, 2}}], "a={1, 2}, of set, cannot stand"),
        ([{"a": 2**70}], "of int, cannot stand"),
        ([{"item": 1}], "'item' is a column of Ratchet's own"),
        ([{"a": None}, {"a": 1}, {}, {"a": 0.5}, {"a": math.nan}], ""),
        ([{"a": []}, {"a": [1]}], ""),
    ],
)
@pytest.mark.parametrize("killed_after", [0, 1])
def test_a_row_that_could_not_be_published_is_refused_at_its_item_with_key_and_value(
    tmp_path, rows, refused, killed_after
):
    """Seen: each item was taken and kept, and after the last one nothing could be published, at each start."""
    done: list[int] = []

    def work(run: StageRun) -> dict[str, Any]:
        for number in run.resume(range(len(rows))):
            if number == killed_after and not done and len(rows) > 1:
                done.append(number)
                raise MemoryError("killed")
            run.row(**rows[number])
        return {"rows": [str(row.get("a")) for row in run.rows()]}

    attempted(tmp_path, work)
    ended = attempted(tmp_path, work)
    assert (refused in ended.outcome.message and ended.outcome.exit_code == 2) if refused else ended.finished


@pytest.mark.parametrize("way", ["save", "resume", "neither"])
@pytest.mark.parametrize("dies_at", [(1,), (3,), (3, 5), (7,)])
def test_metrics_of_a_loop_of_ones_own_are_those_of_an_undisturbed_one(tmp_path, way, dies_at):
    """Seen: a kill between a row and its save left it twice; one after the last save took the file from the marker."""

    def work(run: StageRun, dies_at: tuple[int, ...] = ()) -> dict[str, Any]:
        run.metrics.append({"step": 0})
        turns = run.resume(range(6)) if way == "resume" else range(6)
        if way == "save":
            turns = range(run.saved(turn=0)["turn"], 6)
        for turn in turns:
            run.metrics.append({"step": turn + 1})
            made.append(turn)
            if len(made) in dies_at:
                raise MemoryError("killed")
            if way == "resume":
                run.row(turn=turn)
            elif way == "save" and turn % 2:
                run.save(turn + 1, turn=turn + 1)
        if 7 in dies_at and len(made) < 7:
            made.append(7)
            raise MemoryError("killed")
        if way != "save":
            run.metrics.append({"step": 7})
        return {}

    made: list[int] = []
    whole = attempted(tmp_path / "whole", work)
    made.clear()
    while not (handle := attempted(tmp_path / "killed", lambda run: work(run, dies_at))).finished:
        assert handle.outcome.message.startswith("out of memory"), handle.outcome.message
    assert handle.run.metrics_file.read_bytes() == whole.run.metrics_file.read_bytes()
    outputs = [durable.read_json(one.run.marker_file)["outputs"] for one in (handle, whole)]
    assert "metrics.jsonl" in outputs[0] and outputs[0].keys() == outputs[1].keys()


def test_a_checkpoint_calls_no_function_of_numpy_that_it_names(tmp_path):
    """Seen: whatever numpy.random has by that name was called."""
    with pytest.raises(BadInput, match="is no generator of NumPy"):
        saved._unpack({"numpy.Generator": {"list": [{"dict": [["bit_generator", "seed"]]}, {"dict": []}]}}, {})


PLAIN = {"count": 3, "name": "ä", "best": math.inf, "nothing": None, "pair": (1, [2.5, -math.inf])}
VALUES = PLAIN | {
    "array": np.arange(3, dtype=np.int16),
    "state": {0: {"step": torch.tensor(2.0), "average": torch.arange(4.0).view(2, 2).T}, "groups": [{"lr": 1e-3}]},
    "weight": torch.nn.Parameter(torch.ones(2)),
    "frozen": torch.nn.Parameter(torch.ones(2), requires_grad=False),
    "leaf": torch.ones(2, requires_grad=True),
    "scalar": np.float32(0.1),
    "milestones": Counter({3: 2}),
    "module": torch.nn.Linear(1, 1).state_dict(),
}


def test_what_was_saved_comes_back_as_it_was(tmp_path):
    def first(run: StageRun) -> None:
        assert run.saved(count=0) == {"count": 0}, "nothing was saved yet"
        run.save(1, **VALUES)
        raise MemoryError("killed")

    def then(run: StageRun) -> dict[str, Any]:
        back = run.saved()
        assert {name: back[name] for name in PLAIN} == PLAIN
        assert back["array"].dtype == np.int16 and back["array"].tolist() == [0, 1, 2]
        assert back["state"]["groups"] == [{"lr": 1e-3}] and torch.equal(
            back["state"][0]["average"], VALUES["state"][0]["average"]
        )
        for name in ("weight", "frozen", "leaf", "scalar", "milestones", "module"):
            assert type(back[name]) is type(VALUES[name])
            assert getattr(back[name], "requires_grad", 0) == getattr(VALUES[name], "requires_grad", 0)
        assert back["milestones"] == VALUES["milestones"] and back["scalar"] == VALUES["scalar"]
        return {}

    assert [attempted(tmp_path, work).outcome.end_state for work in (first, then)] == ["crashed", "finished"]


def test_generators_of_ones_own_go_on_where_they_were_and_so_do_those_that_they_spawn(tmp_path):
    """Each kind of bits has a state of its own form."""

    def work(run: StageRun, dies: bool = False) -> dict[str, Any]:
        kinds = (np.random.PCG64, np.random.MT19937, np.random.Philox, np.random.SFC64)
        state = run.saved(
            turn=0, own=[np.random.Generator(kind(5)) for kind in kinds], torch=torch.Generator(), drawn=[]
        )
        for turn in range(state["turn"], 4):
            if dies and turn == 2:
                os.kill(os.getpid(), signal.SIGKILL)
            for own in state["own"]:
                state["drawn"] += [own.integers(9, dtype=np.uint32).item(), own.spawn(1)[0].random()]
            state["drawn"].append(torch.rand((), generator=state["torch"]).item())
            run.save(turn + 1, **state | {"turn": turn + 1})
        return {"drawn": state["drawn"]}

    whole = attempted(tmp_path / "whole", work)
    assert killed(tmp_path / "killed", partial(work, dies=True)) == -9
    finished = attempted(tmp_path / "killed", work)
    assert finished.run.result_file.read_bytes() == whole.run.result_file.read_bytes()


@pytest.mark.parametrize(
    "value",
    [
        object(),
        defaultdict(list),
        namedtuple("Pair", "a b")(1, 2),
        np.ma.masked_array([1], [1]),
        np.array(["a"]),
        torch.ones(1).to_sparse(),
        {1},
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_value_that_would_not_come_back_as_it_is_is_named_with_its_place(tmp_path, value):
    def work(run: StageRun) -> None:
        run.saved()
        run.save(1, state={"a": [0, value]})

    outcome = attempted(tmp_path, work).outcome
    assert (outcome.end_state, outcome.exit_code) == ("bad_input", 2)
    assert (
        f"run.save: state['a'][1] is a {type(value).__name__}" in outcome.message
        and "not come back as it is" in outcome.message
    )


def test_a_tensor_with_a_graph_is_refused_since_only_its_values_would_come_back(tmp_path):
    def work(run: StageRun) -> None:
        run.saved()
        run.save(1, hidden=2 * torch.ones(1, requires_grad=True))

    assert "hidden is a tensor with its graph of gradients" in attempted(tmp_path, work).outcome.message


def test_a_second_loop_that_would_go_on_from_the_end_of_the_first_is_refused_in_each_attempt(tmp_path):
    trained: list[int] = []

    def work(run: StageRun) -> dict[str, Any]:
        for fold in range(2):
            for epoch in range(run.saved(epoch=0)["epoch"], 3):
                trained.append(fold)
                run.save(epoch + 1, epoch=epoch + 1)
        return {}

    outcomes = [attempted(tmp_path, work).outcome for _ in range(2)]
    assert [(outcome.end_state, outcome.exit_code) for outcome in outcomes] == [("bad_input", 2)] * 2
    assert "a second training, or run.saved, would go on from the checkpoints" in outcomes[0].message
    assert trained == [0, 0, 0]


@pytest.mark.parametrize("steps", [(2, 2), (3, 1), (-1,), (0.5,), (np.int64(1),)])
def test_a_step_that_does_not_rise_is_refused_also_after_a_kill(tmp_path, steps):
    def work(run: StageRun, steps: tuple[Any, ...]) -> dict[str, Any]:
        run.saved()
        for step in steps:
            run.save(step, step=step)
        raise MemoryError("killed")

    for started in (steps, steps[-1:]) if len(steps) > 1 else (steps,):
        outcome = attempted(tmp_path, partial(work, steps=started)).outcome
        assert outcome.exit_code == 2 and f"run.save: its step is {steps[-1]!r}, and the " in outcome.message


def test_what_is_saved_before_saved_was_asked_would_never_be_gone_on_from(tmp_path):
    assert "run.save before run.saved" in attempted(tmp_path, lambda run: run.save(1, epoch=1)).outcome.message


def test_a_loop_that_is_killed_anywhere_goes_on_with_the_draws_of_an_undisturbed_one(tmp_path):
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
def test_a_request_to_stop_is_heeded_where_nothing_is_lost(tmp_path, heeds):
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
