"""A training on tensors, in one call: its `Problem`, `train_problem`, and what a stage keeps and tells of it."""

import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import torch
from safetensors.torch import save_model
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from storage.errors import BadInput
from tasks.stage.numerics import device
from tasks.stage.run import StageRun
from tasks.training.budget import Budget
from tasks.training.loader import moved
from tasks.training.loop import train_problem
from tasks.training.problem import Problem, adamw
from tasks.training.result import described
from tasks.training.schedule import Schedule

LOSS = "validation_loss"
Rows = Any
"""A tensor or array with a row for each example, [N, ...], or a list of such."""
OfEach = Callable[..., torch.Tensor]
"""A function of a model and some rows of each tensor, which gives a number for each of these examples, [B]."""


def train(
    run: StageRun,
    model: nn.Module,
    data: Rows,
    *,
    loss: OfEach,
    validate: Rows,
    budget: Budget,
    seed: int,
    metrics: Mapping[str, OfEach] | None = None,
    decides: str = LOSS,
    higher: Collection[str] = (),
    trivial: Mapping[str, float] | None = None,
) -> dict[str, object]:
    """Trains with AdamW on `data`; publishes `model/model.safetensors`, and returns what is to stand in the result.

    Each validation has the mean of `loss` over `validate` as `validation_loss`, and that of each of `metrics` by its
    name; `decides`, `higher` and `trivial` are those of a `Problem`. On return `model` has the weights of the best
    step. BadInput, before the first step, for data that are not finite or do not fit together, metrics that are not
    there, batch norm over less than a batch, a loss that lays shapes against each other, and a second training in a
    stage.
    """
    where = device(run.execution)
    known, unseen = _tensors("data", data), _tensors("validate", validate)
    _require_usable(run, model, known, unseen, metrics or {}, budget)
    judges = {**(metrics or {}), LOSS: loss}

    @torch.no_grad()
    def evaluate(model: nn.Module) -> dict[str, float]:
        judged: dict[str, list[torch.Tensor]] = {name: [] for name in judges}
        for rows in zip(*(part.split(run.execution.micro_batch_examples) for part in unseen), strict=True):
            run.progress.touch()
            for name, values in judged.items():  # each is given a copy: a module may work in place
                values.append(_of_each(name, judges[name], model, [moved(part.clone(), where) for part in rows]))
        return {name: torch.cat(values).double().mean().item() for name, values in judged.items()}

    problem = Problem(
        model.to(where),
        adamw(model, budget),
        batch=lambda indices, epoch: [moved(part[torch.from_numpy(indices)], where) for part in known],
        losses=lambda model, batch: _of_each("loss", loss, model, batch),
        evaluate=evaluate,
        decides=decides,
        higher=higher,
        trivial=dict(trivial or {}),
    )
    problem.require_names(judges)
    schedule = Schedule(budget, len(known[0]))
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("error", "Using a target size")  # [B, 1] laid against [B] gives [B, B], and a mean
            position = train_problem(run, problem, schedule, seed, run.execution)
    except UserWarning as warning:
        raise BadInput(f"train: {warning} An axis of length 1 goes by `model(rows).squeeze(1)`") from None
    with run.publish("model") as folder:
        save_model(model.eval(), str(folder / "model.safetensors"))
    of_metrics = {f"best_{name}": {"higher": name in higher} for name in (decides, *judges)}
    return described(schedule, problem, position) | {"metrics": of_metrics}


def _require_usable(
    run: StageRun,
    model: nn.Module,
    known: Sequence[torch.Tensor],
    unseen: Sequence[torch.Tensor],
    metrics: Collection[str],
    budget: Budget,
) -> None:
    if [part.shape[1:] for part in known] != [part.shape[1:] for part in unseen]:
        shapes = (", ".join(str([*part.shape]) for part in parts) for parts in (known, unseen))
        raise BadInput("train: data has shapes {}, and validate {}: an example is the same in both".format(*shapes))
    if LOSS in metrics:
        raise BadInput(f"train: {LOSS} is the mean of `loss`: give the metric another name")
    batch_norm = any(isinstance(module, _BatchNorm) for module in model.modules())
    if batch_norm and run.execution.micro_batch_examples < budget.effective_batch_examples:
        raise BadInput(
            "train: batch norm is of a micro-batch, and so the model would be another one for each size of it: give "
            f"execution.micro_batch_examples={budget.effective_batch_examples}, the whole batch, or use layer norm"
        )


def _tensors(name: str, rows: Rows) -> list[torch.Tensor]:
    try:
        parts = [torch.as_tensor(part) for part in (rows if isinstance(rows, tuple | list) else [rows])]
    except (TypeError, ValueError, RuntimeError) as error:
        raise BadInput(f"train: {name} is a tensor or array, or a list of such: {error}") from None
    if len({part.shape[:1] for part in parts}) != 1 or not all(part.numel() for part in parts) or not parts[0].ndim:
        shapes = ", ".join(str([*part.shape]) for part in parts) or "none"
        raise BadInput(f"train: {name} has shapes {shapes}: each tensor has a row for each example, and there are some")
    for number, part in enumerate(parts):
        if not (finite := part.isfinite()).all():
            row = finite.reshape(len(part), -1).all(1).int().argmin()
            raise BadInput(
                f"train: row {row} of tensor {number} of {name} is not finite: leave such rows out, or mend them"
            )
    return parts


def _of_each(name: str, function: OfEach, model: nn.Module, batch: Sequence[torch.Tensor]) -> torch.Tensor:
    values = function(model, *batch)
    if not isinstance(values, torch.Tensor) or values.shape != batch[0].shape[:1]:
        shown = f"shape {[*values.shape]}" if isinstance(values, torch.Tensor) else f"{values!r}"
        raise BadInput(
            f"train: {name} gave {shown} for {len(batch[0])} examples: it gives a tensor of one number for each, "
            "such as cross_entropy(..., reduction='none')"
        )
    return values
