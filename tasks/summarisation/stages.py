"""Configuration of the stages that this study alone has; the others are those of `tasks.attacks.stages`."""

from typing import ClassVar

from tasks.attacks.configuration import FlipAttack, TriggerAttack
from tasks.attacks.stages import ASKED, AttackAuditConfig, AttackReportConfig
from tasks.language.stages import LanguageExecution
from tasks.stage.configuration import scientific
from tasks.stage.numerics import Numerics
from tasks.stage.study import StageConfiguration
from tasks.summarisation.study import Decoding, Study

AUDITED = ASKED | {"summaries": 1e-4, "scores": 1e-6}
"""Kinds of numbers that the audit computes again. Of a summary that is written otherwise the score must be as good, in
nats per token."""


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


class AuditConfig(AttackAuditConfig):
    """audit: recorded numbers of every model computed again by a plain path."""

    STUDY: ClassVar[type[Study]] = Study

    decoding: Decoding
    summary_tokens: int
    uat: TriggerAttack


class ReportConfig(AttackReportConfig):
    """report: what the study found."""
