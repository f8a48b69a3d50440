"""Configuration of each stage of the robustness study, and how it is composed from the study.

A stage can read nothing else: changing the evaluation cannot retrain a model.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from pydantic import Field

from tasks.attacks.configuration import FlipAttack, Primary, TriggerAttack
from tasks.findings.configuration import Audit, Evaluation
from tasks.language.configuration import (
    BaseChecks,
    Model,
    PretrainedDirectory,
    PretrainedHub,
    Splits,
    Text,
    TrainedTokenizer,
)
from tasks.monotonic.configuration import By, Constraint, Signs, Start, Variant
from tasks.robustness.arm import ARMS, BASE, BASELINE, MONOTONIC
from tasks.robustness.study import RobustnessExecution, Study
from tasks.stage.configuration import execution, scientific
from tasks.stage.numerics import Numerics
from tasks.stage.study import StageConfiguration
from tasks.training.budget import Budget

KEY_COLUMNS = ("model", "example_id")
"""The columns that identify a record: there is one for each model and document."""

SEARCHED, JUDGED = "attack-search", "attack-evaluation"
"""The split that universal attacks learn from, and the one that attacks are judged on."""

REQUIRED_MOVEMENT = 0.1
"""Least movement of the monotonic arm's constrained weights, as a share of how far its free matrices move."""


TRAINING = Numerics(fields=("micro_batch_examples",), packages=("transformers",))
"""Numerics of the stages that train a model or measure its validation loss, which is done in micro-batches too."""
ATTACK = Numerics(fields=("attack_batch_examples",), packages=("transformers",))


class OfStudy(StageConfiguration):
    """What every stage of this study is given."""

    STUDY: ClassVar = Study


class SetupConfig(OfStudy):
    """setup: text, splits, tokenizer, packed blocks."""

    numerics: ClassVar = Numerics(packages=("transformers",), torch=False)

    text: Text
    splits: Splits
    sequence_length: int
    tokenizer: Annotated[TrainedTokenizer | PretrainedDirectory | PretrainedHub, Field(discriminator="source")] = (
        scientific(description="Where the tokenizer comes from.")
    )


class BaseConfig(OfStudy):
    """base: the model that all arms start from."""

    numerics: ClassVar = TRAINING

    model: Model
    checks: BaseChecks = scientific(description="When it counts as trained.")
    snapshots: list[float]
    models_of_study: int = execution(description="Models that all stages of the study keep, for the room on the disk.")
    trainings_of_study: int = execution(description="Trainings of the study, each with checkpoints of its own.")


class ConstrainConfig(OfStudy):
    """constrain: the base model with constrained weights, untrained."""

    numerics: ClassVar = TRAINING

    variant: Variant = scientific(description="Which weights are constrained.")
    signs: Signs = scientific(description="Which sign each of them may have.")
    start: Start = scientific(description="Where they start.")
    seeds: list[int] = scientific([], description="Seeds of random signs, of the study and of its base model.")


class TrainConfig(OfStudy):
    """train-baseline, train-monotonic, train-placebo: the same function and budget for every arm."""

    numerics: ClassVar = TRAINING

    budget: Budget
    seed: int
    variant: Variant = scientific(description="The weights that the study constrains; here their movement is measured.")
    by: By = scientific(description="What keeps the signs of these weights; free: nothing.")
    required_movement: float = scientific(
        description="How far the constrained weights must move, as a share of how far the free matrices do."
    )
    snapshots: list[float]
    replaced: float = scientific(
        0.0, added_later=True, description="Share of the tokens read in training that are drawn at random."
    )


class ChooseConfig(OfStudy):
    """choose: of one arm's trainings with different learning rates, the best by validation loss."""

    numerics: ClassVar = Numerics(torch=False)


class EvaluateConfig(OfStudy):
    """evaluate: per-document losses of every model on the test split."""

    numerics: ClassVar = Numerics(fields=("evaluation_batch_examples",), packages=("transformers",))

    snapshots: list[float]
    execution: RobustnessExecution


class AttackConfig(OfStudy):
    """What both attacks are given beside their own settings: one model."""

    numerics: ClassVar = ATTACK

    model: str = scientific(description="Name of the attacked model, as records and tables call it.")
    folder: str = scientific("model", description="Where the stage that made it keeps it.")
    seed: int
    execution: RobustnessExecution


class UatConfig(AttackConfig):
    """uat: a universal trigger for one model, learned on attack-search and judged on attack-evaluation."""

    attack: TriggerAttack = scientific(description="What the attack may spend, the same for every model.")


class HotFlipConfig(AttackConfig):
    """hotflip: token flips in each document of attack-evaluation, on one model."""

    attack: FlipAttack = scientific(description="What the attack may spend, the same for every model.")


