"""Results of each stage of the inversion study. Errors are mean squares over the entries of an inverse."""

from tasks.stage.result import Result


class Trivial(Result):
    """Errors without learning: every entry 0, and each the mean of the inverses of other matrices."""

    zero: float
    mean: float

    @property
    def by_name(self) -> dict[str, float]:
        return {"predicting zero": self.zero, "predicting the mean": self.mean}


class SplitFacts(Result):
    """Fixed matrices: how hard they are, and what needs no learning.

    `condition` are quantiles (5, 50 and 95 %) of the condition number; `clamped_share` of the entries of their inverses
    lie beyond what is ever predicted.
    """

    matrices: int
    smallest_eigenvalue: float
    condition: list[float]
    clamped_share: float
    trivial: Trivial


class MatricesResult(Result):
    """inversion-matrices. By `input_mean` and `input_deviation`, of the entries, inputs are normalised."""

    validation: SplitFacts
    out_of_distribution: SplitFacts
    input_mean: list[float]
    input_deviation: list[float]


TOLERANCE = 1e-6
"""The most by which an answer may depend on how matrices come, in fp64."""


class TrainResult(Result):
    """inversion-train, beside its records and metric rows.

    `largest_difference`: between predictions of a matrix however it comes. `descent_difference`: the same of the
    descent that it was trained with, None where it has none; `descent_defect` names what that depends on.
    """

    largest_difference: float
    descent_difference: float | None
    descent_defect: str


class NegativeFacts(Result):
    """Negatives of one arm's network at one step of the diffusion, after so many steps down the energy.

    `condition` and `smallest_singular_value` (medians) are of the negatives y, and of the true inverses under
    `true_...`: A is never mined. `residual` is the mean |A y - I|, `distance` the mean distance from the inverse
    relative to its norm, and `false_share` of them lie nearer than the limit. `energy_gap` is the mean of E(true) -
    E(negative), and `below_share` of the negatives have the lower energy. `spread` is the mean deviation of their
    entries over matrices, as a share of that of the inverses; `kept_share` of the steps down the energy were kept.
    """

    arm: str
    time: int
    descent_steps: int
    condition: float
    true_condition: float
    smallest_singular_value: float
    true_smallest_singular_value: float
    residual: float
    distance: float
    false_share: float
    energy_gap: float
    below_share: float
    kept_share: float
    spread: float
    gradient_norm: float


class ProbeResult(Result):
    """inversion-probe. It is the conditioning of y that is looked at, since A is never mined."""

    negatives: list[NegativeFacts]
