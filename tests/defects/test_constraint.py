"""D1, D2, D27 and the pull toward ln 2: what was verified, what moved, what was matched."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn
from torch.nn.functional import softplus
from torch.nn.utils import parametrize

from storage.errors import BadInput, CheckFailed
from tasks.language.model import block_losses
from tasks.monotonic import constraint
from tasks.monotonic.guards import movement_checks
from tasks.training.budget import Budget
from tasks.training.optimizer import adamw
from tasks.training.schedule import Schedule
from tests.tasks.monotonic.architectures import network
from tests.tasks.tiny import finished_study, handles_of, tiny_model

NAMES = ("dense_h_to_4h", "c_fc", "fc_in", "dense_4h_to_h", "c_proj", "fc_out")


def test_d01_verification_that_inspects_nothing():
    """A loop over named_parameters passes over `.original`, and a parametrised weight has no other name there."""

    def ours(model: nn.Module) -> dict[str, object]:
        try:
            found = constraint.verify(model, "mlp_both")
        except CheckFailed as error:
            return {"inspected": 1, "min_weight": error.measured, "all_non_negative": False}
        return {
            "inspected": found.weights_checked,
            "min_weight": found.min_weight,
            "all_non_negative": True,
        }

    def sound(verify: Callable[[nn.Module], dict[str, object]]) -> bool:
        good = tiny_model()
        constraint.constrain(good, "mlp_both")
        bad = tiny_model()
        for module in constraint.constrained_modules(bad, "mlp_both").values():
            parametrize.register_parametrization(module, "weight", nn.Identity())  # W = V: half of them negative
        told = verify(good)
        return (
            told["inspected"] == 4 * 16 * 32
            and told["min_weight"] != math.inf
            and told["all_non_negative"] is True
            and verify(bad)["all_non_negative"] is False
        )

    assert sound(ours)


def test_d01_only_the_input_projections_were_verified_whatever_the_variant():

    def ours(model: nn.Module, variant: str) -> bool:
        try:
            return bool(constraint.verify(model, variant))
        except CheckFailed:
            return False

    def sees_a_negative_output_projection(verify) -> bool:
        model = tiny_model()
        constraint.constrain(model, "mlp_both")
        constraint.bake(model, "mlp_both")
        before = verify(model, "mlp_both")
        with torch.no_grad():
            model.gpt_neox.layers[1].mlp.dense_4h_to_h.weight[0, 0] = -1.0
        return before and not verify(model, "mlp_both")

    assert sees_a_negative_output_projection(ours)


def trained_v(dtype: torch.dtype, steps: int, folder, checks_too: bool = False) -> float:
    """Share of V that differs after `steps` AdamW steps at the study's rate of 5e-5."""
    model = tiny_model()
    constraint.constrain(model, "mlp_both")
    model.to(dtype)
    free = constraint.free_parameters(model, "mlp_both")
    save_file({name: v.detach().clone() for name, v in free.items()}, folder / "v.safetensors")
    before = {name: v.detach().clone() for name, v in free.items()}
    budget = Budget(epochs=1.0, effective_batch_examples=1, learning_rate=5e-5, warmup_ratio=0.05)
    schedule = Schedule(budget, 200)
    checks = movement_checks(folder / "v.safetensors", "mlp_both", schedule) if checks_too else {}
    optimizer = adamw(model, budget, undecayed=free)
    generator = torch.Generator().manual_seed(0)
    for step in range(1, steps + 1):
        block_losses(model, torch.randint(0, 61, (4, 12), generator=generator)).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        for check in checks.get(step, []):
            check(model)
    moved = sum((v.detach() != before[name]).sum().item() for name, v in free.items())
    return moved / sum(v.numel() for v in free.values())


def test_d02_steps_smaller_than_the_spacing_of_bf16_never_move_a_weight(tmp_path):
    def trains(dtype: torch.dtype) -> bool:
        return trained_v(dtype, 12, tmp_path) > 0.99

    assert not trains(torch.bfloat16)
    assert trains(torch.float32)


def test_d02_our_guard_stops_a_training_in_pure_bf16(tmp_path):
    with pytest.raises(CheckFailed, match="moved since constrain"):
        trained_v(torch.bfloat16, 12, tmp_path, checks_too=True)
    assert trained_v(torch.float32, 12, tmp_path, checks_too=True) > 0.99


