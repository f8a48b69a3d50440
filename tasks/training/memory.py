"""A training that ran out of memory: smaller micro-batches where that is allowed, else advice."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from storage import durable
from storage.errors import CheckFailed
from tasks.stage.execution import Execution
from tasks.stage.numerics import is_within
from tasks.stage.outcome import is_out_of_memory
from tasks.stage.progress import FOR_THE_TERMINAL
from tasks.stage.run import StageRun
from tasks.training.state import Position

KEY = "micro_batch_examples"


class DoesNotFit(CheckFailed):
    """A micro-batch did not fit in memory."""


class MicroBatchSize:
    """The size of the micro-batches at each step: as configured, until memory ended and it was halved.

    A change stands in stage.json before its step is made again. A continuation has the same size at the same step,
    whether or not it would have to change there, and so the same bytes.
    """

    def __init__(self, run: StageRun, execution: Execution) -> None:
        self._run, self._execution = run, execution
        self._changes: list[dict[str, int]] = []
        begun = [durable.read_json(run.run.stage_file)["numerics"]] if run.run.stage_file.exists() else []
        last = None
        for change in [*begun, *run.numerics_changes]:
            if is_within(change):
                self._changes += [change] * (KEY in change)
            elif change.get(KEY) != last:  # a person set it, and what was before is over
                self._changes, last = [], change.get(KEY)

    def after(self, position: Position) -> int:
        """The size at the step after `position`. A training that went back to an earlier step keeps a change."""
        here = (_rollbacks(position), position.step + 1)
        sizes = [row[KEY] for row in self._changes if (row.get("after_rollbacks", 0), row["from_step"]) <= here]
        return sizes[-1] if sizes else self._execution.micro_batch_examples

    def halve(self, position: Position, examples: int, model: nn.Module) -> bool:
        """Halves the size after `position`, where the window has `examples`; False if not allowed, or impossible.

        A model with batch norm is another one for each size.
        """
        size = min(self.after(position), examples) // 2
        if not (size and self._execution.fit_memory) or any(isinstance(m, _BatchNorm) for m in model.modules()):
            return False
        change = {"from_step": position.step + 1, KEY: size}
        if rollbacks := _rollbacks(position):
            change["after_rollbacks"] = rollbacks
        self._run.change_numerics(change)
        self._changes.append(change)
        self._run.log.warning(
            "out of memory at step %s: it is made again with micro-batches of %s, and so are those that follow; the "
            "effective batch stays as it is",
            f"{position.step + 1:,}",
            size,
            extra=FOR_THE_TERMINAL,
        )
        return True


def _rollbacks(position: Position) -> int:
    return len(position.guard.rollbacks) if position.guard else 0


@contextmanager
def explain_out_of_memory(execution: Execution, examples: int) -> Iterator[None]:
    """Turns an allocation that failed into DoesNotFit, which says what to change; no other error.

    `examples` are those of a micro-batch.
    """
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        words = (str(error).strip() or type(error).__name__).splitlines()
        remedies = {
            "set execution.fit_memory=true, and the training halves its micro-batches by itself": examples > 1
            and not execution.fit_memory,
            f"set execution.micro_batch_examples (now {examples}) to {examples // 2} or less: the effective batch is "
            "the same. Steps that were trained already had other numerics: to keep them, set "
            "execution.allow_numerics_change=true too": examples > 1,
            "set execution.gradient_checkpointing=true": execution.gradient_checkpointing is not True,
            "take a device with more memory, or one that nobody else uses": True,
        }
        raise DoesNotFit(
            "a micro-batch fits in memory",
            f"of {examples}: {words[0].rstrip('.')}",
            "room for it",
            "; or ".join(remedy for remedy, helps in remedies.items() if helps),
        ) from error
