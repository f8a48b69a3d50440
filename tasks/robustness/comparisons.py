"""What is compared with what: effects of the attacks, at equal clean loss too, the primary answer, and all the rest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, overload

from tasks.attacks.effects import (
    MEASURES,
    Effect,
    EffectDifference,
    attack_effect,
    paired_effects,
    paired_effects_over_searches,
)
from tasks.attacks.losses import LossDifference, paired_difference
from tasks.attacks.matched import matched_difference
from tasks.findings.statistics.configuration import Evaluation, Primary
from tasks.findings.statistics.equivalence import answer
from tasks.findings.statistics.holm import holm
from tasks.findings.statistics.permutation import least_p_value
from tasks.findings.statistics.resampling import Estimate
from tasks.robustness.arm import ALIVE_SHARE, BASE, BASELINE, CONTROL, MONOTONIC, placebos
from tasks.robustness.final_results import (
    ArmFacts,
    Attacks,
    Cost,
    FlipsMade,
    HotFlipFindings,
    PrimaryFinding,
    Tested,
    UatFindings,
)
from tasks.robustness.results import HotFlipResult, UatResult
from tasks.robustness.strongest import Tried

Rows = list[dict[str, Any]]
Pairs = Sequence[tuple[str, str]]


def flat(records: Mapping[str, Rows]) -> Rows:
    """The records of all models."""
    return [row for own in records.values() for row in own]


def test_differences(records: Mapping[str, Rows], pairs: Pairs, how: Evaluation) -> list[LossDifference]:
    """Differences of the clean loss on the test split."""
    rows = flat(records)
    return [paired_difference(rows, *pair, how.bootstrap_resamples, how.confidence_level) for pair in pairs]


@overload
def attack_findings(found: Mapping[str, UatResult], tried: Tried, pairs: Pairs, how: Evaluation) -> UatFindings: ...


@overload
def attack_findings(
    found: Mapping[str, HotFlipResult], tried: Tried, pairs: Pairs, how: Evaluation
) -> HotFlipFindings: ...


def attack_findings(
    found: Mapping[str, Any], tried: Tried, pairs: Pairs, how: Evaluation
) -> UatFindings | HotFlipFindings:
    """What an attack did to each model, the differences between models, and what it cost."""
    records, settings = tried.strongest(), (how.bootstrap_resamples, how.confidence_level)
    rows, searches, alone = flat(records), tried.over_searches(Tried.strongest), tried.over_searches(Tried.alone)
    first = next(iter(found.values()))
    threshold = first.attack.success_relative_increase if isinstance(first, HotFlipResult) else None
    arms = [model for model in found if "@" not in model and model not in (BASE, BASELINE)]
    shared = {
        "split": first.split,
        "documents": first.documents,
        "attack": first.attack,
        "attacked_by": {model: _attacked_by(records[model]) for model in found},
        "effects": {model: attack_effect(rows, model, *settings, threshold) for model in found},
        "differences": [difference_of(searches, *pair, how, threshold) for pair in pairs],
        "at_equal_loss": [matched_difference(searches, arm, line_of_training(found), *settings) for arm in arms],
        "at_equal_loss_alone": [matched_difference(alone, arm, line_of_training(found), *settings) for arm in arms],
        "rank_correlation": {model: result.rank_correlation for model, result in found.items()},
        "records_digests": {model: result.records_digest for model, result in found.items()},
    }
    if isinstance(first, UatResult):
        return UatFindings(
            **shared,
            triggers={model: result.gradient for model, result in found.items()},
            blind_triggers={model: result.blind for model, result in found.items()},
            costs={model: _uat_cost(result) for model, result in found.items()},
            curves={model: result.gradient.curve for model, result in found.items()},
        )
    return HotFlipFindings(
        **shared,
        costs={
            model: Cost(
                forward_sequences=result.forward_sequences,
                backward_sequences=result.backward_sequences,
                blind_forward_sequences=result.blind_forward_sequences,
            )
            for model, result in found.items()
        },
        curves={model: result.curve for model, result in found.items()},
        flips={model: _flips_made(tried.own[model]) for model in found},
        round_trips_documents={model: result.round_trips for model, result in found.items()},
    )


def difference_of(
    searches: Sequence[Rows], model: str, reference: str, how: Evaluation, threshold: float | None = None
) -> EffectDifference:
    """The effect on `model` minus that on `reference`; `threshold` of success where each text is attacked by itself.

    Of triggers it is over searches. One trigger has an interval over texts, and no p-value: none of it would say that
    another search finds the same.
    """
    if len(searches) > 1:
        return paired_effects_over_searches(searches, model, reference, how.confidence_level)
    settings = (how.bootstrap_resamples, how.confidence_level)
    if threshold is not None:
        return paired_effects(searches[0], model, reference, *settings, threshold)
    found = paired_effects(searches[0], model, reference, *settings)
    untested = {name: getattr(found, name).model_copy(update={"p_value": None}) for name in MEASURES}
    return found.model_copy(update=untested)


def line_of_training(models: Mapping[str, Any]) -> list[str]:
    """The models of one training without constraint, from its beginning to the baseline."""
    before = [model for model in models if model.startswith(f"{BASE}@")]
    after = [model for model in models if model.startswith(f"{BASELINE}@")]
    return [*before, BASE, *after, BASELINE]


def _uat_cost(found: UatResult) -> Cost:
    return Cost(
        forward_sequences=found.gradient.forward_sequences,
        backward_sequences=found.gradient.backward_sequences,
        blind_forward_sequences=found.blind.forward_sequences,
    )


def _attacked_by(rows: Rows) -> dict[str, int]:
    """For which model, and by which search where it was not by gradients, what counts was found -> documents."""
    by = [row["attacked_by"] for row in rows]
    return dict(Counter(model if search == "gradient" else f"{model} ({search})" for search, model in by).most_common())


def _flips_made(rows: Rows) -> FlipsMade:
    made = [row["flips"] for row in rows]
    return FlipsMade(mean=sum(made) / len(made), unchanged_documents=made.count(0))


def primary(
    asked: Primary,
    tried: Tried,
    attacks: Attacks,
    arms: Mapping[str, ArmFacts],
    how: Evaluation,
) -> PrimaryFinding:
    """The answer to the study's question, from the one comparison that was named before the study ran."""
    everything, line = tried.over_searches(Tried.strongest), line_of_training(tried.own)
    compared = [MONOTONIC, *([BASELINE] if asked.measure == "increase" else line)]

    threshold = None if asked.attack == "uat" else attacks.hotflip.attack.success_relative_increase

    def difference(
        reference: str, level: float, searches: Sequence[Rows] = everything, model: str = MONOTONIC
    ) -> Estimate | None:
        at = how.model_copy(update={"confidence_level": level})
        if asked.measure == "increase":
            return difference_of(searches, model, reference, at, threshold).increase_nats_per_token
        return matched_difference(searches, model, line, how.bootstrap_resamples, level).increase_nats_per_token

    found = difference(BASELINE, how.confidence_level)
    unanswered = unanswerable(asked, found, attacks, arms)
    judged = attacks.by_name()[asked.attack]
    sources = judged.effects[MONOTONIC].sources
    return PrimaryFinding(
        primary=asked,
        documents=judged.documents,
        sources=sources,
        difference=found,
        answer=None
        if unanswered
        else answer(
            lambda level: _known(difference(BASELINE, level)),
            asked.margin_nats_per_token,
            how.confidence_level,
            least_p_value(sources) if len(everything) == 1 else 0.0,  # else it is no p-value of exchanges
        ),
        unanswered=unanswered,
        by_fewer_attacks={
            name: difference(BASELINE, how.confidence_level, tried.over_searches(chosen))
            for name, chosen in {
                "with what was found for these models alone": lambda one: one.strongest(compared),
                "with the search on each model alone": Tried.alone,
            }.items()
        },
        control=difference(BASELINE, how.confidence_level, model=CONTROL) if CONTROL in arms else None,
        from_placebos={
            arm: _known(difference(arm, how.confidence_level))
            for arm in placebos(list(arms))
            if asked.measure == "increase" and arms[arm].alive_share >= ALIVE_SHARE
        },
    )


