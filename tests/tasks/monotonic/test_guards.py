"""Guards against weights that do not move: they fire on frozen and bf16 weights, and never on correct training."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from storage.errors import CheckFailed
from tasks.language.model import block_losses
from tasks.monotonic import constraint
from tasks.monotonic.guards import FIRST_CHECK_STEP, movement_checks
from tasks.training.budget import Budget
from tasks.training.optimizer import adamw
from tasks.training.schedule import Schedule
from tests.tasks.monotonic.architectures import LAYERS, network
from tests.tasks.tiny import tiny_model

VARIANT = "mlp_both"


def constrained(folder, dtype: torch.dtype = torch.float32):
    """A constrained tiny model, and constrain's output on disk."""
    model = tiny_model()
    constraint.constrain(model, VARIANT)
    model.to(dtype)
    file = folder / "v.safetensors"
    save_file({name: v.detach().clone() for name, v in constraint.free_parameters(model, VARIANT).items()}, file)
    return model, file


def plan(steps: int, rate: float = 1e-5, warmup_ratio: float = 0.1) -> Schedule:
    budget = Budget(epochs=1.0, effective_batch_examples=1, learning_rate=rate, warmup_ratio=warmup_ratio)
    return Schedule(budget, steps)


def trained(model: nn.Module, schedule: Schedule, checks, until: int) -> None:
    """Trains with AdamW and runs the checks where the loop would."""
    generator = torch.Generator().manual_seed(0)
    optimizer = adamw(model, schedule.budget, undecayed=constraint.free_parameters(model, VARIANT))
    for step in range(1, until + 1):
        for group in optimizer.param_groups:
            group["lr"] = schedule.learning_rate(step)
        block_losses(model, torch.randint(0, 61, (4, 12), generator=generator)).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        for check in checks.get(step, []):
            check(model)


@pytest.mark.parametrize(
    ("steps", "warmup_ratio", "expected"),
    [
        (300, 0.1, {10: 1, 31: 1}),  # the first step after warm-up
        (50, 0.1, {10: 2}),  # at least 10
        (4, 0.1, {4: 2}),  # a short training is checked at its end
        (100, 0.99, {10: 1, 100: 1}),
    ],
)
def test_when_the_guards_check(tmp_path, steps, warmup_ratio, expected):
    checks = movement_checks(tmp_path / "absent", VARIANT, plan(steps, warmup_ratio=warmup_ratio))
    assert {step: len(found) for step, found in checks.items()} == expected


def test_training_at_1e_5_in_fp32_passes(tmp_path):
    model, file = constrained(tmp_path)
    schedule = plan(300)
    checks = movement_checks(file, VARIANT, schedule)
    checked = []
    counted = {step: [*found, lambda _, step=step: checked.append(step)] for step, found in checks.items()}
    trained(model, schedule, counted, until=31)
    assert checked == [10, 31]


def test_pure_bf16_weights_never_move_and_the_first_guard_says_so(tmp_path):
    model, file = constrained(tmp_path, torch.bfloat16)
    schedule = plan(300)
    with pytest.raises(CheckFailed, match=r"moved since constrain: measured 0, required more than 0.*fp32"):
        trained(model, schedule, movement_checks(file, VARIANT, schedule), until=FIRST_CHECK_STEP)


@pytest.mark.parametrize("frozen", range(4))
def test_one_frozen_tensor_of_four_is_found_and_named(tmp_path, frozen):
    model, file = constrained(tmp_path)
    name, v = list(constraint.free_parameters(model, VARIANT).items())[frozen]
    v.requires_grad_(False)
    schedule = plan(300)
    with pytest.raises(CheckFailed, match=name):
        trained(model, schedule, movement_checks(file, VARIANT, schedule), until=FIRST_CHECK_STEP)


def test_one_column_that_stays_is_too_much_after_warm_up_and_not_before(tmp_path):
    model, file = constrained(tmp_path)
    first, later = (found[0] for _, found in sorted(movement_checks(file, VARIANT, plan(300)).items()))
    with torch.no_grad():
        for v in constraint.free_parameters(model, VARIANT).values():
            v[:, 1:] += 1.0
    first(model)
    with pytest.raises(CheckFailed, match=r"required 0\.99"):
        later(model)


def test_the_comparison_is_with_the_file_not_with_memory(tmp_path):
    """A continuation builds its guards anew, long after the weights began to move."""
    model, file = constrained(tmp_path)
    with torch.no_grad():
        for v in constraint.free_parameters(model, VARIANT).values():
            v.add_(1.0)
    (check,) = movement_checks(file, VARIANT, plan(300))[10]
    check(model)
    save_file({n: v.detach().clone() for n, v in constraint.free_parameters(model, VARIANT).items()}, file)
    with pytest.raises(CheckFailed):
        check(model)


@pytest.mark.parametrize(("architecture", "variant"), LAYERS)
def test_in_every_architecture_each_tensor_is_checked(tmp_path, architecture, variant):
    model = network(architecture)
    constraint.constrain(model, variant)
    free = constraint.free_parameters(model, variant)
    file = tmp_path / "v.safetensors"
    save_file({name: v.detach().clone() for name, v in free.items()}, file)
    first, later = (found[0] for _, found in sorted(movement_checks(file, variant, plan(300)).items()))
    with torch.no_grad():
        for v in free.values():
            v.add_(1.0)
        first(model)
        later(model)
        for name, v in free.items():
            v.copy_(load_file(file)[name])
            with pytest.raises(CheckFailed, match=name):
                first(model)
            v.add_(1.0)
