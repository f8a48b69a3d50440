"""What the numbers say in words: generated from them, with intervals, and without ranking anything on one seed."""

from __future__ import annotations

from tasks.report.cautions import begun_with_weights, numerics_changed, numerics_differ, plain
from tasks.report.numbers import NATS, RATE, SHARE, estimate, holds_zero, perplexity, rate_points, share_points
from tasks.robustness.final_results import FinalResults, Findings, UatFindings
from tasks.statistics.effects import EffectDifferenceWithSuccess

TOY_PARAMETERS = 50_000_000
"""Below this a model is called a toy in every table: it shows that the method runs, not what it does."""

QUESTION = "Does forcing the feed-forward weights of a language model to be non-negative make it harder to attack?"

ATTACK_TITLES = {
    "uat": "uat (universal adversarial trigger): one trigger in front of every text",
    "hotflip": "hotflip: a few tokens of each text replaced",
}

MODELS = {
    "unigram": "not a network: predicts every token by how often it occurs in the train split",
    "untrained": "the network with random weights, before its pretraining",
    "base": "the trained model that both arms start from",
    "constrained-untrained": "base with its weights made non-negative, before any further training",
    "baseline": "base trained further, without constraint",
    "monotonic": "constrained-untrained trained further, its weights kept non-negative",
}
"""Model -> what it is."""


def models(results: FinalResults) -> list[str]:
    """A line for each model of this study: what its name means."""
    return [f"{name}: {MODELS[name]}" for name in results.models]


def the_text(results: FinalResults) -> str:
    """What kind of text it is, and what a source of it is."""
    text = results.configuration["text"]
    if text["source"] == "package-docs":
        packages = ", ".join(["Python's standard library", *text["packages"]])
        return f"The text: docstrings of {packages}, each a document. A source is a module file, to which they belong."
    if text["source"] == "files":
        return (
            "The text: local files. A text file is one document and one source; in a table each row is a document "
            "and a source of its own."
        )
    return (
        f"The text: {text['dataset']} of the Hugging Face hub, revision {text['revision']}; each document is a source."
    )


