"""The effect of an attack at equal clean loss: a model beside the other models of one line of training.

What an attack adds follows the clean loss: a model that predicts badly has less to lose. So a model is compared with
what a line of training (base and baseline, kept along the way) would have had at the model's own clean loss: the curve
increase(clean loss) through the models of that line, straight between neighbours.
"""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from storage.records import Rows
from tasks.attacks.effects import effect_sums, increase, records_of, require_same_tokens
from tasks.findings.statistics.resampling import Estimate, estimate
from tasks.findings.statistics.seeds import OverSeeds, over_seeds
from tasks.stage.result import Result

SHARED = ("tokens_scored", "text_tokens")
OF_MODEL = ("loss", "clean", "text_clean")


class MatchedDifference(Result):
    """The increase on `model` minus that of the curve at its clean loss; losses in nats per token.

    `covered`: whether the model's clean loss lies between those of two models of the path, its neighbours there, which
    `between` names with the lower loss first. If not, `between` is the nearest end of the path and there is no
    difference: a curve says nothing beyond its ends. It has no p-value by exchanges: two models of the curve and their
    weights stand against one model, which cannot be exchanged.
    """

    model: str
    clean_loss_nats_per_token: float
    covered: bool
    between: list[str]
    increase_nats_per_token: OverSeeds | Estimate | None


def matched_difference(
    searches: Sequence[Rows], model: str, path: Sequence[str], resamples: int, confidence_level: float
) -> MatchedDifference:
    """The increase on `model` minus that of the models of `path` at the same clean loss, with its interval.

    `searches` are the records of each search for the attack, of which there is more than one where an attack is one for
    all texts: then the mean over them, as in `effects.paired_effects_over_searches`. Clean losses are the same in all.
    The path is sorted by clean loss (whole attacked texts) in the records, and keeps that order in every resample of
    sources, in which the curve, the place on it and both increases are all computed anew. Where two of its models
    change places in a resample, the better counts as no better than the one before; where the model leaves the path,
    the end counts. Raises ValueError for an empty path, one that holds the model or one of its own twice, and for
    models that were not scored on the same tokens.
    """
    if not path or model in path or len(set(path)) < len(path):
        raise ValueError(f"the path {list(path)} must hold models other than {model}, each once")
    of_searches = [_sums(rows, model, path) for rows in searches]
    sums = of_searches[0]
    text_tokens = sums[model]["text_tokens"].sum()
    clean = {name: float(columns["text_clean"].sum() / text_tokens) for name, columns in sums.items()}
    ordered = sorted(path, key=lambda name: (clean[name], name))
    covered = clean[ordered[0]] <= clean[model] <= clean[ordered[-1]]
    columns = [
        [search[model][column] for column in SHARED]
        + [search[name][column] for name in (model, *ordered) for column in OF_MODEL]
        for search in of_searches
    ]
    differences = (
        over_seeds(_above_curve, columns, confidence_level)
        if len(columns) > 1
        else estimate(_above_curve, columns[0], resamples, confidence_level, smooth=False)
    )
    return MatchedDifference(
        model=model,
        clean_loss_nats_per_token=clean[model],
        covered=covered,
        between=_neighbours(clean, model, ordered),
        increase_nats_per_token=differences if covered else None,
    )


def _sums(rows: Rows, model: str, path: Sequence[str]) -> dict[str, dict[str, np.ndarray]]:
    """The columns of each model, summed by source."""
    chosen = {name: records_of(rows, name) for name in (model, *path)}
    for name in path:
        require_same_tokens(chosen[model], chosen[name])
    return {name: effect_sums(own) for name, own in chosen.items()}


def on_curve(place: np.ndarray, clean: Sequence[np.ndarray], risen: Sequence[np.ndarray]) -> np.ndarray:
    """The curve through the points (clean, risen), in this order, at `place`; arrays of any one shape.

    Beyond an end it stays at the end's height. A point left of the one before it stands at the same place.
    """
    height, left = risen[0], clean[0]
    for (low, other), right in zip(pairwise(risen), clean[1:], strict=True):
        right = np.maximum(left, right)
        width = np.where(right > left, right - left, 1.0)
        share = np.where(right > left, np.clip((place - left) / width, 0.0, 1.0), place >= left)
        height, left = height + share * (other - low), right
    return height


def _above_curve(tokens_scored: np.ndarray, text_tokens: np.ndarray, *of_models: np.ndarray) -> np.ndarray:
    """Increase of the first model minus the curve of the others; three totals each, as in OF_MODEL."""
    risen = [increase(tokens_scored, loss, clean) for loss, clean in zip(of_models[::3], of_models[1::3], strict=True)]
    clean = [text_clean / text_tokens for text_clean in of_models[2::3]]
    return risen[0] - on_curve(clean[0], clean[1:], risen[1:])


def _neighbours(clean: dict[str, float], model: str, ordered: Sequence[str]) -> list[str]:
    below = [name for name in ordered if clean[name] <= clean[model]]
    above = [name for name in ordered if clean[name] > clean[model]]
    if below and not above and clean[below[-1]] == clean[model]:
        return below[-2:]
    return below[-1:] + above[:1]
