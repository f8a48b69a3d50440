"""Comparisons: effects of the attacks, at equal clean loss too, the primary answer, and all the rest."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from storage.records import Rows
from tasks.attacks.configuration import FlipAttack, Primary
from tasks.attacks.effects import attack_effect, paired_effects
from tasks.attacks.matched import matched_difference
from tasks.attacks.reading import Searched
from tasks.attacks.results import Findings, PrimaryAnswer, Tested
from tasks.attacks.stages import JUDGED
from tasks.attacks.strongest import Tried
from tasks.findings.configuration import Evaluation
from tasks.findings.statistics.comparison import holm
from tasks.findings.statistics.equivalence import answer
from tasks.findings.statistics.permutation import least_p_value
from tasks.findings.statistics.resampling import Estimate
from tasks.language.losses import LossDifference, paired_difference
from tasks.monotonic.arm import BASE, BASELINE, CONTROL, MONOTONIC, placebos
from tasks.monotonic.result import ArmFacts

Pairs = Sequence[tuple[str, str]]
LEAST_RISE = 0.01
"""Nats per token: if the baseline's own sublayers do less than this, no share of it says that others live."""


def compared_pairs(arms: list[str]) -> list[tuple[str, str]]:
    """Which models are compared: the baseline with base, every arm with the baseline, monotonic with every other."""
    others = [arm for arm in arms if arm not in (BASELINE, MONOTONIC)]
    of_monotonic = [(MONOTONIC, arm) for arm in others]
    return [(BASELINE, BASE), (MONOTONIC, BASELINE), *((arm, BASELINE) for arm in others), *of_monotonic]


def test_differences(rows: Rows, pairs: Pairs, how: Evaluation) -> list[LossDifference]:
    """Differences of the clean loss on the test split."""
    return [paired_difference(rows, *pair, how.bootstrap_resamples, how.confidence_level) for pair in pairs]


def line_of_training(models: Collection[str]) -> list[str]:
    """The models of one training without constraint, from its beginning to the baseline."""
    before = [model for model in models if model.startswith(f"{BASE}@")]
    after = [model for model in models if model.startswith(f"{BASELINE}@")]
    return [*before, BASE, *after, BASELINE]


def attack_findings(searched: Mapping[str, Searched], tried: Tried, pairs: Pairs, how: Evaluation) -> Findings:
    """Effect of an attack on each model, the differences between models, and its cost."""
    first, settings = next(iter(searched.values())), (how.bootstrap_resamples, how.confidence_level)
    threshold = first.attack.success_relative_increase if isinstance(first.attack, FlipAttack) else None
    records, searches = tried.strongest(), tried.over_searches(Tried.strongest)
    rows = [row for own in records.values() for row in own]
    arms = [model for model in searched if "@" not in model and model not in (BASE, BASELINE)]

    by_search = (("triggers", "gradient"), ("blind_triggers", "blind")) if first.triggers else ()
    own = {kind: {model: each.triggers[search] for model, each in searched.items()} for kind, search in by_search}
    return Findings(
        split=JUDGED,
        documents=len(next(iter(tried.own.values()))),
        attack=first.attack,
        attacked_by={model: _attacked_by(records[model]) for model in searched},
        effects={model: attack_effect(rows, model, *settings, threshold) for model in searched},
        differences=[paired_effects(searches, *pair, *settings, threshold) for pair in pairs],
        at_equal_loss=[matched_difference(searches, arm, line_of_training(searched), *settings) for arm in arms],
        costs={model: result.cost for model, result in searched.items()},
        **own,
    )


def _attacked_by(rows: Rows) -> dict[str, int]:
    """Model that what counts was found for, and its search where that was not by gradients -> documents."""
    by = [row["attacked_by"] for row in rows]
    return dict(Counter(model if search == "gradient" else f"{model} ({search})" for search, model in by).most_common())


