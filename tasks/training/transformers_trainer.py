"""A transformers.Trainer as the work of a stage."""

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset
from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_callback import ExportableState
from transformers.trainer_utils import TrainOutput, has_length

from storage import durable
from storage.errors import BadInput
from tasks.stage.bound import members, state_of
from tasks.stage.generators import generator_numbers, generator_tensors, load_generators
from tasks.stage.run import StageRun
from tasks.stage.scratch import TrainerCheckpoints

NOT_OF_THE_TRAINING = ("runtime", "per_second", "train_loss")
"""Ends of the names of what its logs measure by a clock, and of a mean that a continuation takes from its own part."""
TESTED = (
    "output_dir", "run_name", "logging", "report_to", "disable_tqdm", "log_level", "use_cpu", "max_steps", "save_",
    "num_train_epochs", "eval", "per_device", "learning_rate", "lr_scheduler", "warmup", "weight_decay", "adam_",
    "max_grad_norm", "seed", "data_seed", "gradient_accumulation", "load_best_model", "metric_for_best", "greater_is",
    "dataloader_num_workers", "restore_callback_states", "remove_unused", "label_names", "accelerator_config", "do_",
)  # fmt: skip
"""Beginnings of the settings with which tests end with the bytes of an undisturbed training, or that set a number."""


def train_transformers(run: StageRun, trainer: Trainer) -> TrainOutput:
    """`trainer.train()`, which goes on after any kill; returns what that returns.

    Its `output_dir` is `run.scratch`, or CheckFailed; BadInput for settings that leave no checkpoint to go on from. It
    goes on from its newest checkpoint that is as it was when it was whole, saves one more when the run is asked to
    stop, reports its progress, and logs to `metrics.jsonl`. What its data draw is a function of seed, epoch and batch,
    and callbacks with a state have it again, so that the model's bytes are those of an undisturbed training; the loss
    that it logs is a mean that begins anew where it goes on.
    """
    args = trainer.args
    for name, why in {
        "save_only_model": "keeps no optimizer",
        "ignore_data_skip": "shows an epoch from its begin",
    }.items():
        if getattr(args, name):
            raise BadInput(
                f"the Trainer has {name}=True, which {why}: a kill would change what it learns. Leave it out"
            )
    own = TrainerCheckpoints(run, "output_dir", args.output_dir, "checkpoint-*")
    args.restore_callback_states_from_checkpoint = True
    if own.begin:
        run.went_on("a Trainer", _untested(trainer))
    callback = _Callback(run, own)
    begin = trainer._init_training_state
    trainer._init_training_state = lambda *given: callback.begin(trainer, *begin(*given))
    if not args.dataloader_persistent_workers:  # they would not hear of the next epoch
        make = trainer.get_train_dataloader
        trainer.get_train_dataloader = lambda: _drawing_by_itself(make(), callback.draws)
    trainer.add_callback(callback)
    ended = trainer.train(resume_from_checkpoint=str(own.begin) if own.begin else None)
    run.stop.check_signals()
    return ended


def _untested(trainer: Trainer) -> str:
    """What of this Trainer no test shows to go on with equal bytes; empty for nothing."""
    arguments = [(field.name, field.default, getattr(trainer.args, field.name)) for field in fields(TrainingArguments)]
    names = [name for name, default, value in arguments if value and value != default and not name.startswith(TESTED)]
    callbacks = [
        type(callback).__name__
        for callback in trainer.callback_handler.callbacks
        if vars(callback) and not isinstance(callback, ExportableState)
        and not type(callback).__module__.startswith("transformers.")
    ]  # fmt: skip
    if type(trainer) is not Trainer:
        names.append(type(trainer).__name__)
    own = [name for data in ("train_dataset", "data_collator") for name, value in members(data, getattr(trainer, data))
           if state_of(value) is not None]  # fmt: skip
    return "; ".join(
        [f"no test has {', '.join(names)}"] * bool(names)
        + [f"{', '.join(own)} draws, and is in no checkpoint"] * bool(own)
        + [f"what {', '.join(callbacks)} keeps is in no checkpoint"] * bool(callbacks)
    )


