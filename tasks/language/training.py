"""A language model as the training loop sees it, and what its training leaves behind."""

from collections.abc import Callable

import numpy as np
import torch
from torch import nn
from transformers import PreTrainedModel

from storage.errors import BadInput
from tasks.language import model as language
from tasks.language.pairs import Pairs, packed_split
from tasks.stage.execution import Execution
from tasks.stage.numerics import device
from tasks.stage.run import StageInput, StageRun
from tasks.training.budget import Budget
from tasks.training.draws import uniform_at
from tasks.training.loader import moved
from tasks.training.loop import train_problem
from tasks.training.problem import Problem, adamw
from tasks.training.schedule import Schedule

Checks = dict[int, list[Callable[[nn.Module], None]]]


def train_language_model(
    run: StageRun,
    model: PreTrainedModel,
    text: StageInput,
    budget: Budget,
    seed: int,
    execution: Execution,
    make_optimizer: Callable[[nn.Module, Schedule], torch.optim.Optimizer] = lambda model, schedule: adamw(
        model, schedule.budget
    ),
    make_checks: Callable[[Schedule], Checks] = lambda _: {},
    replaced: float = 0.0,
) -> None:
    """Trains `model` in place on the train blocks and leaves it with the weights of its best step.

    `replaced` is the share of input tokens replaced by random ones; what it predicts is the text's own.
    """
    train_blocks, validation_blocks = (packed_split(text.path / "text", split) for split in ("train", "validation"))
    where, counts_V = device(execution), np.load(text.path / "text" / "unigram.npy")
    model.to(where)
    schedule = Schedule(budget, len(train_blocks))

    def evaluate(network: nn.Module) -> float:
        return language.validation_loss(network, validation_blocks, execution.micro_batch_examples, run.progress.touch)

    def batch(indices: np.ndarray, epoch: int) -> torch.Tensor:
        tokens_BL = train_blocks[indices]
        if replaced:
            read_BL = with_replaced(tokens_BL, replaced, model.config.vocab_size, seed, epoch, indices)
            return moved(torch.stack([tokens_BL, read_BL], dim=1), where)
        return moved(tokens_BL, where)

    def losses(network: nn.Module, tokens: torch.Tensor) -> torch.Tensor:
        return language.block_losses(network, *tokens.unbind(dim=1)) if replaced else own(network, tokens)

    own = language.example_losses(train_blocks)
    if replaced and isinstance(train_blocks, Pairs):
        raise BadInput("tokens are replaced in blocks of text, not in pairs: leave the arm random-replacements out")
    if execution.gradient_checkpointing:
        model.gradient_checkpointing_enable()
    problem = Problem(
        model,
        make_optimizer(model, schedule),
        batch,
        losses,
        evaluate,
        make_checks(schedule),
        weights=train_blocks.weights if isinstance(train_blocks, Pairs) else None,
        trivial={"unigram": language.unigram_loss(counts_V, validation_blocks)} if budget.not_learning else {},
    )
    train_problem(run, problem, schedule, seed, execution)
    model.cpu().eval()


def with_replaced(
    tokens_BL: torch.Tensor, share: float, vocabulary: int, seed: int, epoch: int, indices: np.ndarray
) -> torch.Tensor:
    """The blocks `indices` with this share of their tokens drawn anew, each token of the vocabulary alike likely."""
    where_BL, which_BL = uniform_at(seed, "replaced tokens", epoch, indices, (2, tokens_BL.shape[1])).unbind(dim=1)
    return torch.where(where_BL < share, (which_BL.double() * vocabulary).long(), tokens_BL)
