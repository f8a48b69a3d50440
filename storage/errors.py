"""The errors that end a stage without a result. Each says what, where and what to do."""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from itertools import zip_longest
from typing import Any

VALUE_SHOWN, MESSAGE_SHOWN = 300, 20_000
"""Characters of a value that a message quotes, and of the whole message."""
EXAMPLES_SHOWN = 20
CURVE_SHOWN = 10
"""Validations that a message lists; metrics.jsonl has them all."""


def cut(text: str, at_most: int = VALUE_SHOWN) -> str:
    """The text, or as much of it as a message quotes and how much it leaves out."""
    return text if len(text) <= at_most else f"{text[:at_most]}... ({len(text) - at_most:,} more characters)"


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """A hint at the most similar of `names`, such as "did you mean 'epochs'? "; empty where none is similar, or one is
    the name itself."""
    import difflib  # slow to import, and needed for errors only

    close = difflib.get_close_matches(name, list(names), n=1)
    return f"did you mean {close[0]!r}? " if close and close[0] != name else ""


def install(extra: str) -> str:
    """The command that installs what an extra of ours is for."""
    return f"pip install --constraint constraints.txt --editable '.[{extra}]'"


class BadInput(Exception):
    """The configuration or an input cannot be used: fails at once, exit code 2, never retried."""

    def __init__(self, message: str) -> None:
        super().__init__(cut(message, MESSAGE_SHOWN))


class NoSuchFile(BadInput):
    """A file or folder that a key names is not there: `path`; the message says where nothing is, not which key."""

    def __init__(self, path: str, message: str) -> None:
        self.path = path
        super().__init__(message)


class CheckFailed(Exception):
    """A guard or a verification found a wrong value: exit code 1, outputs and checkpoints are kept.

    `check` names it, `measured` and `required` are the two values that disagree.
    """

    def __init__(self, check: str, measured: object, required: object, advice: str = "") -> None:
        self.check, self.measured, self.required, self.advice = check, measured, required, advice
        super().__init__(
            f"check failed: {check}: measured {measured}, required {required}" + (f". {advice}" if advice else "")
        )


def require(holds: object, check: str, measured: object, required: object, advice: str = "") -> None:
    """Raises CheckFailed unless `holds`."""
    if not holds:
        raise CheckFailed(check, measured, required, advice)


def require_equal(check: str, measured: object, required: object, advice: str = "") -> None:
    """Raises CheckFailed where the two differ."""
    require(measured == required, check, measured, required, advice)


def require_close(check: str, measured: float, required: float, rounding: float, advice: str = "") -> None:
    """Raises CheckFailed where the two differ by more than `rounding`, and where one is NaN."""
    holds = abs(measured - required) <= rounding
    require(holds, check, measured, f"{required}, give or take {rounding:.2g}", advice)


def require_limit(check: str, measured: float, limit: float, unit: str = "", advice: str = "") -> None:
    """Raises CheckFailed where `measured` is above its limit, or NaN."""
    require(measured <= limit, check, measured, f"at most {limit:g}{unit}", advice)


def require_distinct(check: str, values: Mapping[str, Hashable], equal: str, advice: str = "") -> None:
    """Raises CheckFailed naming two of equal value. `equal` says what is equal."""
    first: dict[Hashable, str] = {}
    for name, value in values.items():
        other = first.setdefault(value, name)
        require(other == name, check, f"{other} and {name}: {equal}", "different", advice)


def require_each_once(check: str, measured: Iterable[Any], required: Iterable[Any], where: str = "") -> None:
    """Raises CheckFailed unless both hold the same rows equally often; names the first that differs."""
    rows, expected = sorted(measured), sorted(required)
    row, expected_row = next((pair for pair in zip_longest(rows, expected) if pair[0] != pair[1]), (None, None))
    summary = f"{len(rows)} rows, {row} in place of {expected_row}{where}"
    require(rows == expected, check, summary, f"{len(expected)}, each once")


class NumericalFailure(Exception):
    """A loss, gradient or weight is not finite: exit code 1, the checkpoint before it is kept.

    `examples` are the culprits among the `batch` examples of the step, by dataset index: none in a validation, all
    where `batch` is 0 because the search found no culprit. `module` is where it began, where that is known.
    `together` says that each example alone is finite. `fault` says in words what is wrong with the tensor.
    """

    def __init__(
        self,
        step: int,
        examples: Sequence[int],
        tensor: str,
        module: str = "",
        batch: int = 0,
        together: bool = False,
        fault: str = "is not finite",
    ) -> None:
        self.step, self.examples, self.tensor = step, list(examples), tensor
        self.module, self.batch, self.together = module, batch, together
        listed = f"[{', '.join(map(str, self.examples[:EXAMPLES_SHOWN]))}{', ...' * (len(examples) > EXAMPLES_SHOWN)}]"
        share = (
            f" ({len(examples)} of a batch of {batch}{', of which each alone is finite' * together})" if batch else ""
        )
        where = f"batch examples {listed}{share}" if self.examples else "validation"
        super().__init__(f"{tensor} {fault} at step {step}, {where}" + f"; it begins in {module}" * bool(module))


class NotLearning(Exception):
    """A training is hardly better than a method without learning: exit code 1, checkpoints are kept.

    `measured` is the best value of `metric` by `step`, `required` the worst that was allowed, `reference` says where
    that comes from; `curve` holds (step, value) of the validations so far.
    """

    advice = (
        "Check the inputs first: raw values in the thousands keep a network from learning at any rate, so scale them "
        "to about 1. Then try other learning rates, and see that each target belongs to its input"
    )

    def __init__(
        self,
        step: int,
        metric: str,
        measured: float,
        required: float,
        reference: str,
        curve: Sequence[Sequence[float]],
        higher_is_better: bool = False,
    ) -> None:
        self.step, self.metric, self.measured, self.required, self.curve = step, metric, measured, required, curve
        best, least = ("highest", "least") if higher_is_better else ("lowest", "most")
        validations = ", ".join(f"{value:.4g} at {int(at)}" for at, value in curve[-CURVE_SHOWN:])
        super().__init__(
            f"by step {step} the {best} {metric} is {measured:.6g}, required at {least} {required:.6g}, "
            f"{reference}. The last validations: {validations}"
        )


class NoProgress(Exception):
    """Automatic attempts in a row took the stage no further: exit code 1, no further one starts automatically."""

    def __init__(self, attempts: int, endings: str) -> None:
        super().__init__(f"no progress in {attempts} attempts in a row: {endings}")


class Held(Exception):
    """Another live process holds the run directory."""


class Stop(Exception):
    """The attempt was asked to stop and has done so at a safe point; another attempt continues.

    `cause` is one of `out_of_time`, `sigterm`, `interrupted`.
    """

    def __init__(self, cause: str, message: str) -> None:
        self.cause = cause
        super().__init__(message)