class _Callback(TrainerCallback):
    def __init__(self, run: StageRun, own: TrainerCheckpoints) -> None:
        self.run, self.own, self.draws = run, own, _Draws()

    def begin(self, trainer: Trainer, epochs: int, batches: int) -> tuple[int, int]:
        """The epochs that are done, and the batches of the one it goes on within. Of data without a length the Trainer
        takes all steps for one epoch, although it begins another each time that they end."""
        if self.own.begin and not has_length(trainer.train_dataset):
            epochs = int(trainer.state.epoch)
            batches = round((trainer.state.epoch - epochs) * trainer.args.max_steps)
            batches *= trainer.args.gradient_accumulation_steps
        self.draws.seed, self.draws.epoch = trainer.args.seed, epochs - 1
        return epochs, batches

    def on_epoch_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object
    ) -> None:
        self.draws.epoch += 1

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object
    ) -> TrainerControl:
        self.run.lock.check()
        self.run.progress.update(state.global_step, state.max_steps, "steps", epoch=state.epoch)
        if self.run.stop.requested:
            control.should_save = control.should_training_stop = True
        return control

    def on_log(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **more: dict[str, float]
    ) -> None:
        logged = {name: value for name, value in more["logs"].items() if not name.endswith(NOT_OF_THE_TRAINING)}
        if logged.keys() - {"epoch", "total_flos"}:
            self.run.metrics.append({"step": state.global_step, **logged})

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object) -> None:
        self.own.add(self.run.scratch / f"checkpoint-{state.global_step}")


class _Draws:
    """The generators as reading the data has them, apart from those of the training: a Trainer reads one batch ahead,
    and reads again, or leaves out, what an epoch has shown before it goes on."""

    def __init__(self) -> None:
        self.seed = self.epoch = 0
        self._state: tuple[Any, Any] | None = None

    @contextmanager
    def of(self, batch: Sequence[object] | None = None) -> Iterator[None]:
        """For what is read now: seeded by epoch and batch, or as the reading before left them."""
        training = generator_tensors(False), generator_numbers()
        if batch is not None or self._state is None:
            seed = int(durable.sha256_json([self.seed, self.epoch, repr(batch)])[:12], 16)
            random.seed(seed)
            np.random.seed(seed % 2**32)
            torch.default_generator.manual_seed(seed)
        else:
            load_generators(*self._state)
        try:
            yield
        finally:
            self._state = generator_tensors(False), generator_numbers()
            load_generators(*training)


def _drawing_by_itself(loader: DataLoader, draws: _Draws) -> DataLoader:
    """The same loader, whose data and collator draw from generators of their own."""
    base = getattr(loader, "base_dataloader", loader)
    if isinstance(base, DataLoader):
        data, collate = base.dataset, base.collate_fn
        own = _Stream(data, draws) if isinstance(data, IterableDataset) else _Items(data, draws)
        vars(base)["dataset"] = own  # what skips batches makes a loader of its dataset and collator
        base.collate_fn = _Collating(collate, draws)
    return loader


class _Collating:
    def __init__(self, collate: Callable[[object], object], draws: _Draws) -> None:
        self._collate, self._draws = collate, draws

    def __call__(self, items: object) -> object:
        with self._draws.of():
            return self._collate(items)


class _Drawing:
    """Data that draw by themselves; whatever else is asked of them, the given ones answer."""

    def __init__(self, data: Dataset, draws: _Draws) -> None:
        self._data, self._draws = data, draws

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # as pickle asks for what moves them to a worker
            raise AttributeError(name)
        return getattr(self._data, name)

    def __len__(self) -> int:
        return len(self._data)


class _Items(_Drawing, Dataset[object]):
    """Items by number, a batch at a time."""

    def __getitem__(self, number: int) -> object:
        return self.__getitems__([number])[0]

    def __getitems__(self, numbers: list[int]) -> Sequence[object]:
        with self._draws.of(numbers):
            together = getattr(self._data, "__getitems__", None)
            return together(numbers) if together else [self._data[number] for number in numbers]


class _Stream(_Drawing, IterableDataset[object]):
    """Items in the order of an iterable one."""

    def __iter__(self) -> Iterator[object]:
        with self._draws.of(["begin"]):
            items = iter(self._data)
        while True:
            with self._draws.of():
                try:
                    item = next(items)
                except StopIteration:
                    return
            yield item
