"""SIGKILL of the real training command at every kind of moment: a finished run has the bytes of one never disturbed.

`make test` kills some thirty times, `make test-long` two hundred times. See killing.py for how.
"""

from __future__ import annotations

import random
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from functools import cache
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import pytest

from storage import durable
from storage.run_directory import RunDirectory
from tasks.language.stages import LanguageExecution, snapshot_folder
from tasks.stage.execution import Execution
from tasks.training.budget import Budget, SpikeGuard
from tests.kill.killing import KilledRun, Strike, Victims, begin
from tests.kill.summary import IN_A_WRITE, SEED
from tests.kill.toy import WIDE_TOY, trained
from tests.tasks.calorimeter import tiny as calorimeter
from tests.tasks.icecube import tiny as icecube
from tests.tasks.inversion import tiny as inversion
from tests.tasks.poison import tiny as poison
from tests.tasks.tiny import FinishedStudy, ToyConfig, files_of, finished_study, what_must_be_equal

AT_A_WRITE = [
    Strike("begun", "checkpoints/*", nth=2),
    Strike("tensors written", "checkpoints/*/model.safetensors", nth=2),
    Strike("tensors written", "checkpoints/*/optimizer.safetensors"),
    Strike("tensors written", "checkpoints/*/rng.safetensors", nth=2),
    Strike("written", "checkpoints/*"),
    Strike("synced", "checkpoints/*", nth=2),
    Strike("old renamed away", "checkpoints/*", torn=True),
    Strike("renamed", "checkpoints/*"),
    Strike("durable", "checkpoints/*", nth=2),
    Strike("pruned", "checkpoints/*"),
]
AT_THE_END = [
    Strike("synced", "model"),
    Strike("renamed", "model"),
    Strike("written", "result.json"),
    Strike("synced", "COMPLETE.json"),
    Strike("renamed", "COMPLETE.json"),
]
LATE_STEP = 102
AFTER_THE_BEST = Strike("written", f"checkpoints/{LATE_STEP}")
"""What was best must be remembered when nothing better comes after the kill."""
WRITES_A_RUN, KILLS_A_RUN = 4, 9
SHORT_RUNS, LONG_RUNS = 3, 20
"""Three runs have each moment of a write and each variant; together there are more than two hundred kills."""
FRESH_EVERY, FRESH_EVERY_LONG = 8, 2
"""A fresh start takes three seconds more: `make test` has time for a few, `make test-long` for every second."""

BUDGET = Budget(epochs=18.0, effective_batch_examples=16, learning_rate=0.008)  # overfits: the best is not the last
EXECUTION = Execution(micro_batch_examples=4, cpu_threads=1, checkpoint_every_steps=7)
ACCUMULATES = ToyConfig(budget=BUDGET, examples=93, execution=EXECUTION)  # 6 steps an epoch, the last of 13
AVERAGES = ACCUMULATES.model_copy(
    update={
        "budget": BUDGET.model_copy(update={"ema_decay": 0.9}),
        "execution": EXECUTION.model_copy(update={"loader_workers": 2, "checkpoint_every_steps": 3}),
    }
)
GOES_BACK = AVERAGES.model_copy(
    update={
        "budget": AVERAGES.budget.model_copy(
            update={"epochs": 16.0, "learning_rate": 0.02, "guard": SpikeGuard(spike_factor=1.8)}
        ),
        "execution": EXECUTION.model_copy(update={"loader_workers": 2, "checkpoint_every_steps": 1}),
    }
)
"""The loss of its 58th step is a spike of itself: back to the validation after the 54th."""
IN_ONE_PIECE = ACCUMULATES.model_copy(
    update={
        "budget": BUDGET.model_copy(update={"epochs": None, "steps": 108, "decay": "cosine", "beta_2": 0.99}),
        "dropout": 0.1,
        "noise": 0.05,
        "weighted": True,
        "metrics": ["squared_error", "absolute_error"],
        "trivial": 2.0,
        "execution": EXECUTION.model_copy(update={"micro_batch_examples": 16, "loader_workers": 2}),
    }
)
VARIANTS = {"accumulates": ACCUMULATES, "averages": AVERAGES, "in one piece": IN_ONE_PIECE}


@pytest.fixture(scope="module")
def victims() -> Iterator[Victims]:
    victims = Victims()
    yield victims
    victims.close()


