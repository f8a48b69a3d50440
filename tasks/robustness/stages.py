"""Configuration of each stage of the robustness study, and how it is composed from the study.

A stage can read nothing else: changing the evaluation cannot retrain a model.
"""

from __future__ import annotations

from typing import Any, ClassVar

from tasks.attacks.configuration import FlipAttack
from tasks.attacks.stages import AttackReportConfig
from tasks.findings.configuration import Audit
from tasks.language.configuration import Precision, TrainedTokenizer
from tasks.language.stages import TRAINING, SetupConfig
from tasks.language.study import LanguageExecution
from tasks.monotonic.arm import ARMS, BASE, MONOTONIC
from tasks.robustness.study import Study
from tasks.stage.configuration import execution, scientific
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


AUDIT_TOLERANCE = 1e-4
"""Nats per token. Everything that is compared was computed in fp32, whatever the precision of trainings and searches:
another batch, kernel or device rounds a loss by 1e-6 to 1e-5. Test losses in another precision may be away by more, as
was measured (`rounding_allowed`)."""
AUDITED = dict.fromkeys(
    (
        "test losses",
        "losses under triggers",
        "losses under flips",
        "transfers",
        "losses of liveness",
        "validation losses",
    ),
    AUDIT_TOLERANCE,
)
"""Kinds of numbers that the audit computes again."""


class AuditConfig(OfStudy):
    """audit: recorded numbers of every model computed again by a plain path."""

    numerics: ClassVar = TRAINING

    models: dict[str, str] = scientific(description="Name of each model, and where it lies: role of its stage/folder.")
    arms: list[str] = scientific(description="Those of them that are arms.")
    attacked: list[str] = scientific(description="Those of them that were attacked.")
    starts: dict[str, str] = scientific(description="Arm with constrained weights, and the role of its start.")
    hotflip: FlipAttack
    audit: Audit


class AggregateConfig(AttackReportConfig):
    """aggregate: tables and report."""

    study: str = execution(description="Name of the study, as shown in the table.")
    seed: int

    REMOVED: ClassVar = Study.REMOVED


def for_setup(study: Study) -> SetupConfig:
    model: Any = study.model
    if study.from_scratch:
        model = TrainedTokenizer(vocabulary_size=study.from_scratch.vocabulary_size)
    return SetupConfig.of(study, tokenizer=model)


def for_audit(study: Study) -> AuditConfig:
    began = {arm: f"start-{study.start_of(arm)}" for arm in study.arms if ARMS[arm].signs}
    models = {name: "/".join(kept) for name, kept in study.attacked().items()}
    models |= {"untrained": f"{BASE}/initial"} if study.from_scratch else {}
    models |= {"constrained-untrained": f"{began[MONOTONIC]}/model"}
    return AuditConfig.of(study, models=models, arms=[*study.arms], attacked=[*study.attacked()], starts=began)


def for_aggregate(study: Study) -> AggregateConfig:
    return AggregateConfig.of(study, study=study.name)
