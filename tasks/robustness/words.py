"""Words for the numbers: generated from them, with intervals, and without ranking anything on one seed."""

import math
from collections.abc import Iterable, Mapping
from typing import Any

from tasks.attacks.answer import Answered, answered_once, shows_the_control
from tasks.attacks.configuration import BUDGET_SHARES, TriggerAttack
from tasks.attacks.results import Findings, PrimaryAnswer
from tasks.findings.final_results import begun_with_weights, numerics_changed, numerics_differ
from tasks.findings.numbers import NATS, estimate, holds_zero, percent
from tasks.findings.statistics.power import POWER, chance_of
from tasks.monotonic.arm import ALIVE_SHARE, ARMS, BASE, BASELINE, CONTROL
from tasks.monotonic.result import ArmFacts
from tasks.robustness.final_results import FinalResults

TOY_PARAMETERS = 50_000_000
"""Below this a model is called a toy in every table: it shows that the method runs, not what it does."""
STILL_GROWING = 0.05
"""An attack of which the last part of the budget found more than this share of the increase has not converged."""
LAST_PART = f"{1 - BUDGET_SHARES[-2]:.0%}"
"""The part of the budget of which it is asked what it still found."""
MORE_WOULD_BE_FOUND = "A larger budget would find more, and may find another difference."

QUESTION = "Does forcing the feed-forward weights of a language model to be non-negative make it harder to attack?"
ATTACK_TITLES = {
    "uat": "uat (universal adversarial trigger): one trigger in front of every text",
    "hotflip": "hotflip: a few tokens of each text replaced",
}
MODELS = {
    "unigram": "not a network: predicts every token by how often it occurs in the train split",
    "untrained": "the network with random weights, before its pretraining",
    BASE: "the trained model that all arms start from",
    "constrained-untrained": "where monotonic starts: base with its constrained weights made non-negative, not trained",
    **{name: arm.meaning for name, arm in ARMS.items()},
}
"""Model -> what it is; `base@0.5` is base after half of its training."""
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
    "The earlier system (Cooper et al., arXiv 2602.02686) reported for pythia-1.4b, as means of three seeds, a "
    "perplexity of 6.72 without and 37.68 with the constraint (|W|, softplus), and hotflip successes of 69.0 % and "
    "42.5 %. Its attacks were scored on the attacker's own tokens too, relative to each model's clean loss. Here "
    "earlier-system is its arm on this study's model, budget and attacks.",
)


def answered(results: FinalResults) -> Answered:
    """Basis of the study's answer."""
    return answered_once(results.primary, results.attacks)


# ------------------------------------------------------------------------------------------- what was studied


def models(results: FinalResults) -> list[str]:
    """A line for each model of this study: what its name means."""
    named = [f"{name}: {MODELS[name]}" for name in results.models if "@" not in name]
    kept = [name for name in results.models if "@" in name]
    return named + [f"{name}: {name.split('@')[0]} after that share of its training" for name in kept]


def model_and_text(results: FinalResults) -> str:
    """Architecture, size and test text; a toy is called a toy."""
    base, split = results.base, results.text["test"]
    toy = " (toy size: shows that the method runs, not what it does to a real model)"
    return (
        f"{base.architecture}, {base.parameters:,} parameters{toy if base.parameters < TOY_PARAMETERS else ''}. "
        f"{split.documents:,} test documents of {split.sources:,} sources"
    )


def the_text(results: FinalResults) -> str:
    """Kind of text, what a source of it is, and whether the model may have seen it before.

    A model that was pretrained elsewhere may know the text by heart, unless it is evaluated on another.
    """
    text = results.configuration["text"]
    if results.base.source == "from-scratch" or text.get("held_out"):
        return _kind_of_text(text)
    return (
        f"{_kind_of_text(text)} **The model was pretrained elsewhere, and nothing shows that it has not seen this text "
        "before** (text.held_out names another to evaluate on)."
    )


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


def same_budget(results: FinalResults) -> str:
    """Budget that every arm spent, or the gate would have refused."""
    arm = results.arms[BASELINE]
    return f"All arms had the same budget: {arm.steps:,} steps on {arm.tokens_trained:,} tokens each."


