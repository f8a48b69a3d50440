"""What every study of a language model is told: its text, its base model's checks, its trainings, its machine."""

from typing import Annotated

from pydantic import Field

from tasks.findings.configuration import Audit, Evaluation
from tasks.language.configuration import BaseChecks, PairText, Splits, Text
from tasks.stage.configuration import execution, scientific
from tasks.stage.execution import Execution
from tasks.stage.study import StudyBase
from tasks.training.budget import Budget


class LanguageExecution(Execution):
    """How the work is done on this machine; none of it is part of a fingerprint."""

    evaluation_batch_examples: int = execution(16, ge=1, description="Examples in one forward pass of evaluation.")
    attack_batch_examples: int = execution(64, ge=1, description="Attacked texts in one forward pass of an attack.")


class LanguageStudy(StudyBase):
    """A study in which arms are trained from one language model."""

    seed: int = scientific(42, ge=0, description="Order of the training examples in all arms, and the attacks' draws.")
    text: Text | PairText = scientific(description="Where the text comes from.")
    splits: Splits = scientific(Splits(), description="How the text is cut into splits.")
    base_checks: BaseChecks = scientific(BaseChecks(), description="When the base model counts as trained.")
    budget: Budget = scientific(description="Training budget, shared by all arms.")
    snapshots: list[Annotated[float, Field(gt=0, lt=1)]] = scientific(
        [],
        description="Shares (between 0 and 1) of the base model's pretraining, or, where it was loaded, of the "
        "baseline's training, after which the model is kept and attacked too: arms are compared at equal clean loss.",
    )
    evaluation: Evaluation = scientific(Evaluation(), description="How results are summarised.")
    audit: Audit = scientific(Audit(), description="What is computed again, by a plain path, before the report.")
    execution: LanguageExecution = execution(LanguageExecution(), description="How the work is done on this machine.")


def snapshot_folder(share: float) -> str:
    """Folder in which a training keeps the model that it was after this share of its steps."""
    return f"snapshots/{share:g}"
