"""D1, D2, D27, the pull toward ln 2 and the dead feed-forward: what was verified, what moved, what was matched."""

from __future__ import annotations

import copy
import math
import shutil

import pytest
import torch
from torch import nn
from torch.nn.functional import softplus
from torch.nn.utils import parametrize

from deployments.dag.walk import Walk
from storage.errors import BadInput, CheckFailed
from tasks.language.model import block_losses
from tasks.monotonic import constraint, keep
from tasks.monotonic.liveness import measure_liveness
from tasks.monotonic.movement import movement_checks
from tasks.monotonic.result import Liveness
from tasks.monotonic.signs import AllowedSigns, signs_of
from tasks.training.budget import Budget
from tasks.training.optimizer import adamw
from tasks.training.schedule import Schedule
from tests.tasks.monotonic.architectures import begun, network
from tests.tasks.monotonic.arms_of_tiny import arms_page, finished_arms
from tests.tasks.tiny import tiny_model


def verified(model: nn.Module, variant: str = "mlp_both") -> bool:
    try:
        return bool(constraint.verify(model, variant, signs_of(model, variant, "non-negative")))
    except CheckFailed:
        return False


def test_d01_verification_that_inspects_nothing():
    """A loop over named_parameters passes over `.original`, and a parametrised weight has no other name there."""

    good, bad = tiny_model(), tiny_model()
    found = constraint.verify(good, "mlp_both", begun(good, "mlp_both"))
    assert found.weights_checked == 4 * 16 * 32 and 0 <= found.min_weight < math.inf
    for module in constraint.constrained_modules(bad, "mlp_both").values():
        parametrize.register_parametrization(module, "weight", nn.Identity())  # W = V: half of them negative
    assert not verified(bad)


@pytest.mark.parametrize("replaced", [1, 2])
def test_d01_sublayers_of_another_class_leave_nothing_to_verify(replaced):
    model = tiny_model()
    begun(model, "mlp_both", by="projection")
    kind = type(model.gpt_neox.layers[0].mlp)
    for block in list(model.gpt_neox.layers)[:replaced]:
        block.mlp.__class__ = type("FusedMLP", (kind,), {})
    with pytest.raises((CheckFailed, BadInput), match=rf"measured {2 - replaced}, required 2|matches no layer"):
        constraint.verify(model, "mlp_both", AllowedSigns("non-negative", {}))


def test_d01_only_the_input_projections_were_verified_whatever_the_variant():
    model = tiny_model()
    begun(model, "mlp_both")
    keep.bake(model, "mlp_both")
    assert verified(model)
    with torch.no_grad():
        model.gpt_neox.layers[1].mlp.dense_4h_to_h.weight[0, 0] = -1.0
    assert not verified(model)


# --------------------------------------------------------------------------------------- weights that do not move


def trained(by, rate: float, steps: int, dtype: torch.dtype = torch.float32, required: float = 0.1) -> None:
    """Trains from |W| for the first `steps` of 400, with the checks of an arm."""
    model, start = tiny_model(), tiny_model()
    allowed = begun(model, "mlp_both", by=by)
    begun(start, "mlp_both", by="projection")
    model.to(dtype)
    schedule = Schedule(Budget(epochs=1.0, effective_batch_examples=1, learning_rate=rate, warmup_ratio=0.05), 400)
    checks = movement_checks(lambda: start, "mlp_both", allowed, required, schedule)
    optimizer = keep.optimizer(model, "mlp_both", allowed, by, schedule)
    generator = torch.Generator().manual_seed(0)
    for step in range(1, steps + 1):
        for group in optimizer.param_groups:
            group["lr"] = schedule.learning_rate(step)
        block_losses(model, torch.randint(0, 61, (4, 12), generator=generator)).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        for check in checks.get(step, []):
            check(model)


def test_d02_r2a_a_training_in_pure_bf16():
    with pytest.raises(CheckFailed, match="fp32"):
        trained("softplus", 5e-5, 12, torch.bfloat16)


def test_d02_r2b_steps_below_the_spacing_of_fp32():
    with pytest.raises(CheckFailed, match="moved since its start: measured 0"):
        trained("softplus", 1e-8, 12)


def test_d02_r2c_softplus_at_1e_5_whose_bits_all_change_and_whose_weights_do_not():
    """In 400 steps the median weight moved by 7.9e-5; 99 % of the bits differed, which was all that the guard asked."""
    with pytest.raises(CheckFailed, match=r"0\.1 times as far as the free matrices"):
        trained("softplus", 1e-5, 400)
    trained("projection", 1e-5, 25)  # past the check after warm-up


# -------------------------------------------------------------------------------------------- a dead feed-forward

VOCABULARY = 31


def text_BL(blocks: int, seed: int) -> torch.Tensor:
    """Each token is a quadratic function of the one before it, with noise: nothing that attention alone computes."""
    chance = torch.Generator().manual_seed(seed)
    tokens_BL = torch.randint(0, VOCABULARY, (blocks, 12), generator=chance)
    for place in range(1, 12):
        before = tokens_BL[:, place - 1]
        tokens_BL[:, place] = (
            before * before + 3 * before + 7 * (torch.rand(blocks, generator=chance) < 0.1)
        ) % VOCABULARY
    return tokens_BL


def train_on_text(model: nn.Module, optimizer: torch.optim.Optimizer, schedule: Schedule, seed: int) -> None:
    for step in range(1, schedule.total_steps + 1):
        for group in optimizer.param_groups:
            group["lr"] = schedule.learning_rate(step)
        block_losses(model, text_BL(16, seed + step)).mean().backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()


