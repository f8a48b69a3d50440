"""The ways in which a stage ends without a result. Each says what, where and what to do."""

from __future__ import annotations


class BadInput(Exception):
    """The configuration or an input cannot be used: fails at once, exit code 2, never retried."""


class CheckFailed(Exception):
    """A guard or a verification found a wrong value: exit code 1, outputs and checkpoints are kept.

    `check` names it, `measured` and `required` are what was found and what was asked for.
    """

    def __init__(self, check: str, measured: object, required: object, advice: str = "") -> None:
        self.check, self.measured, self.required, self.advice = check, measured, required, advice
        super().__init__(
            f"check failed: {check}: measured {measured}, required {required}" + (f". {advice}" if advice else "")
        )


class NumericalFailure(Exception):
    """A loss, gradient or weight is not finite: exit code 1, the checkpoint before it is kept."""

    def __init__(self, step: int, batch: str, tensor: str) -> None:
        self.step, self.batch, self.tensor = step, batch, tensor
        super().__init__(f"{tensor} is not finite at step {step}, batch {batch}")


class NoProgress(Exception):
    """Automatic attempts in a row took the stage no further: exit code 1, no further one is started by itself."""

    def __init__(self, attempts: int, told: str) -> None:
        super().__init__(f"no progress in {attempts} attempts in a row: {told}")


class Held(Exception):
    """Another live process holds the run directory."""


class Stop(Exception):
    """The attempt was asked to stop and has done so at a safe point; another attempt continues.

    `cause` is one of `out_of_time`, `sigterm`, `interrupted`.
    """

    def __init__(self, cause: str, message: str) -> None:
        self.cause = cause
        super().__init__(message)
