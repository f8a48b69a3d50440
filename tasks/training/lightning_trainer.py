"""A lightning Trainer as the work of a stage."""

import math
import signal
import time
from collections import deque
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

import torch
from torch.utils.data import DataLoader

from storage.errors import BadInput, install, require_equal
from tasks.stage.generators import generator_numbers, generator_tensors, load_generators
from tasks.stage.run import StageRun
from tasks.stage.scratch import TrainerCheckpoints

try:
    from lightning.pytorch import Callback, LightningModule, Trainer
    from lightning.pytorch.callbacks import ModelCheckpoint, Timer
    from lightning.pytorch.loggers import Logger
except ImportError as error:
    raise BadInput(f"train_lightning trains by lightning, and {error}: {install('lightning')}") from None


def train_lightning(
    run: StageRun,
    trainer: Trainer,
    module: LightningModule,
    train_dataloaders: Any = None,
    val_dataloaders: object = None,
    **fit: Any,
) -> None:
    """`trainer.fit(module, ...)`, which goes on after any kill.

    CheckFailed unless the `default_root_dir` of the Trainer is `run.scratch`, and it has one device and no `max_time`.
    It saves between two steps as `execution.checkpoint_every_steps` and `checkpoint_every_seconds` say, and when the
    run is asked to stop; logs to `metrics.jsonl`; and ends with the weights of an undisturbed training where its data
    are one DataLoader, whose workers do not persist: within an epoch that reads again what was seen. Where that has no
    length it goes on with the next batch, and with the weights only if neither data nor module draw random numbers.
    """
    own = TrainerCheckpoints(run, "default_root_dir", trainer.default_root_dir, "lightning-*.ckpt")
    require_equal("the Trainer has one device", trainer.world_size, 1)
    if own.begin:
        run.went_on("a Lightning Trainer", _untested(trainer, train_dataloaders))
    timers = [callback for callback in trainer.callbacks if isinstance(callback, Timer)]
    left = [timer.time_remaining() for timer in timers if timer.time_remaining() is not None]
    require_equal("the Trainer ends by steps, not by a clock: max_time", left or None, None)
    source = next(data for data in (train_dataloaders, fit.get("datamodule"), module) if data is not None)
    if make := getattr(source, "train_dataloader", None):
        source.train_dataloader = lambda: _resumed(make())
    else:
        train_dataloaders = _resumed(train_dataloaders)
    for callback in trainer.checkpoint_callbacks:
        if isinstance(callback, ModelCheckpoint) and callback.dirpath is None:  # else a logger names it by the start,
            callback.dirpath = str(run.scratch / "checkpoints")  # and of a folder of another name no best is known
    trainer.loggers = [*trainer.loggers, _Rows(run)]
    trainer.callbacks.insert(0, _Callback(run, own))  # before those that log: they do so again where it goes on
    try:
        trainer.fit(module, train_dataloaders, val_dataloaders, ckpt_path=own.begin, **fit)
    except SystemExit as ended:
        if isinstance(ended.__context__, KeyboardInterrupt):  # what Lightning makes of a second Ctrl-C
            raise ended.__context__ from None
        raise


def _untested(trainer: Trainer, loader: object) -> str:
    """What of this Trainer no test shows to go on with equal bytes; empty for nothing."""
    own = [type(one).__name__ for one in trainer.callbacks if vars(one) and not type(one).__module__.startswith("light")
           and type(one).state_dict is Callback.state_dict]  # fmt: skip
    reasons = {
        f"what {', '.join(own)} keeps is in no checkpoint": own,
        f"no test has precision={trainer.precision}": trainer.precision != "32-true",
        "its data are no DataLoader": loader is not None and not isinstance(loader, DataLoader),
        "its workers persist": getattr(loader, "persistent_workers", False),
    }
    return "; ".join(reason for reason, holds in reasons.items() if holds)