def how_attacked(findings: Findings, results: FinalResults) -> str:
    """One paragraph on what an attack does, with its settings."""
    attack, split, sources = findings.attack, results.text[findings.split], findings.effects[BASE].sources
    spent = findings.costs[BASE]
    cost = (
        f"The search on a model took {spent.forward_sequences:,} forwards, {spent.backward_sequences:,} of them "
        f"with a backward, and blind search {spent.blind_forward_sequences:,}, the same for all {len(findings.costs)} "
        "models."
    )
    judged = (
        f"{findings.documents:,} of the {split.documents:,} documents of {findings.split}, from {sources:,} sources"
    )
    if isinstance(attack, TriggerAttack):
        return (
            f"A universal adversarial trigger (Wallace et al. 2019, arXiv 1908.07125): one of {attack.trigger_tokens} "
            "tokens for each model, searched on attack-search (restarts x iterations: "
            f"{attack.restarts} x {attack.iterations}) and judged on {judged}. Only the text's own tokens are scored, "
            f"the first {attack.text_tokens} of each. Two controls: the mean of {attack.control_triggers} random "
            "triggers of the same length, and blind search, which tries random replacements, without gradients, at the "
            "same counted cost. Every model faces what both searches found for every model; what counts is the one "
            f"trigger that does most to it on attack-search. {cost}"
        )
    return (
        f"HotFlip (Ebrahimi et al. 2018, arXiv 1712.06751), for tokens: up to {attack.flips} of each text replaced, "
        f"where that raises the loss, searched for each text and model, on {judged}, the first {attack.text_tokens} "
        "tokens of each. Where an attacker may write is drawn beforehand, the same for every model; all other tokens "
        f"are scored, and no others. Two controls: the mean of {attack.control_draws} draws of {attack.flips} random "
        "replacements, and blind search at the same counted cost. Every model faces what both searches found for every "
        f"model; what counts, in each text, are the flips that do most to it. {cost}"
    )


# ------------------------------------------------------------------------------------------ what stands first


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


def collapsed(arms: Mapping[str, ArmFacts]) -> list[str]:
    """Which arms have constrained layers that are dead although replacing them costs something."""
    dead = {name: arm.dead for name, arm in arms.items() if arm.dead and arm.alive_share >= ALIVE_SHARE}
    return [f"**The constrained layers of {name} are dead:** {why}." for name, why in dead.items()]


def alive(shares: Mapping[str, float]) -> list[str]:
    """How much the constrained layers of each arm do, where they do anything."""
    living = {arm: share for arm, share in shares.items() if share >= ALIVE_SHARE and arm != BASELINE}
    line = f"The constrained layers live, as a share of what they do in the baseline: {_listed(living, '{:.0%}')}."
    return [line] if living else []


def worse_than_frequencies(results: FinalResults) -> list[str]:
    """Says that a model has forgotten the language: it cannot be shown to withstand anything."""
    losses = {name: model.loss_nats_per_token for name, model in results.models.items()}
    forgetful = [model for model in (BASE, *results.arms) if losses[model] >= losses["unigram"]]
    if not forgetful:
        return []
    return [
        f"**On the test split {' and '.join(forgetful)} did worse than a table of token frequencies** (unigram, "
        f"{losses['unigram']:.4f} nats per token): a model that predicts nothing has nothing to lose, so a small "
        "effect of an attack on it is no sign that it withstands attacks."
    ]


def masked(attacks: Mapping[str, Findings]) -> list[str]:
    """Says that a gradient search found no more than blind search: its numbers then say nothing about the model."""
    return [
        f"**{name}: the gradient search does not beat blind search at equal cost on {', '.join(weak)}.** Its gradients "
        "mislead there (masking): a small effect is no sign that the model withstands attacks."
        for name, findings in attacks.items()
        if (weak := findings.beaten_by_blind_search)
    ]


def still_growing(findings: Findings) -> dict[str, float]:
    """Models on which the search had not converged, each with the share of its increase that was found last."""
    found = {}
    for model, effect in findings.effects.items():
        *_, before, last = (increase.value for increase in effect.budget_increases)
        if last > 0 and (last - before) / last > STILL_GROWING:
            found[model] = (last - before) / last
    return found


def unconverged(attacks: Mapping[str, Findings]) -> list[str]:
    """Which attacks would find more with a larger budget; every report says it first."""
    return [
        f"**{name} has not converged:** the last {LAST_PART} of its budget, the same for every model, still found this "
        f"share of what the search on each model found: {_listed(growing, '{:.0%}')}. {MORE_WOULD_BE_FOUND}"
        for name, findings in attacks.items()
        if (growing := still_growing(findings))
    ]


def _listed(of_models: Mapping[str, float], form: str) -> str:
    return ", ".join(f"{model} {form.format(value)}" for model, value in of_models.items())