@pytest.fixture(scope="module")
def undisturbed(victims: Victims, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], RunDirectory]:
    """The finished run of a variant that nothing disturbed, by name."""

    @cache
    def finished(variant: str) -> RunDirectory:
        run = begin(tmp_path_factory.mktemp("undisturbed"), "killed", WIDE_TOY, VARIANTS[variant], {})
        assert victims.run(run.path) == 0
        return run

    return finished


def plan(number: int, chance: random.Random) -> list[Strike]:
    """The kills of a run: from outside, at the moments of a write by turns, after the best step, and at the end."""
    writes = list(islice(cycle(AT_A_WRITE), WRITES_A_RUN * number, WRITES_A_RUN * (number + 1)))
    end = AT_THE_END[number % len(AT_THE_END)]
    outside = [
        Strike("micro-batch", nth=chance.randint(2, 40), seconds=chance.uniform(0, 0.005)),
        Strike("write begun", nth=chance.randint(1, 2), seconds=chance.choice([0, chance.uniform(0, 0.02)])),
        chance.choice(
            [
                Strike("metric row", nth=chance.randint(1, 2), seconds=chance.uniform(0, 0.01)),
                Strike("lock taken", seconds=chance.uniform(0, 0.1)),
            ]
        ),
    ]
    early = [*outside, *writes]
    chance.shuffle(early)
    early.sort(key=lambda strike: strike.torn)  # what is torn must have been written
    return [*early, AFTER_THE_BEST, end]


@pytest.mark.parametrize(
    "number",
    [
        *range(SHORT_RUNS),
        *(pytest.param(number, marks=pytest.mark.long) for number in range(SHORT_RUNS, SHORT_RUNS + LONG_RUNS)),
    ],
)
def test_a_training_that_is_killed_again_and_again_ends_with_the_bytes_of_one_that_was_not(
    number: int, victims: Victims, undisturbed: Callable[[str], RunDirectory], tmp_path: Path
) -> None:
    variant = list(VARIANTS)[number % len(VARIANTS)]
    chance = random.Random(f"{SEED} {number}")
    fresh_every = FRESH_EVERY if number < SHORT_RUNS else FRESH_EVERY_LONG
    killed = KilledRun(victims, begin(tmp_path, "killed", WIDE_TOY, VARIANTS[variant], {}), chance, fresh_every)
    for strike in plan(number, chance):
        killed.strike(strike)
    killed.finish()

    assert len(killed.hits) >= KILLS_A_RUN >= 5
    assert sum(where.startswith(IN_A_WRITE) for where in killed.hits) >= 2, killed.hits
    reference = undisturbed(variant)
    assert_equal(killed, reference)
    whole = [examples for _, examples in trained(reference.path)]
    ends = [0, *(place + 1 for place, examples in enumerate(whole) if examples is None)]
    for attempt, step in killed.went_on_from.items():
        mine = [examples for number, examples in trained(killed.run.path) if number == attempt]
        assert mine == whole[ends[step] :][: len(mine)], f"attempt {attempt} read other examples: {killed.hits}"
    result = durable.read_json(killed.run.result_file)
    assert result["best_step"] < LATE_STEP - 6 < result["step"], "choose a budget whose best step comes earlier"


def test_a_training_that_goes_back_is_killed_on_both_ways_and_ends_with_the_same_bytes(
    victims: Victims, tmp_path: Path
) -> None:
    chance = random.Random(f"{SEED} goes back")
    whole, run = (begin(tmp_path / name, "killed", WIDE_TOY, GOES_BACK, {}) for name in ("undisturbed", "killed"))
    assert victims.run(whole.path) == 0
    assert '"went_back_from_step":58' in whole.metrics_file.read_text(), "choose another guard"
    for strike in (
        Strike("renamed", "checkpoints/54"),
        Strike("durable", "checkpoints/55", nth=2),  # on the second way, beside what is left of the first
        Strike("step done", nth=chance.randint(1, 6), seconds=chance.uniform(0, 0.005)),
        Strike("written", "checkpoints/90"),
    ):
        assert victims.run(run.path, strike) == -signal.SIGKILL, strike
    assert victims.run(run.path) == 0
    ours, theirs = what_must_be_equal(run), what_must_be_equal(whole)
    assert [name for name in theirs if ours[name] != theirs[name]] == []


