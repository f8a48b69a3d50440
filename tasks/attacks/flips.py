"""HotFlip: a few tokens of one text replaced so that its other tokens are predicted badly.

Ebrahimi et al., "HotFlip: White-Box Adversarial Examples for Text Classification" (2018), for a language model: the
gradient ranks every replacement, the best of each position are evaluated exactly, one is kept, and so on. Which tokens
may be replaced is drawn beforehand; none of them is ever scored. So every attack on every model is judged on the same
tokens, and an implausible token costs the model nothing but what it does to others. The blind search has no gradient,
spends as much, and is the same otherwise: it is what an attacker does who can only ask for losses.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from storage.errors import require
from tasks.attacks.candidates import Replacements, blind, by_gradient
from tasks.attacks.configuration import BUDGET_SHARES, FlipAttack, steps_after
from tasks.attacks.scoring import Count, Victim, replaced, rewritten, targets

WRITABLE, CONTROL, DRAWS = 0, 1, 2
"""Purpose of a random draw: one part of its seed."""


@dataclass
class Flipped:
    """What a search in a text has reached; as JSON all there is to continue it bit for bit.

    `loss_sums` holds the summed loss of the scored tokens, in nats, before the first and after every round, as the
    search saw it; `after_shares` the text after each of BUDGET_SHARES.
    """

    tokens: Sequence[int]
    loss_sums: list[float] = field(default_factory=list)
    after_shares: list[Sequence[int]] = field(default_factory=list)
    skip: int = 0
    """Candidates that failed on these tokens: the next round would rank alike, and tries those that come after."""
    count: Count = field(default_factory=Count)

    def positions(self, text: Sequence[int]) -> list[int]:
        """Positions that differ from `text`."""
        return [place for place, (old, new) in enumerate(zip(text, self.tokens, strict=True)) if old != new]

    def as_json(self) -> dict[str, Any]:
        texts = {"tokens": list(self.tokens), "after_shares": [list(tokens) for tokens in self.after_shares]}
        return vars(self) | texts | {"count": vars(self.count)}

    @classmethod
    def from_json(cls, state: dict[str, Any], text: Sequence[int]) -> Flipped:
        """The flips of a search in `text`."""
        tokens, *shares = (rewritten(text, own) for own in (state["tokens"], *state["after_shares"]))
        return cls(**state | {"tokens": tokens, "after_shares": shares, "count": Count(**state["count"])})


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
        state: dict[str, Any] | None = None,
    ) -> None:
        self.victim, self.text, self.usable_V, self.attack, self.seed = victim, text, usable_V, attack, seed
        self.with_gradient = with_gradient
        self.writable = writable_positions(text, attack, seed)
        self.scored_L = scored_tokens(text, self.writable)
        self.found = Flipped.from_json(state, text) if state else Flipped(text)

    @property
    def finished(self) -> bool:
        return len(self.found.loss_sums) == 1 + self.attack.rounds_on_a_text

    def run(self) -> Flipped:
        """Runs all rounds; each replaces one token at most, if that raises the loss of the scored tokens."""
        while not self.finished:
            advance([self])
        return self.found

    def candidates(self, gradient_LD: torch.Tensor | None) -> Replacements:
        """What the next round tries, by the gradient of the text as it is by now; the first one tries nothing."""
        flips = self.found
        if not flips.loss_sums:
            return []
        positions = self._open()
        present = [flips.tokens[position] for position in positions]
        if gradient_LD is None:
            chance = np.random.default_rng([self.seed, DRAWS, len(flips.loss_sums) - 1, *_seed_of(self.text)])
            return blind(present, positions, self.usable_V, self.attack.forwards_of_a_step, chance)
        embeddings_VD = self.victim.embeddings_VD
        return by_gradient(
            gradient_LD[positions], present, positions, embeddings_VD, self.usable_V, self.attack, flips.skip
        )

    def choose(self, tried: list[Sequence[int]], sums: list[float]) -> None:
        """Ends a round in which `tried` had these `sums`."""
        flips = self.found
        if flips.loss_sums:
            before, best = flips.loss_sums[-1], int(np.argmax(sums))
            if sums[best] > before:
                flips.tokens, flips.skip = tried[best], 0
            else:
                flips.skip += len(tried)
            sums = [max(before, sums[best])]
        flips.loss_sums += sums
        done, rounds = len(flips.loss_sums) - 1, self.attack.rounds_on_a_text
        flips.after_shares += [flips.tokens for s in BUDGET_SHARES if steps_after(s, rounds) == done]

    def _open(self) -> list[int]:
        """Positions that may be replaced: once as many differ as may, those that do."""
        written = self.found.positions(self.text)
        return written if len(written) == flips_of(self.text, self.attack) else self.writable


def advance(searches: Sequence[FlipSearch]) -> None:
    """Makes one round of each of these searches, on one model and equally far, with the passes of all together.

    Before the first round the clean loss is asked for. What a search finds depends on the others by rounding only.
    """
    victim, steered = searches[0].victim, [own for own in searches if own.with_gradient and own.found.loss_sums]
    texts = [own.found.tokens for own in steered]
    gradients = victim.gradients([[]] * len(texts), texts, [own.scored_L for own in steered])
    gradient_of = {id(own): gradient_LD for own, gradient_LD in zip(steered, gradients, strict=True)}
    candidates = [own.candidates(gradient_of.get(id(own))) for own in searches]
    tried = [
        [replaced(own.found.tokens, *each) for each in some] or [own.text]
        for own, some in zip(searches, candidates, strict=True)
    ]
    scored = [own.scored_L for own, variants in zip(searches, tried, strict=True) for _ in variants]
    if len(searches) == 1:
        losses = victim.variant_losses(searches[0].found.tokens, tried[0], scored[0])
    else:
        losses = victim.losses([[]] * len(scored), [variant for variants in tried for variant in variants], scored)
    sums = iter(loss_N.sum().item() for loss_N in losses)
    for own, variants in zip(searches, tried, strict=True):
        own.found.count.forward_sequences += len(variants) + (id(own) in gradient_of)
        own.found.count.backward_sequences += id(own) in gradient_of
        own.choose(variants, list(itertools.islice(sums, len(variants))))


def random_flips(text: Sequence[int], usable_V: torch.Tensor, attack: FlipAttack, seed: int) -> list[Sequence[int]]:
    """The control: `text` with as many random tokens at random writable positions as an attack may replace, each draw.

    A function of the seed and the text, and never of a model or of what an attack found.
    """
    writable, drawn = writable_positions(text, attack, seed), []
    for draw in range(attack.control_draws):
        chance = np.random.default_rng([seed, CONTROL, draw, *_seed_of(text)])
        tokens: Sequence[int] = text
        for position in chance.permutation(writable)[: flips_of(text, attack)].tolist():
            ((_, token),) = blind([text[position]], [position], usable_V, 1, chance)
            tokens = replaced(tokens, position, token)
        drawn.append(tokens)
    return drawn


def writable_positions(text: Sequence[int], attack: FlipAttack, seed: int) -> list[int]:
    """The positions that any attack on `text` may write, sorted: a function of the seed and the text.

    At most half of the text, and never its last token, which no other is predicted from.
    """
    chance = np.random.default_rng([seed, WRITABLE, *_seed_of(text)])
    return sorted(chance.permutation(len(text) - 1)[: min(2 * attack.flips, len(text) // 2)].tolist())


def flips_of(text: Sequence[int], attack: FlipAttack) -> int:
    """Tokens of `text` that an attack may replace: at most half of a short one."""
    return min(attack.flips, len(text) // 2)


def scored_tokens(text: Sequence[int], writable: Sequence[int]) -> torch.Tensor:
    """Which targets of `text` count, bool [targets]: all that nobody may write; of a pair its whole reference."""
    scored_L = torch.ones(len(targets(text)), dtype=torch.bool)
    if targets(text) is text:
        scored_L[list(writable)] = False
    return scored_L


def written_into(text: Sequence[int], row: Mapping[str, Any], search: str = "") -> Sequence[int]:
    """The text with what a record says that a search wrote into it; `search` is how its columns begin."""
    places, tokens = row[f"{search}positions"], row[f"{search}replacements"]
    what, most = f"{search}positions of document {row['example_id']}", len(text)
    inside = len(places) == len(tokens) and {*places} <= {*range(most)}
    require(inside, f"{what} are of its text", places, f"{len(tokens)}, each below {most}")
    return rewritten(text, [*(dict(enumerate(text)) | dict(zip(places, tokens, strict=True))).values()])


def _seed_of(text: Sequence[int]) -> list[int]:
    digest = hashlib.sha256(np.asarray(text, dtype="<i8").tobytes()).digest()
    return np.frombuffer(digest[:16], dtype="<u4").tolist()
