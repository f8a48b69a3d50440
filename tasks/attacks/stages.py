"""Configuration of the stages that attack models."""

from typing import ClassVar, Self

from tasks.attacks.configuration import FlipAttack, Primary, TriggerAttack
from tasks.attacks.study import AttackStudy
from tasks.findings.configuration import Audit, Evaluation
from tasks.language.stages import TRAINING, LanguageExecution, OfLanguageStudy
from tasks.monotonic.arm import BASE, MONOTONIC
from tasks.monotonic.stages import ASKED as OF_MODELS
from tasks.monotonic.stages import Constraint, Variant
from tasks.stage.configuration import scientific
from tasks.stage.numerics import Numerics
from tasks.stage.study import StudyBase

KEY_COLUMNS = ("model", "example_id")
"""The columns that identify a record: there is one for each model and document."""

SEARCHED, JUDGED = "attack-search", "attack-evaluation"
"""The split that universal attacks learn from, and the one that attacks are judged on."""


class OfAttackStudy(OfLanguageStudy):
    """What every stage of a study of attacks is given."""

    STUDY: ClassVar[type[AttackStudy]] = AttackStudy


class AttackConfig(OfAttackStudy):
    """What both attacks are given beside their own settings: one model."""

    numerics: ClassVar = Numerics(fields=("attack_batch_examples",), packages=("transformers",), searches=True)

    model: str = scientific(description="Name of the attacked model, as records and tables call it.")
    folder: str = scientific("model", description="Where the stage that made it keeps it.")
    seed: int
    execution: LanguageExecution


class UatConfig(AttackConfig):
    """uat: a universal trigger for one model, learned on attack-search and judged on attack-evaluation."""

    attack: TriggerAttack = scientific(description="What the attack may spend, the same for every model.")


class HotFlipConfig(AttackConfig):
    """hotflip: token flips in each document of attack-evaluation, on one model."""

    attack: FlipAttack = scientific(description="What the attack may spend, the same for every model.")


class TransferConfig(OfAttackStudy):
    """transfer: what was found for each model, tried on every model."""

    numerics: ClassVar = Numerics(fields=("attack_batch_examples",), packages=("transformers",))

    models: dict[str, str] = scientific(description="Name of each model, and the folder of its stage that holds it.")
    uat: TriggerAttack
    hotflip: FlipAttack
    execution: LanguageExecution


ASKED = OF_MODELS | dict.fromkeys(("test losses", "losses under triggers", "losses under flips", "transfers"), 1e-4)
ASKED |= {"searches": 0.01}
"""Kind of numbers that every audit of attacks computes again -> how near they must be. Losses in nats per token:
everything is compared in fp32, whatever the precision of trainings and searches was."""


class AttackAuditConfig(OfAttackStudy):
    """Configuration of an audit: recorded numbers of every model computed again by a plain path."""

    numerics: ClassVar = TRAINING

    models: dict[str, str] = scientific(description="Name of each model, and where it lies: role of its stage/folder.")
    arms: list[str] = scientific(description="Those of them that are arms.")
    attacked: list[str] = scientific(description="Those of them that were attacked.")
    starts: dict[str, str] = scientific(description="Arm with constrained weights, and the role of its start.")
    variant: Variant = scientific(description="Which weights are constrained.")
    hotflip: FlipAttack
    audit: Audit
    execution: LanguageExecution

    @classmethod
    def of(cls, study: StudyBase, /, **more: object) -> Self:
        assert isinstance(study, AttackStudy)
        starts = {arm: f"start-{start}" for arm in study.arms if (start := study.start_of(arm))}
        models = {name: "/".join(kept) for name, kept in study.attacked().items()}
        models |= {"untrained": f"{BASE}/initial"} if study.from_scratch else {}
        models |= {"constrained-untrained": f"{starts[MONOTONIC]}/model"}
        names = {"arms": [*study.arms], "attacked": [*study.attacked()], "starts": starts, "models": models}
        return super().of(study, **names, variant=study.constraint.variant, **more)


class AttackReportConfig(OfAttackStudy):
    """Configuration of a report on arms that were attacked."""

    numerics: ClassVar = Numerics(torch=False)

    arms: list[str] = scientific(description="The arms, in the order in which tables show them.")
    attacked: list[str] = scientific(description="The attacked models, in the order in which tables show them.")
    constraint: Constraint
    uat: TriggerAttack
    hotflip: FlipAttack
    evaluation: Evaluation
    primary: Primary

    @classmethod
    def of(cls, study: StudyBase, /, **more: object) -> Self:
        assert isinstance(study, AttackStudy)
        return super().of(study, attacked=[*study.attacked()], **more)
