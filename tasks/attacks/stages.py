"""Configuration of the stages that attack models."""

from typing import Any, ClassVar, Self

from tasks.attacks.configuration import FlipAttack, Primary, TriggerAttack
from tasks.attacks.study import AttackStudy
from tasks.findings.configuration import Audit, Evaluation
from tasks.language.stages import TRAINING, BaseConfig, OfLanguageStudy
from tasks.language.study import LanguageExecution
from tasks.monotonic.arm import ARMS, BASE, BASELINE, MONOTONIC
from tasks.monotonic.configuration import Constraint, Variant
from tasks.monotonic.stages import ASKED as OF_MODELS
from tasks.monotonic.stages import ConstrainConfig, OrderConfig, TrainConfig
from tasks.stage.configuration import execution, scientific
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
    def of(cls, study: StudyBase, /, **more: Any) -> Self:
        assert isinstance(study, AttackStudy)
        starts = {arm: f"start-{study.start_of(arm)}" for arm in study.arms if ARMS[arm].signs}
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
    configuration: dict[str, Any] = execution(description="The scientific fields of the study, kept with the results.")
    evaluation: Evaluation
    primary: Primary

    @classmethod
    def of(cls, study: StudyBase, /, **more: Any) -> Self:
        assert isinstance(study, AttackStudy)
        own = {"arms": [*study.arms], "attacked": [*study.attacked()], "configuration": study.scientific()}
        return super().of(study, **own, **more)


def for_base(study: AttackStudy, kind: type[BaseConfig] = BaseConfig) -> BaseConfig:
    snapshots, trials = len(study.snapshots), len(study.learning_rates) or 1
    chosen = 1 if trials > 1 else 0  # choose keeps a copy
    of_arms = (len(study.arms) + (0 if study.from_scratch else snapshots)) * (trials + chosen)
    before = (
        1 + (1 + snapshots if study.from_scratch else 0) + len(for_starts(study))
    )  # base, untrained, snapshots, starts
    return kind.of(
        study,
        checks=study.base_checks,
        snapshots=study.snapshots if study.from_scratch else [],
        models_of_study=before + of_arms,
        trainings_of_study=bool(study.from_scratch) + len(study.arms) * trials,
    )


def for_starts(study: AttackStudy) -> dict[str, ConstrainConfig]:
    """Name of each start of constrained weights -> its configuration; arms that start alike share one."""
    seeds = [study.seed, *([study.from_scratch.init_seed] if study.from_scratch else [])]
    return {
        (name := study.start_of(arm)): ConstrainConfig.of(
            study,
            variant=study.constraint.variant,
            signs=ARMS[arm].signs,
            start=ARMS[arm].started(study.constraint),
            seeds=seeds if ARMS[arm].signs == "random" else [],
            cell=name,
        )
        for arm in study.arms
        if ARMS[arm].signs
    }


def for_trainings(study: AttackStudy, arm: str) -> list[TrainConfig]:
    """One training of the arm, or one for each learning rate that is tried."""
    rates = study.learning_rates or [study.budget.learning_rate]
    name = "" if arm in (BASELINE, MONOTONIC) else arm
    return [
        TrainConfig.of(
            study,
            budget=study.budget.model_copy(update={"learning_rate": rate}),
            variant=study.constraint.variant,
            by=ARMS[arm].kept(study.constraint),
            replaced=ARMS[arm].replaced,
            required_movement=REQUIRED_MOVEMENT if arm == MONOTONIC else 0.0,
            snapshots=study.snapshots if arm == study.kept_on_its_way else [],
            cell=", ".join(filter(None, [name, f"rate {rate:g}" if len(rates) > 1 else ""])),
        )
        for rate in rates
    ]


def for_uat(study: AttackStudy, model: str) -> UatConfig:
    return UatConfig.of(study, attack=study.uat, model=model, folder=study.attacked()[model][1], cell=model)


def for_hotflip(study: AttackStudy, model: str) -> HotFlipConfig:
    return HotFlipConfig.of(study, attack=study.hotflip, model=model, folder=study.attacked()[model][1], cell=model)


def for_transfer(study: AttackStudy) -> TransferConfig:
    return TransferConfig.of(study, models={name: folder for name, (_, folder) in study.attacked().items()})


def for_order(study: AttackStudy) -> OrderConfig:
    return OrderConfig.of(study, models=study.compared, variant=study.constraint.variant)


REQUIRED_MOVEMENT = 0.1
"""Least movement of the monotonic arm's constrained weights, as a share of how far its free matrices move."""
