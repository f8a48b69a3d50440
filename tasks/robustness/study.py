"""The robustness study, typed: what a person writes, and what each of its stages is given.

`Study` is a profile, the UI's form, `--set`. Each stage is given one of the smaller models at the end of this file,
composed from it by the page, and can read nothing else: changing the evaluation cannot retrain a model.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, model_validator

from storage import durable
from tasks.attacks.configuration import FlipAttack, TriggerAttack
from tasks.language.configuration import (
    BaseChecks,
    FromScratch,
    Model,
    PretrainedDirectory,
    PretrainedHub,
    Splits,
    Text,
    TrainedTokenizer,
)
from tasks.monotonic.configuration import VARIANTS, Constraint
from tasks.stage.configuration import Configuration, execution, scientific
from tasks.stage.execution import Execution
from tasks.stage.numerics import Numerics
from tasks.stage.study import StageConfiguration, StudyBase
from tasks.statistics.configuration import Evaluation
from tasks.training.budget import Budget

KEY_COLUMNS = ("model", "example_id")
"""The columns that identify a record: there is one for each model and document."""


class UnequalBudgets(Configuration):
    """The way to give the arms different budgets: with a reason, which every table then shows."""

    reason: str = scientific(min_length=10, description="Why the arms may differ; shown in every table.")
    monotonic: Budget = scientific(description="Budget of the monotonic arm; baseline keeps the study's budget.")


class RobustnessExecution(Execution):
    """How the work is done on this machine; none of it is part of a fingerprint."""

    evaluation_batch_examples: int = execution(16, ge=1, description="Examples in one forward pass of evaluation.")
    attack_batch_examples: int = execution(64, ge=1, description="Attacked texts in one forward pass of an attack.")


class Study(StudyBase):
    """One configured experiment: model, text, arms, budgets, seed."""

    seed: int = scientific(42, ge=0, description="Order of the training examples in both arms.")
    text: Text = scientific(description="Where the text comes from.")
    splits: Splits = scientific(Splits(), description="How the text is cut into splits.")
    sequence_length: int = scientific(128, ge=8, description="Tokens in a training block and a test window.")
    model: Model = scientific(description="Where the model comes from.")
    base_checks: BaseChecks = scientific(BaseChecks(), description="When the base model counts as trained.")
    constraint: Constraint = scientific(Constraint(), description="What the monotonic arm constrains.")
    budget: Budget = scientific(description="Training budget, shared by both arms.")
    unequal_budgets: UnequalBudgets | None = scientific(
        None, description="Only to give the monotonic arm another budget, with the reason."
    )
    uat: TriggerAttack = scientific(TriggerAttack(), description="The universal trigger attack.")
    hotflip: FlipAttack = scientific(FlipAttack(), description="The token flip attack.")
    evaluation: Evaluation = scientific(Evaluation(), description="How results are summarised.")
    execution: RobustnessExecution = execution(
        RobustnessExecution(), description="How the work is done on this machine."
    )

    @model_validator(mode="after")
    def _attacks_fit(self) -> Study:
        if (longest := self.uat.trigger_tokens + self.uat.text_tokens) > self.sequence_length:
            raise ValueError(
                f"uat.trigger_tokens and uat.text_tokens are {longest} tokens together, more than sequence_length "
                f"{self.sequence_length}: lower uat.text_tokens"
            )
        if self.hotflip.text_tokens > self.sequence_length:
            raise ValueError(
                f"hotflip.text_tokens {self.hotflip.text_tokens} is more than sequence_length {self.sequence_length}"
            )
        if 2 * self.hotflip.flips > self.hotflip.text_tokens:
            raise ValueError(
                f"hotflip.flips {self.hotflip.flips} is more than half of hotflip.text_tokens "
                f"{self.hotflip.text_tokens}: only tokens that are not replaced are scored"
            )
        if self.hotflip.documents > self.splits.attack_evaluation_documents:
            raise ValueError(
                f"hotflip.documents {self.hotflip.documents} is more than splits.attack_evaluation_documents "
                f"{self.splits.attack_evaluation_documents}: raise that key, which makes another text, so that "
                "everything from setup on runs anew, or lower hotflip.documents"
            )
        return self

    @model_validator(mode="after")
    def _variant_exists(self) -> Study:
        """Asked of a hub model and a GGUF file by constrain, which loads them: here nothing is downloaded."""
        architecture = _architecture(self.model)
        variant, known = self.constraint.variant, VARIANTS.get(architecture)
        if known and variant not in known:
            raise ValueError(
                f"constraint.variant {variant} does not exist in a model of architecture {architecture}, which has "
                f"{', '.join(known)}"
            )
        return self

    @model_validator(mode="after")
    def _budgets_differ(self) -> Study:
        if self.unequal_budgets and self.unequal_budgets.monotonic == self.budget:
            raise ValueError("unequal_budgets.monotonic is equal to budget: leave unequal_budgets out")
        return self

    @model_validator(mode="after")
    def _arms_train_equally_long(self) -> Study:
        if self.budget.patience_validations is not None and self.unequal_budgets is None:
            raise ValueError(
                "budget.patience_validations: both arms must train for the same number of steps, and with patience "
                "each ends when it gets no better: leave it out"
            )
        return self

    def for_setup(self) -> SetupConfig:
        model = self.model
        return SetupConfig(
            text=self.text,
            splits=self.splits,
            sequence_length=self.sequence_length,
            tokenizer=(
                TrainedTokenizer(vocabulary_size=model.vocabulary_size) if isinstance(model, FromScratch) else model
            ),
            execution=self.execution,
        )

    def for_base(self) -> BaseConfig:
        return BaseConfig(model=self.model, checks=self.base_checks, execution=self.execution)

    def for_constrain(self) -> ConstrainConfig:
        return ConstrainConfig(constraint=self.constraint, execution=self.execution)

    def for_training(self, arm: Literal["baseline", "monotonic"]) -> TrainConfig:
        unequal = self.unequal_budgets if arm == "monotonic" else None
        budget = unequal.monotonic if unequal else self.budget
        return TrainConfig(budget=budget, seed=self.seed, execution=self.execution)

    def for_evaluation(self) -> EvaluateConfig:
        return EvaluateConfig(execution=self.execution)

    def for_uat(self) -> UatConfig:
        return UatConfig(attack=self.uat, seed=self.seed, execution=self.execution)

    def for_hotflip(self) -> HotFlipConfig:
        return HotFlipConfig(attack=self.hotflip, seed=self.seed, execution=self.execution)

    def for_aggregate(self) -> AggregateConfig:
        return AggregateConfig(
            study=self.name,
            seed=self.seed,
            configuration={"name": self.name, **self.scientific()},
            evaluation=self.evaluation,
            unequal_budgets=self.unequal_budgets,
            execution=self.execution,
        )


def _architecture(model: Model) -> str:
    """What is known of the model's architecture before it is loaded; empty for nothing."""
    if isinstance(model, FromScratch):
        return "gpt_neox"
    if isinstance(model, PretrainedDirectory):
        with suppress(OSError, ValueError, AttributeError):  # what is wrong with the folder, the page says
            return str(durable.read_json(Path(model.path).expanduser() / "config.json").get("model_type"))
    return ""


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
    """base: the model that both arms start from."""

    numerics: ClassVar = TRAINING

    model: Model = scientific(description="Where the model comes from.")
    checks: BaseChecks = scientific(description="When it counts as trained.")


