"""What the numbers say in words: generated from them, with intervals, and without ranking anything on one seed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

TOY_PARAMETERS = 50_000_000
"""Below this a model is called a toy in every table: it shows that the method runs, not what it does."""

ATTACK_TITLES = {
    "uat": "uat: one trigger in front of every text",
    "hotflip": "hotflip: a few tokens of each text replaced",
}


def what_was_studied(results: dict[str, Any]) -> str:
    """Model, size, test text, seed; a toy is called a toy, and one seed is called one."""
    return (
        f"{model_and_text(results)}, seed {results['seeds'][0]}. "
        "One seed: differences describe these two trainings and rank nothing."
    )


def model_and_text(results: dict[str, Any]) -> str:
    """Architecture, size and test text; a toy is called a toy."""
    base, split = results["base"], results["text"]["test"]
    toy = " (toy size: shows that the method runs, not what it does to a real model)"
    return (
        f"{base['architecture']}, {base['parameters']:,} parameters"
        + (toy if base["parameters"] < TOY_PARAMETERS else "")
        + f". {split['documents']:,} test documents of {split['sources']:,} sources"
    )


def facts(results: dict[str, Any]) -> list[str]:
    """The main numbers as sentences: what the constraint costs, what each attack did, what lies between the arms."""
    models, (*_, cost) = results["models"], results["differences"]
    low, high = cost["interval_nats_per_token"]
    said = [
        f"Test perplexity: {models['base']['perplexity']:,.2f} (base), {models['baseline']['perplexity']:,.2f} "
        f"(baseline arm), {models['monotonic']['perplexity']:,.2f} (monotonic arm). The monotonic arm's loss minus the "
        f"baseline arm's is {cost['difference_nats_per_token']:+.4f} nats per token "
        f"({cost['confidence_level']:.0%} interval {low:+.4f} to {high:+.4f})."
    ]
    said += [caution.replace("**", "") for caution in worse_than_frequencies(results)]
    return said + [sentence for name, attack in results["attacks"].items() for sentence in _attack_facts(name, attack)]


def worse_than_frequencies(results: dict[str, Any]) -> list[str]:
    """A model that has forgotten the language cannot be shown to withstand anything: said wherever it is so."""
    losses = {name: model["loss_nats_per_token"] for name, model in results["models"].items()}
    forgetful = [model for model in ("base", "baseline", "monotonic") if losses[model] >= losses["unigram"]]
    if not forgetful:
        return []
    return [
        f"**On the test split {' and '.join(forgetful)} did worse than a table of token frequencies** (unigram, "
        f"{losses['unigram']:.4f} nats per token): a model that predicts nothing has nothing to lose, so a small "
        "effect of an attack on it is no sign that it withstands attacks."
    ]


def _attack_facts(name: str, attack: dict[str, Any]) -> list[str]:
    said = [
        f"{name} on {model}: loss {effect['clean_loss_nats_per_token']:.4f} clean and "
        f"{effect['attacked_loss_nats_per_token']:.4f} attacked, "
        f"{estimate(effect['increase_nats_per_token'], NATS)} nats per token, "
        f"{value(effect['relative_increase'], SHARE)}; random control "
        f"{value(effect['control_increase_nats_per_token'], NATS)}" + _success_fact(effect, attack["attack"]) + "."
        for model, effect in attack["effects"].items()
    ]
    difference = attack["differences"][-1]
    return [
        *said,
        f"{name}, monotonic minus baseline: increase {estimate(difference['increase_nats_per_token'], NATS)} nats per "
        f"token; beyond the random control {estimate(difference['attack_minus_control_nats_per_token'], NATS)}; "
        f"relative increase {estimate(difference['relative_increase'], SHARE)}"
        + (
            f"; success rate {estimate(difference['success_rate'], RATE_DIFFERENCE)}"
            if "success_rate" in difference
            else ""
        )
        + ".",
    ]


def _success_fact(effect: dict[str, Any], settings: dict[str, Any]) -> str:
    if "success_rate" not in effect:
        return ""
    return (
        f"; more than {settings['success_relative_increase']:.0%} on {estimate(effect['success_rate'], RATE)} of "
        f"{effect['documents']:,} texts, random control {value(effect['control_success_rate'], RATE)}"
    )


def cautions(results: dict[str, Any]) -> list[str]:
    """What every table of these results must say: budgets, and numerics that were not the same throughout."""
    reason = results["unequal_budgets_reason"]
    said = [f"**The arms had unequal budgets:** {reason}" if reason else "Both arms had the same budget."]
    said += worse_than_frequencies(results)
    if results["numerics_changes"]:
        stages = ", ".join(results["numerics_changes"])
        said.append(f"**Numerics changed between attempts of {stages}:** not the bytes of one undisturbed run.")
    first, second = results["numerics"]["baseline"], results["numerics"]["monotonic"]
    if differing := [f"{key} ({first[key]}, {second[key]})" for key in first if first[key] != second.get(key)]:
        said.append(f"**The arms ran on different numerics** (baseline, monotonic): {', '.join(differing)}.")
    return said


def attack_cautions(results: dict[str, Any]) -> list[str]:
    """How the attacks' numbers must be read, as far as it follows from these numbers."""
    said = [
        "A relative increase and a success divide by the model's own clean loss, so the same nats count less for a "
        "model that predicts badly to begin with: read them beside the increase in nats per token and the clean loss.",
    ]
    for name, attack in results["attacks"].items():
        level = next(iter(attack["effects"].values()))["confidence_level"]
        not_told_apart = [
            model
            for model, effect in attack["effects"].items()
            if _holds_zero(effect["attack_minus_control_nats_per_token"]["interval"])
        ]
        if not_told_apart:
            said.append(
                f"{name} is not told apart from random tokens on {', '.join(not_told_apart)}: the {level:.0%} interval "
                "of attack minus control holds zero."
            )
        if any(effect["sources"] < 2 for effect in attack["effects"].values()):
            said.append(f"All documents of {name} come from one source: its numbers have no interval.")
    triggers = results["attacks"]["uat"]["models"]
    if by_ids := [model for model, found in triggers.items() if not found["trigger_round_trips"]]:
        said.append(
            f"The trigger of {', '.join(by_ids)} attacks as token ids: written as text and read again it is other "
            "tokens."
        )
    made = results["attacks"]["hotflip"]["flips"]
    said.append(
        "hotflip keeps a replacement only if it raises the loss: tokens replaced in a text on average "
        + ", ".join(f"{model} {found['mean']:.2f}" for model, found in made.items())
        + "; texts in which none was "
        + ", ".join(f"{model} {found['unchanged_documents']:,}" for model, found in made.items())
        + ". The control replaces the same tokens for every model, as many as the attack may."
    )
    kept = results["attacks"]["hotflip"]["round_trips_documents"]
    documents = results["attacks"]["hotflip"]["documents"]
    counts = ", ".join(f"{model} {count:,} of {documents:,}" for model, count in kept.items())
    said.append(f"hotflip attacks token ids. Texts that stay the same tokens when written and read again: {counts}.")
    return said


