"""A universal trigger: one token sequence in front of every text that makes a model predict all of them badly.

Wallace et al., "Universal Adversarial Triggers for Attacking and Analyzing NLP" (2019): the gradient of the texts'
loss ranks every token at every position of the trigger, and position after position, the one of the best estimate
first, the best tokens are evaluated exactly in the trigger as it is by then; the best is kept if it raises the loss. So
one gradient may replace every token, as in their `get_best_candidates`. The blind search has no gradient, spends as
much, and is the same otherwise: it is what an attacker does who can only ask for losses, and what a gradient must beat
to be worth anything.
"""

from collections.abc import Sequence
from typing import TypedDict

import numpy as np
import torch

from tasks.attacks.candidates import Replacements, blind, by_gradient, by_position
from tasks.attacks.configuration import BUDGET_SHARES, TriggerAttack, steps_after
from tasks.attacks.scoring import Tokens, Victim, replaced, targets
from tasks.training.order import example_at

START, CONTROL, DRAWS = 0, 1, 2
"""Purpose of a random draw: one part of its seed."""


class Ended(TypedDict):
    """A restart that came to its end, and its loss on all search texts."""

    search_loss_nats_per_token: float
    trigger_ids: list[int]


class SearchState(TypedDict, total=False):
    """Where a search stands: the restarts that ended, the present one, and what is told of all."""

    restarts: list[Ended]
    iteration: int
    trigger: list[int]
    skip: int
    budgets: dict[str, list[int]]
    count: dict[str, int]


