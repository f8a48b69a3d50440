"""evaluate: the loss of every model on every test document, the same tokens for all."""

from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from torch import nn

from tasks.attacks.stages import KEY_COLUMNS
from tasks.language import foreign
from tasks.language import model as language
from tasks.language.evaluation import Window, document_losses, require_precision, rolling_windows
from tasks.language.losses import compared_documents
from tasks.language.pairs import packed_split
from tasks.language.study import snapshot_folder
from tasks.language.tokenizer import encode
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
) -> dict[str, Any]:
    """Writes one record for each model and test document."""
    require_precision(config.evaluation_precision, device(config.execution))
    tokenizer = foreign.tokenizer(text.path / "text" / "tokenizer", local_files_only=True)
    documents = pq.read_table(text.path / "text" / "test.parquet").to_pylist()
    tokens = encode(tokenizer, (row["text"] for row in documents))
    examples = [((row["example_id"], row["source"]), ids) for row, ids in zip(documents, tokens, strict=True)]
    parts = [examples[i : i + DOCUMENTS_IN_A_PART] for i in range(0, len(examples), DOCUMENTS_IN_A_PART)]
    folders = _folders(config, base, constrained, arms)
    length = packed_split(text.path / "text", "train").sequence_length

    beside = set[str]()
    if config.evaluation_precision != "fp32":
        beside = compared_documents([example_id for (example_id, _), _ in examples])

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


def _unigram_records(run: StageRun, text: StageInput, examples: list[Example], beside: set[str]) -> list[str]:
    """The trivial reference on the same tokens: each token's frequency in the train split."""
    losses = language.unigram_token_losses(np.load(text.path / "text" / "unigram.npy"))
    more = {"fp32_loss_sum_nats": None} if beside else {}
    rows = [_row("unigram", id_, len(ids), losses[ids].sum(), **more) for id_, ids in examples]
    return run.each({"unigram": rows}, list, "parts")


def _model_records(
    run: StageRun,
    config: EvaluateConfig,
    windows_of: Callable[[list[int]], list[Window]],
    name: str,
    folder: Path,
    parts: list[list[Example]],
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

    def rows(part: list[Example]) -> list[dict[str, Any]]:
        windows = [windows_of(ids) for _, ids in part]
        losses = partial(document_losses, loaded(), batch_size=config.execution.evaluation_batch_examples)
        sums = losses(windows, precision=config.evaluation_precision)
        some = {id_: own for (id_, _), own in zip(part, windows, strict=True) if id_[0] in beside}
        exact = dict(zip(some, losses([*some.values()]).tolist(), strict=True))
        more = [{"fp32_loss_sum_nats": exact.get(id_)} if beside else {} for id_, _ in part]
        return [
            _row(name, id_, len(ids), total, **own) for (id_, ids), total, own in zip(part, sums, more, strict=True)
        ]

    return run.each(parts, rows, "parts", name, f"{name}-", models_done * len(parts), models * len(parts))


def _row(
    model: str, example: tuple[str, str], tokens_scored: int, loss_sum_nats: float, **more: float | None
) -> dict[str, Any]:
    example_id, source = example
    return {
        "model": model,
        "example_id": example_id,
        "source": source,
        "tokens_scored": tokens_scored,
        "loss_sum_nats": float(loss_sum_nats),
        **more,
    }
