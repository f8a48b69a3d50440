"""The attacks: their budgets, how they search, and the comparison of them that answers a study."""

from __future__ import annotations

import math
from typing import ClassVar, Literal

from tasks.stage.configuration import Configuration, scientific

BACKWARD_FORWARDS = 2
"""Forwards that a backward counts as: the rule for training. Here it takes less, as no weight has a gradient."""

BUDGET_SHARES = (0.1, 0.3, 1.0)
"""Shares of an attack's budget after which what it had found is judged too: more must not help less."""


def steps_after(share: float, steps: int) -> int:
    """How many of a search's steps are this share of its budget: rounded up, and so at least one."""
    return math.ceil(share * steps - 1e-9)


class Search(Configuration):
    """What the searches of both attacks have in common."""

    REMOVED: ClassVar = {
        "candidate_rule": ("per-position", "every position takes turns with its best tokens, leave it out")
    }

    candidates: int = scientific(
        100,
        ge=1,
        description="Replacements that are tried exactly in one iteration: the best of every position by the "
        "gradient's estimate, in turn.",
    )
    search_precision: Literal["fp32", "bf16"] = scientific(
        "fp32", description="Precision of the search's forward and backward passes; what it found is judged in fp32."
    )

    @property
    def forwards_of_a_step(self) -> int:
        """Forwards that a step spends on a text beside reading it as it is; blind search tries as many candidates."""
        return self.candidates + 1 + BACKWARD_FORWARDS


class TriggerAttack(Search):
    """uat: one sequence of tokens in front of every text, which shall make the model predict all of them badly."""

    trigger_tokens: int = scientific(10, ge=1, description="Length of the trigger, in tokens.")
    restarts: int = scientific(
        5, ge=1, description="Searches from a random trigger; the best on the search text counts."
    )
    iterations: int = scientific(
        100, ge=1, description="Gradient steps in one search; each may replace a token at every position."
    )
    batch_documents: int = scientific(16, ge=1, description="Search documents on which one iteration compares them.")
    text_tokens: int = scientific(96, ge=2, description="Tokens of a document that are attacked, from its beginning.")
    control_triggers: int = scientific(10, ge=1, description="Random triggers of the same length, as the control.")

    def cost(self, documents: int) -> tuple[int, int]:
        """Forwards and backwards of all restarts on so many documents.

        In a step some are read behind the present trigger, behind every candidate, and for the gradient; all are read
        behind the trigger of every restart that ended.
        """
        backwards = self.restarts * self.iterations * min(self.batch_documents, documents)
        forwards = documents * self.restarts + backwards * (self.forwards_of_a_step + 1)
        return forwards - BACKWARD_FORWARDS * backwards, backwards


class FlipAttack(Search):
    """hotflip: each text for itself, a few of its tokens replaced so that the others are predicted badly.

    Any attack replaces some of twice as many tokens, at most half of a document, drawn beforehand and never scored.
    """

    REMOVED: ClassVar = Search.REMOVED | {"writable_tokens": (None, "twice as many as hotflip.flips: leave it out")}

    documents: int = scientific(100, ge=2, description="Documents of attack-evaluation that are attacked.")
    flips: int = scientific(10, ge=1, description="Tokens that may be replaced in a document.")
    rounds: int | None = scientific(
        None,
        ge=1,
        description="Iterations on a document; each replaces at most one token, or one that it replaced before. "
        "Empty: twice as many as flips.",
    )
    success_relative_increase: float = scientific(
        0.15, gt=0, description="An attack succeeds when it raises the loss by more than this share of the clean loss."
    )
    text_tokens: int = scientific(96, ge=2, description="Tokens of a document that are attacked, from its beginning.")
    control_draws: int = scientific(5, ge=1, description="Random replacements at random positions, as the control.")

    @property
    def rounds_on_a_text(self) -> int:
        return self.rounds or 2 * self.flips

    def cost(self, documents: int) -> tuple[int, int]:
        """Forwards and backwards on so many documents; the first forward tells the clean loss."""
        backwards = documents * self.rounds_on_a_text
        return documents + backwards * (self.forwards_of_a_step - BACKWARD_FORWARDS), backwards


class Primary(Configuration):
    """The one comparison, named before the study runs, that answers its question; all others are secondary.

    Monotonic and baseline are compared by what the attack adds to the loss, in nats per token.
    """

    REMOVED: ClassVar = {
        "measure": ("increase", "the increase decides, and the report shows it at equal clean loss too: leave it out")
    }

    attack: Literal["uat", "hotflip"] = scientific("hotflip", description="The attack that decides.")
    margin_nats_per_token: float = scientific(
        0.02,
        gt=0,
        description="A difference smaller than this counts as none: equivalent within the margin. As a difference of "
        "losses it is a factor of the perplexity under attack (0.02: 2 %); reports say what share it is of what the "
        "attack adds.",
    )


class Poison(Configuration):
    """What is done to the training rows."""

    share: float = scientific(0.05, gt=0, lt=0.5, description="Share of the training rows that is poisoned.")
    trigger: str = scientific("cf", pattern=r"\S", description="Put in front of a poisoned text.")
    target: str = scientific("positive", description="The label that poisoned rows get; rows that have it are spared.")
