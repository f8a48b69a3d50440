"""base: the model that all arms start from, pretrained here or loaded, and shown to be trained."""

import logging
from functools import partial
from pathlib import Path

import numpy as np
import torch
from transformers import PreTrainedModel

from storage import durable
from storage.errors import BadInput
from storage.run_directory import SHORT_FINGERPRINT
from tasks.language import model as language
from tasks.language.blocks import Blocks
from tasks.language.configuration import FromScratch
from tasks.language.losses import require_trained
from tasks.language.pairs import Pairs, packed_split
from tasks.language.result import BaseResult
from tasks.language.snapshots import snapshot_checks, snapshot_losses
from tasks.language.stages import BaseConfig, snapshot_folder
from tasks.language.training import train_language_model
from tasks.stage.execution import Execution
from tasks.stage.numerics import device
from tasks.stage.preflight import GIB, memory_bytes, require_disk
from tasks.stage.progress import FOR_THE_TERMINAL
from tasks.stage.run import StageInput, StageRun
from tasks.training.initial import InitialWeights, load_weights, run_path


def base(run: StageRun, config: BaseConfig, text: StageInput) -> BaseResult:
    """Publishes `model/`, and for a model from scratch also `initial/`, the untrained network, and `snapshots/`."""
    tokenizer = text.path / "text" / "tokenizer"
    validation = packed_split(text.path / "text", "validation")
    batch_size = config.execution.micro_batch_examples
    counts_V = np.load(text.path / "text" / "unigram.npy")
    losses = {"unigram": language.unigram_loss(counts_V, validation)}
    init_from: InitialWeights | None = None
    snapshots = {snapshot_folder(share): share for share in config.snapshots}

    if isinstance(config.model, FromScratch):
        model = language.untrained(config.model, len(counts_V), validation.sequence_length)
        _require_resources(run, model, validation, config)
        with run.publish("initial") as folder:
            language.save(model, tokenizer, folder)
        losses["untrained"] = language.validation_loss(model, validation, batch_size)
        if config.model.init_from:
            _require_same_tokenizer(tokenizer, config.model.init_from)
            init_from = load_weights(model, config.model.init_from, config.scientific(), _state_of)
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
        _require_resources(run, model, validation, config)
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
    return BaseResult(
        validation_losses=losses,
        snapshots=snapshot_losses(run, text, snapshots, config.execution),
        init_from=init_from,
    )


def _require_resources(run: StageRun, model: PreTrainedModel, text: Blocks, config: BaseConfig) -> None:
    """Disk and memory for all trainings of this study, now that the size of the model is known.

    What was estimated stays in preflight.json, outside the result: it depends on how the work is done.
    """
    parameters = sum(parameter.numel() for parameter in model.parameters())
    kept = {"models": config.models_of_study, "trainings": config.trainings_of_study}
    need = model_bytes(parameters, **kept, keep_checkpoints=config.execution.keep_checkpoints)
    require_disk(run.directory, need)
    predicted = text.predicted_tokens if isinstance(text, Pairs) else None
    memory = require_memory(model, text.sequence_length, config.execution, predicted)
    durable.write_json(run.directory / "preflight.json", {"training_memory_bytes_at_least": memory})


def _state_of(folder: Path) -> dict[str, torch.Tensor]:
    """The weights that `save_pretrained` wrote, by the names that the network gives them."""
    return language.load(folder).state_dict()


def _require_same_tokenizer(tokenizer: Path, init_from: str) -> None:
    """Weights are of use only with the tokenizer that they were trained with."""
    other = run_path(init_from)
    text = durable.read_json(other / "stage.json")["inputs"].get("text", {})
    setup = other.parents[1] / "setup" / text.get("fingerprint", "")[:SHORT_FINGERPRINT]
    theirs = setup / "text" / "tokenizer" / "tokenizer.json"
    if not theirs.is_file() or durable.sha256_file(theirs) != durable.sha256_file(tokenizer / "tokenizer.json"):
        raise BadInput(
            f"init_from: the weights of {init_from} were trained with another tokenizer ({theirs}) than this study's "
            f"({tokenizer}): use the same text, splits and vocabulary_size"
        )


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


def model_bytes(parameters: int, *, models: int, trainings: int, keep_checkpoints: int) -> int:
    """Bytes that all other stages of a study write at most, roughly: its models, and the checkpoints of each training.

    A training holds the kept checkpoints, what was best at each of them, the last that was read, and the one being
    written. Records and logs are small beside these.
    """
    checkpoints = trainings * TENSORS_PER_CHECKPOINT * (2 * keep_checkpoints + 2)
    return parameters * BYTES_PER_PARAMETER * (models + checkpoints)