class _Callback(Callback):
    """Saves before a batch, when all that follows the one before is done: validations, schedules, rows."""

    def __init__(self, run: StageRun, own: TrainerCheckpoints) -> None:
        self.run, self.own, self.saved, self.saved_at = run, own, own.step, time.monotonic()
        self.stepped = own.state.get("stepped")
        self.sigterm, self.steps = signal.getsignal(signal.SIGTERM), 0

    def on_train_start(self, trainer: Trainer, module: LightningModule) -> None:
        steps = trainer.estimated_stepping_batches
        self.steps = int(steps) if math.isfinite(steps) else 0
        if signal.getsignal(signal.SIGTERM) != self.sigterm:  # Lightning's own ends the process, and saves nothing
            signal.signal(signal.SIGTERM, self.sigterm)

    def on_train_batch_start(self, trainer: Trainer, module: LightningModule, batch: object, batch_idx: int) -> None:
        loop, step, run = trainer.fit_loop.epoch_loop, trainer.global_step, self.run
        if self.stepped is not None:  # where it goes on, Lightning also counts the batch that it had begun
            loop._batches_that_stepped, self.stepped = self.stepped, None
            loop.batch_progress.total.ready = loop.batch_progress.total.completed + 1
        if isinstance(loader := trainer.train_dataloader, _Resumed):
            loader.number = batch_idx
        if batch_idx % trainer.accumulate_grad_batches:
            return  # within a step
        run.lock.check()
        run.progress.update(step, self.steps, "steps", epoch=trainer.current_epoch)
        every, seconds = run.execution.checkpoint_every_steps, time.monotonic() - self.saved_at
        due = seconds >= run.execution.checkpoint_every_seconds or (every and step - self.saved >= every)
        if (run.stop.requested or due) and step > self.saved:
            path = run.scratch / f"lightning-{step}.ckpt"
            trainer.save_checkpoint(path)
            self.own.add(path, stepped=loop._batches_that_stepped)
            path.unlink()  # its copy is kept
            self.saved, self.saved_at = step, time.monotonic()
        run.stop.check_signals()


class _Rows(Logger):
    """Rows of `metrics.jsonl`, of what is finite."""

    name, version = "ratchet", 0

    def __init__(self, run: StageRun) -> None:
        super().__init__()
        self._rows = run.metrics

    def log_hyperparams(self, *_: object, **__: object) -> None:
        """The configuration of the stage says them."""

    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        self._rows.append({"step": step} | {name: value for name, value in metrics.items() if math.isfinite(value)})


def _resumed(loader: object) -> object:
    return _Resumed(loader) if isinstance(loader, DataLoader) else loader


class _Resumed:
    """A DataLoader that goes on within an epoch, which Lightning leaves to it.

    The epoch begins with the generators that it began with, what was trained on is read again, and the generators
    become what they were then.
    """

    def __init__(self, loader: DataLoader) -> None:
        self.loader, self.number, self._goes_on = loader, 0, dict[str, Any]()
        self._states = deque[dict[str, Any]](maxlen=2)  # Lightning reads what has no length one batch ahead

    def __len__(self) -> int:
        return len(self.loader)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.loader, name)

    def __iter__(self) -> Iterator[object]:
        before, self._goes_on = self._goes_on, {}
        seen = before.get("seen", 0)
        if before:
            self._load(before["epoch"])
        epoch = self._generators()
        batches = iter(self.loader)
        for _ in islice(batches, seen):
            pass
        if before:
            self._load(before["generators"])
        self._states.append({"epoch": epoch, "seen": seen, "generators": self._generators()})
        for number, batch in enumerate(batches, seen + 1):
            yield batch
            self._states.append({"epoch": epoch, "seen": number, "generators": self._generators()})

    def state_dict(self) -> dict[str, Any]:
        """The state saved just before batch `number`."""
        return next((state for state in reversed(self._states) if state["seen"] == self.number), {})

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._goes_on = state

    def _generators(self) -> dict[str, Any]:
        own = self.loader.generator
        tensors = generator_tensors(torch.cuda.is_initialized()) | ({"loader": own.get_state()} if own else {})
        return {"tensors": tensors, "numbers": generator_numbers()}

    def _load(self, generators: dict[str, Any]) -> None:
        load_generators(generators["tensors"], generators["numbers"])
        if self.loader.generator:
            self.loader.generator.set_state(generators["tensors"]["loader"])
