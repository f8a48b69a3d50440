"""The robustness study, typed: what a person writes in a profile, the UI's form, or `--set`."""

from __future__ import annotations

from typing import ClassVar

from pydantic import model_validator

from tasks.attacks.study import AttackStudy
from tasks.language.configuration import Model, Precision, Text
from tasks.stage.configuration import scientific
from tasks.stage.validation import require_at_most


class Study(AttackStudy):
    """One configured experiment: model, text, arms, budgets, seed."""

    text: Text = scientific(description="Where the text comes from.")
    sequence_length: int = scientific(128, ge=8, description="Tokens in a training block and a test window.")
    model: Model = scientific(description="Where the model comes from.")
    evaluation_precision: Precision = scientific(
        "fp32",
        added_later=True,
        description="Precision of the losses on the test split (tf32: on a GPU only; bf16: by autocast). The report "
        "says what another than fp32 does to them, measured on the same documents of every model. Attacks are judged "
        "in fp32.",
    )
    REMOVED: ClassVar = {"unequal_budgets": (None, "all arms train on budget: leave it out")}
    CHANGED_FIRST: ClassVar[tuple[str, ...]] = (
        "name", "seed", "arms", "budget.epochs", "budget.learning_rate", "uat.iterations", "hotflip.documents",
        "execution.device", "execution.micro_batch_examples",
    )  # fmt: skip

    @model_validator(mode="after")
    def _evaluation_precision_fits(self) -> Study:
        if self.evaluation_precision == "tf32" and self.execution.device == "cpu":
            raise ValueError("evaluation_precision is tf32, which only a GPU has, and execution.device is cpu")
        return self

    @model_validator(mode="after")
    def _attacks_fit(self) -> Study:
        length, uat = self.sequence_length, self.uat
        if (longest := uat.trigger_tokens + uat.text_tokens) > length:
            raise ValueError(
                f"uat.trigger_tokens and uat.text_tokens are {longest} tokens together, more than sequence_length "
                f"{length}: lower uat.text_tokens"
            )
        require_at_most("hotflip.text_tokens", self.hotflip.text_tokens, "sequence_length", length)
        return self
