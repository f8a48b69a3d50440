"""What each stage of the robustness study is given; the page composes it from the study."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from pydantic import Field

from tasks.attacks.configuration import FlipAttack, TriggerAttack
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
from tasks.report.configuration import Audit
from tasks.stage.configuration import Configuration, execution, scientific
from tasks.stage.execution import Execution
from tasks.stage.numerics import Numerics
from tasks.stage.study import StageConfiguration
from tasks.statistics.configuration import Evaluation, Primary
from tasks.training.budget import Budget

KEY_COLUMNS = ("model", "example_id")
"""The columns that identify a record: there is one for each model and document."""

SEARCHED, JUDGED = "attack-search", "attack-evaluation"
"""The split that universal attacks learn from, and the one that attacks are judged on."""

REQUIRED_MOVEMENT = 0.1
"""Of the monotonic arm: how far its constrained weights must move, as a share of how far its free matrices do."""


def snapshot_folder(share: float) -> str:
    """Where a training keeps the model that it was after this share of its steps."""
    return f"snapshots/{share:g}"


class UnequalBudgets(Configuration):
    """The way to give the arms different budgets: with a reason, which every table then shows."""

    reason: str = scientific(min_length=10, description="Why the arms may differ; shown in every table.")
    monotonic: Budget = scientific(description="Budget of the monotonic arm; the others keep the study's budget.")


class RobustnessExecution(Execution):
    """How the work is done on this machine; none of it is part of a fingerprint."""

    evaluation_batch_examples: int = execution(16, ge=1, description="Examples in one forward pass of evaluation.")
    attack_batch_examples: int = execution(64, ge=1, description="Attacked texts in one forward pass of an attack.")


TRAINING = Numerics(fields=("micro_batch_examples",), packages=("transformers",))
"""Of the stages that train a model or measure its validation loss, which is done in micro-batches too."""
ATTACK = Numerics(fields=("attack_batch_examples",), packages=("transformers",))


class SetupConfig(StageConfiguration):
    """setup: text, splits, tokenizer, packed blocks."""

    numerics: ClassVar = Numerics(packages=("transformers",), torch=False)

    text: Text = scientific(description="Where the text comes from.")
    splits: Splits = scientific(description="How the text is cut into splits.")
    sequence_length: int = scientific(ge=8, description="Tokens in a block.")
    tokenizer: Annotated[TrainedTokenizer | PretrainedDirectory | PretrainedHub, Field(discriminator="source")] = (
        scientific(description="Where the tokenizer comes from.")
    )


class BaseConfig(StageConfiguration):
    """base: the model that all arms start from."""

    numerics: ClassVar = TRAINING

    model: Model = scientific(description="Where the model comes from.")
    checks: BaseChecks = scientific(description="When it counts as trained.")
    snapshots: list[float] = scientific([], description="Shares of its pretraining after which it is kept too.")
    models_of_study: int = execution(description="Models that all stages of the study keep, for the room on the disk.")
    trainings_of_study: int = execution(description="Trainings of the study, each with checkpoints of its own.")


class ConstrainConfig(StageConfiguration):
    """constrain: the base model with constrained weights, untrained."""

    numerics: ClassVar = TRAINING

    variant: Variant = scientific(description="Which weights are constrained.")
    signs: Signs = scientific(description="Which sign each of them may have.")
    start: Start = scientific(description="Where they start.")
    seeds: list[int] = scientific([], description="Seeds of random signs, of the study and of its base model.")


class TrainConfig(StageConfiguration):
    """train-baseline, train-monotonic, train-placebo: the same function and budget for every arm."""

    numerics: ClassVar = TRAINING

    budget: Budget = scientific(description="What the training may spend.")
    seed: int = scientific(ge=0, description="Order of the training examples.")
    variant: Variant = scientific(description="The weights that the study constrains; here their movement is measured.")
    by: By = scientific(description="What keeps the signs of these weights; free: nothing.")
    required_movement: float = scientific(
        description="How far the constrained weights must move, as a share of how far the free matrices do."
    )
    snapshots: list[float] = scientific([], description="Shares of the training after which the model is kept too.")
    replaced: float = scientific(
        0.0, added_later=True, description="Share of the tokens read in training that are drawn at random."
    )


class ChooseConfig(StageConfiguration):
    """choose: of one arm's trainings with different learning rates, the best by validation loss."""

    numerics: ClassVar = Numerics(torch=False)


