"""What the numbers say in words: generated from them, with intervals, and without ranking anything on one seed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from tasks.findings.cautions import begun_with_weights, numerics_changed, numerics_differ
from tasks.findings.numbers import NATS, estimate, percent
from tasks.findings.statistics.power import POWER
from tasks.findings.statistics.resampling import Estimate
from tasks.robustness.answer import (
    ONE_SEED,
    Answered,
    shows_the_control,
)
from tasks.robustness.arm import ALIVE_SHARE, ARMS, BASE, BASELINE, CONTROL, MONOTONIC
from tasks.robustness.final_results import FinalResults, PrimaryAnswer

TOY_PARAMETERS = 50_000_000
"""Below this a model is called a toy in every table: it shows that the method runs, not what it does."""

QUESTION = "Does forcing the feed-forward weights of a language model to be non-negative make it harder to attack?"

MODELS = {
    "unigram": "not a network: predicts every token by how often it occurs in the train split",
    "untrained": "the network with random weights, before its pretraining",
    BASE: "the trained model that all arms start from",
    "constrained-untrained": "where monotonic starts: base with its constrained weights made non-negative, not trained",
    **{name: arm.meaning for name, arm in ARMS.items()},
}
"""Model -> what it is; `base@0.5` is base after half of its training."""

EARLIER_SYSTEM = (
    "The earlier system (Cooper et al., arXiv 2602.02686) reported for pythia-1.4b, as means of three seeds, a "
    "perplexity of 6.72 without and 37.68 with the constraint (|W|, softplus), and hotflip successes of 69.0 % and "
    "42.5 %. Its attacks were scored on the attacker's own tokens too, relative to each model's clean loss. Here "
    "earlier-system is its arm on this study's model, budget and attacks."
)


def models(results: FinalResults) -> list[str]:
    """A line for each model of this study: what its name means."""
    named = [f"{name}: {MODELS[name]}" for name in results.models if "@" not in name]
    kept = [name for name in results.models if "@" in name]
    return named + [f"{name}: {name.split('@')[0]} after that share of its training" for name in kept]


def dead_arms(results: FinalResults) -> list[str]:
    return [name for name, share in results.alive_shares.items() if share < ALIVE_SHARE]


def label(results: FinalResults, model: str) -> str:
    """The name of a model in a table: one whose constrained layers are dead says so in bold, in every table."""
    return f"**{model} (dead)**" if model in dead_arms(results) else model


def pair(results: FinalResults, model: str, reference: str) -> str:
    """The difference of two models, in a table."""
    dead = [name for name in (model, reference) if name in dead_arms(results)]
    return f"**{model} - {reference} (dead: {', '.join(dead)})**" if dead else f"{model} - {reference}"


def compared(results: FinalResults, measure: str, pair_of_models: Sequence[str]) -> str:
    """The name of a secondary comparison in a table, such as `test loss, monotonic - baseline`."""
    name = f"{measure}, {' - '.join(pair_of_models)}"
    dead = [model for model in pair_of_models if model in dead_arms(results)]
    return f"**{name} (dead: {', '.join(dead)})**" if dead else name


def dead_layers(shares: Mapping[str, float]) -> list[str]:
    """Which arms have constrained layers that do nothing; `shares` by arm, of what the baseline's do."""
    dead = [arm for arm, share in shares.items() if share < ALIVE_SHARE]
    if not dead:
        return []
    return [
        f"**The constrained layers of {', '.join(dead)} are dead:** replacing their outputs by the mean costs "
        f"less than {ALIVE_SHARE:.0%} of what it costs the baseline "
        f"({', '.join(f'{arm} {shares[arm]:.1%}' for arm in dead)}). What is measured of such an arm is a network "
        "without these layers, whatever the signs of its weights."
    ]


def alive(shares: Mapping[str, float]) -> list[str]:
    """Whether the constrained layers of each arm do anything."""
    living = [f"{arm} {share:.0%}" for arm, share in shares.items() if share >= ALIVE_SHARE and arm != BASELINE]
    shown = f"The constrained layers live, as a share of what they do in the baseline: {', '.join(living)}."
    return [*dead_layers(shares), *([shown] if living else [])]


