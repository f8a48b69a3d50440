"""evaluate: the loss of every model on every test document, the same tokens for all."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

import numpy as np
import torch
from torch import nn

from storage.errors import BadInput
from storage.records import Rows
from tasks.attacks.stages import KEY_COLUMNS
from tasks.language import model as language
from tasks.language.configuration import Precision
from tasks.language.model import token_losses
from tasks.language.pairs import packed_split
from tasks.language.stages import snapshot_folder
from tasks.language.texts import Text, texts_of, tokenizer_of
from tasks.monotonic.arm import BASE, BASELINE
from tasks.robustness.rounding import compared_documents
from tasks.robustness.stages import EvaluateConfig
from tasks.stage.numerics import device
from tasks.stage.run import StageInput, StageRun

DOCUMENTS_IN_A_PART = 32


def evaluate(
    run: StageRun,
    config: EvaluateConfig,
    text: StageInput,
    base: StageInput,
    constrained: StageInput,
    **arms: StageInput,
) -> dict[str, object]:
    """Writes one record for each model and test document."""
    require_precision(config.evaluation_precision, device(config.execution))
    tokenizer = tokenizer_of(text)
    examples = texts_of(text, "test")
    parts = [examples[i : i + DOCUMENTS_IN_A_PART] for i in range(0, len(examples), DOCUMENTS_IN_A_PART)]
    folders = _folders(config, base, constrained, arms)
    length = packed_split(text.path / "text", "train").sequence_length

    beside = set[str]()
    if config.evaluation_precision != "fp32":
        beside = compared_documents([example.example_id for example in examples])

    keys = _unigram_records(run, text, examples, beside)
    with run.watched(config.execution.stall_minutes):
        for done, (name, folder) in enumerate(folders.items()):
            windows = partial(rolling_windows, end_of_text=tokenizer.eos_token_id, length=length)
            keys += _model_records(run, config, windows, name, folder, parts, beside, done, len(folders))
    run.merge_records(keys, KEY_COLUMNS)
    return {}


def _folders(
    config: EvaluateConfig, base: StageInput, constrained: StageInput, arms: dict[str, StageInput]
) -> dict[str, Path]:
    """Name of each model -> its folder: what stands before any training, base, the arms, and snapshots of these."""
    untrained = {"untrained": base.path / "initial"} if (base.path / "initial").is_dir() else {}
    kept = {
        f"{name}@{share:g}": folder
        for name, trained in ((BASE, base), (BASELINE, arms[BASELINE]))
        for share in config.snapshots
        if (folder := trained.path / snapshot_folder(share)).is_dir()
    }
    trained = {name: stage.path / "model" for name, stage in {BASE: base, **arms}.items()}
    return {**untrained, **trained, "constrained-untrained": constrained.path / "model", **kept}


def _unigram_records(run: StageRun, text: StageInput, examples: list[Text], beside: set[str]) -> list[str]:
    """The trivial reference on the same tokens: each token's frequency in the train split."""
    losses = language.unigram_token_losses(np.load(text.path / "text" / "unigram.npy"))
    more = {"fp32_loss_sum_nats": None} if beside else {}
    rows = [_row("unigram", own, losses[own.tokens].sum(), **more) for own in examples]
    return run.each({"unigram": rows}, list, "parts")


def _model_records(
    run: StageRun,
    config: EvaluateConfig,
    windows_of: Callable[[list[int]], list[Window]],
    name: str,
    folder: Path,
    parts: list[list[Text]],
    beside: set[str],
    models_done: int,
    models: int,
) -> list[str]:
    """Writes the parts of one model that are not there yet; returns the keys of all of its parts.

    The documents of `beside` are evaluated in fp32 too.
    """

    @cache
    def loaded() -> nn.Module:
        return language.load(folder).to(device(config.execution)).eval()

    def rows(part: list[Text]) -> Rows:
        windows = [windows_of(example.tokens) for example in part]
        losses = partial(document_losses, loaded(), batch_size=config.execution.evaluation_batch_examples)
        sums = losses(windows, precision=config.evaluation_precision)
        some = {text.example_id: own for text, own in zip(part, windows, strict=True) if text.example_id in beside}
        exact = dict(zip(some, losses([*some.values()]).tolist(), strict=True))
        more = [{"fp32_loss_sum_nats": exact.get(text.example_id)} if beside else {} for text in part]
        return [_row(name, text, total, **own) for text, total, own in zip(part, sums, more, strict=True)]

    return run.each(parts, rows, "parts", name, f"{name}-", models_done * len(parts), models * len(parts))


def _row(model: str, text: Text, loss_sum_nats: float, **more: float | None) -> dict[str, str | float | None]:
    return {
        "model": model,
        "example_id": text.example_id,
        "source": text.source,
        "tokens_scored": len(text),
        "loss_sum_nats": float(loss_sum_nats),
        **more,
    }


@torch.no_grad()
def document_losses(
    model: nn.Module, documents: list[list[Window]], batch_size: int, precision: Precision = "fp32"
) -> np.ndarray:
    """Total loss of each document in nats, float64 [documents].

    Windows of all documents are batched by length, so that little is padded; a window's loss does not depend on
    its batch beyond rounding.
    """
    where = next(model.parameters()).device
    flat = [(number, window) for number, windows in enumerate(documents) for window in windows]
    flat.sort(key=lambda item: len(item[1].tokens))
    totals = np.zeros(len(documents))
    with computed_in(precision, where):
        for start in range(0, len(flat), batch_size):
            batch = flat[start : start + batch_size]
            longest = max(len(window.tokens) for _, window in batch)
            padded_BL = torch.zeros(len(batch), longest, dtype=torch.long)
            for row, (_, window) in enumerate(batch):
                padded_BL[row, : len(window.tokens)] = torch.tensor(window.tokens)
            losses_BL = token_losses(model, padded_BL.to(where)).double().cpu()
            for row, (number, window) in enumerate(batch):
                last = len(window.tokens) - 1
                totals[number] += losses_BL[row, last - window.scored : last].sum().item()
    return totals


def require_precision(precision: Precision, where: torch.device) -> None:
    """BadInput for one that this device has not."""
    if precision == "tf32" and where.type != "cuda":
        raise BadInput("evaluation_precision is tf32, which only a GPU has (Ampere or later): take fp32 or bf16 here")


@contextmanager
def computed_in(precision: Precision, where: torch.device) -> Iterator[None]:
    """Matrix products in this precision.

    bf16 is by autocast, as trainings have it: the sums between layers and the norms stay in fp32, however deep the
    network, and no copy of the weights is made. A copy, which the searches take, is 1.2 times as fast on a GPU.
    """
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
    try:
        with torch.autocast(where.type, torch.bfloat16, enabled=precision == "bf16"):
            yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


@dataclass(frozen=True)
class Window:
    """Token ids as the model reads them, of which the last `scored` are predicted: `len(tokens) <= length + 1`."""

    tokens: list[int]
    scored: int


def rolling_windows(tokens: list[int], end_of_text: int, length: int) -> list[Window]:
    """The windows of one document; the `scored` of all add up to `len(tokens)`.

    The rolling rule of lm-evaluation-harness (`get_rolling_token_windows` with a context of one token): an end-of-text
    token stands in front; each window predicts the next `length` tokens; the last one predicts what remains and is
    filled up on its left with tokens that were predicted before.
    """
    stream = [end_of_text, *tokens]
    windows = []
    for first in range(1, len(stream), length):
        end = min(first + length, len(stream))
        begin = max(0, end - length - 1)
        windows.append(Window(stream[begin:end], end - first))
    return windows