class TriggerSearch:
    """The search on one model. Its `state` is all there is to continue it bit for bit, as JSON.

    Every iteration costs the same whatever it finds, so every model spends the same budget; a search without gradients
    spends as many forwards as that of one with gradients counts as. Both start from the same triggers and read the
    same texts.
    """

    def __init__(
        self,
        victim: Victim,
        texts: Tokens,
        usable_V: torch.Tensor,
        attack: TriggerAttack,
        seed: int,
        *,
        with_gradient: bool = True,
        state: SearchState | None = None,
    ) -> None:
        """`texts` are the search texts, each already cut to what is attacked."""
        self.victim, self.texts, self.usable_V, self.attack, self.seed = victim, texts, usable_V, attack, seed
        self.with_gradient = with_gradient
        self.tokens = np.array([len(targets(text)) for text in texts])
        self.state = state or {"restarts": [], **self._restart(0), "budgets": {}}
        for name, value in self.state.get("count", {}).items():
            setattr(victim.count, name, value)

    @property
    def finished(self) -> bool:
        return len(self.state["restarts"]) == self.attack.restarts

    def step(self) -> None:
        """One iteration; after the last of a restart, its trigger is evaluated on all search texts."""
        total = self.attack.restarts * self.attack.iterations
        done = len(self.state["restarts"]) * self.attack.iterations + self.state["iteration"]
        for share in BUDGET_SHARES:
            if steps_after(share, total) == done:
                self.state["budgets"][f"{share:g}"] = self.trigger
        self._improve(done)
        self.state["iteration"] += 1
        if self.state["iteration"] == self.attack.iterations:
            sums = _sums(self.victim, [self.state["trigger"]] * len(self.texts), self.texts)
            ended: Ended = {
                "search_loss_nats_per_token": float(sums.sum() / self.tokens.sum()),
                "trigger_ids": self.state["trigger"],
            }
            self.state["restarts"].append(ended)
            self.state |= self._restart(len(self.state["restarts"]))
            if self.finished:
                ends = (f"{share:g}" for share in BUDGET_SHARES if steps_after(share, total) == total)
                self.state["budgets"] |= dict.fromkeys(ends, self.trigger)
        self.state["count"] = vars(self.victim.count).copy()

    def best(self) -> Ended:
        """The restart whose trigger has the highest loss on all search texts; the earlier of equals."""
        return max(self.state["restarts"], key=lambda restart: restart["search_loss_nats_per_token"])

    @property
    def trigger(self) -> list[int]:
        """Answer of the search if it ended here: it knows the loss on all texts of ended restarts only."""
        return self.best()["trigger_ids"] if self.state["restarts"] else self.state["trigger"]

    def _improve(self, done: int) -> None:
        """Puts into the trigger, at every position, what most raises the loss of this iteration's texts."""
        before, batch = self.state["trigger"], [self.texts[i] for i in self._batch(done)]
        candidates = self._candidates(before, batch, done)
        trigger = self._best_of_each_position(before, candidates, batch)
        if trigger != before:
            self.state |= {"trigger": trigger, "skip": 0}
        elif len(batch) == len(self.texts):
            # the next iteration would rank alike: it tries those that come after these (other texts rank anew)
            self.state["skip"] += len(candidates)

    def _best_of_each_position(
        self, trigger: list[int], candidates: Replacements, batch: list[Sequence[int]]
    ) -> list[int]:
        """The trigger after the best of each position was kept, position after position."""
        loss = self._losses([trigger], batch)[0]
        for at_position in by_position(candidates):
            tried = [list(replaced(trigger, *each)) for each in at_position]
            losses = self._losses(tried, batch)
            if max(losses) > loss:
                trigger, loss = tried[losses.index(max(losses))], max(losses)
        return trigger

    def _losses(self, triggers: list[list[int]], batch: list[Sequence[int]]) -> list[float]:
        """Loss of all these texts behind each trigger, in nats."""
        sums = _sums(self.victim, [trigger for trigger in triggers for _ in batch], batch * len(triggers))
        return sums.reshape(len(triggers), len(batch)).sum(axis=1).tolist()

    def _candidates(self, trigger: list[int], batch: list[Sequence[int]], done: int) -> Replacements:
        positions = range(len(trigger))
        if not self.with_gradient:
            chance = np.random.default_rng([self.seed, DRAWS, done])
            return blind(trigger, positions, self.usable_V, self.attack.forwards_of_a_step, chance)
        everywhere = [torch.ones(len(targets(text)), dtype=torch.bool) for text in batch]
        gradients = self.victim.gradients([trigger] * len(batch), batch, everywhere)
        gradient_TD = torch.stack([gradient_LD[: len(trigger)] for gradient_LD in gradients]).sum(0)
        embeddings_VD, skip = self.victim.embeddings_VD, self.state["skip"]
        return by_gradient(gradient_TD, trigger, positions, embeddings_VD, self.usable_V, self.attack, skip)

    def _restart(self, number: int) -> SearchState:
        start = random_tokens(self.usable_V, self.attack.trigger_tokens, [self.seed, START, number])
        return {"iteration": 0, "trigger": start, "skip": 0}

    def _batch(self, iteration: int) -> list[int]:
        """The search texts of an iteration: the next ones of a shuffled pass, every text once a pass."""
        size = min(self.attack.batch_documents, len(self.texts))
        places = iteration * size + np.arange(size)
        passes, indices = np.divmod(places, len(self.texts))
        return [
            int(example_at(self.seed, int(number), np.array([index]), len(self.texts))[0])
            for number, index in zip(passes, indices, strict=True)
        ]


def mean_loss(victim: Victim, trigger: Sequence[int], texts: Tokens) -> float:
    """Mean loss of the texts' own tokens behind `trigger`, in nats per token."""
    return float(_sums(victim, [trigger] * len(texts), texts).sum() / sum(len(targets(text)) for text in texts))


def control_triggers(usable_V: torch.Tensor, attack: TriggerAttack, seed: int) -> list[list[int]]:
    """Random triggers of the attack's length, the same for every model."""
    return [
        random_tokens(usable_V, attack.trigger_tokens, [seed, CONTROL, number])
        for number in range(attack.control_triggers)
    ]


def random_tokens(usable_V: torch.Tensor, count: int, seed: list[int]) -> list[int]:
    """`count` usable ids, each drawn uniformly."""
    return np.random.default_rng(seed).choice(usable_V.nonzero().flatten().numpy(), size=count).tolist()


def _sums(victim: Victim, prefixes: Tokens, texts: Tokens) -> np.ndarray:
    """Loss of each text behind its prefix, summed over its tokens, in nats."""
    return np.array([loss.sum().item() for loss in victim.losses(prefixes, texts)])