def plan(steps: int, rate: float) -> Schedule:
    return Schedule(Budget(effective_batch_examples=1, learning_rate=rate, warmup_ratio=0.1), steps)


def test_a_dead_feed_forward():
    """|W| through softplus leaves sublayers that say the same for every token; from the positive part they live."""
    base, further = tiny_model(vocabulary=VOCABULARY, hidden_size=64, feed_forward_size=256), plan(40, 1e-3)
    train_on_text(base, adamw(base, plan(150, 3e-3).budget), plan(150, 3e-3), seed=10_000)
    held_out_BL = text_BL(100, 999)

    @torch.no_grad()
    def loss(model: nn.Module) -> float:
        return block_losses(model, held_out_BL).mean().item()

    def alive(start, by) -> Liveness:
        model = copy.deepcopy(base)
        allowed = begun(model, "mlp_both", start=start, by=by)
        train_on_text(model, keep.optimizer(model, "mlp_both", allowed, by, further), further, seed=20_000)
        return measure_liveness(model, "mlp_both", loss)

    baseline = copy.deepcopy(base)
    train_on_text(baseline, adamw(baseline, further.budget), further, seed=20_000)
    rise = measure_liveness(baseline, "mlp_both", loss).rise_nats_per_token
    landed, now = alive("absolute", "softplus"), alive("positive-part", "projection")
    assert landed.rise_nats_per_token < 0.1 * rise, "what the study published: the constrained sublayers do nothing"
    assert now.rise_nats_per_token > 0.2 * rise


# --------------------------------------------------------------------------------------------- what was matched


def test_d27_a_local_check_on_an_architecture_that_nothing_matches():
    """GPT-2's projections are Conv1D: the check that was to run before any GPU hour could never pass."""
    projections = {f"transformer.h.{block}.mlp.{name}" for block in range(2) for name in ("c_fc", "c_proj")}

    gpt2 = network("gpt2")
    assert set(constraint.constrained_modules(gpt2, "mlp_both")) == projections
    with torch.no_grad():
        before = gpt2(input_ids=torch.arange(8)[None]).logits
    begun(gpt2, "mlp_both")
    keep.bake(gpt2, "mlp_both")
    assert verified(gpt2)
    with torch.no_grad():
        assert not torch.equal(gpt2(input_ids=torch.arange(8)[None]).logits, before), (
            "Conv1D reads what was constrained"
        )
    # and the arms run locally: a tiny model goes through every real stage
    assert finished_arms()[2]["monotonic"].as_input().result["constraint"]["layers_checked"] == 4


def test_d27_an_architecture_that_is_not_known_says_which_are():
    class Unknown(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mlp = nn.Linear(2, 2)

    with pytest.raises(BadInput, match=r"of Unknown: .*GPTNeoXMLP.*GPT2MLP.*LlamaMLP.*Qwen2MLP.*Qwen3MLP"):
        constraint.constrained_modules(Unknown(), "mlp_both")


def test_d27_a_name_that_matches_by_accident():
    """`c_proj` is also what attention's output is called, in GPT-2 itself."""
    model = network("gpt2")
    conv1d = type(model.transformer.h[0].mlp.c_fc)

    feed_forward = {n for n, m in model.named_modules() if isinstance(m, conv1d) and ".mlp." in n}
    assert set(constraint.constrained_modules(model, "mlp_both")) == feed_forward
    attention = {n for n in constraint.constrained_modules(model, "mlp_in_attn_out") if ".attn." in n}
    assert attention == {f"transformer.h.{block}.attn.c_proj" for block in range(2)}, "where a variant names it"


def test_weight_decay_that_pulls_constrained_weights_toward_ln_2():
    start = torch.tensor([0.001, 0.1, 0.5])

    layer = nn.Linear(3, 1, bias=False)
    layer.weight = nn.Parameter(start[None].clone())
    parametrize.register_parametrization(layer, "weight", keep.SignedSoftplus(torch.ones((), dtype=torch.int8)))
    v = keep.trained_parameter(layer)
    optimizer = torch.optim.AdamW([v], lr=0.1, weight_decay=0.0)
    budget = Budget(effective_batch_examples=1, learning_rate=0.1, warmup_ratio=0.0, weight_decay=0.1)
    keep.decay_effective_weights(optimizer, [layer], Schedule(budget, examples=50))
    for _ in range(50):
        v.grad = torch.zeros_like(v)
        optimizer.step()
    assert (layer.weight.detach()[0] < start).all()


def test_an_inverse_that_is_not_one():
    """eps = 1e-4 was added twice, so that every weight began 2e-4 larger than the pretrained one's size."""
    w = torch.tensor([1e-6, 1e-3, 0.05, -0.2, 3.0, 95.0])
    inverse = keep.SignedSoftplus(torch.ones((), dtype=torch.int8)).right_inverse
    assert torch.allclose(softplus(inverse(w)), w.abs(), rtol=3e-6, atol=0)


def test_a_missing_initialisation_that_was_only_a_warning(tmp_path):
    """Without the constrained starting point the old stage trained on from the plain model."""
    study, root, handles = finished_arms()
    shutil.copytree(root, tmp_path / "runs")
    signs = handles["monotonic start"].run.path.relative_to(root) / "signs" / "signs.safetensors"
    (tmp_path / "runs" / signs).unlink()
    after = arms_page(study, Walk(tmp_path / "runs", study.name))
    assert "signs.safetensors is missing" in after["monotonic start"].verdict.reason
    assert "constrain" in " ".join(map(str, after["monotonic"].waits_for))
