"""The dead feed-forward, and a start that was missing."""

import copy
import shutil

import torch
from torch import nn

from deployments.dag.walk import Walk
from tasks.language.model import block_losses
from tasks.monotonic import keep
from tasks.monotonic.arms import measure_liveness
from tasks.monotonic.result import Liveness
from tasks.training.budget import Budget
from tasks.training.problem import adamw
from tasks.training.schedule import Schedule
from tests.tasks.monotonic.architectures import begun
from tests.tasks.monotonic.arms_of_tiny import arms_page, finished_arms
from tests.tasks.tiny import tiny_model

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


def test_a_missing_initialisation_that_was_only_a_warning(tmp_path):
    """Without the constrained starting point the old stage trained on from the plain model."""
    study, root, handles = finished_arms()
    shutil.copytree(root, tmp_path / "runs")
    signs = handles["monotonic start"].run.path.relative_to(root) / "signs" / "signs.safetensors"
    (tmp_path / "runs" / signs).unlink()
    after = arms_page(study, Walk(tmp_path / "runs", study.name))
    assert "signs.safetensors is missing" in after["monotonic start"].verdict.reason
    assert "constrain" in " ".join(map(str, after["monotonic"].waits_for))
