"""Checks of trainings and of order before any number of a study is shown.

A result is what a stage says of itself. Whatever can be computed again from the rows and files that it kept is computed
again, and what does not agree is refused by name: what was measured, and what is required.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from storage.errors import require, require_close, require_distinct, require_equal, require_limit
from storage.records import Rows
from tasks.language.checks import ROUNDING_OF
from tasks.language.result import BaseResult, PackedSplit, SetupResult, Training
from tasks.monotonic.arm import ARMS, BASE, BASELINE
from tasks.monotonic.configuration import Constraint
from tasks.monotonic.result import ArmResult, ModelOrder, OrderResult
from tasks.stage.run import StageInput
from tasks.training.budget import Budget
from tasks.training.logged import require_trained as require_logged
from tasks.training.schedule import Schedule

Arms = Mapping[str, ArmResult]


# ----------------------------------------------------------------------------------------------- the trainings


def require_trainings(
    configured: Mapping[str, Any], stages: Mapping[str, StageInput], text: SetupResult, base: BaseResult, arms: Arms
) -> None:
    """Every training of the study is the one that was asked for; `configured` are the fields of the study."""
    digests = {name: arm.weights_digest for name, arm in arms.items()}
    require_distinct("every arm has weights of its own", digests, "equal digests")
    packed, rates = text.packed["train"], configured["learning_rates"]
    budget, constraint = (
        Budget.model_validate(configured["budget"]),
        Constraint.model_validate(configured["constraint"]),
    )
    require_equal_budgets(arms)
    for name, arm in arms.items():
        _require_constrained(name, arm, constraint)
        _require_trained(name, stages[f"train-{name}"], arm.training, budget, rates, packed)
        _require_best_trial(name, arm)
        _require_liveness(name, arm)
    _require_same_layers(arms)
    if base.training:
        budget = Budget.model_validate(configured["model"]["pretraining"])
        _require_trained(BASE, stages["base"], base.training, budget, [], packed)
    _require_base_trained(configured["base_checks"], base)
    shares = [f"{share:g}" for share in configured["snapshots"]]
    for name, snapshots in {BASE: base.snapshots, **{name: arm.snapshots for name, arm in arms.items()}}.items():
        required = shares if name == (BASE if base.training else BASELINE) else []
        require_equal(f"{name} kept a snapshot at each share of its training", list(snapshots), required)


def require_equal_budgets(arms: Arms) -> None:
    """CheckFailed unless the arms really spent what the report's sentence on budgets will state."""
    for name, arm in arms.items():
        require_equal(f"all arms had the same budget, {name} as {BASELINE}", _spent(arm), _spent(arms[BASELINE]))


def _spent(arm: ArmResult) -> dict[str, Any]:
    """Counts the trials where learning rates were tried out, and not which of them was kept."""
    training = arm.training
    budget = {key: value for key, value in training.budget.items() if key != "learning_rate" or not arm.trials}
    trials = sorted(arm.trials)
    return {"budget": budget, "trials": trials, "steps": training.steps, "tokens": training.tokens_trained}


def _rounding(training: Training) -> float:
    """Validations are made in tf32 where the training is; in bf16 they are not."""
    return ROUNDING_OF["tf32" if training.budget.get("precision") == "tf32" else "fp32"]


def _require_base_trained(configured: Mapping[str, float], base: BaseResult) -> None:
    """The base model is as much better than what it is compared with as required."""
    found, training = base.trained_check, base.training
    required = {
        name.removeprefix("max_ratio_to_"): limit
        for name, limit in configured.items()
        if training or name != "max_ratio_to_untrained"
    }
    require_equal("base was held against what is configured", found.required_ratio, required)
    own = found.validation_perplexity["base"]
    follow = {name: own / found.validation_perplexity[name] for name in required}
    require_equal("the ratios of base follow from its perplexities", found.ratio_of_perplexities, follow)
    for name, ratio in follow.items():
        require_limit(f"base is trained, beside {name}", ratio, required[name])
    if training:
        loss, kept = (
            training.best_validation_loss_nats_per_token,
            "the perplexity of base is that of its best validation",
        )
        require_close(kept, math.log(own), loss, _rounding(training) * loss)


def _require_best_trial(name: str, arm: ArmResult) -> None:
    """The learning rate with the lowest validation loss was kept, of those that were tried."""
    rate, loss = f"{arm.training.budget['learning_rate']:g}", arm.training.best_validation_loss_nats_per_token
    best = not arm.trials or arm.trials.get(rate) == loss == min(arm.trials.values())
    require(best, f"{name} kept the best of its trials", f"rate {rate}, loss {loss}", arm.trials)