LEAST_RISE = 0.01
"""Nats per token: if the baseline's own sublayers do less than this, no share of it says that others live."""


def unanswerable(
    asked: Primary,
    difference: Estimate | None,
    attacks: Attacks,
    arms: Mapping[str, ArmFacts],
) -> str | None:
    """Why the question cannot be answered by what was measured; None where it can."""
    rise, share = arms[BASELINE].sublayers.rise_nats_per_token, arms[MONOTONIC].alive_share
    if rise < LEAST_RISE:
        return (
            f"the sublayers in question do nothing in the baseline either (they are good for {rise:.4f} nats per token)"
        )
    if share < ALIVE_SHARE:
        return (
            "the constrained layers of the monotonic arm are dead: replacing them by their mean output costs "
            f"{share:.1%} of what it costs the baseline"
        )
    if difference is None:
        return (
            "no moment of the unconstrained model's training that was kept has a clean loss as high, or as low, as the "
            "monotonic arm's: more snapshots are needed"
        )
    judged = attacks.by_name()[asked.attack]
    if isinstance(judged, UatFindings) and judged.attack.restarts < 2:
        return "one search for a trigger does not say what another would find (give uat.restarts 2 or more)"
    effects = judged.effects
    if masked := [model for model in beaten_by_blind_search(effects) if model in (BASELINE, MONOTONIC)]:
        return f"{asked.attack}'s gradient search finds no more than blind search on {' and '.join(masked)}"
    return None


def beaten_by_blind_search(effects: Mapping[str, Effect]) -> list[str]:
    """Models on which the gradient search found no more than blind search at equal cost."""
    return [model for model, effect in effects.items() if effect.search_minus_blind_nats_per_token.value <= 0]


def _known(found: Estimate | None) -> Estimate:
    assert found is not None, "the same records give it at every level"
    return found


def secondary(found: PrimaryFinding, test: Sequence[LossDifference], attacks: Attacks) -> list[Tested]:
    """Every comparison that the tables show with a p-value, but the primary one: adjusted together for their number."""
    asked = found.primary
    p_values: dict[tuple[str, str, str], float | None] = {
        ("test loss", row.model, row.reference): row.p_value for row in test
    }
    for name, findings in attacks.by_name().items():
        for row in findings.differences:
            if (name, asked.measure, row.model, row.reference) == (asked.attack, "increase", MONOTONIC, BASELINE):
                continue
            p_values[f"{name} increase", row.model, row.reference] = row.increase_nats_per_token.p_value
    p_values |= {
        ("hotflip success rate", row.model, row.reference): row.success_rate.p_value
        for row in attacks.hotflip.differences
    }
    p_values |= {
        (f"{asked.attack} increase {way}", MONOTONIC, BASELINE): row.p_value
        for way, row in found.by_fewer_attacks.items()
        if row is not None
    }
    known = {key: p_value for key, p_value in p_values.items() if p_value is not None}
    return [
        Tested(measure=key[0], model=key[1], reference=key[2], p_value=known[key], adjusted_p_value=adjusted)
        for key, adjusted in holm(known).items()
    ]
