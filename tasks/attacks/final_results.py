"""The part of final_results.json that every study of attacked arms has, and where its numbers come from.

Names of models are keys: base and the arms; `base@0.5` is what base was after half of its training.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tasks.attacks.comparisons import attack_findings, compared_pairs, primary, secondary, test_differences
from tasks.attacks.reading import ReadAttacks, records_of
from tasks.attacks.results import Findings, PrimaryAnswer, Tested
from tasks.attacks.stages import AttackReportConfig
from tasks.findings.final_results import Origins, StudyResults, of_runs
from tasks.language.losses import LossDifference
from tasks.language.pairs import packed_split
from tasks.language.stages import BaseConfig
from tasks.monotonic.arm import BASE, BASELINE
from tasks.monotonic.numbers import BaseFacts, facts_of_arms, gates, order_of
from tasks.monotonic.result import ArmFacts, ModelOrder
from tasks.stage.result import Result
from tasks.stage.run import StageInput, StageRun

ATTACKS, MODELS = "records of the attacks and of transfer", "records of evaluate"
OF_ATTACKS = Origins(
    computed={
        **dict.fromkeys(("seed*", "attacks.*.attack.*", "primary.primary.*"), "stage.json"),
        **dict.fromkeys(("primary.*", "attacks.*"), ATTACKS),
        **dict.fromkeys(("models.*", "differences.*"), MODELS),
        "secondary.*": f"{MODELS}, {ATTACKS}",
        "arms.*": "stage.json, metrics.jsonl and the digests of model/",
        "base.*": "stage.json and files of model/",
    },
    asked={
        **dict.fromkeys(("attacks.*.effects.*", "attacks.*.differences.*", "attacks.*.at_equal_loss*"), "transfers"),
        **dict.fromkeys(("attacks.*.attacked_by.*", "attacks.*triggers.*", "primary.*"), "transfers"),
        "attacks.hotflip.effects.*.budget_increases.*": "searches",
        **dict.fromkeys(("attacks.*_increase_nats_per_token*", "attacks.*control*"), "losses under triggers"),
        **dict.fromkeys(("models.*loss_nats_per_token", "models.*.perplexity", "differences.*"), "test losses"),
        **dict.fromkeys(("arms.*.sublayers.loss*", "arms.*.alive_share"), "losses of liveness"),
        "arms.*.sublayers.effective_rank.*": "ranks",
        "arms.*.constraint*": "signs",
        "arms.*.movement*": "movement",
        "order.*": "order",
        "base.trained_check.*": "validation losses",
    },
    not_asked={
        "arms.*.weights_digest": "weights that are changed so little that no loss shows it are not seen",
        "arms.*.best_step": "metrics.jsonl alone tells the course of a training",
        "attacks.uat.costs.*": "the search alone counts them; a gate holds them against the configuration",
    },
)


class OrderFacts(Result):
    """Whether each constrained sublayer is a monotone function, why, and the steepest fall that was found; the share of
    outputs that fall when inputs of text rise."""

    verdict: str
    reason: str = ""
    activation: str
    worst_violation_found: float
    falls_on_text: float | None = None

    @classmethod
    def of(cls, order: ModelOrder) -> OrderFacts:
        certificate = order.certificate
        return cls(
            verdict=certificate.certified,
            reason=certificate.sublayers[0].reason,
            activation=certificate.activation,
            worst_violation_found=min(sublayer.worst_violation_found for sublayer in certificate.sublayers),
            falls_on_text=order.on_text.share,
        )


class AttackResults(StudyResults):
    """`arms` are what was trained, `attacks` what each does to every model, `order` whether sublayers keep order."""

    primary: PrimaryAnswer
    arms: dict[str, ArmFacts]
    differences: list[LossDifference]
    attacks: dict[str, Findings]
    secondary: list[Tested]
    order: dict[str, OrderFacts]
    base: BaseFacts

    def adjusted(self, measure: str, model: str, reference: str) -> float | None:
        """The p-value of a secondary comparison, adjusted for their number; None of what was not tested as one."""
        known = {(row.measure, row.model, row.reference): row.adjusted_p_value for row in self.secondary}
        return known.get((measure, model, reference))

    @property
    def added(self) -> float:
        """What the attack that decides adds to the baseline, in nats per token."""
        return self.attacks[self.primary.primary.attack].effects[BASELINE].increase_nats_per_token.value

    @property
    def dead_arms(self) -> list[str]:
        """Arms whose constrained layers do nothing."""
        return [name for name, arm in self.arms.items() if arm.dead]


def attack_results(
    run: StageRun,
    config: AttackReportConfig,
    inputs: Mapping[str, StageInput],
    read: ReadAttacks,
    base_config: type[BaseConfig],
    audited: Mapping[str, float],
) -> dict[str, Any]:
    """The fields of `AttackResults`; CheckFailed as `of_runs`."""
    how, pairs = config.evaluation, compared_pairs(config.arms)
    blocks = packed_split(inputs["text"].path / "text", "train")
    base = BaseFacts.of(inputs[BASE], base_config, blocks)
    arms = facts_of_arms({arm: inputs[arm] for arm in config.arms}, config.constraint, blocks)
    attacks = {name: attack_findings(own, read.tried[name], pairs, how) for name, own in read.searched.items()}
    differences, decides = test_differences(records_of(inputs["evaluation"]), pairs, how), config.primary.attack
    answer = primary(config.primary, read.tried[decides], attacks[decides], arms, how)
    return of_runs(run, inputs, audited, [*gates(base, arms), *read.gates]) | {
        "primary": answer,
        "arms": arms,
        "differences": differences,
        "attacks": attacks,
        "secondary": secondary(answer, differences, attacks),
        "order": {name: OrderFacts.of(own) for name, own in order_of(inputs["order"], [BASE, *config.arms]).items()},
        "base": base,
    }
