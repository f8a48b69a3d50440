"""Arms of a study side by side, with one value for each seed: which differences the seeds show, and which they do not.

A difference is paired: the same seed gives both arms the same draws, so that what is peculiar to a seed cancels. Its
interval and `p` are Student's t of the paired differences (n - 1 degrees of freedom, ddof 1). Beside it stand Welch's
t, which does not pair, and the exchange of the two arms within seeds, which assumes no distribution; of few seeds the
latter can show nothing at 5 %. All comparisons of a report are corrected together, by Holm: `findings.compare` does so.
"""

import warnings
from bisect import bisect_left
from collections.abc import Collection, Mapping
from typing import Any, TypeVar

import numpy as np
from scipy.stats import nct, t, ttest_ind, ttest_rel

from tasks.findings.statistics.permutation import exchange_p_value, least_p_value
from tasks.findings.statistics.power import POWER, smallest_shown
from tasks.findings.statistics.resampling import NO_SPREAD
from tasks.findings.statistics.seeds import OverSeeds, mean_over_seeds
from tasks.stage.result import Result

Arms = Mapping[str, Mapping[str, float]]
"""Arm -> repetition, such as a seed or a fold -> its number."""
Pair = tuple[str, str]
"""An arm, and the reference that it is compared with."""
MOST_SEEDS = 10_000
Name = TypeVar("Name")


class ArmMean(Result):
    """The values of an arm by seed; of one seed there is no interval."""

    values: dict[str, float]
    mean: float
    standard_deviation: float | None
    interval: list[float] | None


class Comparison(Result):
    """The values of `arm` minus those of `reference`, seed by seed; `percent` is of the size of the reference's mean.

    `percent` is None where that mean is 0, `p` where the differences have no spread, or there is one seed, `p_welch`
    where neither arm has any, and what pairs where the arms have other seeds (`seeds`: of the arm with fewer).
    `p_adjusted` is Holm's over all comparisons. `least_p_exchange` is the lowest that so many seeds can give.
    `seeds_needed`: with so many a difference like this one (mean and spread as seen) would be found with a chance of
    80 % among as many comparisons, by Bonferroni's correction, which is no milder than Holm's; None where it takes more
    than 10,000. `smallest_shown`: what these seeds could have shown, a true difference that is found with that chance
    among as many; None where they are too few for any. `better` and `worse`: shown, at the confidence level and with
    the least number of seeds; lower values are better unless it is said otherwise. `unlearned`: which of both are not
    shown to learn; then neither is better or worse.
    """

    arm: str
    reference: str
    seeds: int
    mean: float
    standard_deviation: float | None
    interval: list[float] | None
    percent: float | None
    p: float | None
    p_adjusted: float | None
    p_welch: float | None
    p_exchange: float | None
    least_p_exchange: float | None
    seeds_needed: int | None
    smallest_shown: float | None = None
    better: bool
    worse: bool
    unlearned: list[str]


class TTest(Result):
    """A two-sided t test of the difference of two arms, with its interval [low, high]."""

    t: float
    degrees_of_freedom: float
    p: float
    interval: list[float]


def arm_mean(values: Mapping[str, float], confidence_level: float) -> ArmMean:
    """Mean, sample standard deviation (ddof 1) and Student's t interval."""
    if len(values) < 2:
        (only,) = values.values()
        return ArmMean(values=dict(values), mean=only, standard_deviation=None, interval=None)
    mean, deviation, interval = mean_over_seeds(list(values.values()), confidence_level)
    return ArmMean(values=dict(values), mean=mean, standard_deviation=deviation, interval=interval)


def holm(p_values: Mapping[Name, float]) -> dict[Name, float]:
    """Adjusted p-values by Holm's correction (1979), which keeps the chance of any false finding at the level.

    Raises ValueError, with the name, for a p-value outside of [0, 1].
    """
    if wrong := [name for name, p in p_values.items() if not 0 <= p <= 1]:
        raise ValueError(f"the p-value of {wrong[0]} is {p_values[wrong[0]]}, not between 0 and 1")
    adjusted: dict[Name, float] = {}
    reached = 0.0
    for rank, name in enumerate(sorted(p_values, key=lambda name: p_values[name])):
        reached = max(reached, min(1.0, (len(p_values) - rank) * p_values[name]))
        adjusted[name] = reached
    return {name: adjusted[name] for name in p_values}


def require_comparable(values: Arms, allow_equal: bool | Collection[str] = False, other_seeds: bool = False) -> None:
    """ValueError, naming the cell, for a seed that an arm lacks, a value that is not finite, and two equal ones.

    Two cells that give the same number to the last digit were, in the study that this comes from, the same training:
    what told them apart had not reached the model. `allow_equal` is for values that are counts, say, or names the arms
    whose values may equal one another; `other_seeds` is for arms that are not paired.
    """
    seeds = list(dict.fromkeys(seed for of_arm in values.values() for seed in of_arm))
    first: dict[float, tuple[str, bool]] = {}
    for arm, of_arm in values.items():
        may = allow_equal if isinstance(allow_equal, bool) else arm in allow_equal
        for seed in seeds:
            name = f"{arm}, seed {seed}"
            if seed not in of_arm and other_seeds:
                continue
            if seed not in of_arm:
                raise ValueError(f"there is no value of {name}: every arm needs the same seeds ({', '.join(seeds)})")
            value = float(of_arm[seed])
            if not np.isfinite(value):
                raise ValueError(f"the value of {name} is {value}")
            other, others = first.setdefault(value, (name, may))
            if other != name and not (may and others):
                raise ValueError(
                    f"{other} and {name} have the same value, {value!r}: either it was rounded, or what tells them "
                    "apart has not reached the training"
                )


