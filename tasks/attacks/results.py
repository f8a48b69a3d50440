"""Results of the attacks on each model, and what they say of all of them.

Names of models are keys: base and the arms; `base@0.5` is what base was after half of its training.
"""

from pydantic import Field

from tasks.attacks.configuration import FlipAttack, Primary, TriggerAttack
from tasks.attacks.effects import Effect, EffectDifference
from tasks.attacks.matched import MatchedDifference
from tasks.findings.numbers import holds_zero
from tasks.findings.statistics.equivalence import Answer
from tasks.findings.statistics.resampling import Estimate
from tasks.findings.statistics.seeds import OverSeeds
from tasks.stage.result import Result

ATTACKS = ("uat", "hotflip")
SEARCHES = {"gradient": "", "blind": "blind_"}
"""Search -> how its columns begin in the record of an attack."""


class Restart(Result):
    """One restart of the search for a trigger; the loss is that of all search documents behind the trigger."""

    search_loss_nats_per_token: float
    trigger_ids: list[int]


class TriggerSearched(Result):
    """One search for a trigger: its restarts, and what it cost.

    `budgets`: share of the whole budget -> the trigger that it had led to.
    """

    search_loss_clean_nats_per_token: float
    restarts: list[Restart]
    budgets: dict[str, list[int]]
    forward_sequences: int
    backward_sequences: int

    @property
    def best(self) -> Restart:
        """The restart of the highest loss, which is kept; of equals the first."""
        return max(self.restarts, key=lambda restart: restart.search_loss_nats_per_token)

    def named(self) -> dict[str, list[int]]:
        """The trigger of every restart by its name in the records of transfer: uat for the one that is kept."""
        kept = self.restarts.index(self.best)
        return {
            "uat" if place == kept else of_restart("uat", place + 1): restart.trigger_ids
            for place, restart in enumerate(self.restarts)
        }


def of_restart(attack: str, number: int) -> str:
    """Name of a restart that was not kept, in the records of transfer; `number` from 1."""
    return f"{attack}, restart {number}"


class Cost(Result):
    """Sequences that went through a model in its gradient search, and in the blind search beside it."""

    forward_sequences: int
    backward_sequences: int
    blind_forward_sequences: int


class UatResult(Result):
    """uat: a universal trigger for one model, searched with gradients, and one by blind search at equal cost.

    The blind search is the query-only attack: it asks for losses and nothing else, and spends
    gradient.forward_sequences + 2 x gradient.backward_sequences forwards, exactly.
    """

    gradient: TriggerSearched
    blind: TriggerSearched

    @property
    def cost(self) -> Cost:
        return Cost(
            forward_sequences=self.gradient.forward_sequences,
            backward_sequences=self.gradient.backward_sequences,
            blind_forward_sequences=self.blind.forward_sequences,
        )


Transferred = dict[str, dict[str, dict[str, float]]]
"""Search (gradient, blind) -> model that it found something for -> model that this was tried on -> increase of the loss
in nats per token."""


class Trigger(Result):
    """The trigger of one search."""

    trigger_ids: list[int]
    trigger_text: str


class Findings(Result):
    """Effect of one attack on each model, the differences between models, and its cost.

    Effects are those of the strongest attack on the model; `attacked_by`: for whom it was found -> documents;
    differences are means over the searches, by the strongest attack of each. Triggers are those of uat.
    """

    split: str
    documents: int
    attack: TriggerAttack | FlipAttack
    attacked_by: dict[str, dict[str, int]]
    effects: dict[str, Effect]
    differences: list[EffectDifference]
    at_equal_loss: list[MatchedDifference]
    costs: dict[str, Cost]
    triggers: dict[str, Trigger] = Field(default_factory=dict)
    blind_triggers: dict[str, Trigger] = Field(default_factory=dict)

    @property
    def one_for_all(self) -> bool:
        """True where one trigger attacks all texts, so that there are several searches; else each text has its own."""
        return isinstance(self.attack, TriggerAttack)

    @property
    def searches(self) -> int:
        return self.attack.restarts if isinstance(self.attack, TriggerAttack) else 1

    def difference(self, model: str, reference: str) -> EffectDifference:
        return next(row for row in self.differences if (row.model, row.reference) == (model, reference))

    def missed(self, margin: float) -> dict[str, float]:
        """Model -> by how much other searches found more than the one on it, where that is so much, in nats a token."""
        gaps = {
            model: effect.increase_nats_per_token.value - effect.search_increase_nats_per_token.value
            for model, effect in self.effects.items()
        }
        return {model: gap for model, gap in gaps.items() if gap >= margin}

    @property
    def like_random(self) -> list[str]:
        """Models on which the attack is not told apart from random tokens."""
        differences = {model: effect.attack_minus_control_nats_per_token for model, effect in self.effects.items()}
        return [model for model, difference in differences.items() if holds_zero(difference.interval)]

    @property
    def beaten_by_blind_search(self) -> list[str]:
        """Models on which the gradient search found no more than blind search at equal cost."""
        return [model for model, effect in self.effects.items() if effect.search_minus_blind_nats_per_token.value <= 0]


class PrimaryAnswer(Result):
    """The answer to the study's question, or why there is none: of one study, or over the cells of a sweep.

    `difference` is that of the primary measure, monotonic - baseline; `from_placebos` against each placebo whose
    constrained layers live, `control` of the positive control from baseline (None: no arm is one, or it is not known);
    `by_fewer_attacks`, of one study, the same difference under less than all that was found, which shows how far it
    hangs on what the other arms found. It is judged on `documents` of `sources`. Over cells, the interval and the
    p-value know of seeds and sources together.
    """

    primary: Primary
    documents: int
    sources: int
    difference: OverSeeds | Estimate | None
    answer: Answer | None
    unanswered: str | None
    from_placebos: dict[str, OverSeeds | Estimate]
    control: OverSeeds | Estimate | None = None
    by_fewer_attacks: dict[str, OverSeeds | Estimate | None] = Field(default_factory=dict)


class Tested(Result):
    """A secondary comparison of two models: its p-value, and the same adjusted for their number (Holm 1979)."""

    measure: str
    model: str
    reference: str
    p_value: float
    adjusted_p_value: float