def verified(results: dict[str, Any]) -> str:
    """What was looked at in the constrained layers."""
    constraint = results["constraint"]
    return (
        f"{constraint['layers_checked']} layers ({constraint['variant']}), "
        f"{constraint['weights_checked']:,} effective weights, all >= 0 after training "
        f"(smallest {constraint['min_weight']:.3g}); "
        f"{results['share_of_signs_changed']:.1%} of them changed sign when they were constrained."
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


def how_attacked(name: str, results: dict[str, Any]) -> str:
    """One paragraph on what an attack does, with its settings."""
    attack = results["attacks"][name]
    given, split = attack["attack"], results["text"][attack["split"]]
    effect = attack["effects"]["base"]
    judged = (
        f"{attack['documents']:,} of the {split['documents']:,} documents of {attack['split']}, from "
        f"{effect['sources']:,} sources"
    )
    if name == "uat":
        return (
            f"One trigger of {given['trigger_tokens']} tokens for each model, searched on attack-search "
            f"(restarts x iterations: {given['restarts']} x {given['iterations']}) and judged on {judged}. Only the "
            f"text's own tokens are scored, the first {given['text_tokens']} of each. The control is the mean of "
            f"{given['control_triggers']} random triggers of the same length."
        )
    return (
        f"Up to {given['flips']} tokens of each text replaced, searched for each text and model, on {judged}, the "
        f"first {given['text_tokens']} tokens of each. Only tokens that were not replaced are scored, the same before "
        f"and after. The control is the mean of {given['control_draws']} draws of {given['flips']} random replacements "
        "at random positions."
    )


NATS, SHARE, RATE, RATE_DIFFERENCE = "{:+z.4f}", "{:+z.2%}", "{:.1%}", "{:+z.1%}"
"""How increases of a loss, relative increases, rates and their differences are written; zero has no minus."""


def span(interval: Sequence[float] | None, form: str) -> str:
    """An interval as text; documents of a single source have none."""
    return "none (one source)" if interval is None else " to ".join(form.format(bound) for bound in interval)


def value(found: dict[str, Any], form: str) -> str:
    return form.format(found["value"])


def estimate(found: dict[str, Any], form: str) -> str:
    return f"{value(found, form)} (interval {span(found['interval'], form)})"


def _holds_zero(interval: Sequence[float] | None) -> bool:
    return interval is not None and interval[0] <= 0 <= interval[1]