def could_be_seen(found: PrimaryAnswer, added: float) -> list[str]:
    """What the study could have shown, beside its margin and what the attack adds to the baseline; and its control."""
    said, margin = [], found.primary.margin_nats_per_token
    if found.answer and found.answer.smallest_shown is not None and not found.answer.too_few_sources:
        least = found.answer.smallest_shown
        said.append(
            f"What could be seen: a true difference of {least:.4f} nats per token is shown with a chance of "
            f"{percent(POWER)}, a smaller one more seldom. {_of_what_is_added(least, margin, added)}"
            + (" So a difference of the margin's size would mostly be missed." if least > margin else "")
        )
    if found.control is None:
        said.append(
            f"No positive control was compared (the arm {CONTROL}): nothing shows that an arm that is harder to attack "
            "would be seen here."
        )
    else:
        shown, row = shows_the_control(found), f"{CONTROL} - baseline {estimate(found.control, NATS)}"
        said.append(
            f"The positive control is shown to be harder to attack ({row}): such a difference is seen here."
            if shown
            else f"**The positive control is not shown to be harder to attack** ({row}): that nothing is shown of "
            "another arm says little."
        )
    return said


def _of_what_is_added(least: float, margin: float, added: float) -> str:
    """The margin is one of the loss: a factor e^margin of the perplexity under attack, whatever the attack adds."""
    of = f"{least / added:.1%} and {margin / added:.1%} of the {NATS(added)} that" if added > 0 else "beside what"
    return (
        f"It and the margin of {margin:g}, which is {math.expm1(margin):.1%} of a perplexity, are {of} the attack adds "
        "to the baseline."
    )


def answered(results: FinalResults) -> Answered:
    """What the study's two sentences are made from."""
    one_training = "one seed says nothing about another training"
    return Answered(results.primary, in_other_ways(results), ONE_SEED, one_training)


def in_other_ways(results: FinalResults) -> dict[str, Estimate | None]:
    """The primary difference by fewer attacks, and by the other measure: what the answer hangs on."""
    found = results.primary
    ways = dict(found.by_fewer_attacks)
    if found.primary.measure == "increase":
        matched = {row.model: row for row in results.attacks.by_name()[found.primary.attack].at_equal_loss}
        ways["at equal clean loss"] = matched[MONOTONIC].increase_nats_per_token
    return ways


def the_text(results: FinalResults) -> str:
    """What kind of text it is, what a source of it is, and whether the model may have seen it before."""
    return f"{_kind_of_text(results.configuration['text'])}{_seen_before(results)}"


def _kind_of_text(text: dict[str, Any]) -> str:
    if text["source"] == "package-docs":
        packages = ", ".join(["Python's standard library", *text["packages"]])
        return f"The text: docstrings of {packages}, each a document. A source is a module file, to which they belong."
    if text["source"] == "files":
        return (
            "The text: local files. A text file is one document and one source; in a table each row is a document "
            "and a source of its own."
        )
    held_out = text.get("held_out")
    evaluated = f"; evaluated on {held_out['dataset']}, revision {held_out['revision']}" if held_out else ""
    return (
        f"The text: {text['dataset']} of the Hugging Face hub, revision {text['revision']}{evaluated}; each document "
        "is a source."
    )


def _seen_before(results: FinalResults) -> str:
    """A model that was pretrained elsewhere may know the text by heart, unless it is evaluated on another."""
    if results.base.source == "from-scratch" or results.configuration["text"].get("held_out"):
        return ""
    return (
        " **The model was pretrained elsewhere, and nothing shows that it has not seen this text before** "
        "(text.held_out names another to evaluate on)."
    )


def what_was_studied(results: FinalResults) -> str:
    """Model, size, test text, seed; a toy is called a toy, and one seed is called one."""
    return (
        f"{model_and_text(results)}, seed {results.seeds[0]}. "
        "One seed: differences describe these trainings and rank nothing."
    )


