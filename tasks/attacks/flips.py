"""HotFlip: a few tokens of one text replaced so that its other tokens are predicted badly.

Ebrahimi et al., "HotFlip: White-Box Adversarial Examples for Text Classification" (2018), for a language model: the
gradient ranks every replacement, the best of each position are evaluated exactly, one is kept, and so on. Which tokens
may be replaced is drawn beforehand; none of them is ever scored. So every attack on every model is judged on the same
tokens, and an implausible token costs the model nothing but what it does to others. The blind search has no gradient,
spends as much, and is the same otherwise: it is what an attacker does who can only ask for losses.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from tasks.attacks.candidates import Candidates, blind, blind_candidates, by_gradient, rank_correlation
from tasks.attacks.configuration import BUDGET_SHARES, FlipAttack, steps_after
from tasks.attacks.scoring import Victim, replaced, targets

WRITABLE, CONTROL, DRAWS = 0, 1, 2
"""Purpose of a random draw: one part of its seed."""


@dataclass
class Flipped:
    """Result of a search in a text.

    `loss_sums` holds the summed loss of the scored tokens, in nats, before the first and after every round, as the
    search saw it; `after_shares` the text after each of BUDGET_SHARES.
    """

    tokens: Sequence[int]
    loss_sums: list[float]
    after_shares: list[Sequence[int]] = field(default_factory=list)
    rank_correlations: list[float] = field(default_factory=list)

    def positions(self, text: Sequence[int]) -> list[int]:
        """Positions that differ from `text`."""
        return [place for place, (old, new) in enumerate(zip(text, self.tokens, strict=True)) if old != new]


class FlipSearch:
    """The search in one text, on one model. Every text and model costs the same for each round, whatever is found."""

    def __init__(
        self,
        victim: Victim,
        text: Sequence[int],
        usable_V: torch.Tensor,
        attack: FlipAttack,
        seed: int,
        *,
        with_gradient: bool = True,
    ) -> None:
        self.victim, self.text, self.usable_V, self.attack, self.seed = victim, text, usable_V, attack, seed
        self.with_gradient = with_gradient
        self.writable = writable_positions(text, attack, seed)
        self.scored_L = scored_tokens(text, self.writable)
        self.skip = 0

    def run(self) -> Flipped:
        """Runs all rounds; each replaces one token at most, if that raises the loss of the scored tokens."""
        found = Flipped(self.text, [self._sums(self.text, [self.text])[0]])
        rounds = self.attack.rounds_on_a_text
        for number in range(rounds + 1):
            found.after_shares += [found.tokens for s in BUDGET_SHARES if steps_after(s, rounds) == number]
            if number < rounds:
                self._improve(found, number)
        return found

    def _improve(self, found: Flipped, number: int) -> None:
        candidates = self._candidates(found, number)
        tried = [replaced(found.tokens, *replacement) for replacement in candidates.replacements]
        sums, before = self._sums(found.tokens, tried), found.loss_sums[-1]
        best = int(np.argmax(sums))
        if sums[best] > before:
            found.tokens, self.skip = tried[best], 0
        else:  # the next round would rank alike: it tries those that come after these
            self.skip += len(candidates)
        found.loss_sums.append(max(before, sums[best]))
        correlation = rank_correlation(candidates.estimates, [loss - before for loss in sums])
        found.rank_correlations += [] if correlation is None else [correlation]

    def _candidates(self, found: Flipped, number: int) -> Candidates:
        positions = self._open(found)
        present = [found.tokens[position] for position in positions]
        if not self.with_gradient:
            chance = np.random.default_rng([self.seed, DRAWS, number, *_seed_of(self.text)])
            return blind(present, positions, self.usable_V, blind_candidates(self.attack), chance)
        (gradient_LD,) = self.victim.gradients([[]], [found.tokens], [self.scored_L])
        embeddings_VD = self.victim.embeddings_VD
        return by_gradient(
            gradient_LD[positions], present, positions, embeddings_VD, self.usable_V, self.attack, self.skip
        )

    def _open(self, found: Flipped) -> list[int]:
        """Positions that may be replaced: once as many differ as may, those that do."""
        written = found.positions(self.text)
        return written if len(written) == flips_of(self.text, self.attack) else self.writable

    def _sums(self, near: Sequence[int], texts: Sequence[Sequence[int]]) -> list[float]:
        """The summed loss of the scored tokens of each text, in nats; most of them begin as `near` does."""
        return [loss_N.sum().item() for loss_N in self.victim.variant_losses(near, texts, self.scored_L)]


def random_flips(text: Sequence[int], usable_V: torch.Tensor, attack: FlipAttack, seed: int) -> list[Sequence[int]]:
    """The control: `text` with as many random tokens at random writable positions as an attack may replace, each draw.

    A function of the seed and the text, and never of a model or of what an attack found.
    """
    writable, drawn = writable_positions(text, attack, seed), []
    for draw in range(attack.control_draws):
        chance = np.random.default_rng([seed, CONTROL, draw, *_seed_of(text)])
        tokens: Sequence[int] = text
        for position in chance.permutation(writable)[: flips_of(text, attack)].tolist():
            ((_, token),) = blind([text[position]], [position], usable_V, 1, chance).replacements
            tokens = replaced(tokens, position, token)
        drawn.append(tokens)
    return drawn


def writable_positions(text: Sequence[int], attack: FlipAttack, seed: int) -> list[int]:
    """The positions that any attack on `text` may write, sorted: a function of the seed and the text.

    At most half of the text, and never its last token, which no other is predicted from.
    """
    wanted = 2 * attack.flips if attack.writable_tokens is None else attack.writable_tokens
    chance = np.random.default_rng([seed, WRITABLE, *_seed_of(text)])
    return sorted(chance.permutation(len(text) - 1)[: min(wanted, len(text) // 2)].tolist())


def flips_of(text: Sequence[int], attack: FlipAttack) -> int:
    """Tokens of `text` that an attack may replace: at most half of a short one."""
    return min(attack.flips, len(text) // 2)


def forwards_after(attack: FlipAttack, rounds: int) -> int:
    """Forwards that a search spent on a text after so many rounds; the first tells it the clean loss."""
    return 1 + rounds * blind_candidates(attack)


def scored_tokens(text: Sequence[int], writable: Sequence[int]) -> torch.Tensor:
    """Which targets of `text` count, bool [targets]: all that nobody may write; of a pair its whole reference."""
    scored_L = torch.ones(len(targets(text)), dtype=torch.bool)
    if targets(text) is text:
        scored_L[list(writable)] = False
    return scored_L


def _seed_of(text: Sequence[int]) -> list[int]:
    digest = hashlib.sha256(np.asarray(text, dtype="<i8").tobytes()).digest()
    return np.frombuffer(digest[:16], dtype="<u4").tolist()