def _require_trained(
    what: str, given: StageInput, training: Training, budget: Budget, rates: list[float], packed: PackedSplit
) -> None:
    """A training on the packed text was as configured, and left what it says; one of `rates`, where these were tried.

    What is kept are the weights of the lowest validation, of equals the earlier.
    """
    if (rate := training.budget["learning_rate"]) in rates:
        budget = budget.model_copy(update={"learning_rate": rate})
    spent, name = training.as_json(), "validation_loss_nats_per_token"
    require_logged(what, given.run.metrics_file, spent, "validation_loss", budget, packed.blocks, name)
    schedule = Schedule(budget, packed.blocks)
    examples = sum(schedule.window(step)[2] for step in range(1, training.steps + 1))
    tokens = round(examples * packed.predicted_tokens)
    require_equal(f"{what} was trained on the tokens of its steps", training.tokens_trained, tokens)
    perplexity = math.exp(min(training.best_validation_loss_nats_per_token, 700.0))
    follows = f"the best perplexity of {what} follows from its loss"
    require_close(follows, training.best_validation_perplexity, perplexity, 1e-9 * perplexity)


def _require_liveness(name: str, arm: ArmResult) -> None:
    """Liveness was measured on the weights that were kept, whose validation loss is known, and its rise follows."""
    live, loss = arm.sublayers, arm.training.best_validation_loss_nats_per_token
    what = f"the liveness of {name} was measured at its best validation loss"
    require_close(what, live.loss_nats_per_token, loss, _rounding(arm.training) * loss)
    rise = live.loss_with_means_nats_per_token - live.loss_nats_per_token
    require_close(f"the rise of {name} follows from its two losses", live.rise_nats_per_token, rise, 1e-9)


def _require_constrained(name: str, arm: ArmResult, constraint: Constraint) -> None:
    """The arm kept the signs that its name says, in layers that the study names, and these were looked at."""
    kept, found = ARMS[name].kept(constraint), arm.constraint
    require_equal(f"{name} was trained as its name says", f"by {arm.by}", f"by {kept}")
    if kept == "free":
        require_equal(f"{name} was trained without constraint", found and found.signs, None)
        return
    measured, required = found and f"{found.variant}, {found.signs}", f"{constraint.variant}, {ARMS[name].signs}"
    require_equal(f"the weights that {name} constrains are those of the study", measured, required)
    assert found is not None
    looked_at = found.layers_checked == len(found.layers) > 0 and found.weights_checked >= found.layers_checked
    measured = f"{found.layers_checked} layers, {found.weights_checked} weights, {len(found.layers)} names"
    require(looked_at, f"constrained weights of {name} were looked at", measured, "every layer by name, and weights")
    held = found.largest_violation == 0 and (found.signs != "non-negative" or found.min_weight >= 0)
    measured = f"violation {found.largest_violation:g}, smallest weight {found.min_weight:g}"
    require(held, f"the constrained weights of {name} have the signs they may have", measured, "no violation")


def _require_same_layers(arms: Arms) -> None:
    """All arms that keep signs keep them in the same layers, and liveness was measured in the same sublayers."""
    layers = {name: arm.constraint.layers for name, arm in arms.items() if arm.constraint}
    sublayers = {name: sorted(arm.sublayers.effective_rank) for name, arm in arms.items()}
    for what, found in (("constrained layers", layers), ("sublayers", sublayers)):
        first = next(iter(found))
        for name, names in found.items():
            require_equal(f"all arms have the same {what}, {name} as {first}", names, found[first])


# -------------------------------------------------------------------------------------------------- the order


def require_order(found: OrderResult, rows: Rows, models: list[str], variant: str) -> None:
    """Every model was asked about the sublayers that the study names, and the result says what its records say."""
    measured = f"{', '.join(found.models)}, {found.variant}"
    require_equal("order examined every model of the study", measured, f"{', '.join(models)}, {variant}")
    recorded = {row["model"]: ModelOrder.model_validate_json(row["order"]) for row in rows}
    follows = recorded == found.models
    require(follows, "what order says follows from its records", "another answer", "that of the records")
    for name, order in found.models.items():
        certificate = order.certificate
        tensors = sum(sublayer.tensors_checked for sublayer in certificate.sublayers)
        require(
            certificate.variant == variant and certificate.tensors_checked == tensors > 0,
            f"weights of {name} were looked at for its order",
            f"{certificate.tensors_checked} tensors ({certificate.variant}), {tensors} in its sublayers",
            f"those of {variant}, and more than none",
        )
