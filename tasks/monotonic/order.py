"""order: whether the feed-forward sublayers of each model are monotone functions, proved or refuted, and on text."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq

from storage.records import read_records
from tasks.language import foreign
from tasks.language import model as language
from tasks.language.pairs import parted
from tasks.language.result import PackedPairs, SetupResult
from tasks.language.tokenizer import encode, encode_pairs
from tasks.monotonic.certificate import certify
from tasks.monotonic.on_text import order_on_text, seen_inputs
from tasks.monotonic.result import ModelOrder, OrderResult
from tasks.monotonic.stages import OrderConfig
from tasks.monotonic.sublayer import feed_forward_sublayers
from tasks.stage.numerics import device
from tasks.stage.run import StageInput, StageRun

Tokens = list[list[int]]
DOCUMENTS, INPUTS_PER_DOCUMENT = 32, 2
"""First documents of the test split; places in each at which a sublayer's input is looked at."""


def order(run: StageRun, config: OrderConfig, text: StageInput, **given: StageInput) -> OrderResult:
    """Examines every model of `config.models`, given under its name; one record, and one part, for each.

    On one core a model of 4 sublayers of 128 x 512 weights takes 1.5 s, one sublayer of 2048 x 8192 weights 45 s, and
    0.7 GB beside the model.
    """
    documents = pq.read_table(text.path / "text" / "test.parquet").to_pylist()[:DOCUMENTS]
    texts, written = _read(text, [document["text"] for document in documents])

    def row(name: str) -> list[dict[str, str]]:
        found = _model_order(run, config, given[name].path / "model", texts, written)
        return [{"model": name, "order": found.model_dump_json()}]

    with run.watched(config.execution.stall_minutes):
        run.each({name: name for name in config.models}, row, "models", str)
    digest = run.merge_records(config.models, ("model",))
    rows = read_records(run.directory / "records.parquet")
    return OrderResult(
        split="test",
        documents=len(documents),
        variant=config.variant,
        models={row["model"]: ModelOrder.model_validate_json(row["order"]) for row in rows},
        records_digest=digest,
    )


def _read(text: StageInput, documents: list[str]) -> tuple[Tokens, Tokens]:
    """Documents as a model reads them: behind an end-of-text token, and no longer than a window.

    Of pairs the articles, and beside them what the decoder reads of the summaries.
    """
    setup = SetupResult.read(text)
    tokenizer = foreign.tokenizer(text.path / "text" / "tokenizer", local_files_only=True)
    packed = setup.packed["train"]
    if isinstance(packed, PackedPairs):
        pairs = [packed.as_read(*ids) for ids in encode_pairs(tokenizer, map(parted, documents))]
        return [article for article, _ in pairs], [[packed.padding_id, *summary[:-1]] for _, summary in pairs]
    return [[setup.end_of_text_id, *ids][: packed.sequence_length] for ids in encode(tokenizer, documents)], []


def _model_order(run: StageRun, config: OrderConfig, folder: Path, texts: Tokens, written: Tokens) -> ModelOrder:
    model = language.load(folder).to(device(config.execution)).eval()
    sublayers = feed_forward_sublayers(model, config.variant)
    batch = config.execution.evaluation_batch_examples
    seen = seen_inputs(model, sublayers, texts, INPUTS_PER_DOCUMENT, batch, written)

    def after_sublayer() -> None:
        run.progress.touch()
        run.stop.check()

    return ModelOrder(
        certificate=certify(model, config.variant, seen, after_sublayer),
        on_text=order_on_text(sublayers, seen, after_sublayer),
    )