def test_a_victim_that_is_ahead_of_its_watcher_is_struck_all_the_same(
    victims: Victims, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a busy machine: its lock was there before anybody looked, and so was never seen as new."""
    run, ask = begin(tmp_path, "killed", WIDE_TOY, ACCUMULATES, {}), victims._ask

    def late(question: list[Any]) -> int:
        answer = ask(question)
        while question and not list((run.path / "locks").glob("*.json")):
            time.sleep(0.01)
        return answer

    monkeypatch.setattr(victims, "_ask", late)
    assert victims.run(run.path, Strike("lock taken")) == -signal.SIGKILL


def assert_equal(killed: KilledRun, reference: RunDirectory) -> None:
    ours, theirs = what_must_be_equal(killed.run), what_must_be_equal(reference)
    differing = [name for name in ours.keys() | theirs.keys() if ours.get(name) != theirs.get(name)]
    assert not differing, f"{sorted(differing)} differ after {killed.hits}: {killed.last_log()}"


@pytest.mark.parametrize("by", ["projection", pytest.param("softplus", marks=pytest.mark.long)])
def test_a_language_model_whose_training_is_killed_again_and_again_ends_with_the_bytes_of_one_that_was_not(
    by: str, victims: Victims, tmp_path: Path
) -> None:
    """An arm of the tiny study, trained anew and longer, with models kept on the way.

    By softplus the weights that are kept are not those that are trained.
    """
    study = finished_study()
    handle = study.handles["train-monotonic"]
    chance = random.Random(f"{SEED} language model {by}")
    budget = Budget(epochs=1.0, effective_batch_examples=16, learning_rate=1e-2, validations_per_epoch=4, ema_decay=0.8)
    execution = LanguageExecution(
        micro_batch_examples=8, cpu_threads=1, checkpoint_every_steps=7, loader_workers=2, gradient_checkpointing=True
    )
    changed = {"budget": budget, "execution": execution, "snapshots": [0.25, 0.75], "by": by, "required_movement": 0.0}
    config = handle.config.model_copy(update=changed)
    runs = []
    for name in ("undisturbed", "killed"):
        copy = study.copy(tmp_path / name)
        described = durable.read_json(handle.run.stage_file)
        inputs = {
            role: RunDirectory(copy.root, copy.study.name, given["stage"], given["fingerprint"])
            for role, given in described["inputs"].items()
        }
        runs.append(begin(copy.root, copy.study.name, handle.stage, config, inputs))
    assert victims.run(runs[0].path) == 0
    killed = KilledRun(victims, runs[1], chance, FRESH_EVERY)
    killed.strike(Strike("step done", nth=chance.randint(2, 9), seconds=chance.uniform(0, 0.02)))
    killed.strike(Strike("synced", snapshot_folder(0.25)))
    killed.strike(Strike("tensors written", "checkpoints/*", nth=chance.randint(1, 8)))
    killed.strike(Strike("renamed", snapshot_folder(0.75)))
    killed.strike(Strike("renamed", "model"))
    killed.finish()
    assert_equal(killed, runs[0])
    for share in config.snapshots:
        ours, theirs = (files_of(run.path / snapshot_folder(share)) for run in (killed.run, runs[0]))
        assert ours == theirs and len(ours) > 3


@pytest.mark.long
@pytest.mark.parametrize(
    ("study", "label"),
    [
        (inversion.finished, "inversion-train (adversarial, seed 1)"),
        (icecube.finished, "icecube-train"),
        (poison.finished, "poison-fit (victim, seed 1)"),
        (calorimeter.finished, "calorimeter-inpaint (finetune, seed 1)"),
    ],
    ids=["inversion", "icecube", "poison", "calorimeter"],
)
def test_a_training_of_a_further_study_that_is_killed_again_and_again_ends_with_the_bytes_of_one_that_was_not(
    study: Callable[[], FinishedStudy], label: str, victims: Victims, tmp_path: Path
) -> None:
    finished = study()
    handle, root, chance = finished.handles[label], tmp_path / "runs", random.Random(f"{SEED} {label}")
    shutil.copytree(finished.root, root)
    shutil.rmtree(root / handle.run.path.relative_to(finished.root))
    often = handle.config.execution.model_copy(update={"checkpoint_every_steps": 3})
    config = handle.config.model_copy(update={"execution": often})
    inputs = {
        role: RunDirectory(root, given.run.study, given.stage.name, given.run.fingerprint)
        for role, given in handle.inputs.items()
    }
    killed = KilledRun(victims, begin(root, handle.run.study, handle.stage, config, inputs), chance, FRESH_EVERY)
    killed.strike(Strike("step done", nth=chance.randint(2, 9), seconds=chance.uniform(0, 0.02)))
    killed.strike(Strike("tensors written", "checkpoints/*", nth=chance.randint(1, 8)))
    killed.strike(Strike("renamed", "checkpoints/*"))
    killed.strike(Strike("renamed", "model"))
    killed.finish()
    assert_equal(killed, handle.run)


@pytest.mark.parametrize(
    ("stage", "strikes"),
    [
        ("evaluate", [("written", "records/*.parquet", 2), ("renamed", "records/*.parquet", 3)]),
        (
            "uat-monotonic",
            [("renamed", "checkpoints/*", 3), ("written", "checkpoints/*", 9), ("synced", "records/*.json", 1)],
        ),
        *(
            pytest.param(stage, strikes, marks=pytest.mark.long)  # their moments are those of the two above
            for stage, strikes in {
                "hotflip-base@0.5": [("renamed", "records/*.json", 2), ("written", "records/*.parquet", 1)],
                "order": [("renamed", "records/*.json", 1), ("written", "records/*.parquet", 2)],
                "transfer": [("renamed", "records/*.json", 9), ("written", "records/*.parquet", 12)],
            }.items()
        ),
    ],
)
def test_an_evaluation_or_attack_that_is_killed_again_and_again_ends_with_the_same_result_and_records(
    stage: str, strikes: list[tuple[str, str, int]], victims: Victims, tmp_path: Path
) -> None:
    study = finished_study()
    handle, copy = study.handles[stage], study.copy(tmp_path / "killed")
    shutil.rmtree(copy.path(stage))
    config = handle.config.model_copy(
        update={"execution": handle.config.execution.model_copy(update={"checkpoint_every_steps": 1})}
    )
    inputs = {
        role: RunDirectory(copy.root, copy.study.name, given.stage.name, given.run.fingerprint)
        for role, given in handle.inputs.items()
    }
    run = begin(copy.root, copy.study.name, handle.stage, config, inputs)
    for moment, pattern, nth in [*strikes, ("written", "records.parquet", 1), ("synced", "COMPLETE.json", 1)]:
        assert victims.run(run.path, Strike(moment, pattern, nth)) == -signal.SIGKILL, (moment, pattern)
    assert victims.run(run.path) == 0
    for name in ("result.json", "records.parquet"):
        assert (run.path / name).read_bytes() == (study.path(stage) / name).read_bytes(), name


def steps_of(factors: Path) -> dict[str, int]:
    """Module -> how far its factors are: 1 the moments, 2 the eigenvectors, 3 all."""
    names = ("planned", "moments", "eigen", "finished")
    files = [file for file in factors.glob("*.json") if file.name != "request.json"]
    return {file.name: names.index(durable.read_json(file)["step"]) for file in files}


@pytest.mark.parametrize("writes", [(7, 1), pytest.param((2, 3, 1, 4, 1), marks=pytest.mark.long)])
def test_factors_that_are_killed_at_a_module_go_on_with_it_and_keep_those_before(
    writes: tuple[int, ...], victims: Victims, tmp_path: Path
) -> None:
    """A system of before lost 144 of 145 modules with the last one. Each module's JSON is written at three steps."""
    study, root = poison.finished(), tmp_path / "runs"
    handle = study.handles["poison-factors (victim, seed 0)"]
    shutil.copytree(study.root, root)
    shutil.rmtree(root / handle.run.path.relative_to(study.root))
    inputs = {
        role: RunDirectory(root, given.run.study, given.stage.name, given.run.fingerprint)
        for role, given in handle.inputs.items()
    }
    run, before = begin(root, handle.run.study, handle.stage, handle.config, inputs), dict[str, int]()
    for nth in writes:
        assert victims.run(run.path, Strike("renamed", "factors/*.json", nth)) == -signal.SIGKILL, nth
        now = steps_of(run.path / "factors")
        assert all(now.get(module, 0) >= step for module, step in before.items()) and now != before
        before = now
    assert victims.run(run.path) == 0
    found, expected = (
        {file.name: file.read_bytes() for file in (path / "factors").iterdir()} for path in (run.path, handle.run.path)
    )
    assert sorted(found) == sorted(expected) and found == expected
    assert run.result_file.read_bytes() == handle.run.result_file.read_bytes()
