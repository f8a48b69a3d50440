"""That the trainings of the study are those that it compares: as configured, each its own, and what they left is so."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from storage.errors import require, require_close, require_distinct, require_equal, require_limit
from tasks.language.result import PackedSplit, Training
from tasks.monotonic.configuration import Constraint
from tasks.robustness.arm import ARMS, BASE, BASELINE
from tasks.robustness.checks import ROUNDING_OF
from tasks.robustness.results import ArmResult, BaseResult, SetupResult
from tasks.stage.run import StageInput
from tasks.training.budget import Budget
from tasks.training.logged import require_trained as require_logged
from tasks.training.schedule import Schedule

Arms = Mapping[str, ArmResult]


def require_trainings(
    configured: Mapping[str, Any], stages: Mapping[str, StageInput], text: SetupResult, base: BaseResult, arms: Arms
) -> None:
    """Every training of the study is the one that was asked for; `configured` are the fields of the study."""
    require_distinct_arms(arms)
    require_equal_budgets(arms)
    packed, rates = text.packed["train"], configured["learning_rates"]
    budget = Budget.model_validate(configured["budget"])
    for name, arm in arms.items():
        require_constrained(name, arm, Constraint.model_validate(configured["constraint"]))
        require_trained(name, stages[f"train-{name}"], arm.training, budget, rates, packed)
        require_best_trial(name, arm)
        require_liveness(name, arm)
    require_same_layers(arms)
    if base.training:
        budget = Budget.model_validate(configured["model"]["pretraining"])
        require_trained(BASE, stages["base"], base.training, budget, [], packed)
    _require_base_trained(configured["base_checks"], base)
    shares = [f"{share:g}" for share in configured["snapshots"]]
    kept = {BASE: base.snapshots} | {name: arm.snapshots for name, arm in arms.items()}
    for name, snapshots in kept.items():
        required = shares if name == (BASE if base.training else BASELINE) else []
        require_equal(f"{name} kept a snapshot at each share of its training", list(snapshots), required)


def _require_base_trained(configured: Mapping[str, float], base: BaseResult) -> None:
    """The base model is as much better than what it is compared with as required."""
    found = base.trained_check
    names = ["unigram", "untrained"] if base.training else ["unigram"]
    required = {name: configured[f"max_ratio_to_{name}"] for name in names}
    require_equal("base was held against what is configured", found.required_ratio, required)
    own = found.validation_perplexity["base"]
    follow = {name: own / found.validation_perplexity[name] for name in names}
    require_equal("the ratios of base follow from its perplexities", found.ratio_of_perplexities, follow)
    for name, ratio in follow.items():
        require_limit(f"base is trained, beside {name}", ratio, required[name])
    if training := base.training:
        rounding = ROUNDING_OF["tf32" if training.budget.get("precision") == "tf32" else "fp32"]
        loss = training.best_validation_loss_nats_per_token
        kept = "the perplexity of base is that of its best validation"
        require_close(kept, math.log(own), loss, rounding * loss)


def require_distinct_arms(arms: Arms) -> None:
    digests = {name: arm.weights_digest for name, arm in arms.items()}
    require_distinct("every arm has weights of its own", digests, "equal digests")


def require_equal_budgets(arms: Arms) -> None:
    """CheckFailed unless the arms really spent what the report's sentence on budgets will state."""
    for name, arm in arms.items():
        require_equal(f"all arms had the same budget, {name} as {BASELINE}", _spent(arm), _spent(arms[BASELINE]))


def _spent(arm: ArmResult) -> dict[str, Any]:
    """Where learning rates were tried out, the trials count, and not which of them was kept."""
    budget = {key: value for key, value in arm.training.budget.items() if key != "learning_rate" or not arm.trials}
    return {
        "budget": budget,
        "trials": sorted(arm.trials),
        "steps": arm.training.steps,
        "tokens": arm.training.tokens_trained,
    }


def require_best_trial(name: str, arm: ArmResult) -> None:
    """Of the learning rates that were tried the one with the lowest validation loss was kept."""
    rate, loss = f"{arm.training.budget['learning_rate']:g}", arm.training.best_validation_loss_nats_per_token
    best = not arm.trials or arm.trials.get(rate) == loss == min(arm.trials.values())
    require(best, f"{name} kept the best of its trials", f"rate {rate}, loss {loss}", arm.trials)


def require_trained(
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
    tokens = sum(schedule.window(step)[2] for step in range(1, training.steps + 1)) * (packed.sequence_length - 1)
    require_equal(f"{what} was trained on the tokens of its steps", training.tokens_trained, tokens)
    perplexity = math.exp(min(training.best_validation_loss_nats_per_token, 700.0))
    follows = f"the best perplexity of {what} follows from its loss"
    require_close(follows, training.best_validation_perplexity, perplexity, 1e-9 * perplexity)


def require_liveness(name: str, arm: ArmResult) -> None:
    """Liveness was measured on the weights that were kept, whose validation loss is known, and its rise follows."""
    live, loss = arm.sublayers, arm.training.best_validation_loss_nats_per_token
    tf32 = arm.training.budget.get("precision") == "tf32"  # which validations are made in too; bf16 is not
    rounding = ROUNDING_OF["tf32" if tf32 else "fp32"] * loss
    what = f"the liveness of {name} was measured at its best validation loss"
    require_close(what, live.loss_nats_per_token, loss, rounding)
    rise = live.loss_with_means_nats_per_token - live.loss_nats_per_token
    require_close(f"the rise of {name} follows from its two losses", live.rise_nats_per_token, rise, 1e-9)


def require_constrained(name: str, arm: ArmResult, constraint: Constraint) -> None:
    """The arm kept the signs that its name says, in layers that the study names, and these were looked at."""
    kept = ARMS[name].kept(constraint)
    require_equal(f"{name} was trained as its name says", f"by {arm.by}", f"by {kept}")
    found = arm.constraint
    if kept == "free":
        require_equal(f"{name} was trained without constraint", found and found.signs, None)
        return
    measured = "nothing" if found is None else f"{found.variant}, {found.signs}"
    required = f"{constraint.variant}, {ARMS[name].signs}"
    require_equal(f"the weights that {name} constrains are those of the study", measured, required)
    assert found is not None
    looked_at = found.layers_checked == len(found.layers) > 0 and found.weights_checked >= found.layers_checked
    measured = f"{found.layers_checked} layers, {found.weights_checked} weights, {len(found.layers)} names"
    require(looked_at, f"constrained weights of {name} were looked at", measured, "every layer by name, and weights")
    held = found.largest_violation == 0 and (found.signs != "non-negative" or found.min_weight >= 0)
    measured = f"violation {found.largest_violation:g}, smallest weight {found.min_weight:g}"
    require(held, f"the constrained weights of {name} have the signs they may have", measured, "no violation")


def require_same_layers(arms: Arms) -> None:
    """All arms that keep signs keep them in the same layers, and liveness was measured in the same sublayers."""
    layers = {name: arm.constraint.layers for name, arm in arms.items() if arm.constraint}
    sublayers = {name: sorted(arm.sublayers.effective_rank) for name, arm in arms.items()}
    for what, found in (("constrained layers", layers), ("sublayers", sublayers)):
        first = next(iter(found))
        for name, names in found.items():
            require_equal(f"all arms have the same {what}, {name} as {first}", names, found[first])
