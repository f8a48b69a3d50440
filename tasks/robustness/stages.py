"""Configuration of the stages that this study alone has; the others are those of `tasks.attacks.stages`."""

from typing import ClassVar

from tasks.attacks.stages import ASKED, AttackAuditConfig, AttackReportConfig
from tasks.language.configuration import Precision
from tasks.language.stages import LanguageExecution
from tasks.robustness.study import Study
from tasks.stage.numerics import Numerics
from tasks.stage.study import StageConfiguration


class OfStudy(StageConfiguration):
    """What every stage of this study is given."""

    STUDY: ClassVar = Study


class EvaluateConfig(OfStudy):
    """evaluate: per-document losses of every model on the test split."""

    numerics: ClassVar = Numerics(fields=("evaluation_batch_examples",), packages=("transformers",))

    snapshots: list[float]
    evaluation_precision: Precision
    execution: LanguageExecution


AUDITED = ASKED
"""Kinds of numbers that the audit computes again. Test losses in another precision than fp32 may be away by more, as
was measured (`rounding_allowed`)."""


class AuditConfig(AttackAuditConfig):
    """audit: recorded numbers of every model computed again by a plain path."""

    STUDY: ClassVar[type[Study]] = Study


class AggregateConfig(AttackReportConfig):
    """aggregate: tables and report."""

    seed: int

    REMOVED: ClassVar = Study.REMOVED
