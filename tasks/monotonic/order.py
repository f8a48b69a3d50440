"""order: whether the feed-forward sublayers of each model are monotone functions, proved or refuted, and on text."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import pyarrow.parquet as pq
import torch
from transformers import PreTrainedModel

from tasks.language import foreign
from tasks.language import model as language
from tasks.language.pairs import packed_pairs, packed_split, parted
from tasks.language.tokenizer import encode, encode_pairs
from tasks.monotonic.certificate import certify
from tasks.monotonic.on_text import order_on_text, seen_inputs
from tasks.monotonic.result import ModelOrder
from tasks.monotonic.stages import DOCUMENTS, OrderConfig
from tasks.monotonic.sublayer import feed_forward_sublayers
from tasks.stage.numerics import device
from tasks.stage.run import StageInput, StageRun

INPUTS_PER_DOCUMENT = 2
"""Places in each document at which a sublayer's input is looked at."""


def order(run: StageRun, config: OrderConfig, text: StageInput, **inputs: StageInput) -> dict[str, Any]:
    """Examines every model of `config.models`, given under its name; one record, and one part, for each.

    On one core a model of 4 sublayers of 128 x 512 weights takes 1.5 s, one sublayer of 2048 x 8192 weights 45 s, and
    0.7 GB beside the model.
    """
    texts = Texts.of(text)

    def row(name: str) -> list[dict[str, str]]:
        result = _model_order(run, config, inputs[name].path / "model", texts)
        return [{"model": name, "order": result.model_dump_json()}]

    with run.watched(config.execution.stall_minutes):
        run.each({name: name for name in config.models}, row, "models", str)
    run.merge_records(config.models, ("model",))
    return {}


@dataclass(frozen=True)
class Texts:
    """Test documents as a model reads them: behind an end-of-text token, and no longer than a window.

    Of pairs the articles, and beside them what the decoder reads of the summaries.
    """

    read: list[list[int]]
    written: list[list[int]]

    @classmethod
    def of(cls, text: StageInput) -> Self:
        rows = pq.read_table(text.path / "text" / "test.parquet").to_pylist()[:DOCUMENTS]
        documents = [row["text"] for row in rows]
        tokenizer = foreign.tokenizer(text.path / "text" / "tokenizer", local_files_only=True)
        if packed := packed_pairs(text.path / "text"):
            pairs = [packed.as_read(*ids) for ids in encode_pairs(tokenizer, map(parted, documents))]
            return cls([article for article, _ in pairs], [[packed.padding_id, *summary[:-1]] for _, summary in pairs])
        length, end = packed_split(text.path / "text", "train").sequence_length, tokenizer.eos_token_id
        return cls([[end, *ids][:length] for ids in encode(tokenizer, documents)], [])

    def seen(self, model: PreTrainedModel, variant: str, batch: int) -> dict[str, torch.Tensor]:
        """Sublayer -> its inputs at some places of each text."""
        sublayers = feed_forward_sublayers(model, variant)
        return seen_inputs(model, sublayers, self.read, INPUTS_PER_DOCUMENT, batch, self.written)


def _model_order(run: StageRun, config: OrderConfig, folder: Path, texts: Texts) -> ModelOrder:
    model = language.load(folder).to(device(config.execution)).eval()
    seen = texts.seen(model, config.variant, config.execution.evaluation_batch_examples)

    def after_sublayer() -> None:
        run.progress.touch()
        run.stop.check()

    return ModelOrder(
        certificate=certify(model, config.variant, seen, after_sublayer),
        on_text=order_on_text(feed_forward_sublayers(model, config.variant), seen, after_sublayer),
    )