def what_was_studied(results: FinalResults) -> str:
    """Model, size, test text, seed; a toy is called a toy, and one seed is called one."""
    return (
        f"{model_and_text(results)}, seed {results.seeds[0]}. "
        "One seed: differences describe these two trainings and rank nothing."
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


def facts(results: FinalResults) -> list[str]:
    """The main numbers as sentences: what the constraint costs, what each attack did, what lies between the arms."""
    models, (*_, cost) = results.models, results.differences
    low, high = cost.interval_nats_per_token
    sentences = [
        f"Test perplexity: {perplexity(models['base'].perplexity)} (base), "
        f"{perplexity(models['baseline'].perplexity)} (baseline arm), "
        f"{perplexity(models['monotonic'].perplexity)} (monotonic arm). The monotonic arm's loss minus the "
        f"baseline arm's is {cost.difference_nats_per_token:+.4f} nats per token "
        f"({cost.confidence_level:.0%} interval {low:+.4f} to {high:+.4f})."
    ]
    sentences += map(plain, worse_than_frequencies(results))
    sentences += _attack_facts("uat", results.attacks.uat)
    return sentences + _attack_facts("hotflip", results.attacks.hotflip)


def worse_than_frequencies(results: FinalResults) -> list[str]:
    """That a model has forgotten the language: it cannot be shown to withstand anything."""
    losses = {name: model.loss_nats_per_token for name, model in results.models.items()}
    forgetful = [model for model in ("base", "baseline", "monotonic") if losses[model] >= losses["unigram"]]
    if not forgetful:
        return []
    return [
        f"**On the test split {' and '.join(forgetful)} did worse than a table of token frequencies** (unigram, "
        f"{losses['unigram']:.4f} nats per token): a model that predicts nothing has nothing to lose, so a small "
        "effect of an attack on it is no sign that it withstands attacks."
    ]


def _attack_facts(name: str, findings: Findings) -> list[str]:
    sentences = [
        f"{name} on {model}: loss {effect.clean_loss_nats_per_token:.4f} clean and "
        f"{effect.attacked_loss_nats_per_token:.4f} attacked, "
        f"{estimate(effect.increase_nats_per_token, NATS)} nats per token, "
        f"{SHARE(effect.relative_increase.value)}; random control "
        f"{NATS(effect.control_increase_nats_per_token.value)}{_success_fact(findings, model)}."
        for model, effect in findings.effects.items()
    ]
    difference = findings.differences[-1]
    sentences.append(
        f"{name}, monotonic minus baseline: increase {estimate(difference.increase_nats_per_token, NATS)} nats per "
        f"token; beyond the random control {estimate(difference.attack_minus_control_nats_per_token, NATS)}; "
        f"in percentage points, relative increase {estimate(difference.relative_increase, share_points)}"
        + (
            f", success rate {estimate(difference.success_rate, rate_points)}"
            if isinstance(difference, EffectDifferenceWithSuccess)
            else ""
        )
        + "."
    )
    return sentences


def _success_fact(findings: Findings, model: str) -> str:
    if isinstance(findings, UatFindings):
        return ""
    effect, threshold = findings.effects[model], findings.attack.success_relative_increase
    return (
        f"; more than {threshold:.0%} on {estimate(effect.success_rate, RATE)} of {effect.documents:,} texts, "
        f"random control {RATE(effect.control_success_rate.value)}"
    )


def cautions(results: FinalResults) -> list[str]:
    """What every table of these results must say: budgets, and numerics that were not the same throughout."""
    reason = results.unequal_budgets_reason
    return [
        f"**The arms had unequal budgets:** {reason}" if reason else "Both arms had the same budget.",
        *worse_than_frequencies(results),
        *begun_with_weights("base", results.base.init_from),
        *numerics_changed(results.numerics_changes),
        *numerics_differ({"baseline": results.numerics.baseline, "monotonic": results.numerics.monotonic}),
    ]


def attack_cautions(results: FinalResults) -> list[str]:
    """How the attacks' numbers must be read, as far as it follows from these numbers."""
    found = [
        "A relative increase and a success divide by the model's own clean loss, so the same nats count less for a "
        "model that predicts badly to begin with: read them beside the increase in nats per token and the clean loss.",
    ]
    for name, findings in results.attacks.by_name().items():
        found += _control_cautions(name, findings)
    if by_ids := [model for model, trigger in results.attacks.uat.models.items() if not trigger.trigger_round_trips]:
        found.append(
            f"The trigger of {', '.join(by_ids)} attacks as token ids: written as text and read again it is other "
            "tokens."
        )
    hotflip = results.attacks.hotflip
    found.append(
        "hotflip keeps a replacement only if it raises the loss: tokens replaced in a text on average "
        + ", ".join(f"{model} {flips.mean:.2f}" for model, flips in hotflip.flips.items())
        + "; texts in which none was "
        + ", ".join(f"{model} {flips.unchanged_documents:,}" for model, flips in hotflip.flips.items())
        + ". The control replaces the same tokens for every model, as many as the attack may."
    )
    counts = ", ".join(
        f"{model} {count:,} of {hotflip.documents:,}" for model, count in hotflip.round_trips_documents.items()
    )
    found.append(f"hotflip attacks token ids. Texts that stay the same tokens when written and read again: {counts}.")
    return found


def _control_cautions(name: str, findings: Findings) -> list[str]:
    """Models on which an attack does no more than its random control, and documents that give no interval."""
    found = []
    alike = [
        model
        for model, effect in findings.effects.items()
        if holds_zero(effect.attack_minus_control_nats_per_token.interval)
    ]
    if alike:
        level = findings.effects[alike[0]].confidence_level
        found.append(
            f"{name} is not told apart from random tokens on {', '.join(alike)}: the {level:.0%} interval "
            "of attack minus control holds zero."
        )
    if any(effect.sources < 2 for effect in findings.effects.values()):
        found.append(f"All documents of {name} come from one source: its numbers have no interval.")
    return found


def verified(results: FinalResults) -> str:
    """What was verified of the constrained layers."""
    constraint = results.constraint
    return (
        f"{constraint.layers_checked} layers ({constraint.variant}), "
        f"{constraint.weights_checked:,} effective weights, all >= 0 after training "
        f"(smallest {constraint.min_weight:.3g}); "
        f"{results.share_of_signs_changed:.1%} of them changed sign when they were constrained."
    )


LIMITS = (
    "GELU and SiLU, the activations of GPT-NeoX and of Llama, are not monotone (they fall for inputs below about -0.75 "
    "and -1.28), so weights >= 0 do not make even one of their feed-forward layers a monotone function. Weights are "
    "verified; nothing is claimed about functions.",
    "Attention, embeddings, normalisation and residual connections are not constrained.",
    "Only these two attacks were run, with the budget shown. A stronger search can find more.",
    "Intervals resample the sources of the documents. They do not hold the variation between trainings, or between "
    "searches for an attack, which needs several seeds; nor that between draws of the random control, of which there "
    "are a few. The control is tried once and the attack many times: what lies between them is the whole search, "
    "gradient and selection alike.",
    "Every text is read behind the tokenizer's end-of-text token, in all models and before every trigger.",
)


def how_attacked(name: str, results: FinalResults) -> str:
    """One paragraph on what an attack does, with its settings."""
    if name == "uat":
        return _how_uat_attacked(results)
    return _how_hotflip_attacked(results)


def _how_uat_attacked(results: FinalResults) -> str:
    attack = results.attacks.uat.attack
    return (
        f"A universal adversarial trigger (Wallace et al. 2019, arXiv 1908.07125): one of "
        f"{attack.trigger_tokens} tokens for each model, searched on attack-search "
        f"(restarts x iterations: {attack.restarts} x {attack.iterations}) and judged on "
        f"{_judged(results.attacks.uat, results)}. Only the text's own tokens are scored, the first "
        f"{attack.text_tokens} of each. The control is the mean of {attack.control_triggers} random triggers of the "
        "same length."
    )


def _how_hotflip_attacked(results: FinalResults) -> str:
    attack = results.attacks.hotflip.attack
    return (
        f"HotFlip (Ebrahimi et al. 2018, arXiv 1712.06751), for tokens: up to {attack.flips} of each text replaced, "
        f"searched for each text and model, on {_judged(results.attacks.hotflip, results)}, the first "
        f"{attack.text_tokens} tokens of each. Only tokens that were not replaced are scored, the same before and "
        f"after. The control is the mean of {attack.control_draws} draws of {attack.flips} random replacements at "
        "random positions."
    )


def _judged(findings: Findings, results: FinalResults) -> str:
    """The documents on which an attack is judged."""
    split, sources = results.text[findings.split], findings.effects["base"].sources
    return f"{findings.documents:,} of the {split.documents:,} documents of {findings.split}, from {sources:,} sources"