def could_be_seen(found: PrimaryAnswer, added: float) -> Iterable[str]:
    """Power of the study, beside its margin and what the attack adds to the baseline; and its control.

    The margin is one of the loss: a factor e^margin of the perplexity under attack, whatever the attack adds.
    """
    margin = found.primary.margin_nats_per_token
    if found.answer and found.answer.smallest_shown is not None and not found.answer.too_few_sources:
        least = found.answer.smallest_shown
        chance = f"{chance_of(margin, least, found.answer.confidence_level):.0%}"
        shares = (
            f"{least / added:.1%} and {margin / added:.1%} of the {NATS(added)} that" if added > 0 else "beside what"
        )
        yield (
            f"What could be seen: a true difference of {least:.4f} nats per token is shown with a chance of "
            f"{percent(POWER)}, a smaller one more seldom. It and the margin of {margin:g}, which is "
            f"{math.expm1(margin):.1%} of a perplexity, are {shares} the attack adds to the baseline."
            + (
                f" A difference of the margin's size is shown with a chance of about {chance}."
                if least > margin
                else ""
            )
        )
    row = f"{CONTROL} - baseline {estimate(found.control, NATS)}" if found.control else ""
    if not row:
        yield (
            f"No positive control was compared (the arm {CONTROL}): nothing shows that an arm that is harder to attack "
            "would be seen here."
        )
    elif shows_the_control(found):
        yield f"The positive control is shown to be harder to attack ({row}): such a difference is seen here."
    else:
        yield (
            f"**The positive control is not shown to be harder to attack** ({row}): that nothing is shown of another "
            "arm says little."
        )


def rounded(results: FinalResults) -> list[str]:
    """Which differences of the test loss are too near to nothing for the precision of the losses."""
    means = {name: abs(of.mean_nats_per_token) for name, of in results.rounded.items()}
    near = [
        f"{row.model} - {row.reference} ({moved:.1e})"
        for row in results.differences
        if means and (moved := means[row.model] + means[row.reference]) >= min(map(abs, row.interval_nats_per_token))
    ]
    if not near:
        return []
    return [
        f"**Test losses in {results.evaluation_precision} do not decide {', '.join(near)}:** it may move each by so "
        "many nats per token, and an end of its interval is as near to 0. In fp32 they would be decided."
    ]


def cautions(results: FinalResults) -> list[str]:
    """Weights that hardly moved, and numerics that were not the same throughout."""
    ratios = {name: arm.movement_ratio for name, arm in results.arms.items() if arm.movement_ratio is not None}
    still = {name: ratio for name, ratio in ratios.items() if ratio < ALIVE_SHARE}
    hardly = (
        f"**The constrained weights of {', '.join(still)} hardly moved** (median relative movement, as a share of the "
        f"baseline's: {_listed(still, '{:.1%}')}): there the rest of the network was trained around them."
    )
    return [
        *([hardly] if still else []),
        *begun_with_weights(BASE, results.base.init_from),
        *numerics_changed(results.numerics_changes),
        *numerics_differ(results.numerics),
    ]


# ---------------------------------------------------------------------------------------- how to read the rest


def attack_cautions(results: FinalResults) -> Iterable[str]:
    """How the attacks' numbers must be read, as far as it follows from these numbers."""
    yield (
        "A relative increase and a success divide by the model's own clean loss, so the same nats count less for a "
        "model that predicts badly to begin with: read them beside the increase in nats per token and the clean loss."
    )
    margin = results.primary.primary.margin_nats_per_token
    for name, findings in results.attacks.items():
        effects = findings.effects
        gaps = {
            model: effect.increase_nats_per_token.value - effect.search_increase_nats_per_token.value
            for model, effect in effects.items()
        }
        if missed := {model: gap for model, gap in gaps.items() if gap >= margin}:
            yield (
                f"{name}: what other searches found does more than the gradient search on the model itself, by the "
                f"margin or more, in nats per token: {_listed(missed, '{:+.4f}')}. So a search depends on luck, and "
                "even the strongest attack may miss as much."
            )
        ranks = {model: rank for model, rank in findings.rank_correlation.items() if rank is not None and rank < 0}
        if ranks:
            yield (
                f"{name}: the rank correlation of the gradient's estimate and the exact effect is negative on "
                f"{_listed(ranks, '{:+.2f}')}: among the candidates that were tried, which are the best by the "
                "estimate, those with a lower one tended to do more. So the estimate chooses what is tried, and does "
                "not rank it."
            )
        if any(effect.sources < 2 for effect in effects.values()):
            yield f"All documents of {name} come from one source: its numbers have no interval."
        same = [
            model
            for model, effect in effects.items()
            if holds_zero(effect.attack_minus_control_nats_per_token.interval)
        ]
        if same:
            yield (
                f"{name} is not told apart from random tokens on {', '.join(same)}: the interval of attack minus "
                "control holds zero."
            )


def about_order(results: FinalResults) -> list[str]:
    """Adds to the table on order that the constraint restricts nothing where a LayerNorm stands before."""
    if not results.base.architecture.startswith(("GPTNeoX", "GPT2")):
        return []
    return [
        "**Under LayerNorm non-negative feed-forward weights restrict no function** (where its scales are above 0): "
        "rows of the input and columns of the output projection can be moved up by what the network takes away again "
        "(the arm shifted). What differs between arms is where training starts and how it moves, not what can be "
        "computed."
    ]