def t_tests(values: Arms, arm: str, reference: str, confidence_level: float) -> dict[str, TTest]:
    """`paired`: Student's t of the pairs, where both arms have the same seeds; `unpaired`: Welch's.

    Neither where its values have no spread, or there is one.
    """
    ours, theirs = _values_of(values, arm, reference)
    tests: dict[str, Any] = {}
    if min(len(ours), len(theirs)) > 1:
        if _pairs(values, arm, reference) and _has_spread(ours - theirs):
            tests["paired"] = ttest_rel(ours, theirs)
        if _has_spread(ours) or _has_spread(theirs):
            with warnings.catch_warnings():  # of an arm whose values are all the same, which Welch's t allows
                warnings.simplefilter("ignore", RuntimeWarning)
                tests["unpaired"] = ttest_ind(ours, theirs, equal_var=False)
    return {
        name: TTest(
            t=float(test.statistic),
            degrees_of_freedom=float(test.df),
            p=float(test.pvalue),
            interval=[float(limit) for limit in test.confidence_interval(confidence_level)],
        )
        for name, test in tests.items()
    }


def seeds_needed(mean: float, standard_deviation: float, confidence_level: float) -> int | None:
    """The least number of pairs with which a two-sided paired t test finds such a difference with chance `POWER`."""
    if mean == 0:
        return None
    effect = abs(mean) / standard_deviation

    def finds(seeds: int) -> bool:
        limit = t.ppf((1 + confidence_level) / 2, seeds - 1)  # the other side adds nothing at such a power
        return bool(nct.sf(limit, seeds - 1, effect * seeds**0.5) >= POWER)

    least = bisect_left(range(MOST_SEEDS + 1), True, lo=2, key=finds)
    return least if least <= MOST_SEEDS else None


def _pairs(values: Arms, arm: str, reference: str) -> bool:
    return values[arm].keys() == values[reference].keys()


def _values_of(values: Arms, arm: str, reference: str) -> list[np.ndarray]:
    """The values of both arms, float64 [seeds], paired by the name of the seed where they have the same."""
    order = values[reference] if _pairs(values, arm, reference) else None
    return [np.array([values[name][seed] for seed in order or values[name]], float) for name in (arm, reference)]


def _has_spread(values: np.ndarray) -> bool:
    return float(values.std(ddof=1)) > NO_SPREAD * abs(float(values.mean()))


def compare_pair(
    values: Arms, arm: str, reference: str, level: float, comparisons: int, unlearned: Collection[str], pairs: bool
) -> Comparison:
    """The difference of two arms, not yet judged; `comparisons` is how many are made beside it. By Welch's t alone
    where there are no `pairs`: arms whose seeds share nothing."""
    ours, theirs = _values_of(values, arm, reference)
    base, mean, among = float(theirs.mean()), float(ours.mean() - theirs.mean()), 1 - (1 - level) / comparisons
    seeds, welch = min(len(ours), len(theirs)), t_tests(values, arm, reference, level).get("unpaired")
    deviation = interval = p = p_exchange = least = needed = shown = None
    if _pairs(values, arm, reference):
        mean = float((ours - theirs).mean())
        p_exchange, least = exchange_p_value(lambda total: total, [ours], [theirs]), least_p_value(seeds)
        if seeds > 1:
            _, deviation, interval = mean_over_seeds(ours - theirs, level)
            if _has_spread(ours - theirs):
                p = 2 * float(t.sf(abs(mean) / deviation * seeds**0.5, seeds - 1))
                needed = seeds_needed(mean, deviation, among)
                shown = smallest_shown([(deviation / seeds**0.5, seeds - 1)], among)
    if not pairs:
        p, interval, needed, shown = None, None, None, None
        if welch:
            error = (welch.interval[1] - welch.interval[0]) / 2 / t.ppf((1 + level) / 2, welch.degrees_of_freedom)
            p, interval = welch.p, welch.interval
            shown = smallest_shown([(float(error), welch.degrees_of_freedom)], among)
    return Comparison(
        arm=arm,
        reference=reference,
        seeds=seeds,
        mean=mean,
        standard_deviation=deviation,
        interval=interval,
        percent=100 * mean / abs(base) if base else None,
        p=p,
        p_adjusted=None,
        p_welch=welch.p if welch else None,
        p_exchange=p_exchange,
        least_p_exchange=least,
        seeds_needed=needed,
        smallest_shown=shown,
        better=False,
        worse=False,
        unlearned=[name for name in (arm, reference) if name in unlearned],
    )


def with_sources(row: Comparison, over: OverSeeds, among: float) -> Comparison:
    """The same difference, by what other seeds and other sources would give."""
    errors = [(over.standard_error_of_seeds, len(over.of_seeds) - 1)]
    errors.append((over.standard_error_of_sources or 0, over.sources - 1))
    could = smallest_shown(errors, among) if over.p_value is not None else None
    return row.model_copy(
        update={"p": over.p_value, "interval": over.interval, "seeds_needed": None, "smallest_shown": could}
    )


def judge(rows: Mapping[Name, Comparison], level: float, min_seeds: int, higher: Collection[Name]) -> list[Comparison]:
    """The comparisons, corrected together by Holm, and which of them are shown; `higher`: of which higher is better."""
    adjusted, judged = holm({name: row.p for name, row in rows.items() if row.p is not None}), []
    for name, row in rows.items():
        p, enough, gain = adjusted.get(name), row.seeds >= min_seeds, row.mean * (1 if name in higher else -1)
        clear = p is not None and p <= 1 - level and enough and not row.unlearned
        could = row.smallest_shown if enough else None
        update = {"p_adjusted": p, "smallest_shown": could, "better": clear and gain > 0, "worse": clear and gain < 0}
        judged.append(row.model_copy(update=update))
    return judged