class TransferConfig(OfStudy):
    """transfer: what was found for each model, tried on every model."""

    numerics: ClassVar = ATTACK

    models: dict[str, str] = scientific(description="Name of each model, and the folder of its stage that holds it.")
    uat: TriggerAttack
    hotflip: FlipAttack
    execution: RobustnessExecution


class OrderConfig(OfStudy):
    """order: whether the constrained sublayers are monotone functions, and what that does to ordered texts."""

    numerics: ClassVar = Numerics(fields=("evaluation_batch_examples",), packages=("transformers",))

    models: list[str] = scientific(description="Names of the models.")
    variant: Variant = scientific(description="Which sublayers are looked at.")
    execution: RobustnessExecution


AUDITED = (
    "test losses",
    "losses under triggers",
    "losses under flips",
    "transfers",
    "losses of liveness",
    "validation losses",
)
"""Kinds of numbers that the audit computes again."""
AUDIT_TOLERANCE = 1e-4
"""Nats per token. Everything that is compared was computed in fp32, whatever the precision of trainings and searches:
another batch, kernel or device rounds a loss by 1e-6 to 1e-5."""


class AuditConfig(OfStudy):
    """audit: recorded numbers of every model computed again by a plain path."""

    numerics: ClassVar = TRAINING

    models: dict[str, str] = scientific(description="Name of each model, and where it lies: role of its stage/folder.")
    arms: list[str] = scientific(description="Those of them that are arms.")
    attacked: list[str] = scientific(description="Those of them that were attacked.")
    starts: dict[str, str] = scientific(description="Arm with constrained weights, and the role of its start.")
    hotflip: FlipAttack
    seed: int
    audit: Audit


class AggregateConfig(OfStudy):
    """aggregate: tables and report."""

    numerics: ClassVar = Numerics(torch=False)

    study: str = execution(description="Name of the study, as shown in the table.")
    seed: int
    arms: list[str] = scientific(description="The arms, in the order in which tables show them.")
    attacked: list[str] = scientific(description="The attacked models, in the order in which tables show them.")
    constraint: Constraint
    uat: TriggerAttack
    hotflip: FlipAttack
    configuration: dict[str, Any] = execution(description="The scientific fields of the study, kept with the results.")
    evaluation: Evaluation
    primary: Primary

    REMOVED: ClassVar = Study.REMOVED


def for_setup(study: Study) -> SetupConfig:
    model: Any = study.model
    if study.from_scratch:
        model = TrainedTokenizer(vocabulary_size=study.from_scratch.vocabulary_size)
    return SetupConfig.of(study, tokenizer=model)


def for_base(study: Study) -> BaseConfig:
    snapshots, trials = len(study.snapshots), len(study.learning_rates) or 1
    chosen = 1 if trials > 1 else 0  # choose keeps a copy
    of_arms = (len(study.arms) + (0 if study.from_scratch else snapshots)) * (trials + chosen)
    before = (
        1 + (1 + snapshots if study.from_scratch else 0) + len(for_starts(study))
    )  # base, untrained, snapshots, starts
    return BaseConfig.of(
        study,
        checks=study.base_checks,
        snapshots=study.snapshots if study.from_scratch else [],
        models_of_study=before + of_arms,
        trainings_of_study=bool(study.from_scratch) + len(study.arms) * trials,
    )


def for_starts(study: Study) -> dict[str, ConstrainConfig]:
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


def for_trainings(study: Study, arm: str) -> list[TrainConfig]:
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


def for_uat(study: Study, model: str) -> UatConfig:
    return UatConfig.of(study, attack=study.uat, model=model, folder=study.attacked()[model][1], cell=model)


def for_hotflip(study: Study, model: str) -> HotFlipConfig:
    return HotFlipConfig.of(study, attack=study.hotflip, model=model, folder=study.attacked()[model][1], cell=model)


def for_transfer(study: Study) -> TransferConfig:
    return TransferConfig.of(study, models={name: folder for name, (_, folder) in study.attacked().items()})


def for_order(study: Study) -> OrderConfig:
    return OrderConfig.of(study, models=study.compared, variant=study.constraint.variant)


def for_audit(study: Study) -> AuditConfig:
    began = {arm: f"start-{study.start_of(arm)}" for arm in study.arms if ARMS[arm].signs}
    models = {name: "/".join(kept) for name, kept in study.attacked().items()}
    models |= {"untrained": f"{BASE}/initial"} if study.from_scratch else {}
    models |= {"constrained-untrained": f"{began[MONOTONIC]}/model"}
    return AuditConfig.of(study, models=models, arms=[*study.arms], attacked=[*study.attacked()], starts=began)


def for_aggregate(study: Study) -> AggregateConfig:
    return AggregateConfig.of(
        study,
        study=study.name,
        arms=[*study.arms],
        attacked=[*study.attacked()],
        configuration={"name": study.name, **study.scientific()},
    )
