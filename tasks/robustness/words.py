"""What the numbers say in words: generated from them, with intervals, and without ranking anything on one seed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from storage.run_directory import SHORT_FINGERPRINT

TOY_PARAMETERS = 50_000_000
"""Below this a model is called a toy in every table: it shows that the method runs, not what it does."""

MOST_PERPLEXITY = 1e300
"""Just below e^700, at which perplexities are capped."""

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


def models(results: dict[str, Any]) -> list[str]:
    """A line for each model of this study: what its name means."""
    return [f"{name}: {MODELS[name]}" for name in results["models"]]


def the_text(results: dict[str, Any]) -> str:
    """What kind of text it is, and what a source of it is."""
    text = results["configuration"]["text"]
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
        f"Test perplexity: {perplexity(models['base']['perplexity'])} (base), "
        f"{perplexity(models['baseline']['perplexity'])} (baseline arm), "
        f"{perplexity(models['monotonic']['perplexity'])} (monotonic arm). The monotonic arm's loss minus the "
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
        f"in percentage points, relative increase {estimate(difference['relative_increase'], share_points)}"
        + (
            f", success rate {estimate(difference['success_rate'], rate_points)}"
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
    if begun := results["base"].get("init_from"):
        place = f"{begun['study']}/{begun['stage']}/{begun['fingerprint'][:SHORT_FINGERPRINT]}"
        said.append(f"**The pretraining of base began with the weights of {place}** (model.init_from).")
    if results["numerics_changes"]:
        stages = ", ".join(results["numerics_changes"])
        said.append(f"**Numerics changed between attempts of {stages}:** not the bytes of one undisturbed run.")
    first, second = results["numerics"]["baseline"], results["numerics"]["monotonic"]
    both = [key for key in first if key in second]  # one that was begun earlier may list more
    if differing := [f"{key} ({first[key]}, {second[key]})" for key in both if first[key] != second[key]]:
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
            f"A universal adversarial trigger (Wallace et al. 2019, arXiv 1908.07125): one of "
            f"{given['trigger_tokens']} tokens for each model, searched on attack-search "
            f"(restarts x iterations: {given['restarts']} x {given['iterations']}) and judged on {judged}. Only the "
            f"text's own tokens are scored, the first {given['text_tokens']} of each. The control is the mean of "
            f"{given['control_triggers']} random triggers of the same length."
        )
    return (
        f"HotFlip (Ebrahimi et al. 2018, arXiv 1712.06751), for tokens: up to {given['flips']} of each text replaced, "
        f"searched for each text and model, on {judged}, the first {given['text_tokens']} tokens of each. Only tokens "
        "that were not replaced are scored, the same before and after. The control is the mean of "
        f"{given['control_draws']} draws of {given['flips']} random replacements "
        "at random positions."
    )


NATS, SHARE, RATE = "{:+z.4f}".format, "{:+z.2%}".format, "{:.1%}".format
"""How increases of a loss, relative increases and rates are written; zero has no minus."""


def share_points(share: float) -> str:
    """A difference of relative increases, in percentage points."""
    return f"{100 * share:+z.2f}"


def rate_points(share: float) -> str:
    """A difference of rates, in percentage points."""
    return f"{100 * share:+z.1f}"


def perplexity(value: float) -> str:
    """A perplexity; a model that diverged has one of hundreds of digits, and beyond e^700 it was capped."""
    if value >= MOST_PERPLEXITY:
        return "> 1e300"
    return f"{value:,.2f}" if value < 1e6 else f"{value:.2e}".replace("e+0", "e").replace("e+", "e")


def span(interval: Sequence[float] | None, form: Callable[[float], str]) -> str:
    """An interval as text; documents of a single source have none, and one without width tells nothing."""
    if interval is None:
        return "none (one source)"
    return "-" if interval[0] == interval[1] else " to ".join(map(form, interval))


def value(found: dict[str, Any], form: Callable[[float], str]) -> str:
    return form(found["value"])


def estimate(found: dict[str, Any], form: Callable[[float], str]) -> str:
    return f"{value(found, form)} (interval {span(found['interval'], form)})"


def _holds_zero(interval: Sequence[float] | None) -> bool:
    return interval is not None and interval[0] <= 0 <= interval[1]
