"""What every study is told in which arms with and without a constraint are attacked."""

from typing import Annotated, Self

from pydantic import Field, model_validator

from tasks.attacks.configuration import FlipAttack, Primary, TriggerAttack
from tasks.language.configuration import (
    EncoderDecoder,
    FromScratch,
    Model,
    PairModel,
    PretrainedDirectory,
    PretrainedHub,
    TrainedTokenizer,
)
from tasks.language.stages import LanguageStudy, snapshot_folder
from tasks.monotonic.arm import ARCHITECTURES, ARMS, BASE, BASELINE, MONOTONIC, ArmName
from tasks.monotonic.stages import Constraint
from tasks.stage.configuration import scientific
from tasks.stage.validation import require_at_most, require_once

REQUIRED_MOVEMENT = 0.1
"""Least movement of the monotonic arm's constrained weights, as a share of how far its free matrices move."""


class AttackStudy(LanguageStudy):
    """A study of a language model whose arms are attacked, and compared by what that does to them."""

    model: Model | PairModel = scientific(description="Where the model comes from.")
    arms: list[ArmName] = scientific(
        [BASELINE, MONOTONIC, "random-signs", "earlier-system"],
        description="The trainings that are compared, baseline and monotonic among them; beside them placebos "
        "(own-signs, random-signs, unconstrained-start, feed-forward-off, shifted), other ways to constrain "
        "(per-unit-signs, earlier-system), and a positive control, which should be harder to attack "
        "(random-replacements).",
    )
    constraint: Constraint = scientific(Constraint(), description="What the monotonic arm constrains.")
    learning_rates: list[Annotated[float, Field(gt=0, allow_inf_nan=False)]] = scientific(
        [],
        description="Peak learning rates that every arm is trained with in place of the budget's; of each arm the "
        "training with the lowest validation loss is kept. Empty: the budget's alone.",
    )
    uat: TriggerAttack = scientific(TriggerAttack(), description="The universal trigger attack.")
    hotflip: FlipAttack = scientific(FlipAttack(), description="The token flip attack.")
    primary: Primary = scientific(Primary(), description="The one comparison that answers the study's question.")

    @model_validator(mode="after")
    def _arms_are_compared(self) -> Self:
        if missing := [arm for arm in (BASELINE, MONOTONIC) if arm not in self.arms]:
            raise ValueError(f"arms lacks {' and '.join(missing)}: the study compares these two, and placebos beside")
        require_once("arms", self.arms)
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
        architecture = "t5" if isinstance(self.model, EncoderDecoder) else "gpt_neox"
        if self.from_scratch and variant not in (known := ARCHITECTURES[architecture]):  # constrain asks it of others
            raise ValueError(
                f"constraint.variant {variant} does not exist in a model of architecture {architecture}, "
                f"which has {', '.join(known)}"
            )
        return self

    @model_validator(mode="after")
    def _trainings_fit(self) -> Self:
        require_once("learning_rates", self.learning_rates)
        if self.budget.patience_validations is not None:
            raise ValueError(
                "budget.patience_validations: all arms must train for the same number of steps, and with patience "
                "each ends when it gets no better: leave it out"
            )
        named = [f"{share:g}" for share in self.snapshots]  # like their folders
        if self.snapshots != sorted(self.snapshots) or len({*named}) < len(named):
            raise ValueError(f"snapshots {self.snapshots}: give each share once, the smallest first")
        if self.snapshots and self.from_scratch and self.from_scratch.pretraining.patience_validations is not None:
            raise ValueError(
                "snapshots are shares of a training whose length is known, and with "
                "model.pretraining.patience_validations it is not: leave one of them out"
            )
        return self

    @model_validator(mode="after")
    def _flips_fit(self) -> Self:
        hotflip = self.hotflip
        half, advice = hotflip.text_tokens // 2, "lower it, or raise hotflip.text_tokens"
        require_at_most("hotflip.flips", hotflip.flips, "half of hotflip.text_tokens,", half, advice)
        require_at_most(
            "hotflip.documents",
            hotflip.documents,
            "splits.attack_evaluation_documents",
            self.splits.attack_evaluation_documents,
            "raise that key, which makes another text, so that everything from setup on runs anew, or lower "
            "hotflip.documents",
        )
        return self

    def attacked(self) -> dict[str, tuple[str, str]]:
        """Name of each attacked model -> (the model whose stage keeps it, its folder there), as tables show them."""
        kept = {
            f"{self.kept_on_its_way}@{share:g}": (self.kept_on_its_way, snapshot_folder(share))
            for share in self.snapshots
        }
        return {model: (model, "model") for model in self.compared} | kept

    @property
    def from_scratch(self) -> FromScratch | None:
        """The model, where this study pretrains it."""
        return self.model if isinstance(self.model, FromScratch) else None

    @property
    def tokenizer(self) -> TrainedTokenizer | PretrainedDirectory | PretrainedHub:
        """That of the model, or one that is trained on the study's text."""
        if isinstance(self.model, FromScratch):
            return TrainedTokenizer(vocabulary_size=self.model.vocabulary_size)
        return self.model

    @property
    def kept_on_its_way(self) -> str:
        """Model that is looked at in its training: one line, on which the clean loss falls from moment to moment."""
        return BASE if self.from_scratch else BASELINE

    @property
    def compared(self) -> list[str]:
        return [BASE, *self.arms]

    def start_of(self, arm: str) -> str:
        """The start of an arm with constrained weights, such as `non-negative-positive-part`; of others empty: base."""
        return f"{ARMS[arm].signs}-{ARMS[arm].started(self.constraint)}" if ARMS[arm].signs else ""

    @property
    def base_fields(self) -> dict[str, object]:
        """Those of the stage that makes the base model."""
        return {"checks": self.base_checks, "snapshots": self.snapshots if self.from_scratch else []}

    @property
    def start_fields(self) -> dict[str, dict[str, object]]:
        """Name of each start of constrained weights -> the fields of its stage; arms that start alike share one."""
        seeds = [self.seed, *([self.from_scratch.init_seed] if self.from_scratch else [])]
        return {
            name: {
                "variant": self.constraint.variant,
                "signs": ARMS[arm].signs,
                "start": ARMS[arm].started(self.constraint),
                "seeds": seeds if ARMS[arm].signs == "random" else [],
                "cell": name,
            }
            for arm in self.arms
            if (name := self.start_of(arm))
        }

    def training_fields(self, arm: str) -> list[dict[str, object]]:
        """Those of the one training of the arm, or of one for each learning rate that is tried."""
        rates = self.learning_rates or [self.budget.learning_rate]
        name = "" if arm in (BASELINE, MONOTONIC) else arm
        return [
            {
                "budget": self.budget.model_copy(update={"learning_rate": rate}),
                "variant": self.constraint.variant,
                "by": ARMS[arm].by,
                "replaced": ARMS[arm].replaced,
                "required_movement": REQUIRED_MOVEMENT if arm == MONOTONIC else 0.0,
                "snapshots": self.snapshots if arm == self.kept_on_its_way else [],
                "cell": ", ".join(filter(None, [name, f"rate {rate:g}" if len(rates) > 1 else ""])),
            }
            for rate in rates
        ]