def primary(
    asked: Primary, tried: Tried, judged: Findings, arms: Mapping[str, ArmFacts], how: Evaluation
) -> PrimaryAnswer:
    """The answer to the study's question, from the one comparison that was named before the study ran.

    `tried` and `judged` are of the attack that decides.
    """
    everything = tried.over_searches(Tried.strongest)
    threshold = judged.attack.success_relative_increase if isinstance(judged.attack, FlipAttack) else None

    def difference(
        reference: str = BASELINE,
        level: float = how.confidence_level,
        searches: Sequence[Rows] = everything,
        model: str = MONOTONIC,
    ) -> Estimate:
        settings = (how.bootstrap_resamples, level, threshold)
        return paired_effects(searches, model, reference, *settings).increase_nats_per_token

    sources = judged.effects[MONOTONIC].sources
    least = least_p_value(sources) if len(everything) == 1 else 0.0  # else it is no p-value of exchanges
    unanswered = unanswerable(asked, judged, arms)
    return PrimaryAnswer(
        primary=asked,
        documents=judged.documents,
        sources=sources,
        difference=difference(),
        answer=None
        if unanswered
        else answer(lambda level: difference(level=level), asked.margin_nats_per_token, how.confidence_level, least),
        unanswered=unanswered,
        from_placebos={arm: difference(arm) for arm in placebos(list(arms)) if not arms[arm].dead},
        control=difference(model=CONTROL) if CONTROL in arms else None,
        by_fewer_attacks={
            "with what was found for these models alone": difference(
                searches=tried.over_searches(lambda tries: tries.strongest([MONOTONIC, BASELINE]))
            ),
            "with the search on each model alone": difference(searches=tried.over_searches(Tried.alone)),
        },
    )


def unanswerable(asked: Primary, judged: Findings, arms: Mapping[str, ArmFacts]) -> str | None:
    """Why the question cannot be answered by what was measured; None where it can."""
    rise, dead = arms[BASELINE].sublayers.rise_nats_per_token, arms[MONOTONIC].dead
    if rise < LEAST_RISE:
        return (
            f"the sublayers in question do nothing in the baseline either (they are good for {rise:.4f} nats per token)"
        )
    if dead:
        return f"the constrained layers of the monotonic arm are dead: {dead}"
    if judged.one_for_all and judged.searches < 2:
        return "one search for a trigger does not say what another would find (give uat.restarts 2 or more)"
    if masked := [model for model in judged.beaten_by_blind_search if model in (BASELINE, MONOTONIC)]:
        return f"{asked.attack}'s gradient search finds no more than blind search on {' and '.join(masked)}"
    return None


def secondary(answer: PrimaryAnswer, test: Sequence[LossDifference], attacks: Mapping[str, Findings]) -> list[Tested]:
    """Every comparison that the tables show with a p-value, but the primary one: adjusted together for their number."""
    asked = answer.primary
    p_values: dict[tuple[str, str, str], float | None] = {
        ("test loss", row.model, row.reference): row.p_value for row in test
    }
    rates = {}
    for name, findings in attacks.items():
        for row in findings.differences:
            p_values[f"{name} increase", row.model, row.reference] = row.increase_nats_per_token.p_value
            if row.success_rate is not None:
                rates[f"{name} success rate", row.model, row.reference] = row.success_rate.p_value
    del p_values[f"{asked.attack} increase", MONOTONIC, BASELINE]
    ways = {way: row.p_value for way, row in answer.by_fewer_attacks.items() if row is not None}
    p_values |= rates | {(f"{asked.attack} increase {way}", MONOTONIC, BASELINE): p for way, p in ways.items()}
    known = {key: p_value for key, p_value in p_values.items() if p_value is not None}
    return [
        Tested(measure=key[0], model=key[1], reference=key[2], p_value=known[key], adjusted_p_value=adjusted)
        for key, adjusted in holm(known).items()
    ]
