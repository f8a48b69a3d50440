"""What the attacks' numbers say in words, how they were attacked, and how to read them."""

from __future__ import annotations

from collections.abc import Mapping

from tasks.attacks.configuration import BUDGET_SHARES
from tasks.findings.numbers import holds_zero
from tasks.robustness.arm import BASE
from tasks.robustness.comparisons import beaten_by_blind_search
from tasks.robustness.final_results import FinalResults, Findings

ATTACK_TITLES = {
    "uat": "uat (universal adversarial trigger): one trigger in front of every text",
    "hotflip": "hotflip: a few tokens of each text replaced",
}


LAST_PART = f"{1 - BUDGET_SHARES[-2]:.0%}"
"""The part of the budget of which it is asked what it still found."""


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
        f"{attack.text_tokens} of each. Two controls: the mean of {attack.control_triggers} random triggers of the "
        "same length, and blind search, which tries random replacements, without gradients, at the same counted cost. "
        "Every model faces what both searches found for every model; what counts is the one trigger that does most "
        "to it on attack-search."
    )


def _how_hotflip_attacked(results: FinalResults) -> str:
    attack = results.attacks.hotflip.attack
    return (
        f"HotFlip (Ebrahimi et al. 2018, arXiv 1712.06751), for tokens: up to {attack.flips} of each text replaced, "
        f"searched for each text and model, on {_judged(results.attacks.hotflip, results)}, the first "
        f"{attack.text_tokens} tokens of each. Where an attacker may write is drawn beforehand, the same for every "
        "model; all other tokens are scored, and no others. Two controls: the mean of "
        f"{attack.control_draws} draws of {attack.flips} random replacements, and blind search at the same counted "
        "cost. Every model faces what both searches found for every model; what counts, in each text, are the flips "
        "that do most to it."
    )


def _judged(findings: Findings, results: FinalResults) -> str:
    """The documents on which an attack is judged."""
    split, sources = results.text[findings.split], findings.effects[BASE].sources
    return f"{findings.documents:,} of the {split.documents:,} documents of {findings.split}, from {sources:,} sources"


STILL_GROWING = 0.05
"""An attack of which the last part of the budget found more than this share of the increase has not converged."""
MORE_WOULD_BE_FOUND = "A larger budget would find more, and may find another difference."


def unconverged(attacks: Mapping[str, Findings]) -> list[str]:
    """Which attacks would find more with a larger budget; every report says it first."""
    return [
        f"**{name} has not converged:** the last {LAST_PART} of its budget, the same for every model, still found this "
        f"share of what the search on each model found: {_shares(growing)}. {MORE_WOULD_BE_FOUND}"
        for name, findings in attacks.items()
        if (growing := still_growing(findings))
    ]


def still_growing(findings: Findings) -> dict[str, float]:
    """Models on which the search had not converged, each with the share of its increase that was found last."""
    found = {}
    for model, effect in findings.effects.items():
        *_, before, last = (increase.value for increase in effect.budget_increases)
        if last > 0 and (last - before) / last > STILL_GROWING:
            found[model] = (last - before) / last
    return found


def _shares(of_models: Mapping[str, float]) -> str:
    return ", ".join(f"{model} {share:.0%}" for model, share in of_models.items())


def masked(results: FinalResults) -> list[str]:
    """That a gradient search found no more than blind search: its numbers then say nothing about the model."""
    found = []
    for name, findings in results.attacks.by_name().items():
        if weak := beaten_by_blind_search(findings.effects):
            found.append(
                f"**{name}: the gradient search does not beat blind search at equal cost on {', '.join(weak)}.** Its "
                "gradients mislead there (masking): a small effect is no sign that the model withstands attacks."
            )
    return found


def _missed(name: str, results: FinalResults) -> list[str]:
    """Models on which what another search found does more than their own gradient search."""
    margin = results.primary.primary.margin_nats_per_token
    gaps = {
        model: effect.increase_nats_per_token.value - effect.search_increase_nats_per_token.value
        for model, effect in results.attacks.by_name()[name].effects.items()
    }
    weak = ", ".join(f"{model} {gap:+.4f}" for model, gap in gaps.items() if gap >= margin)
    if not weak:
        return []
    return [
        f"{name}: what other searches found does more than the gradient search on the model itself, by the margin or "
        f"more, in nats per token: {weak}. So a search depends on luck, and even the strongest attack may miss as much."
    ]


def attack_cautions(results: FinalResults) -> list[str]:
    """How the attacks' numbers must be read, as far as it follows from these numbers."""
    found = [
        "A relative increase and a success divide by the model's own clean loss, so the same nats count less for a "
        "model that predicts badly to begin with: read them beside the increase in nats per token and the clean loss.",
    ]
    for name, findings in results.attacks.by_name().items():
        found += _missed(name, results) + _misleading_ranks(name, findings)
        if any(effect.sources < 2 for effect in findings.effects.values()):
            found.append(f"All documents of {name} come from one source: its numbers have no interval.")
        same = [
            model
            for model, effect in findings.effects.items()
            if holds_zero(effect.attack_minus_control_nats_per_token.interval)
        ]
        if same:
            found.append(
                f"{name} is not told apart from random tokens on {', '.join(same)}: the interval of attack minus "
                "control holds zero."
            )
    if by_ids := [model for model, found_ in results.attacks.uat.triggers.items() if not found_.trigger_round_trips]:
        found.append(
            f"The trigger of the search on {', '.join(by_ids)} attacks as token ids: written as text and read again it "
            "is other tokens."
        )
    hotflip = results.attacks.hotflip
    found.append(
        "hotflip keeps a replacement only if it raises the loss: tokens replaced in a text on average, by the search "
        "on "
        + ", ".join(f"{model} {flips.mean:.2f}" for model, flips in hotflip.flips.items())
        + "; texts in which none was "
        + ", ".join(f"{model} {flips.unchanged_documents:,}" for model, flips in hotflip.flips.items())
        + "."
    )
    counts = ", ".join(
        f"{model} {count:,} of {hotflip.documents:,}" for model, count in hotflip.round_trips_documents.items()
    )
    found.append(
        "hotflip attacks token ids. Texts that stay the same tokens when written and read again, after the search on "
        f"{counts}."
    )
    return found


def _misleading_ranks(name: str, findings: Findings) -> list[str]:
    """Where the estimate chooses candidates and does not rank them."""
    negative = {model: value for model, value in findings.rank_correlation.items() if value is not None and value < 0}
    if not negative:
        return []
    models = ", ".join(f"{model} {value:+.2f}" for model, value in negative.items())
    return [
        f"{name}: the rank correlation of the gradient's estimate and the exact effect is negative on {models}: among "
        "the candidates that were tried, which are the best by the estimate, those with a lower one tended to do more. "
        "So the estimate chooses what is tried, and does not rank it."
    ]
