"""Configuration of each stage of the robustness study, and how it is composed from the study.

A stage can read nothing else: changing the evaluation cannot retrain a model.
"""

from __future__ import annotations

from typing import Any, ClassVar

from tasks.attacks.configuration import FlipAttack, Primary, TriggerAttack
from tasks.attacks.stages import HotFlipConfig, TransferConfig, UatConfig
from tasks.findings.configuration import Audit, Evaluation
from tasks.language.configuration import TrainedTokenizer
from tasks.language.stages import TRAINING, BaseConfig, SetupConfig
from tasks.language.study import LanguageExecution
from tasks.monotonic.arm import ARMS, BASE, BASELINE, MONOTONIC
from tasks.monotonic.configuration import Constraint
from tasks.monotonic.stages import ConstrainConfig, OrderConfig, TrainConfig
from tasks.robustness.study import Study
from tasks.stage.configuration import execution, scientific
from tasks.stage.numerics import Numerics
from tasks.stage.study import StageConfiguration

REQUIRED_MOVEMENT = 0.1
"""Least movement of the monotonic arm's constrained weights, as a share of how far its free matrices move."""


class OfStudy(StageConfiguration):
    """What every stage of this study is given."""

    STUDY: ClassVar = Study


class EvaluateConfig(OfStudy):
    """evaluate: per-document losses of every model on the test split."""

    numerics: ClassVar = Numerics(fields=("evaluation_batch_examples",), packages=("transformers",))

    snapshots: list[float]
    execution: LanguageExecution


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