# -------------------------------------------------------------------------------------------------- memory

log = logging.getLogger("ratchet.memory")

BYTES_PER_PARAMETER = 4  # fp32
TENSORS_PER_CHECKPOINT = 3  # weights and two AdamW moments
LOGITS_BYTES = 12  # a token and vocabulary entry: the logits, their softmax, its gradient, in fp32
RESIDUAL_BYTES = 4  # a token and unit of width: a layer's input, which is all that checkpointing keeps of it
# Kept by a layer's backward pass of a token, a unit of its width and of its feed-forward width: the least among the
# known architectures (GPT-NeoX under bf16 autocast); fp32 and gated layers keep up to three times that.
LAYER_BYTES, FEED_FORWARD_BYTES = 14, 6


def training_memory(
    model: PreTrainedModel, sequence_length: int, execution: Execution, predicted: float | None = None
) -> dict[str, int]:
    """Part -> bytes that training `model` holds on the device when it holds most. Each is what it takes at least.

    That is in the backward pass of a micro-batch: the fused AdamW takes nothing more. Left out: averaged weights, bf16
    copies of weights, softplus(V) of constrained layers, attention scores, what the allocator cannot use, the driver.
    `predicted`: tokens of a sequence that have logits, those of a pair's summary; None: all.
    """
    config, weights = model.config, BYTES_PER_PARAMETER * sum(parameter.numel() for parameter in model.parameters())
    tokens = execution.micro_batch_examples * sequence_length
    named = (getattr(config, name, None) for name in ("intermediate_size", "n_inner", "d_ff"))
    feed_forward = next(filter(None, named), 4 * config.hidden_size)  # GPT-2 without n_inner has this
    layer = tokens * (LAYER_BYTES * config.hidden_size + FEED_FORWARD_BYTES * feed_forward)
    kept = {"activations of all layers": layer * config.num_hidden_layers}
    if execution.gradient_checkpointing:
        inputs = tokens * RESIDUAL_BYTES * config.hidden_size * config.num_hidden_layers
        kept = {"inputs of all layers": inputs, "activations of one layer": layer}
    held = {"fp32 weights": weights, "gradients": weights, "two AdamW moments": 2 * weights}
    if device(execution).type == "cpu":
        held["the copy for checkpoints"] = TENSORS_PER_CHECKPOINT * weights
    logits = int(execution.micro_batch_examples * (predicted or sequence_length)) * LOGITS_BYTES * config.vocab_size
    return held | {"logits of a micro-batch": logits} | kept


def require_memory(
    model: PreTrainedModel, sequence_length: int, execution: Execution, predicted: float | None = None
) -> dict[str, int]:
    """`training_memory`; BadInput when that is more than the device has, naming the parts and what to change.

    With `fit_memory` that is told, and the training halves its micro-batches: BadInput where not even one example fits.
    """
    parts, kind = training_memory(model, sequence_length, execution, predicted), device(execution).type
    need, total = sum(parts.values()), memory_bytes(kind)
    if need <= total:
        return parts
    sizes = ", ".join(f"{part} {size / GIB:.1f}" for part, size in parts.items())
    head = (
        f"training {parts['fp32 weights'] // BYTES_PER_PARAMETER:,} parameters needs at least {need / GIB:.1f} GiB "
        f"({sizes}), and this {kind} has {total / GIB:.1f} GiB: "
    )
    alone = execution.model_copy(update={"micro_batch_examples": 1})
    if execution.fit_memory and sum(training_memory(model, sequence_length, alone, predicted).values()) <= total:
        log.warning("%smicro-batches are halved when memory ends (execution.fit_memory)", head, extra=FOR_THE_TERMINAL)
        return parts
    held = sum(size for part, size in parts.items() if part in ("fp32 weights", "gradients", "two AdamW moments"))
    changes = ["take a device with more memory or a smaller model"]
    if held <= total:
        if not execution.gradient_checkpointing:
            changes.insert(0, "set execution.gradient_checkpointing=true")
        if execution.micro_batch_examples > 1:
            changes.insert(0, f"lower execution.micro_batch_examples (now {execution.micro_batch_examples})")
    raise BadInput(f"{head}{', '.join(changes[:-1])}{', or ' if changes[1:] else ''}{changes[-1]}")
