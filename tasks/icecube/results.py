"""Results of the stages of the direction study: what no other file of a stage holds. Angles are in degrees."""

from tasks.data.statistics import Column
from tasks.stage.result import Result
from tasks.training.trials.findings import Outputs


class SplitFacts(Result):
    """The files and events of a split, and the pulses in its files."""

    batches: list[int]
    events: int
    pulses: int


ANGLE = "angle_degrees"
"""The metric that decides: the mean angle between prediction and truth on the events that are judged."""
CONSTANT = "best constant direction"


class Constant(Result):
    """The one direction that is nearest to those of validation: what a method without learning gets at best."""

    azimuth_degrees: float
    zenith_degrees: float
    best_constant_degrees: float


class LookResult(Result):
    """icecube-look, beside the normaliser. `columns` are of the pulses of train as the network gets them, raw."""

    columns: list[Column]
    trivial: Constant


class OverfitResult(Result):
    """icecube-overfit: the mean angle on the one batch at the end, and that of its best constant direction."""

    after: float
    trivial_degrees: float


class TrainResult(Result):
    """icecube-train, beside model, records and metric rows. `largest_difference` is between predictions of one event
    alone, among others, padded, in chunks; of a component of a unit vector."""

    outputs: Outputs
    largest_difference: float
