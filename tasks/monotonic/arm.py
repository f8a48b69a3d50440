"""The arms: the trainings that the study compares, each named by what it is there to rule out.

All are trained by one function on one budget. They differ in which signs the constrained weights may have, where these
start and what keeps them there.
"""

from dataclasses import dataclass
from typing import Final, Literal

from tasks.monotonic.stages import By, Constraint, Signs, Start

ArmName = Literal[
    "baseline",
    "monotonic",
    "own-signs",
    "random-signs",
    "per-unit-signs",
    "unconstrained-start",
    "feed-forward-off",
    "earlier-system",
    "shifted",
    "random-replacements",
]
BASE: Final = "base"
BASELINE: Final = "baseline"
MONOTONIC: Final = "monotonic"
CONTROL: Final = "random-replacements"
"""Expected to be harder to attack than the baseline: where not even this is shown, "not shown" says little."""


@dataclass(frozen=True)
class Arm:
    """How one arm is made. `signs` None: it starts from the base model itself; `start` None: as monotonic."""

    meaning: str
    signs: Signs | None
    start: Start | None = None
    by: By = "projection"
    placebo: bool = False
    """True where an effect on monotonic must exceed the one on it: it does the same damage without the constraint, or
    has the constraint without restricting anything."""
    replaced: float = 0.0
    """Share of the tokens that it reads in training that are drawn at random."""

    def started(self, constraint: Constraint) -> Start:
        if self.start is None and constraint.start == "shifted" and self.signs != "non-negative":
            return "positive-part"  # no shift gives weights of both signs
        return self.start or constraint.start

    def equals_monotonic(self, constraint: Constraint) -> bool:
        monotonic = ARMS[MONOTONIC]
        return (self.signs, self.started(constraint), self.by) == (monotonic.signs, constraint.start, monotonic.by)


ARMS: dict[str, Arm] = {
    BASELINE: Arm("base trained further, without constraint", None, by="free"),
    MONOTONIC: Arm("base with its constrained weights made non-negative, trained further and kept so", "non-negative"),
    "own-signs": Arm(
        "placebo: every constrained weight keeps the sign that it has in base",
        "own",
        "positive-part",
        placebo=True,
    ),
    "random-signs": Arm("placebo: as monotonic, with a sign drawn at random for each weight", "random", placebo=True),
    "per-unit-signs": Arm(
        "as monotonic, with one sign for each hidden unit, which keeps the sublayer as monotone", "per-unit"
    ),
    "unconstrained-start": Arm(
        "placebo: starts as monotonic, then trained without constraint", "non-negative", by="free", placebo=True
    ),
    "feed-forward-off": Arm("placebo: the constrained weights are 0 and stay so", "off", "positive-part", placebo=True),
    "shifted": Arm(
        "non-negative weights at no cost: base moved up by what its LayerNorms take away again, the same function",
        "non-negative",
        "shifted",
        placebo=True,
    ),
    "earlier-system": Arm(
        "the earlier system's arm: starts from |W|, kept non-negative as softplus(V)",
        "non-negative",
        "absolute",
        "softplus",
    ),
    CONTROL: Arm(
        "positive control: as baseline, but a tenth of the tokens that it reads in training are drawn at random",
        None,
        by="free",
        replaced=0.1,
    ),
}

ALIVE_SHARE = 0.1
"""Below this share of the baseline's rise an arm's constrained sublayers count as dead: its numbers are those of a
model without them, whatever the signs of its weights."""
LEAST_RANK = 1.5
"""Below this effective rank, in the median sublayer, they count as dead too: at 1 all outputs lie on one line, and what
replacing them by their mean costs then says that the line is used, and not that the layers compute."""


def placebos(arms: list[str]) -> list[str]:
    return [arm for arm in arms if ARMS[arm].placebo]


Variants = dict[str, dict[str, list[str]]]
"""Variant -> class of a sublayer -> attributes of it that hold a constrained matrix."""


def _plain(feed_forward: str, into: str, out_of: str) -> Variants:
    return {"mlp_in": {feed_forward: [into]}, "mlp_both": {feed_forward: [into, out_of]}}


def _gated(feed_forward: str, gate: str = "gate_proj", up: str = "up_proj", down: str = "down_proj") -> Variants:
    return {"gated_updown": {feed_forward: [up, down]}, "gated_all": {feed_forward: [gate, up, down]}}


ARCHITECTURES: dict[str, Variants] = {
    "gpt_neox": _plain("GPTNeoXMLP", "dense_h_to_4h", "dense_4h_to_h"),
    "gpt2": _plain("GPT2MLP", "c_fc", "c_proj"),
    "llama": _gated("LlamaMLP"),
    "qwen2": _gated("Qwen2MLP"),
    "qwen3": _gated("Qwen3MLP"),
    "t5": {
        **_plain("T5DenseActDense", "wi", "wo"),
        **_gated("T5DenseGatedActDense", "wi_0", "wi_1", "wo"),
    },
}
"""Architecture, as transformers calls it, -> its variants.

A layer is found by the class that it belongs to, so that no name elsewhere matches by accident: GPT-2's `c_proj` is
one attribute of its feed-forward layer and another of its attention. Classes stand here as text because importing
five architectures costs seconds. GPT-2's matrices are `Conv1D`, [in, out] and not [out, in]: a sign has no shape.
"""
