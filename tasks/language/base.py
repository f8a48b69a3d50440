"""base: the model that all arms start from, pretrained here or loaded, and shown to be trained."""

from functools import partial

import numpy as np
from transformers import PreTrainedModel

from storage.errors import BadInput
from tasks.language import model as language
from tasks.language.blocks import Blocks
from tasks.language.configuration import FromScratch
from tasks.language.losses import require_trained
from tasks.language.pairs import Pairs, packed_split
from tasks.language.result import BaseResult
from tasks.language.snapshots import list_snapshots, snapshot_checks
from tasks.language.stages import BaseConfig, snapshot_folder
from tasks.language.training import train_language_model
from tasks.stage.numerics import device
from tasks.stage.run import StageInput, StageRun


def base(run: StageRun, config: BaseConfig, text: StageInput) -> BaseResult:
    """Publishes `model/`, and for a model from scratch also `initial/`, the untrained network, and `snapshots/`."""
    tokenizer = text.path / "text" / "tokenizer"
    validation = packed_split(text.path / "text", "validation")
    batch_size = config.execution.micro_batch_examples
    counts_V = np.load(text.path / "text" / "unigram.npy")
    losses = {"unigram": language.unigram_loss(counts_V, validation)}
    snapshots = {snapshot_folder(share): share for share in config.snapshots}

    if isinstance(config.model, FromScratch):
        model = language.untrained(config.model, len(counts_V), validation.sequence_length)
        with run.publish("initial") as folder:
            language.save(model, tokenizer, folder)
        losses["untrained"] = language.validation_loss(model, validation, batch_size)
        train_language_model(
            run,
            model,
            text,
            config.model.pretraining,
            config.model.init_seed,
            config.execution,
            make_checks=partial(snapshot_checks, run, text, snapshots),
        )
    else:
        model = language.pretrained(config.model, run.cache, isinstance(validation, Pairs))
        _require_fit(model, len(counts_V), validation)

    model.to(device(config.execution))
    losses["base"] = language.validation_loss(model, validation, batch_size)
    if isinstance(validation, Pairs):
        losses["another_summary"] = language.validation_loss(
            model, validation, batch_size, examples=validation.of_another()
        )
    require_trained(losses, config.checks)
    with run.publish("model") as folder:
        language.save(model, tokenizer, folder)
    list_snapshots(run, snapshots)
    return BaseResult(validation_losses=losses)


def _require_fit(model: PreTrainedModel, vocabulary_size: int, text: Blocks) -> None:
    """The text must fit the model: its kind, ids inside its vocabulary, windows inside its positions."""
    sequence_length, pairs = text.sequence_length, isinstance(text, Pairs)
    if bool(model.config.is_encoder_decoder) != pairs:
        kinds = ("a causal language model", "a model with an encoder and a decoder")
        raise BadInput(
            f"{type(model).__name__} is {kinds[not pairs]}, and this study needs {kinds[pairs]}: name another in model"
        )
    rows = model.get_input_embeddings().weight.shape[0]
    positions = getattr(model.config, "max_position_embeddings", None)
    if pairs and getattr(model.config, "decoder_start_token_id", None) is None:
        raise BadInput(f"the config.json of {type(model).__name__} names no decoder_start_token_id: add it there")
    if vocabulary_size > rows:
        raise BadInput(f"the tokenizer has {vocabulary_size} tokens, the model's embedding only {rows} rows")
    if positions is not None and sequence_length > positions:
        raise BadInput(
            f"sequence_length {sequence_length} is longer than the {positions} positions of the model: lower it"
        )
