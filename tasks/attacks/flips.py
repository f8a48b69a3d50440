"""HotFlip: a few tokens of one text replaced so that its other tokens are predicted badly.

Ebrahimi et al., "HotFlip: White-Box Adversarial Examples for Text Classification" (2018), for a language model: the
gradient scores every replacement, the best are evaluated exactly, one is kept, and so on. A token that was replaced
is never scored again: an implausible token costs the model nothing but what it does to the others.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from tasks.attacks.configuration import FlipAttack
from tasks.attacks.scoring import Victim, best_replacements, replaced


@dataclass(frozen=True)
class Flipped:
    """A text with some tokens replaced, and the losses of the others before and after, summed in nats."""

    tokens: list[int]
    positions: list[int]
    tokens_scored: int
    loss_sum_nats: float
    clean_loss_sum_nats: float
    text_clean_loss_sum_nats: float
    """Of the whole text: the attack chooses which tokens are still scored, and must not choose its denominator."""

    def succeeded(self, attack: FlipAttack) -> bool:
        increase = (self.loss_sum_nats - self.clean_loss_sum_nats) / self.tokens_scored
        return increase > attack.success_relative_increase * self.text_clean_loss_sum_nats / len(self.tokens)


def flip(victim: Victim, text: Sequence[int], usable_V: torch.Tensor, attack: FlipAttack) -> Flipped:
    """Replaces up to `attack.flips` tokens of `text`, one in each round, at most half of the text.

    Every round costs the same whatever it finds: when no candidate raises the mean increase of the tokens that are
    still scored, the next round tries those that were ranked after them.
    """
    clean = victim.losses([[]], [text])[0]
    scored = torch.ones(len(text), dtype=torch.bool)
    tokens, increase, skip = list(text), 0.0, 0
    positions: list[int] = []
    now = clean
    for _ in range(flips_of(text, attack)):
        (gradient_LD,) = victim.gradients([[]], [tokens], [scored])
        replacements = best_replacements(
            gradient_LD, tokens, victim.embeddings_VD, usable_V, scored, skip, attack.candidates
        )
        losses = victim.losses([[]] * len(replacements), [replaced(tokens, *r) for r in replacements])
        increases = [
            ((loss - clean)[without(scored, position)]).mean().item()
            for (position, _), loss in zip(replacements, losses, strict=True)
        ]
        best = int(np.argmax(increases))
        if increases[best] <= increase:
            skip += len(replacements)
            continue
        position, _ = replacements[best]
        tokens, scored = replaced(tokens, *replacements[best]), without(scored, position)
        now, increase, skip = losses[best], increases[best], 0
        positions.append(position)
    return _measured(tokens, positions, scored, now, clean)


def random_flips(
    victim: Victim, text: Sequence[int], usable_V: torch.Tensor, flips: int, draws: int, seed: int
) -> list[Flipped]:
    """The control: `flips` random tokens at random positions, `draws` times, the same for every model.

    The positions and tokens of a draw are a function of the seed and the text, and never of what an attack found.
    """
    clean = victim.losses([[]], [text])[0]
    usable = usable_V.nonzero().flatten().numpy()
    changed = []
    for draw in range(draws):
        chance = np.random.default_rng([seed, draw, *_seed_of(text)])
        order, written = chance.permutation(len(text)), chance.choice(usable, size=len(text))
        positions = order[:flips].tolist()
        tokens = list(text)
        for position in positions:
            same = written[position] == text[position]
            tokens[position] = int(usable[(np.searchsorted(usable, written[position]) + same) % len(usable)])
        changed.append((tokens, positions))
    losses = victim.losses([[]] * draws, [tokens for tokens, _ in changed])
    found = []
    for (tokens, positions), loss in zip(changed, losses, strict=True):
        scored = torch.ones(len(text), dtype=torch.bool)
        scored[positions] = False
        found.append(_measured(tokens, positions, scored, loss, clean))
    return found


def flips_of(text: Sequence[int], attack: FlipAttack) -> int:
    """Rounds of the attack on `text`: of a short one at most half is replaced."""
    return min(attack.flips, len(text) // 2)


def without(scored: torch.Tensor, position: int) -> torch.Tensor:
    """`scored` without `position`."""
    rest = scored.clone()
    rest[position] = False
    return rest


def _measured(
    tokens: list[int], positions: list[int], scored: torch.Tensor, losses: torch.Tensor, clean: torch.Tensor
) -> Flipped:
    sums = (losses[scored].sum().item(), clean[scored].sum().item(), clean.sum().item())
    return Flipped(tokens, positions, int(scored.sum()), *sums)


def _seed_of(text: Sequence[int]) -> list[int]:
    digest = hashlib.sha256(np.asarray(text, dtype="<i8").tobytes()).digest()
    return np.frombuffer(digest[:16], dtype="<u4").tolist()
