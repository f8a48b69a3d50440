"""Configuration of the stages that make a text and a base model."""

from typing import Annotated, ClassVar

from pydantic import Field

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
from tasks.language.study import LanguageStudy
from tasks.stage.configuration import execution, scientific
from tasks.stage.numerics import Numerics
from tasks.stage.study import StageConfiguration


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
    models_of_study: int = execution(description="Models that all stages of the study keep, for the room on the disk.")
    trainings_of_study: int = execution(description="Trainings of the study, each with checkpoints of its own.")


class PairBaseConfig(BaseConfig):
    """base: the encoder-decoder that all arms start from."""

    model: PairModel = scientific(description="Where the model comes from.")
    checks: PairChecks = scientific(description="When it counts as trained, and as one that reads its article.")


class LabelledConfig(StageConfiguration):
    """pool: labelled texts, each with an id."""

    numerics: ClassVar = Numerics(packages=("numpy",), torch=False)

    text: LabelledText = scientific(description="Where labelled texts come from.")
    seed: int = scientific(description="Of generated ones.")
