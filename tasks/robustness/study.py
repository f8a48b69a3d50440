"""The robustness study, typed: what a person writes, and what each of its stages is given.

`Study` is a profile, the UI's form, `--set`. Each stage is given one of the smaller models of
`tasks.robustness.stages`, composed from it by the page, and can read nothing else: changing the evaluation cannot
retrain a model.
"""

from __future__ import annotations

import math
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar

from pydantic import model_validator

from storage import durable
from tasks.attacks.configuration import FlipAttack, TriggerAttack
from tasks.language.configuration import (
    BaseChecks,
    FromScratch,
    Model,
    PretrainedDirectory,
    Splits,
    Text,
    TrainedTokenizer,
)
from tasks.monotonic.configuration import VARIANTS, Constraint
from tasks.report.configuration import Audit
from tasks.robustness.arm import ARMS, BASE, BASELINE, MONOTONIC, ArmName
from tasks.robustness.stages import (
    REQUIRED_MOVEMENT,
    AggregateConfig,
    AuditConfig,
    BaseConfig,
    ChooseConfig,
    ConstrainConfig,
    EvaluateConfig,
    HotFlipConfig,
    OrderConfig,
    RobustnessExecution,
    SetupConfig,
    TrainConfig,
    TransferConfig,
    UatConfig,
    UnequalBudgets,
    snapshot_folder,
)
from tasks.stage.configuration import execution, scientific
from tasks.stage.study import StudyBase
from tasks.statistics.configuration import Evaluation, Primary
from tasks.training.budget import Budget


