"""Which replacements a search tries exactly: ranked by the gradient, or drawn blindly.

Shape suffixes: P positions that may be written, V vocabulary, D width of an embedding.
"""

from collections.abc import Sequence

import numpy as np
import torch

from tasks.attacks.configuration import Search

Replacements = list[tuple[int, int]]
"""Position and token of each: a position of the sequence, not its number among those that may be written."""


def by_position(replacements: Replacements) -> list[Replacements]:
    """The replacements at each position that has any, in the order in which positions first come."""
    at: dict[int, Replacements] = {}
    for replacement in replacements:
        at.setdefault(replacement[0], []).append(replacement)
    return list(at.values())


def estimated_effects(
    gradient_PD: torch.Tensor, present: Sequence[int], embeddings_VD: torch.Tensor, usable_V: torch.Tensor
) -> torch.Tensor:
    """HotFlip's estimate [P, V] (Ebrahimi et al. 2018): v in place of x changes the loss by about (E_v - E_x) . g.

    -inf for the token that is `present` at a position and for those that are not usable.
    """
    here_P1 = torch.tensor(present, device=gradient_PD.device)[:, None]
    effects_PV = gradient_PD @ embeddings_VD.float().T
    effects_PV = effects_PV - effects_PV.gather(1, here_P1)
    forbidden_PV = (~usable_V.to(gradient_PD.device)).expand_as(effects_PV).scatter(1, here_P1, True)
    return effects_PV.masked_fill(forbidden_PV, -torch.inf)


def best_of_each_position(effects_PV: torch.Tensor, positions: Sequence[int], skip: int, count: int) -> Replacements:
    """The best token of every position, then the second best of every position, and so on; `count` after `skip`.

    Positions take turns because estimates are compared within a position only: where one token stands on a steep
    slope, its estimates exceed all others, and are far from exact. After the last candidate the first comes again.
    """
    depth = min(effects_PV.shape[1], -(-(skip + count) // len(positions)) + 1)
    best_PK, tokens_PK = torch.topk(effects_PV, depth, dim=1)
    best_K, place_K = torch.sort(best_PK.T, dim=1, descending=True, stable=True)
    ranked = [
        (positions[place], token)
        for estimates, places, tokens in zip(
            best_K.tolist(), place_K.tolist(), tokens_PK.T.gather(1, place_K).tolist(), strict=True
        )
        for estimate, place, token in zip(estimates, places, tokens, strict=True)
        if estimate > -np.inf
    ]
    return [ranked[(skip + number) % len(ranked)] for number in range(count)]


def blind(
    present: Sequence[int], positions: Sequence[int], usable_V: torch.Tensor, count: int, chance: np.random.Generator
) -> Replacements:
    """`count` draws of a position and of a usable token that does not stand there, all alike."""
    usable = usable_V.nonzero().flatten().numpy()
    places = chance.integers(len(positions), size=count)
    here = np.asarray(present)[places]
    numbers = np.searchsorted(usable, here)
    is_usable = usable_V.numpy()[here]
    drawn = chance.integers(len(usable) - is_usable)
    tokens = usable[drawn + (is_usable & (drawn >= numbers))]
    return [(positions[place], int(token)) for place, token in zip(places, tokens, strict=True)]


def by_gradient(
    gradient_PD: torch.Tensor,
    present: Sequence[int],
    positions: Sequence[int],
    embeddings_VD: torch.Tensor,
    usable_V: torch.Tensor,
    search: Search,
    skip: int,
) -> Replacements:
    """The candidates of one iteration; `present` are the tokens at `positions`."""
    effects_PV = estimated_effects(gradient_PD, present, embeddings_VD, usable_V)
    return best_of_each_position(effects_PV, positions, skip, search.candidates)
