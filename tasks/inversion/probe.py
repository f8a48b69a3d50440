"""inversion-probe: are hard negatives ill-conditioned, or not wrong at all, or all alike? Asked of trained networks.

A is never mined, and so the condition numbers of A are the same for truth and negatives by construction: what is looked
at is y. Every network gets negatives made in the same way, from the same noise, with the corrected descent.
"""

import math

import numpy as np
import torch
from torch import nn

from tasks.inversion.diffusion import CLAMP, Diffusion, descend
from tasks.inversion.matrices import Pairs, fixed_pairs
from tasks.inversion.stages import NegativeFacts, ProbeConfig, ProbeResult, TrainConfig
from tasks.inversion.study import Mining
from tasks.inversion.train import load_network
from tasks.stage.run import StageInput, StageRun
from tasks.training.draws import normal_at


def probe(run: StageRun, config: ProbeConfig, data: StageInput, **trained: StageInput) -> ProbeResult:
    """Looks at the negatives of each arm's network; `trained` are their trainings, by arm."""
    some = fixed_pairs(data, "validation").first(config.probe.matrices)
    negatives: list[NegativeFacts] = []
    looks = len(trained) * len(config.probe.times) * len(config.probe.descent_steps)
    for arm, training in trained.items():
        mining = training.configuration(TrainConfig).mining
        network = load_network(training, some.y.shape[1], config.network)
        for time in config.probe.times:
            for steps in config.probe.descent_steps:
                run.step(len(negatives), looks, "looks", note=arm)
                negatives.append(look_at(arm, network, some, mining, time, steps, config))
    return ProbeResult(negatives=negatives)


def look_at(
    arm: str, network: nn.Module, some: Pairs, mining: Mining, time: int, steps: int, config: ProbeConfig
) -> NegativeFacts:
    noise = normal_at(config.seed, "probe", 0, np.arange(len(some)), (some.y.shape[1],))
    diffusion = Diffusion.cosine(config.network.diffusion_steps)
    t = torch.full((len(some),), time, dtype=torch.long)
    start = diffusion.noised(some.y, t, mining.noise_scale * noise)
    mined = descend(network, diffusion, some.x, start, t, steps, mining.step_scale)
    negatives = (mined.y / diffusion.signal(t)).clamp(-CLAMP, CLAMP)
    with torch.no_grad():
        true, false = (network(some.x, diffusion.noised(y, t, noise), t) for y in (some.y, negatives))
        gap = true - false
    distance = (negatives - some.y).norm(dim=-1) / some.y.norm(dim=-1)
    rank = math.isqrt(some.y.shape[1])
    x, made, true_y = (values.reshape(-1, rank, rank) for values in (some.x, negatives, some.y))
    ours, theirs = torch.linalg.svdvals(made), torch.linalg.svdvals(true_y)
    return NegativeFacts(
        arm=arm,
        time=time,
        descent_steps=steps,
        condition=float((ours[:, 0] / ours[:, -1]).median()),
        true_condition=float((theirs[:, 0] / theirs[:, -1]).median()),
        smallest_singular_value=float(ours[:, -1].median()),
        true_smallest_singular_value=float(theirs[:, -1].median()),
        residual=float((x @ made - torch.eye(rank)).flatten(1).norm(dim=-1).mean()),
        distance=float(distance.mean()),
        false_share=float((distance < config.probe.false_negative_distance).float().mean()),
        energy_gap=float(gap.mean()),
        below_share=float((gap > 0).float().mean()),
        kept_share=float(mined.kept.mean()),
        spread=float(negatives.std(0).mean() / some.y.std(0).mean()),
        gradient_norm=float(mined.gradient_norms.mean()),
    )