class Study(StudyBase):
    """One configured experiment: model, text, arms, budgets, seed."""

    seed: int = scientific(42, ge=0, description="Order of the training examples in all arms, and the attacks' draws.")
    text: Text = scientific(description="Where the text comes from.")
    splits: Splits = scientific(Splits(), description="How the text is cut into splits.")
    sequence_length: int = scientific(128, ge=8, description="Tokens in a training block and a test window.")
    model: Model = scientific(description="Where the model comes from.")
    base_checks: BaseChecks = scientific(BaseChecks(), description="When the base model counts as trained.")
    arms: list[ArmName] = scientific(
        [BASELINE, MONOTONIC, "random-signs", "earlier-system"],
        description="The trainings that are compared, baseline and monotonic among them; beside them placebos "
        "(own-signs, random-signs, unconstrained-start, feed-forward-off, shifted), other ways to constrain "
        "(per-unit-signs, earlier-system), and a positive control, which should be harder to attack "
        "(random-replacements).",
    )
    constraint: Constraint = scientific(Constraint(), description="What the monotonic arm constrains.")
    budget: Budget = scientific(description="Training budget, shared by all arms.")
    learning_rates: list[float] = scientific(
        [],
        description="Peak learning rates that every arm is trained with in place of the budget's; of each arm the "
        "training with the lowest validation loss is kept. Empty: the budget's alone.",
    )
    unequal_budgets: UnequalBudgets | None = scientific(
        None, description="Only to give the monotonic arm another budget, with the reason."
    )
    snapshots: list[float] = scientific(
        [],
        description="Shares (between 0 and 1) of the base model's pretraining, or, where it was loaded, of the "
        "baseline's training, after which the model is kept and attacked too: arms are compared at equal clean loss.",
    )
    uat: TriggerAttack = scientific(TriggerAttack(), description="The universal trigger attack.")
    hotflip: FlipAttack = scientific(FlipAttack(), description="The token flip attack.")
    primary: Primary = scientific(Primary(), description="The one comparison that answers the study's question.")
    evaluation: Evaluation = scientific(Evaluation(), description="How results are summarised.")
    audit: Audit = scientific(Audit(), description="What is computed again, by a plain path, before the report.")
    execution: RobustnessExecution = execution(
        RobustnessExecution(), description="How the work is done on this machine."
    )

    CHANGED_FIRST: ClassVar[tuple[str, ...]] = (
        "name",
        "seed",
        "arms",
        "budget.epochs",
        "budget.learning_rate",
        "uat.iterations",
        "hotflip.documents",
        "execution.device",
        "execution.micro_batch_examples",
    )

    @model_validator(mode="after")
    def _arms_are_compared(self) -> Study:
        if missing := [arm for arm in (BASELINE, MONOTONIC) if arm not in self.arms]:
            raise ValueError(f"arms lacks {' and '.join(missing)}: the study compares these two, and placebos beside")
        if twice := sorted({arm for arm in self.arms if self.arms.count(arm) > 1}):
            raise ValueError(f"arms names {', '.join(twice)} twice: give each arm once")
        if "feed-forward-off" in self.arms and self.constraint.variant == "mlp_in_attn_out":
            raise ValueError(
                "the arm feed-forward-off would switch attention off too with constraint.variant mlp_in_attn_out: "
                "leave it out of arms"
            )
        variant = self.constraint.variant
        if "per-unit-signs" in self.arms and variant != "mlp_both":
            raise ValueError(
                f"the arm per-unit-signs needs constraint.variant mlp_both, not {variant}: leave it out of arms"
            )
        if ("shifted" in self.arms or self.constraint.start == "shifted") and variant not in ("mlp_in", "mlp_both"):
            raise ValueError(
                f"a shifted start exists for constraint.variant mlp_in and mlp_both, not {variant}: leave the arm "
                "shifted out of arms, and take another constraint.start"
            )
        equal = [arm for arm in self.arms if arm != MONOTONIC and ARMS[arm].equals_monotonic(self.constraint)]
        if equal:
            raise ValueError(
                f"the arm {', '.join(equal)} is the monotonic arm with this constraint: leave it out of arms"
            )
        return self

    @model_validator(mode="after")
    def _snapshots_fit(self) -> Study:
        if wrong := [share for share in self.snapshots if not 0 < share < 1]:
            raise ValueError(f"snapshots holds {wrong[0]:g}: each is a share of a training, between 0 and 1")
        if sorted(set(self.snapshots)) != self.snapshots or len({f"{share:g}" for share in self.snapshots}) < len(
            self.snapshots
        ):
            raise ValueError(f"snapshots {self.snapshots}: give each share once, the smallest first")
        pretraining = self.model.pretraining if isinstance(self.model, FromScratch) else None
        if self.snapshots and pretraining and pretraining.patience_validations is not None:
            raise ValueError(
                "snapshots are shares of a training whose length is known, and with "
                "model.pretraining.patience_validations it is not: leave one of them out"
            )
        if self.primary.measure == "increase_at_equal_loss" and not self.snapshots:
            raise ValueError(
                "primary.measure increase_at_equal_loss needs the baseline on its way: give snapshots, such as [0.5]"
            )
        return self

    @model_validator(mode="after")
    def _rates_are_tried_once(self) -> Study:
        if wrong := [rate for rate in self.learning_rates if not 0 < rate < math.inf]:
            raise ValueError(f"learning_rates holds {wrong[0]:g}: a rate is a finite number above 0")
        if len(set(self.learning_rates)) < len(self.learning_rates):
            raise ValueError(f"learning_rates {self.learning_rates}: give each rate once")
        if self.learning_rates and self.unequal_budgets:
            raise ValueError("learning_rates gives every arm the same trials: leave it or unequal_budgets out")
        return self

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
        for name in ("flips", "writable_tokens"):
            if 2 * (getattr(self.hotflip, name) or 0) > self.hotflip.text_tokens:
                raise ValueError(
                    f"hotflip.{name} {getattr(self.hotflip, name)} is more than half of hotflip.text_tokens "
                    f"{self.hotflip.text_tokens}: only tokens that no attack may replace are scored"
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
                "budget.patience_validations: all arms must train for the same number of steps, and with patience "
                "each ends when it gets no better: leave it out"
            )
        return self

    def attacked(self) -> dict[str, tuple[str, str]]:
        """Name of each attacked model -> (the model whose stage keeps it, its folder there), as tables show them."""
        kept = {
            f"{self._snapshots_of}@{share:g}": (self._snapshots_of, snapshot_folder(share)) for share in self.snapshots
        }
        return {model: (model, "model") for model in self._compared()} | kept

    @property
    def _snapshots_of(self) -> str:
        """Whose training is looked at in between: one line, on which the clean loss falls from moment to moment."""
        return BASE if isinstance(self.model, FromScratch) else BASELINE

    def _compared(self) -> list[str]:
        return [BASE, *self.arms]

    def starts(self) -> dict[str, ConstrainConfig]:
        """Name of each start of constrained weights -> its configuration; arms that start alike share one."""
        configs = {}
        for arm in self.arms:
            if signs := ARMS[arm].signs:
                name, start = self.start_of(arm), ARMS[arm].started(self.constraint)
                configs[name] = ConstrainConfig(
                    variant=self.constraint.variant,
                    signs=signs,
                    start=start,
                    seeds=self._seeds if signs == "random" else [],
                    execution=self.execution,
                    cell=name,
                )
        return configs

    @property
    def _seeds(self) -> list[int]:
        """Of the study, and of a base model from scratch: what chance alone varies with."""
        return [self.seed, *([self.model.init_seed] if isinstance(self.model, FromScratch) else [])]

    def start_of(self, arm: ArmName) -> str:
        """The name of the start of an arm with constrained weights, such as `non-negative-positive-part`."""
        return f"{ARMS[arm].signs}-{ARMS[arm].started(self.constraint)}"

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
        from_scratch = isinstance(self.model, FromScratch)
        trials = len(self.learning_rates) or 1
        chosen = 1 if trials > 1 else 0  # choose keeps a copy
        snapshots = len(self.snapshots)
        of_arms = (len(self.arms) + (0 if from_scratch else snapshots)) * (trials + chosen)
        before = 1 + (1 + snapshots if from_scratch else 0) + len(self.starts())  # base, untrained, snapshots, starts
        return BaseConfig(
            model=self.model,
            checks=self.base_checks,
            snapshots=self.snapshots if from_scratch else [],
            models_of_study=before + of_arms,
            trainings_of_study=from_scratch + len(self.arms) * trials,
            execution=self.execution,
        )

    def for_trainings(self, arm: ArmName) -> list[TrainConfig]:
        """One training of the arm, or one for each learning rate that is tried."""
        unequal = self.unequal_budgets if arm == MONOTONIC else None
        budget = unequal.monotonic if unequal else self.budget
        rates = self.learning_rates or [budget.learning_rate]
        name = "" if arm in (BASELINE, MONOTONIC) else arm
        return [
            TrainConfig(
                budget=budget.model_copy(update={"learning_rate": rate}),
                seed=self.seed,
                variant=self.constraint.variant,
                by=ARMS[arm].kept(self.constraint),
                replaced=ARMS[arm].replaced,
                required_movement=REQUIRED_MOVEMENT if arm == MONOTONIC else 0.0,
                snapshots=self.snapshots if arm == self._snapshots_of else [],
                execution=self.execution,
                cell=", ".join(filter(None, [name, f"rate {rate:g}" if len(rates) > 1 else ""])),
            )
            for rate in rates
        ]

    def for_choice(self, arm: ArmName) -> ChooseConfig:
        return ChooseConfig(execution=self.execution, cell=arm)

    def for_evaluation(self) -> EvaluateConfig:
        return EvaluateConfig(snapshots=self.snapshots, execution=self.execution)

    def for_uat(self, model: str) -> UatConfig:
        return UatConfig(attack=self.uat, seed=self.seed, **self._attacked(model))

    def for_hotflip(self, model: str) -> HotFlipConfig:
        return HotFlipConfig(attack=self.hotflip, seed=self.seed, **self._attacked(model))

    def _attacked(self, model: str) -> dict[str, Any]:
        _, folder = self.attacked()[model]
        return {"model": model, "folder": folder, "execution": self.execution, "cell": model}

    def for_transfer(self) -> TransferConfig:
        folders = {name: folder for name, (_, folder) in self.attacked().items()}
        return TransferConfig(models=folders, uat=self.uat, hotflip=self.hotflip, execution=self.execution)

    def for_order(self) -> OrderConfig:
        return OrderConfig(models=self._compared(), variant=self.constraint.variant, execution=self.execution)

    def for_audit(self) -> AuditConfig:
        starts: dict[str, str] = {arm: f"start-{self.start_of(arm)}" for arm in self.arms if ARMS[arm].signs}
        models = {name: "/".join(kept) for name, kept in self.attacked().items()}
        models |= {"untrained": f"{BASE}/initial"} if isinstance(self.model, FromScratch) else {}
        return AuditConfig(
            models=models | {"constrained-untrained": f"{starts[MONOTONIC]}/model"},
            arms=list(self.arms),
            attacked=list(self.attacked()),
            starts=starts,
            hotflip=self.hotflip,
            seed=self.seed,
            audit=self.audit,
            execution=self.execution,
        )

    def for_aggregate(self) -> AggregateConfig:
        return AggregateConfig(
            study=self.name,
            seed=self.seed,
            arms=list(self.arms),
            attacked=list(self.attacked()),
            constraint=self.constraint,
            uat=self.uat,
            hotflip=self.hotflip,
            configuration={"name": self.name, **self.scientific()},
            profile=self.model_dump(mode="json"),
            evaluation=self.evaluation,
            primary=self.primary,
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
