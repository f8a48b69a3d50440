"""Guards against weights that do not move: frozen, bf16 and softplus weights are found, right training is not."""

import pytest
import torch

from storage.errors import CheckFailed
from tasks.language.model import block_losses
from tasks.monotonic import keep
from tasks.monotonic.keep import FIRST_CHECK_STEP, movement_checks, require_movement
from tasks.training.budget import Budget
from tasks.training.schedule import Schedule
from tests.tasks.monotonic.architectures import LAYERS, begun, network
from tests.tasks.tiny import tiny_model

VARIANT = "mlp_both"
BYS = pytest.mark.parametrize("by", ["projection", "softplus"])


def plan(steps: int, rate: float = 1e-5, warmup_ratio: float = 0.1) -> Schedule:
    budget = Budget(epochs=1.0, effective_batch_examples=1, learning_rate=rate, warmup_ratio=warmup_ratio)
    return Schedule(budget, steps)


def start_of(architecture: str = "gpt_neox", variant: str = VARIANT, signs="non-negative"):
    """The model as constrain leaves it on disk."""
    model = network(architecture)
    begun(model, variant, signs, "absolute", "projection")
    return model


def trained(
    by: str, schedule: Schedule, until: int, required: float = 0.1, dtype=torch.float32, frozen=None
) -> list[int]:
    """Trains as an arm does and runs the checks where the loop would; returns the steps that were checked."""
    model = tiny_model()
    allowed = begun(model, VARIANT, by=by)
    model.to(dtype)
    still = keep.trained_parameter(model.get_submodule(frozen)).detach().clone() if frozen else None
    checks = movement_checks(start_of, VARIANT, allowed, required, schedule)
    optimizer = keep.optimizer(model, VARIANT, allowed, by, schedule)
    generator, checked = torch.Generator().manual_seed(0), []
    for step in range(1, until + 1):
        for group in optimizer.param_groups:
            group["lr"] = schedule.learning_rate(step)
        block_losses(model, torch.randint(0, 61, (4, 12), generator=generator)).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        if frozen:
            keep.trained_parameter(model.get_submodule(frozen)).data.copy_(still)
        for check in checks.get(step, []):
            check(model)
            checked.append(step)
    return checked


@pytest.mark.parametrize(
    ("steps", "warmup_ratio", "expected"),
    [
        (300, 0.1, {10: 1, 31: 1, 300: 1}),  # the first step after warm-up, and the last
        (50, 0.1, {10: 2, 50: 1}),  # at least 10
        (4, 0.1, {4: 2}),  # a short training is checked at its end
        (100, 0.99, {10: 1, 100: 1}),
    ],
)
def test_when_the_guards_check(steps, warmup_ratio, expected):
    for required, counts in ((0.1, expected), (0.0, {min(10, steps): 1})):
        checks = movement_checks(start_of, VARIANT, None, required, plan(steps, warmup_ratio=warmup_ratio))
        assert {step: len(found) for step, found in checks.items()} == counts


def test_correct_training_passes_also_at_1e_5():
    assert trained("projection", plan(40), until=40) == [10, 10, 40]


def test_softplus_at_1e_5_moves_too_little_and_is_told_what_to_do():
    with pytest.raises(
        CheckFailed, match=r"0\.1 times as far .* measured .* free matrices moved .*raise budget\.learning_rate"
    ):
        trained("softplus", plan(40), until=40)
    assert trained("softplus", plan(40), until=40, required=0.0) == [10], "recorded only"


@BYS
def test_pure_bf16_weights_are_refused(by):
    """Those near 0, where its spacing is fine, do move: so it is asked for the format itself."""
    with pytest.raises(CheckFailed, match=r"is trained in fp32: measured torch.bfloat16"):
        trained(by, plan(300), until=FIRST_CHECK_STEP, dtype=torch.bfloat16)


@BYS
@pytest.mark.parametrize("layer", sorted(LAYERS["gpt_neox", VARIANT]))
def test_one_frozen_matrix_of_four_is_found_and_named(by, layer):
    with pytest.raises(CheckFailed, match=rf"{layer} .*measured 0, required more than 0"):
        trained(by, plan(300), until=FIRST_CHECK_STEP, frozen=layer)


def test_matrices_that_are_off_are_not_asked_to_move():
    model = start_of(signs="off")
    allowed = begun(model, VARIANT, "off", "positive-part", "projection")
    (check,) = movement_checks(lambda: start_of(signs="off"), VARIANT, allowed, 0.0, plan(300))[10]
    check(model)


def test_a_median_that_did_not_move_is_too_little_whatever_the_free_matrices_did():
    model = start_of()
    with pytest.raises(CheckFailed, match="measured 0, where the free matrices moved 0, required 0"):
        require_movement(model, VARIANT, start_of(), 0.1)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.mul_(1.009 if "mlp" in name else 1.1)
    with pytest.raises(CheckFailed, match=r"measured 0\.009, where the free matrices moved 0\.1, required 0\.01"):
        require_movement(model, VARIANT, start_of(), 0.1)
    require_movement(model, VARIANT, start_of(), 0.08)


@BYS
@pytest.mark.parametrize(("architecture", "variant"), LAYERS)
def test_in_every_architecture_each_matrix_is_checked(architecture, variant, by):
    model = network(architecture)
    allowed = begun(model, variant, by=by)
    (check,) = movement_checks(lambda: start_of(architecture, variant), variant, allowed, 0.0, plan(300))[10]
    parameters = {name: keep.trained_parameter(model.get_submodule(name)) for name in allowed.layers}
    before = {name: parameter.detach().clone() for name, parameter in parameters.items()}
    with torch.no_grad():
        for parameter in parameters.values():
            parameter.add_(1.0)
        check(model)
        for name, parameter in parameters.items():
            parameter.copy_(before[name])
            with pytest.raises(CheckFailed, match=name):
                check(model)
            parameter.add_(1.0)
