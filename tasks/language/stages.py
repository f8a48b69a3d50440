"""Configuration of the stages that make a text and a base model."""

from typing import Annotated, ClassVar

from pydantic import Field

from tasks.findings.configuration import Audit, Evaluation
from tasks.language.configuration import (
    BaseChecks,
    LabelledText,
    Model,
    PairChecks,
    PairModel,
    PairText,
    PretrainedDirectory,
    PretrainedHub,
    Splits,
    Text,
    TrainedTokenizer,
)
from tasks.stage.configuration import execution, scientific
from tasks.stage.execution import Execution
from tasks.stage.numerics import Numerics
from tasks.stage.study import StageConfiguration, StudyBase
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


class OfLanguageStudy(StageConfiguration):
    """What every stage of a study of a language model is given."""

    STUDY: ClassVar = LanguageStudy


TRAINING = Numerics(fields=("micro_batch_examples",), packages=("transformers",))
"""Numerics of the stages that train a model or measure its validation loss, which is done in micro-batches too."""


class TextConfig(OfLanguageStudy):
    """setup: text, splits and tokenizer, whatever they are packed into."""

    numerics: ClassVar = Numerics(packages=("transformers",), torch=False)

    text: Text | PairText
    splits: Splits
    tokenizer: Annotated[TrainedTokenizer | PretrainedDirectory | PretrainedHub, Field(discriminator="source")] = (
        scientific(description="Where the tokenizer comes from.")
    )


class SetupConfig(TextConfig):
    """setup: packed blocks of a text."""

    text: Text
    sequence_length: int = scientific(description="Tokens in a training block and a test window.")


class PairsConfig(TextConfig):
    """setup: articles and their summaries, packed as pairs."""

    text: PairText = scientific(description="Where articles and summaries come from.")
    prefix: str = scientific(description="Text in front of every article.")
    article_tokens: int = scientific(description="Tokens of an article that are read, its prefix and end counted.")
    summary_tokens: int = scientific(description="Tokens of a summary that are learned and scored, its end counted.")
    attacked_tokens: int = execution(description="Tokens between prefix and end of which no attack may lose any.")


class BaseConfig(OfLanguageStudy):
    """base: the model that all arms start from."""

    numerics: ClassVar = TRAINING

    model: Model = scientific(description="Where the model comes from.")
    checks: BaseChecks = scientific(description="When it counts as trained.")
    snapshots: list[float]


class PairBaseConfig(BaseConfig):
    """base: the encoder-decoder that all arms start from."""

    model: PairModel = scientific(description="Where the model comes from.")
    checks: PairChecks = scientific(description="When it counts as trained, and as one that reads its article.")


class LabelledConfig(StageConfiguration):
    """pool: labelled texts, each with an id."""

    numerics: ClassVar = Numerics(packages=("numpy",), torch=False)

    text: LabelledText = scientific(description="Where labelled texts come from.")
    seed: int = scientific(description="Of generated ones.")