def test_d27_a_local_check_on_an_architecture_that_nothing_matches():
    """GPT-2's projections are Conv1D: the check that was to run before any GPU hour could never pass."""
    projections = {f"transformer.h.{block}.mlp.{name}" for block in range(2) for name in ("c_fc", "c_proj")}

    def passes_locally(match) -> bool:
        gpt2 = network("gpt2")
        try:
            return set(match(gpt2, "mlp_both")) == projections
        except RuntimeError:
            return False

    assert passes_locally(constraint.constrained_modules)
    gpt2 = network("gpt2")
    with torch.no_grad():
        before = gpt2(input_ids=torch.arange(8)[None]).logits
    constraint.constrain(gpt2, "mlp_both")
    constraint.bake(gpt2, "mlp_both")
    assert constraint.verify(gpt2, "mlp_both").weights_checked == 4 * 16 * 16
    with torch.no_grad():
        assert not torch.equal(gpt2(input_ids=torch.arange(8)[None]).logits, before), (
            "Conv1D reads what was constrained"
        )
    # and the whole study runs locally: a tiny model goes through every real stage
    assert finished_study().result("train-monotonic")["constraint"]["layers_checked"] == 4


def test_d27_an_architecture_that_is_not_known_says_which_are():
    class Unknown(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mlp = nn.Linear(2, 2)

    def says_what_would_be_valid(match) -> bool:
        try:
            match(Unknown(), "mlp_both")
        except Exception as error:
            return isinstance(error, BadInput) and all(
                name in str(error) for name in ("Unknown", "GPTNeoXMLP", "GPT2MLP", "LlamaMLP", "Qwen2MLP", "Qwen3MLP")
            )
        return False

    assert says_what_would_be_valid(constraint.constrained_modules)


def test_d27_a_name_that_matches_by_accident():
    """`c_proj` is also what attention's output is called, in GPT-2 itself."""
    model = network("gpt2")
    conv1d = type(model.transformer.h[0].mlp.c_fc)

    def old(network: nn.Module) -> set[str]:
        """As it would have been, had it known Conv1D."""
        return {n for n, m in network.named_modules() if isinstance(m, conv1d) and any(k in n for k in NAMES)}

    feed_forward = {n for n, m in model.named_modules() if isinstance(m, conv1d) and ".mlp." in n}
    assert old(model) == feed_forward | {f"transformer.h.{block}.attn.c_proj" for block in range(2)}
    assert set(constraint.constrained_modules(model, "mlp_both")) == feed_forward
    attention = {n for n in constraint.constrained_modules(model, "mlp_in_attn_out") if ".attn." in n}
    assert attention == old(model) - feed_forward, "it is reached where a variant names it"


def test_weight_decay_that_pulls_constrained_weights_toward_ln_2():
    def after_decay(ours: bool) -> torch.Tensor:
        v = nn.Parameter(constraint.Softplus().right_inverse(torch.tensor([0.001, 0.1, 0.5])))
        optimizer = torch.optim.AdamW([v], lr=0.1, weight_decay=0.0 if ours else 0.1)
        if ours:
            schedule = Schedule(
                Budget(effective_batch_examples=1, learning_rate=0.1, warmup_ratio=0.0, weight_decay=0.1), examples=50
            )
            constraint.decay_effective_weights(optimizer, [v], schedule)
        for _ in range(50):
            v.grad = torch.zeros_like(v)
            optimizer.step()
        return softplus(v.detach())

    def shrinks(w: torch.Tensor) -> bool:
        return bool((w < torch.tensor([0.001, 0.1, 0.5])).all())

    assert not shrinks(after_decay(ours=False))
    assert shrinks(after_decay(ours=True))


def test_an_inverse_that_is_not_one():
    """eps = 1e-4 was added twice, so that every weight began 2e-4 larger than the pretrained one's size."""

    w = torch.tensor([1e-6, 1e-3, 0.05, -0.2, 3.0, 95.0])

    def exact(inverse) -> bool:
        return torch.allclose(softplus(inverse(w)), w.abs(), rtol=3e-6, atol=0)

    assert exact(constraint.Softplus().right_inverse)


def test_a_missing_initialisation_that_was_only_a_warning(tmp_path, caplog):
    """Without the constrained starting point the old stage trained on from the plain model."""

    def ours(_: Path) -> str:
        copied = finished_study().copy(tmp_path / "runs")
        (copied.path("constrain") / "initial" / "v.safetensors").unlink()
        handles = handles_of(copied.root, copied.study)
        assert "v.safetensors is missing" in handles["constrain"].verdict.reason
        return "refused" if "constrain" in handles["train-monotonic"].waits_for else "trained"

    assert ours(tmp_path / "monotonic_initialized.pt") == "refused"
