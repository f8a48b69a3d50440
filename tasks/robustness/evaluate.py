"""evaluate: the loss of every model on every test document, the same tokens for all."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import torch
from torch import nn

from storage.records import read_records
from tasks.attacks.stages import KEY_COLUMNS
from tasks.language import foreign
from tasks.language import model as language
from tasks.language.losses import summary
from tasks.language.result import EvaluateResult, SetupResult
from tasks.language.study import snapshot_folder
from tasks.language.tokenizer import encode
from tasks.language.windows import Window, rolling_windows
from tasks.monotonic.arm import BASE, BASELINE
from tasks.robustness.stages import EvaluateConfig
from tasks.stage.numerics import device
from tasks.stage.run import StageInput, StageRun

DOCUMENTS_IN_A_PART = 32
Example = tuple[tuple[str, str], list[int]]
"""((example id, source), token ids) of one document."""


def evaluate(
    run: StageRun,
    config: EvaluateConfig,
    text: StageInput,
    base: StageInput,
    constrained: StageInput,
    **arms: StageInput,
) -> EvaluateResult:
    """Writes one record for each model and test document; perplexities of all models in the result."""
    setup = SetupResult.read(text)
    tokenizer = foreign.tokenizer(text.path / "text" / "tokenizer", local_files_only=True)
    documents = pq.read_table(text.path / "text" / "test.parquet").to_pylist()
    tokens = encode(tokenizer, (row["text"] for row in documents))
    examples = [((row["example_id"], row["source"]), ids) for row, ids in zip(documents, tokens, strict=True)]
    parts = [examples[i : i + DOCUMENTS_IN_A_PART] for i in range(0, len(examples), DOCUMENTS_IN_A_PART)]
    folders = _folders(config, base, constrained, arms)

    keys = _unigram_records(run, text, examples)
    with run.watched(config.execution.stall_minutes):
        for done, (name, folder) in enumerate(folders.items()):
            keys += _model_records(run, config, setup, name, folder, parts, done, len(folders))
    digest = run.merge_records(keys, KEY_COLUMNS)
    rows = list(read_records(run.directory / "records.parquet", ("model", "tokens_scored", "loss_sum_nats")))
    return EvaluateResult(
        split="test",
        documents=len(examples),
        models={name: summary(rows, name) for name in ["unigram", *folders]},
        records_digest=digest,
    )


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
    trained = {name: given.path / "model" for name, given in {BASE: base, **arms}.items()}
    return {**untrained, **trained, "constrained-untrained": constrained.path / "model", **kept}


def _unigram_records(run: StageRun, text: StageInput, examples: list[Example]) -> list[str]:
    """The trivial reference on the same tokens: each token's frequency in the train split."""
    losses = language.unigram_token_losses(np.load(text.path / "text" / "unigram.npy"))
    rows = [_row("unigram", id_, len(ids), losses[ids].sum()) for id_, ids in examples]
    return run.each({"unigram": rows}, list, "parts")


def _model_records(
    run: StageRun,
    config: EvaluateConfig,
    setup: SetupResult,
    name: str,
    folder: Path,
    parts: list[list[Example]],
    models_done: int,
    models: int,
) -> list[str]:
    """Writes the parts of one model that are not there yet; returns the keys of all of its parts."""
    length = setup.packed["train"].sequence_length

    @functools.cache
    def loaded() -> nn.Module:
        return language.load(folder).to(device(config.execution)).eval()

    def rows(part: list[Example]) -> list[dict[str, Any]]:
        windows = [rolling_windows(ids, setup.end_of_text_id, length) for _, ids in part]
        sums = document_losses(loaded(), windows, config.execution.evaluation_batch_examples)
        return [_row(name, id_, len(ids), total) for (id_, ids), total in zip(part, sums, strict=True)]

    return run.each(parts, rows, "parts", name, f"{name}-", models_done * len(parts), models * len(parts))


@torch.no_grad()
def document_losses(model: nn.Module, documents: list[list[Window]], batch_size: int) -> np.ndarray:
    """Total loss of each document in nats, float64 [documents].

    Windows of all documents are batched by length, so that little is padded; a window's loss does not depend on
    its batch beyond rounding.
    """
    where = next(model.parameters()).device
    flat = [(number, window) for number, windows in enumerate(documents) for window in windows]
    flat.sort(key=lambda item: len(item[1].tokens))
    totals = np.zeros(len(documents))
    for start in range(0, len(flat), batch_size):
        batch = flat[start : start + batch_size]
        longest = max(len(window.tokens) for _, window in batch)
        padded_BL = torch.zeros(len(batch), longest, dtype=torch.long)
        for row, (_, window) in enumerate(batch):
            padded_BL[row, : len(window.tokens)] = torch.tensor(window.tokens)
        losses_BL = language.token_losses(model, padded_BL.to(where)).double().cpu()
        for row, (number, window) in enumerate(batch):
            last = len(window.tokens) - 1
            totals[number] += losses_BL[row, last - window.scored : last].sum().item()
    return totals


def _row(model: str, example: tuple[str, str], tokens_scored: int, loss_sum_nats: float) -> dict[str, Any]:
    example_id, source = example
    return {
        "model": model,
        "example_id": example_id,
        "source": source,
        "tokens_scored": tokens_scored,
        "loss_sum_nats": float(loss_sum_nats),
    }
