"""order: whether the feed-forward sublayers of each model are monotone functions, proved or refuted, and on text.

Shape suffixes: T texts, L tokens, N inputs of a sublayer, D width of the residual stream.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
import torch
from torch import nn
from transformers import PreTrainedModel

from tasks.language import model as language
from tasks.language.model import filled_up
from tasks.language.pairs import packed_pairs, packed_split
from tasks.language.texts import texts_of, tokenizer_of
from tasks.monotonic.certificate import certify
from tasks.monotonic.result import ModelOrder, OrderOnText
from tasks.monotonic.stages import DOCUMENTS, OrderConfig
from tasks.monotonic.sublayer import FeedForward, feed_forward_sublayers
from tasks.stage.numerics import device
from tasks.stage.run import StageInput, StageRun

SEED = 0
ROUNDING = 1e-12
"""A change of an output that is smaller, as a share of the largest output, is none."""


def order_on_text(sublayers: Sequence[FeedForward], seen: Mapping[str, torch.Tensor]) -> OrderOnText:
    """How far sublayers keep order at inputs that text gives them: a measurement, not a proof.

    The order is that of hidden vectors, coordinate by coordinate. Text cannot be asked for it: a sublayer's inputs come
    out of a LayerNorm and have, divided by its gain, the same mean, so that with a positive gain one lies below another
    only if they are equal; and attention weighs by products that fall as easily as they rise. So ordered inputs are
    made from two that were seen: x, and in each coordinate the larger of x and x', which no text need ever give.

    `seen`: sublayer -> two or more inputs [N, D], as of `seen_inputs`; the model is in evaluation.
    """
    changes = np.concatenate([_changes(sublayer, seen[sublayer.name]).ravel() for sublayer in sublayers])
    size = float(np.abs(changes).sum())
    return OrderOnText(
        inputs=min(map(len, seen.values())),
        changes=len(changes),
        share=float((changes < 0).mean()),
        share_of_size=float(-changes.clip(max=0).sum()) / size if size else 0.0,
        lowest=float(changes.min()),
    )


@torch.no_grad()
def seen_inputs(
    model: PreTrainedModel,
    sublayers: Sequence[FeedForward],
    texts: Sequence[Sequence[int]],
    per_text: int,
    batch: int,
    written: Sequence[Sequence[int]] = (),
) -> dict[str, torch.Tensor]:
    """Sublayer -> its inputs [N, D] at up to `per_text` places of each text (token ids), the same for every model.

    The places are drawn once for the lengths of the texts; the model is in evaluation. `written` are the tokens that an
    encoder-decoder reads in its decoder: the places are among as many as both have.
    """
    chance = np.random.default_rng(SEED)
    lengths = [min(map(len, both)) for both in zip(texts, written, strict=True)] if written else [*map(len, texts)]
    places = [np.sort(chance.choice(length, size=min(per_text, length), replace=False)) for length in lengths]
    device = next(model.parameters()).device
    kept: dict[str, list[torch.Tensor]] = {sublayer.name: [] for sublayer in sublayers}

    def keep(name: str, *at: torch.Tensor) -> Callable[[nn.Module, tuple[torch.Tensor, ...]], None]:
        return lambda _, inputs: kept[name].append(inputs[0][at])

    for start in range(0, len(texts), batch):
        some, chosen = texts[start : start + batch], places[start : start + batch]
        rows = torch.tensor(np.repeat(np.arange(len(some)), [len(own) for own in chosen]), device=device)
        columns = torch.tensor(np.concatenate(chosen), device=device)
        read = {"input_ids": filled_up(some, 0).to(device)}
        if written:
            read["attention_mask"] = filled_up([[1] * len(ids) for ids in some], 0).to(device)
            read["decoder_input_ids"] = filled_up(written[start : start + batch], 0).to(device)
        with ExitStack() as hooks:
            for sublayer in sublayers:
                hooks.enter_context(sublayer.module.register_forward_pre_hook(keep(sublayer.name, rows, columns)))
            model.base_model(**read)  # without the head, whose logits nobody reads
    return {name: torch.cat(parts) for name, parts in kept.items()}


def _changes(sublayer: FeedForward, x_ND: torch.Tensor) -> np.ndarray:
    """Changes [N, D] of all outputs from x to max(x, x'), x' being the next seen input; by `in_float64`."""
    x = x_ND.double().cpu().numpy()
    before, after = sublayer.in_float64(x), sublayer.in_float64(np.maximum(x, np.roll(x, -1, axis=0)))
    changes = after - before
    changes[np.abs(changes) <= ROUNDING * np.abs(before).max()] = 0.0
    return changes


INPUTS_PER_DOCUMENT = 2
"""Places in each document at which a sublayer's input is looked at."""


def order(run: StageRun, config: OrderConfig, text: StageInput, **inputs: StageInput) -> dict[str, object]:
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
        documents = texts_of(text, "test", DOCUMENTS)
        if packed := packed_pairs(text.path / "text"):
            written = [[packed.padding_id, *document.reference[:-1]] for document in documents]
            return cls([document.read for document in documents], written)
        length, end = packed_split(text.path / "text", "train").sequence_length, tokenizer_of(text).eos_token_id
        return cls([[end, *document][:length] for document in documents], [])

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
        on_text=order_on_text(feed_forward_sublayers(model, config.variant), seen),
    )
