"""What a sweep over a study of attacks compares. Walking a page reads this, so it imports no numpy."""

from tasks.findings.sweep.configuration import Swept
from tasks.monotonic.arm import ARMS, BASE, BASELINE, MONOTONIC

NATS = "nats per token"
INCREASE, EFFECTS = "increase by {attack}", "attacks.{attack}.effects.{arm}"
PAIRS = [
    *([arm, BASELINE] for arm in ARMS if arm != BASELINE),
    *([MONOTONIC, arm] for arm in ARMS if arm not in (BASELINE, MONOTONIC)),
    [BASELINE, BASE],
]
METRICS = [
    Swept(title="test loss", numbers="models.{arm}.loss_nats_per_token", higher=False, pairs=PAIRS, unit=NATS),
    Swept(
        title=INCREASE,
        numbers=f"{EFFECTS}.increase_nats_per_token.value",
        higher=False,
        pairs=PAIRS,
        unit=NATS,
    ),
    Swept(title="alive share", numbers="arms.{arm}.alive_share", higher=None, pairs=PAIRS),
]