class EvaluateConfig(StageConfiguration):
    """evaluate: per-document losses of every model on the test split."""

    numerics: ClassVar = Numerics(fields=("evaluation_batch_examples",), packages=("transformers",))

    snapshots: list[float] = scientific(description="Shares of the trainings whose snapshots are evaluated too.")
    execution: RobustnessExecution = execution(description="How the work is done.")


class AttackConfig(StageConfiguration):
    """What both attacks are given beside their own settings: one model."""

    numerics: ClassVar = ATTACK

    model: str = scientific(description="Name of the attacked model, as records and tables call it.")
    folder: str = scientific("model", description="Where the stage that made it keeps it.")
    seed: int = scientific(ge=0, description="All random draws of the attack and of its controls.")
    execution: RobustnessExecution = execution(description="How the work is done.")


class UatConfig(AttackConfig):
    """uat: a universal trigger for one model, learned on attack-search and judged on attack-evaluation."""

    attack: TriggerAttack = scientific(description="What the attack may spend, the same for every model.")


class HotFlipConfig(AttackConfig):
    """hotflip: token flips in each document of attack-evaluation, on one model."""

    attack: FlipAttack = scientific(description="What the attack may spend, the same for every model.")


class TransferConfig(StageConfiguration):
    """transfer: what was found for each model, tried on every model."""

    numerics: ClassVar = ATTACK

    models: dict[str, str] = scientific(description="Name of each model, and the folder of its stage that holds it.")
    uat: TriggerAttack = scientific(description="How the triggers were found.")
    hotflip: FlipAttack = scientific(description="How the flips were found.")
    execution: RobustnessExecution = execution(description="How the work is done.")


class OrderConfig(StageConfiguration):
    """order: whether the constrained sublayers are monotone functions, and what that does to ordered texts."""

    numerics: ClassVar = Numerics(fields=("evaluation_batch_examples",), packages=("transformers",))

    models: list[str] = scientific(description="Names of the models.")
    variant: Variant = scientific(description="Which sublayers are looked at.")
    execution: RobustnessExecution = execution(description="How the work is done.")


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


class AuditConfig(StageConfiguration):
    """audit: recorded numbers of every model computed again by a plain path."""

    numerics: ClassVar = TRAINING

    models: dict[str, str] = scientific(description="Name of each model, and where it lies: role of its stage/folder.")
    arms: list[str] = scientific(description="Those of them that are arms.")
    attacked: list[str] = scientific(description="Those of them that were attacked.")
    starts: dict[str, str] = scientific(description="Arm with constrained weights, and the role of its start.")
    hotflip: FlipAttack = scientific(description="How flips were found.")
    seed: int = scientific(ge=0, description="What draws the examples.")
    audit: Audit = scientific(description="How much is computed again.")


class AggregateConfig(StageConfiguration):
    """aggregate: tables and report."""

    numerics: ClassVar = Numerics(torch=False)

    study: str = execution(description="Name of the study, as shown in the table.")
    seed: int = scientific(description="Seed of the study, as shown in the table.")
    arms: list[str] = scientific(description="The arms, in the order in which tables show them.")
    attacked: list[str] = scientific(description="The attacked models, in the order in which tables show them.")
    constraint: Constraint = scientific(description="What the monotonic arm constrains.")
    uat: TriggerAttack = scientific(description="How every model was to be attacked by a trigger.")
    hotflip: FlipAttack = scientific(description="How every model was to be attacked by flips.")
    configuration: dict[str, Any] = execution(description="The scientific fields of the study, kept with the results.")
    profile: dict[str, Any] = execution(description="The whole study, for the command that makes it again.")
    evaluation: Evaluation = scientific(description="How results are summarised.")
    primary: Primary = scientific(description="The one comparison that answers the study's question.")
    unequal_budgets: UnequalBudgets | None = scientific(None, description="Shown where the arms differ.")
