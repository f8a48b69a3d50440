"""A transformers.Trainer as the work of a stage."""

from __future__ import annotations

from typing import Any

from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from tasks.stage.run import StageRun
from tasks.stage.scratch import TrainerCheckpoints

NOT_OF_THE_TRAINING = ("runtime", "per_second", "train_loss")
"""Ends of the names of what its logs measure by a clock, and of a mean that a continuation takes from its own part."""


def train_transformers(run: StageRun, trainer: Trainer) -> Any:
    """`trainer.train()`, which goes on after any kill; returns what that returns.

    Its `output_dir` is `run.scratch`, or CheckFailed. It goes on from its newest checkpoint that is as it was when it
    was whole, saves one more when the run is asked to stop, reports its progress, and logs to `metrics.jsonl`. The
    bytes after a kill are as equal as the Trainer makes them; the loss that it logs is a mean that begins anew where
    it goes on.
    """
    own = TrainerCheckpoints(run, "output_dir", trainer.args.output_dir, "checkpoint-*")
    trainer.add_callback(_Callback(run, own))
    ended = trainer.train(resume_from_checkpoint=str(own.begin) if own.begin else None)
    run.stop.check_signals()
    return ended


class _Callback(TrainerCallback):
    def __init__(self, run: StageRun, own: TrainerCheckpoints) -> None:
        self.run, self.own = run, own

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> TrainerControl:
        self.run.lock.check()
        self.run.progress.update(state.global_step, state.max_steps, "steps", epoch=state.epoch)
        if self.run.stop.requested:
            control.should_save = control.should_training_stop = True
        return control

    def on_log(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **given: Any) -> None:
        logged = {name: value for name, value in given["logs"].items() if not name.endswith(NOT_OF_THE_TRAINING)}
        if logged.keys() - {"epoch", "total_flos"}:
            self.run.metrics.append({"step": state.global_step, **logged})

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self.own.add(self.run.scratch / f"checkpoint-{state.global_step}")
