"""Records of attacked texts, made up."""

from typing import Any

import numpy as np


def row(model: str, number: int, clean: float, attacked: float, **changed: object) -> dict[str, Any]:
    """One text of ten tokens, all scored; losses per token. Of three controls, two draws and a blind search, none acts.

    A third of the search's cost had found half of the increase.
    """
    return {
        "model": model,
        "example_id": f"{number:03d}",
        "source": f"file {number}",
        "tokens_scored": 10,
        "loss_sum_nats": 10 * attacked,
        "clean_loss_sum_nats": 10 * clean,
        "text_tokens": 10,
        "text_clean_loss_sum_nats": 10 * clean,
        "control_losses_sum_nats": [10 * clean, 10 * clean],
        "blind_loss_sum_nats": 10 * clean,
        "budget_losses_sum_nats": [5 * clean + 5 * attacked, 10 * attacked],
    } | changed


def some(model: str = "a", rise: float = 0.5, documents: int = 30, noise: float = 0.2, seed: int = 0) -> list[dict]:
    chance = np.random.default_rng(seed)
    clean = chance.normal(4.0, 0.5, documents)
    return [row(model, i, c, c + rise + chance.normal(0, noise)) for i, c in enumerate(clean)]
