"""One batch is fitted by what can learn; a model whose weights do not move is refused with its numbers."""

import pytest
import torch

from storage.errors import CheckFailed
from tasks.stage.execution import Execution
from tasks.training.budget import Budget
from tasks.training.optimizer import adamw
from tasks.training.problem import Problem
from tasks.training.schedule import Schedule
from tasks.training.trials.short import SingleBatchFit, fit_single_batch, require_fit
from tests.tasks.training.pulses import ISOTROPIC, PulseNetwork, angles, events

EXAMPLES = 32


def fitted(micro_batch: int = 32, frozen: bool = False, batch: int = EXAMPLES):
    pulses, directions = (values[:EXAMPLES] for values in events(EXAMPLES, True))
    torch.manual_seed(1)
    network = PulseNetwork()
    if frozen:
        network.requires_grad_(False)
        network.event.bias.requires_grad_(True)
    budget = Budget(steps=300, effective_batch_examples=batch, learning_rate=3e-3, warmup_ratio=0.0, decay="constant")
    problem = Problem(
        network,
        adamw(network, budget),
        lambda indices, _epoch: (pulses[indices], directions[indices]),
        lambda model, given: angles(model, *given),
        lambda model: angles(model, pulses, directions).mean().item(),
    )
    return fit_single_batch(problem, Schedule(budget, EXAMPLES), 5, Execution(micro_batch_examples=micro_batch))


def test_normalised_inputs_fit_one_batch_and_the_gate_lets_them_pass():
    fit = fitted()
    assert fit.before > 1.2 and fit.after < 0.3 and (fit.examples, fit.steps) == (EXAMPLES, 300)
    require_fit(fit, ISOTROPIC, 0.25)
    assert fitted() == fit, "the same configuration gives the same bits"
    assert fitted(micro_batch=8).after == pytest.approx(fit.after, abs=0.1), "every step has all examples"


def test_weights_that_do_not_move_fit_no_batch_and_are_refused_with_numbers():
    """Only a bias learns: the best that it can do is one direction for all."""
    fit = fitted(frozen=True)
    with pytest.raises(CheckFailed, match=r"the model fits one batch: measured .* after 300 steps on the same 32"):
        require_fit(fit, ISOTROPIC, 0.25)


@pytest.mark.parametrize(("after", "passes"), [(0.39, True), (0.41, False), (float("nan"), False)])
def test_the_gate_compares_with_what_needs_no_learning(after, passes):
    fit = SingleBatchFit(examples=8, steps=10, before=1.5, after=after, gradient_norm_max=1.0)
    if passes:
        require_fit(fit, 1.6, 0.25)
    else:
        with pytest.raises(CheckFailed, match=r"at most 0\.4, 0\.25 of the 1\.6"):
            require_fit(fit, 1.6, 0.25)


def test_more_examples_than_one_batch_are_refused():
    with pytest.raises(ValueError, match="32 examples are more than one batch of 16"):
        fitted(batch=16)
