"""What a budget comes to: windows, learning rates and validation steps, all functions of the step alone."""

import pytest

from tasks.training.budget import Budget, LearningGate
from tasks.training.schedule import Schedule


def schedule(examples: int = 45, **fields) -> Schedule:
    return Schedule(Budget(**{"epochs": 2.0, "effective_batch_examples": 8, "learning_rate": 1.0} | fields), examples)


@pytest.mark.parametrize("examples", [1, 7, 8, 9, 45, 48])
def test_the_windows_of_an_epoch_hold_each_example_once(examples):
    plan = schedule(examples, epochs=3.0)
    windows = [plan.window(step) for step in range(1, plan.total_steps + 1)]
    for epoch in range(3):
        covered = [i for e, first, count in windows if e == epoch for i in range(first, first + count)]
        assert covered == list(range(examples))


def test_the_last_window_holds_what_is_left():
    plan = schedule(45)
    assert (plan.steps_per_epoch, plan.total_steps) == (6, 12)
    assert plan.window(6) == (0, 40, 5)
    assert plan.window(7) == (1, 0, 8)
    assert plan.window(12) == (1, 40, 5)


@pytest.mark.parametrize(("epochs", "steps"), [(1.0, 6), (0.5, 3), (0.01, 1), (2.34, 14)])
def test_fractions_of_an_epoch_round_to_whole_steps_and_never_to_none(epochs, steps):
    assert schedule(epochs=epochs).total_steps == steps


def test_the_rate_rises_to_its_peak_over_the_warm_up_and_falls_to_zero_after_the_last_step():
    plan = schedule(80, epochs=1.0, warmup_ratio=0.4, learning_rate=6.0)  # 10 steps, 4 of them warm-up
    rates = [plan.learning_rate(step) for step in range(1, 11)]
    assert rates == pytest.approx([1.5, 3.0, 4.5, 6.0, *(6.0 * k / 7 for k in range(6, 0, -1))])
    assert plan.learning_rate(11) == 0.0


def test_without_warm_up_the_first_step_has_almost_the_peak_rate():
    plan = schedule(80, epochs=1.0, warmup_ratio=0.0)
    assert plan.warmup_steps == 0
    assert plan.learning_rate(1) == pytest.approx(10 / 11)


def test_no_step_has_a_rate_of_zero():
    for epochs in (0.01, 0.5, 1.0, 3.0):
        for ratio in (0.0, 0.1, 0.99):
            plan = schedule(epochs=epochs, warmup_ratio=ratio)
            assert min(plan.learning_rate(step) for step in range(1, plan.total_steps + 1)) > 0


@pytest.mark.parametrize(
    ("epochs", "parts", "steps"),
    [
        (2.0, 1, {6, 12}),
        (2.0, 2, {3, 6, 9, 12}),
        (2.0, 4, {2, 3, 5, 6, 8, 9, 11, 12}),
        (1.5, 1, {6, 9}),
        (0.5, 1, {3}),
        (1.0, 50, {1, 2, 3, 4, 5, 6}),
    ],
)
def test_every_epoch_s_end_and_the_last_step_are_validated(epochs, parts, steps):
    assert schedule(epochs=epochs, validations_per_epoch=parts).validation_steps == steps


@pytest.mark.parametrize("examples", [100, 101, 240, 1_000])
@pytest.mark.parametrize("share", [0.98, 0.75, 0.5, 0.013])
def test_a_training_on_a_share_of_the_examples_reaches_the_gate_that_the_whole_one_reached(examples, share):
    """Seen: trainings without the rows that were found had 30 steps and a gate at step 36, and ended the study."""
    whole = Budget(epochs=3, effective_batch_examples=8, not_learning=LearningGate(max_ratio=1.0, by_step=1))
    last = Schedule(whole, examples).total_steps
    asked = whole.model_copy(update={"not_learning": LearningGate(max_ratio=1.0, by_step=last)})
    fewer = asked.of_a_share(share)
    assert fewer.not_learning is not None
    assert 1 <= fewer.not_learning.by_step <= Schedule(fewer, max(1, round(share * examples))).total_steps
    in_steps = asked.model_copy(update={"epochs": None, "steps": last})
    assert in_steps.of_a_share(share) == in_steps


def test_the_work_of_another_budget_is_added_in_examples():
    of = {"effective_batch_examples": 64}
    assert Budget(epochs=0.5).with_work_of(Budget(epochs=3.0)) == Budget(epochs=3.5)
    both = Budget(steps=10, **of).with_work_of(Budget(steps=21))
    assert both == Budget(steps=10 + 11, **of)
    with pytest.raises(ValueError, match="one budget has epochs and the other steps"):
        Budget(epochs=1.0).with_work_of(Budget(steps=21))
