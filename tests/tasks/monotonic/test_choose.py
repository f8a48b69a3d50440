"""choose: every arm is tried at the same learning rates, and the training with the lowest validation loss is kept."""

import shutil
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from flows.robustness import CHOOSE
from storage import durable
from storage.errors import CheckFailed
from tasks.monotonic.arms import choose
from tasks.monotonic.checks import require_equal_budgets
from tasks.monotonic.result import ArmResult
from tasks.monotonic.stages import ChooseConfig
from tests.once import made_once
from tests.tasks.tiny import FinishedStudy, Here, files_of, finished_study, handles_of, stage_run, tiny_study

RATES = [1e-3, 1e-2]
ARMS = ("baseline", "monotonic")


class UpToTheArms(Here):
    """Runs setup, base, starts, trials and choices, and no more."""

    def __call__(self, stage, config, **inputs):
        known = stage.name in ("setup", "base", "constrain", "choose") or stage.name.startswith("train-")
        return (super().__call__ if known else super(Here, self).__call__)(stage, config, **inputs)


@cache
def tried() -> FinishedStudy:
    """The tiny study with two learning rates and two arms, up to the choices. Read only."""
    folder = made_once("choose", _tried)
    study = tiny_study(folder, arms=list(ARMS), learning_rates=RATES)
    return FinishedStudy(folder / "runs", study, handles_of(folder / "runs", study))


def _tried(folder: Path) -> None:
    shutil.copytree(finished_study().root, folder / "runs")  # text, base and starts are the same
    shutil.copy(Path(finished_study().study.text.paths[0]), folder / "text.jsonl")
    handles_of(folder / "runs", tiny_study(folder, arms=list(ARMS), learning_rates=RATES), UpToTheArms)


def trials_of(arm: str) -> dict[str, ArmResult]:
    handles = tried().handles[f"choose-{arm}"].inputs
    return {role: ArmResult.read(handle.as_input()) for role, handle in handles.items()}


@pytest.mark.parametrize("arm", ARMS)
def test_every_arm_has_the_same_trials_and_the_lowest_validation_loss_is_kept(arm):
    trials, found = trials_of(arm), ArmResult.read(tried().input(f"choose-{arm}"))
    losses = {role: trial.training.best_validation_loss_nats_per_token for role, trial in trials.items()}
    assert [trial.training.budget["learning_rate"] for trial in trials.values()] == RATES
    assert len(set(losses.values())) == len(RATES), "they must differ, or any choice would do"
    best = min(losses, key=losses.__getitem__)
    assert found.weights_digest == trials[best].weights_digest
    assert found.training == trials[best].training
    assert found.trials == dict(zip(("0.001", "0.01"), losses.values(), strict=True))


def test_what_is_kept_is_the_training_s_own_bytes():
    trials = tried().handles["choose-baseline"].inputs
    losses = {role: one.training.best_validation_loss_nats_per_token for role, one in trials_of("baseline").items()}
    source, kept = trials[min(losses, key=losses.__getitem__)].run.path, tried().path("choose-baseline")
    assert files_of(kept / "model") == files_of(source / "model") != {}
    assert (kept / "metrics.jsonl").read_bytes() == (source / "metrics.jsonl").read_bytes()


def test_of_equals_the_first_is_kept_whatever_the_order_of_the_losses(tmp_path):
    """The other way round than the real trials: what counts is the loss, and no place in the list."""
    first, second = (tried().handles["choose-baseline"].inputs[f"trial-{place}"].as_input() for place in (1, 2))
    exchanged = choose(stage_run(tmp_path / "a"), ChooseConfig(cell="baseline"), one=second, other=first)
    assert exchanged.weights_digest == ArmResult.read(tried().input("choose-baseline")).weights_digest
    equal = choose(stage_run(tmp_path / "b"), ChooseConfig(cell="baseline"), one=first, other=first)
    assert equal.weights_digest == ArmResult.read(first).weights_digest


def test_choose_needs_no_gpu():
    assert CHOOSE.needs == "cpu"


# ---------------------------------------------------------------------------------------------- the last gate


def arms_with(**changed: Any) -> dict[str, ArmResult]:
    """Both arms as chosen, the monotonic one changed."""
    arms = {arm: ArmResult.read(tried().input(f"choose-{arm}")) for arm in ARMS}
    return arms | {"monotonic": arms["monotonic"].model_copy(update=changed)}


def test_arms_that_were_tried_equally_often_are_equal_whatever_rate_was_kept():
    arms = arms_with()
    training = arms["monotonic"].training
    other = training.model_copy(update={"budget": training.budget | {"learning_rate": 1e-3}})
    require_equal_budgets(arms | {"monotonic": arms["monotonic"].model_copy(update={"training": other})})


@pytest.mark.parametrize(
    "trials", [{"0.01": 1.0}, {"0.001": 1.0, "0.01": 1.0, "0.1": 1.0}, {"0.001": 1.0, "0.02": 1.0}]
)
def test_arms_with_other_trials_are_refused(trials):
    with pytest.raises(CheckFailed, match="all arms had the same budget, monotonic as baseline"):
        require_equal_budgets(arms_with(trials=trials))


def test_trials_on_other_numerics_are_not_compared(tmp_path):
    trials = {role: handle.as_input() for role, handle in tried().handles["choose-baseline"].inputs.items()}
    copied = FinishedStudy(tmp_path / "runs", tried().study, {})
    shutil.copytree(tried().root, copied.root)
    moved = handles_of(copied.root, tried().study)["choose-baseline"].inputs["trial-2"].as_input()
    described = durable.read_json(moved.run.stage_file)
    numerics = described["numerics"] | {"device_model": "another"}
    durable.write_json(moved.run.stage_file, described | {"numerics": numerics})
    with pytest.raises(CheckFailed, match="all trials of an arm ran on the same numerics"):
        choose(stage_run(tmp_path / "out"), ChooseConfig(cell="baseline"), **trials | {"trial-2": moved})
