"""What a sweep over a study of attacks compares. Walking a page reads this, so it imports no numpy."""

from __future__ import annotations

from tasks.findings.sweep.configuration import Swept
from tasks.monotonic.arm import ARMS, BASE, BASELINE, MONOTONIC

NATS = "nats per token"
LOSS, ALIVE, INCREASE = "test loss", "alive share", "increase by {attack}"
PAIRS = [
    *([arm, BASELINE] for arm in ARMS if arm != BASELINE),
    *([MONOTONIC, arm] for arm in ARMS if arm not in (BASELINE, MONOTONIC)),
    [BASELINE, BASE],
]
METRICS = [
    Swept(title=LOSS, numbers="models.{arm}.loss_nats_per_token", higher=False, pairs=PAIRS, unit=NATS),
    Swept(
        title=INCREASE,
        numbers="attacks.{attack}.effects.{arm}.increase_nats_per_token.value",
        higher=False,
        pairs=PAIRS,
        unit=NATS,
    ),
    Swept(title=ALIVE, numbers="arms.{arm}.alive_share", higher=None, pairs=PAIRS),
]
