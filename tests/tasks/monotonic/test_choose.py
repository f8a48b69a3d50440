"""choose: every arm is tried at the same learning rates, and the training with the lowest validation loss is kept."""

import json
import shutil
from functools import cache
from pathlib import Path

import pytest

from flows.robustness import CHOOSE
from storage import durable
from storage.errors import CheckFailed
from tasks.findings.gates import require_gates
from tasks.language.blocks import Blocks
from tasks.monotonic.numbers import facts_of_arms, gates_of_arms
from tasks.monotonic.result import ArmFacts
from tasks.monotonic.stages import ChooseConfig, TrainConfig
from tasks.robustness.choose import choose
from tasks.stage.run import StageInput
from tasks.training.trained import Trained, metric_rows, weights_of
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


def trials_of(arm: str) -> dict[str, StageInput]:
    return {role: handle.as_input() for role, handle in tried().handles[f"choose-{arm}"].inputs.items()}


def losses_of(arm: str) -> dict[str, float]:
    """Trial -> its best validation loss."""
    rows = {role: metric_rows(given.run.metrics_file) for role, given in trials_of(arm).items()}
    return {role: Trained.of_rows(own, "validation_loss").best for role, own in rows.items()}


def facts() -> dict[str, ArmFacts]:
    chosen = {arm: tried().input(f"choose-{arm}") for arm in ARMS}
    return facts_of_arms(chosen, tried().study.constraint, Blocks(tried().path("setup") / "text", "train"))


@pytest.mark.parametrize("arm", ARMS)
def test_every_arm_has_the_same_trials_and_the_lowest_validation_loss_is_kept(arm: str):
    losses, found = losses_of(arm), facts()[arm]
    budgets = [given.configuration(TrainConfig).budget for given in trials_of(arm).values()]
    assert [budget.learning_rate for budget in budgets] == RATES
    assert len(set(losses.values())) == len(RATES), "they must differ, or any choice would do"
    best = min(losses, key=losses.__getitem__)
    assert found.weights_digest == weights_of(trials_of(arm)[best])
    assert found.budget["learning_rate"] == RATES[[*losses].index(best)]
    assert found.trials == dict(zip(("0.001", "0.01"), losses.values(), strict=True))


def test_what_is_kept_is_the_training_s_own_bytes():
    trials = tried().handles["choose-baseline"].inputs
    losses = losses_of("baseline")
    source, kept = trials[min(losses, key=losses.__getitem__)].run.path, tried().path("choose-baseline")
    assert files_of(kept / "model") == files_of(source / "model") != {}
    assert (kept / "metrics.jsonl").read_bytes() == (source / "metrics.jsonl").read_bytes()


def test_of_equals_the_first_is_kept_whatever_the_order_of_the_losses(tmp_path):
    """The other way round than the real trials: what counts is the loss, and no place in the list."""
    first, second = (tried().handles["choose-baseline"].inputs[f"trial-{place}"].as_input() for place in (1, 2))
    exchanged, equal = stage_run(tmp_path / "a"), stage_run(tmp_path / "b")
    choose(exchanged, ChooseConfig(cell="baseline"), one=second, other=first)
    assert files_of(exchanged.directory / "model") == files_of(tried().path("choose-baseline") / "model")
    choose(equal, ChooseConfig(cell="baseline"), one=first, other=first)
    assert files_of(equal.directory / "model") == files_of(first.path / "model")


def test_choose_needs_no_gpu():
    assert CHOOSE.needs == "cpu"


# ---------------------------------------------------------------------------------------------- the last gate


def test_arms_that_were_tried_equally_often_are_equal_whatever_rate_was_kept():
    arms = facts()
    other = arms["monotonic"].model_copy(update={"budget": arms["monotonic"].budget | {"learning_rate": 0.5}})
    for found in (arms, arms | {"monotonic": other}):
        assert require_gates(gates_of_arms(found))


@pytest.mark.parametrize(
    "trials", [{"0.01": 1.0}, {"0.001": 1.0, "0.01": 1.0, "0.1": 1.0}, {"0.001": 1.0, "0.02": 1.0}]
)
def test_arms_with_other_trials_are_refused(trials: dict[str, float]):
    arms = facts()
    with pytest.raises(CheckFailed, match="budgets of the arms, and rates that were tried: measured monotonic"):
        require_gates(gates_of_arms(arms | {"monotonic": arms["monotonic"].model_copy(update={"trials": trials})}))


def test_a_choice_that_is_not_the_best_of_its_trials_is_refused(tmp_path: Path):
    shutil.copytree(tried().root, tmp_path / "runs")
    chosen = handles_of(tmp_path / "runs", tried().study)["choose-monotonic"].as_input()
    lower = {rate: loss - 1 for rate, loss in chosen.result["trials"].items()}
    chosen.run.result_file.write_text(json.dumps(chosen.result | {"trials": lower}))
    arms = {"baseline": tried().input("choose-baseline"), "monotonic": StageInput(chosen.run, "")}
    with pytest.raises(CheckFailed, match="monotonic kept the best of its trials"):
        facts_of_arms(arms, tried().study.constraint, Blocks(tried().path("setup") / "text", "train"))


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
