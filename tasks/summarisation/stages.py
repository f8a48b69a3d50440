"""Configuration of the stages that this study alone has; the others are those of `tasks.attacks.stages`."""

from __future__ import annotations

from typing import Any, ClassVar, TypeVar

from tasks.attacks.configuration import FlipAttack, TriggerAttack
from tasks.attacks.stages import AttackReportConfig
from tasks.findings.configuration import Audit
from tasks.language.configuration import EncoderDecoder, TrainedTokenizer
from tasks.language.stages import TRAINING, PairsConfig
from tasks.language.study import LanguageExecution
from tasks.stage.configuration import scientific
from tasks.stage.numerics import Numerics
from tasks.stage.study import StageConfiguration
from tasks.summarisation.study import Decoding, Study

AUDIT_TOLERANCE = 1e-4
"""Nats per token, or a ROUGE score; both paths are in fp32, and differ by rounding alone."""
AUDITED = dict.fromkeys(("test losses", "losses under triggers", "losses under flips", "summaries"), AUDIT_TOLERANCE)
"""Kinds of numbers that the audit computes again."""
Kind = TypeVar("Kind", bound="RewriteConfig")


class OfStudy(StageConfiguration):
    """What every stage of this study is given."""

    STUDY: ClassVar = Study


class WritingConfig(OfStudy):
    """What every stage is given in which summaries are written."""

    numerics: ClassVar = Numerics(fields=("evaluation_batch_examples",), packages=("transformers", "rouge-score"))

    decoding: Decoding
    summary_tokens: int
    execution: LanguageExecution


class EvaluateConfig(WritingConfig):
    """evaluate: losses and summaries of every model on the test split, beside those that need no model."""


class RewriteConfig(WritingConfig):
    """rewrite: summaries of attacked articles."""

    models: dict[str, str] = scientific(description="Name of each attacked model, its stage and folder there.")
    hotflip: FlipAttack
    uat: TriggerAttack


class AuditConfig(RewriteConfig):
    """audit: recorded numbers of every model computed again by a plain path."""

    numerics: ClassVar = TRAINING

    audit: Audit


class ReportConfig(AttackReportConfig):
    """report: what the study found."""


def for_pairs(study: Study) -> PairsConfig:
    model: Any = study.model
    if isinstance(model, EncoderDecoder):
        model = TrainedTokenizer(vocabulary_size=model.vocabulary_size)
    attacked = max(study.uat.trigger_tokens + study.uat.text_tokens, study.hotflip.text_tokens)
    return PairsConfig.of(study, tokenizer=model, attacked_tokens=attacked)


def of_attacked(study: Study, kind: type[Kind]) -> Kind:
    """The configuration of a stage that reads every attacked model."""
    return kind.of(study, models={name: "/".join(kept) for name, kept in study.attacked().items()})
