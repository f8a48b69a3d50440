"""A universal trigger: one token sequence in front of every text that makes a model predict all of them badly.

Wallace et al., "Universal Adversarial Triggers for Attacking and Analyzing NLP" (2019), with the candidates of one
iteration taken over all positions at once: the gradient of the texts' loss scores every token at every position of
the trigger, the best candidates are evaluated exactly, and the best of them is kept if it raises the loss.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from tasks.attacks.configuration import TriggerAttack
from tasks.attacks.scoring import Victim, best_replacements, replaced
from tasks.training.order import example_at

START, CONTROL = 0, 1
"""What a random draw is for: one part of its seed."""


class TriggerSearch:
    """The search on one model. Its `state` is all there is to continue it bit for bit, as JSON.

    Every iteration costs the same whatever it finds, so every model spends the same budget.
    """

    def __init__(
        self,
        victim: Victim,
        texts: Sequence[Sequence[int]],
        usable_V: torch.Tensor,
        attack: TriggerAttack,
        seed: int,
        state: dict[str, Any] | None = None,
    ) -> None:
        """`texts` are the search texts, each already cut to what is attacked."""
        self.victim, self.texts, self.usable_V, self.attack, self.seed = victim, texts, usable_V, attack, seed
        self.state = state or {"restarts": [], "iteration": 0, "trigger": self._start(0), "skip": 0}
        for name, value in self.state.get("count", {}).items():
            setattr(victim.count, name, value)

    @property
    def finished(self) -> bool:
        return len(self.state["restarts"]) == self.attack.restarts

    def step(self) -> None:
        """One iteration; after the last of a restart, its trigger is evaluated on all search texts."""
        restart, iteration = len(self.state["restarts"]), self.state["iteration"]
        batch = [self.texts[i] for i in self._batch(restart * self.attack.iterations + iteration)]
        self._improve(batch)
        self.state["iteration"] += 1
        if self.state["iteration"] == self.attack.iterations:
            done = {
                "trigger_ids": self.state["trigger"],
                "search_loss_nats_per_token": mean_loss(self.victim, self.state["trigger"], self.texts),
            }
            restarts = [*self.state["restarts"], done]
            start = self._start(len(restarts)) if len(restarts) < self.attack.restarts else []
            self.state = {"restarts": restarts, "iteration": 0, "trigger": start, "skip": 0}
        self.state["count"] = vars(self.victim.count).copy()

    def _improve(self, batch: list[Sequence[int]]) -> None:
        """Puts the best of the candidates into the trigger if it raises the loss of `batch`."""
        trigger = self.state["trigger"]
        everywhere = [torch.ones(len(text), dtype=torch.bool) for text in batch]
        gradients = self.victim.gradients([trigger] * len(batch), batch, everywhere)
        gradient_TD = torch.stack([gradient[: len(trigger)] for gradient in gradients]).sum(0)
        replacements = best_replacements(
            gradient_TD,
            trigger,
            self.victim.embeddings_VD,
            self.usable_V,
            torch.ones(len(trigger), dtype=torch.bool),
            self.state["skip"],
            self.attack.candidates,
        )
        tried = [trigger, *(replaced(trigger, *replacement) for replacement in replacements)]
        prefixes = [prefix for prefix in tried for _ in batch]
        losses = self.victim.losses(prefixes, list(batch) * len(tried))
        sums = np.array([loss.sum().item() for loss in losses]).reshape(len(tried), len(batch)).sum(axis=1)
        best = int(sums.argmax())
        if best > 0:
            self.state |= {"trigger": tried[best], "skip": 0}
        elif len(batch) == len(self.texts):
            # the next iteration would rank alike: it tries those that come after these (other texts rank anew)
            self.state["skip"] += len(replacements)

    def best(self) -> dict[str, Any]:
        """The restart whose trigger has the highest loss on all search texts; the earlier of equals."""
        return max(self.state["restarts"], key=lambda restart: restart["search_loss_nats_per_token"])

    def _start(self, restart: int) -> list[int]:
        return random_tokens(self.usable_V, self.attack.trigger_tokens, [self.seed, START, restart])

    def _batch(self, iteration: int) -> list[int]:
        """The search texts of an iteration: the next ones of a shuffled pass, every text once a pass."""
        size = min(self.attack.batch_documents, len(self.texts))
        places = iteration * size + np.arange(size)
        passes, indices = np.divmod(places, len(self.texts))
        return [
            int(example_at(self.seed, int(number), np.array([index]), len(self.texts))[0])
            for number, index in zip(passes, indices, strict=True)
        ]


def mean_loss(victim: Victim, trigger: Sequence[int], texts: Sequence[Sequence[int]]) -> float:
    """Mean loss of the texts' own tokens behind `trigger`, in nats per token."""
    losses = victim.losses([trigger] * len(texts), texts)
    return sum(loss.sum().item() for loss in losses) / sum(map(len, texts))


def control_triggers(usable_V: torch.Tensor, attack: TriggerAttack, seed: int) -> list[list[int]]:
    """Random triggers of the attack's length, the same for every model."""
    return [
        random_tokens(usable_V, attack.trigger_tokens, [seed, CONTROL, number])
        for number in range(attack.control_triggers)
    ]


def random_tokens(usable_V: torch.Tensor, count: int, seed: list[int]) -> list[int]:
    """`count` usable ids, each drawn uniformly."""
    return np.random.default_rng(seed).choice(usable_V.nonzero().flatten().numpy(), size=count).tolist()