class ConstrainConfig(StageConfiguration):
    """constrain: the base model with non-negative weights, untrained."""

    numerics: ClassVar = TRAINING

    constraint: Constraint = scientific(description="What is constrained.")


class TrainConfig(StageConfiguration):
    """train-baseline and train-monotonic: the same model for both, so that only their input differs."""

    numerics: ClassVar = TRAINING

    budget: Budget = scientific(description="What the training may spend.")
    seed: int = scientific(ge=0, description="Order of the training examples.")


class EvaluateConfig(StageConfiguration):
    """evaluate: per-document losses of every model on the test split."""

    numerics: ClassVar = Numerics(fields=("evaluation_batch_examples",), packages=("transformers",))

    execution: RobustnessExecution = execution(description="How the work is done.")


class UatConfig(StageConfiguration):
    """uat: universal triggers, learned on attack-search and judged on attack-evaluation."""

    numerics: ClassVar = ATTACK

    attack: TriggerAttack = scientific(description="What the attack may spend, the same for every model.")
    seed: int = scientific(ge=0, description="Starting triggers, order of the search documents, control triggers.")
    execution: RobustnessExecution = execution(description="How the work is done.")


class HotFlipConfig(StageConfiguration):
    """hotflip: token flips in each document of attack-evaluation."""

    numerics: ClassVar = ATTACK

    attack: FlipAttack = scientific(description="What the attack may spend, the same for every model.")
    seed: int = scientific(ge=0, description="The control's random replacements.")
    execution: RobustnessExecution = execution(description="How the work is done.")


class AggregateConfig(StageConfiguration):
    """aggregate: tables and report."""

    numerics: ClassVar = Numerics(torch=False)

    study: str = execution(description="Name of the study, as shown in the table.")
    seed: int = scientific(description="Seed of the study, as shown in the table.")
    configuration: dict[str, Any] = execution(description="The scientific fields of the study, kept with the results.")
    evaluation: Evaluation = scientific(description="How results are summarised.")
    unequal_budgets: UnequalBudgets | None = scientific(None, description="Shown where the arms differ.")