def model_and_text(results: FinalResults) -> str:
    """Architecture, size and test text; a toy is called a toy."""
    base, split = results.base, results.text["test"]
    toy = " (toy size: shows that the method runs, not what it does to a real model)"
    return (
        f"{base.architecture}, {base.parameters:,} parameters"
        + (toy if base.parameters < TOY_PARAMETERS else "")
        + f". {split.documents:,} test documents of {split.sources:,} sources"
    )


def worse_than_frequencies(results: FinalResults) -> list[str]:
    """That a model has forgotten the language: it cannot be shown to withstand anything."""
    losses = {name: model.loss_nats_per_token for name, model in results.models.items()}
    forgetful = [model for model in (BASE, *results.arms) if losses[model] >= losses["unigram"]]
    if not forgetful:
        return []
    return [
        f"**On the test split {' and '.join(forgetful)} did worse than a table of token frequencies** (unigram, "
        f"{losses['unigram']:.4f} nats per token): a model that predicts nothing has nothing to lose, so a small "
        "effect of an attack on it is no sign that it withstands attacks."
    ]


def cautions(results: FinalResults) -> list[str]:
    """What every table of these results must say: budgets, and numerics that were not the same throughout."""
    return [
        "All arms had the same budget.",
        *_still(results),
        *begun_with_weights(BASE, results.base.init_from),
        *numerics_changed(results.numerics_changes),
        *numerics_differ(results.numerics),
    ]


def _still(results: FinalResults) -> list[str]:
    """Arms whose constrained weights hardly moved: what was trained is the rest of the network."""
    still = {
        name: arm.movement_ratio
        for name, arm in results.arms.items()
        if arm.movement_ratio is not None and arm.movement_ratio < ALIVE_SHARE
    }
    if not still:
        return []
    ratios = ", ".join(f"{name} {ratio:.1%}" for name, ratio in still.items())
    return [
        f"**The constrained weights of {', '.join(still)} hardly moved** (median relative movement, as a share of the "
        f"baseline's: {ratios}): there the rest of the network was trained around them."
    ]


def verified(results: FinalResults) -> str:
    """What was verified of the constrained layers."""
    kept = [(name, arm.constraint) for name, arm in results.arms.items() if arm.constraint]
    return (
        "After training, read from the effective weights: "
        + "; ".join(
            f"{name}: {found.weights_checked:,} weights of {found.layers_checked} layers ({found.variant}), signs "
            f"{found.signs}, none violated, {found.share_of_zeros:.0%} are 0"
            for name, found in kept
        )
        + "."
    )


def about_order(results: FinalResults) -> list[str]:
    """What the table on order does not show: that the constraint restricts nothing where a LayerNorm stands before."""
    if not results.base.architecture.startswith(("GPTNeoX", "GPT2")):
        return []
    return [
        "**Under LayerNorm non-negative feed-forward weights restrict no function** (where its scales are above 0): "
        "rows of the input and columns of the output projection can be moved up by what the network takes away again "
        "(the arm shifted). What differs between arms is where training starts and how it moves, not what can be "
        "computed."
    ]


LIMITS = (
    "Weights are verified, and what follows for the function of a sublayer stands in the table on order. GELU "
    "and SiLU fall for inputs below about -0.75 and -1.28, so weights >= 0 alone make no feed-forward layer monotone.",
    "Attention, embeddings, normalisation and residual connections are not constrained: nothing is claimed about the "
    "model as a function.",
    "Only these two attacks were run, with the budget shown. A stronger search can find more.",
    "The strongest attack is the strongest of two searches on every model. What was found for a model helps against "
    "those that are like it, so one that has few of its kind (an early snapshot) gains less from the others, and its "
    "effect is rather too small beside theirs. Random tokens stand beside as one mean draw, not as the best of many.",
    "Intervals know of other sources of documents; differences under uat of other searches for a trigger too, each "
    "restart being one. hotflip searches each text anew, so that its searches vary with the texts. None knows of other "
    "trainings, which needs several seeds, nor of other draws of the random control; what uat does to one model is "
    "what one trigger does. Where few sources hold most tokens, an interval covers less than it says.",
    "Every text is read behind the tokenizer's end-of-text token, in all models and before every trigger.",
)
