"""constrain: the base model with its constrained weights at their allowed signs, untrained."""

from __future__ import annotations

import numpy as np
import torch

from tasks.language import model as language
from tasks.language.blocks import Blocks
from tasks.monotonic.constraint import constrained_modules, verify
from tasks.monotonic.signs import signs_of
from tasks.monotonic.start import set_start
from tasks.robustness.results import ConstrainResult
from tasks.robustness.stages import ConstrainConfig
from tasks.stage.numerics import device
from tasks.stage.run import StageInput, StageRun
from tasks.training.weights import weights_digest

CALIBRATION_BLOCKS = 64


def constrain(run: StageRun, config: ConstrainConfig, text: StageInput, base: StageInput) -> ConstrainResult:
    """Publishes `signs/`, the sign that each constrained weight may have, and `model/`, where training starts."""
    variant, batch_size = config.variant, config.execution.micro_batch_examples
    validation = Blocks(text.path / "text", "validation")
    model = language.load(base.path / "model").to(device(config.execution))
    before = language.validation_loss(model, validation, batch_size, run.progress.touch)

    allowed = signs_of(model, variant, config.signs, config.seeds)
    set_start(model, variant, allowed, config.start, _calibration(text), batch_size)
    verified = verify(model, variant, allowed)
    after = language.validation_loss(model, validation, batch_size, run.progress.touch)

    layers = constrained_modules(model.cpu(), variant)
    originals = constrained_modules(language.load(base.path / "model"), variant)
    changed = sum(int((layers[name].weight != original.weight).sum()) for name, original in originals.items())
    with run.publish("signs") as folder:
        allowed.save(folder)
    with run.publish("model") as folder:
        language.save(model, text.path / "text" / "tokenizer", folder)
    return ConstrainResult(
        variant=variant,
        signs=config.signs,
        start=config.start,
        constraint=verified,
        share_of_weights_changed=changed / verified.weights_checked,
        validation_perplexity_before=language.perplexity(before),
        validation_perplexity_after=language.perplexity(after),
        weights_digest=weights_digest(run.directory / "model"),
    )


def _calibration(text: StageInput) -> torch.Tensor:
    """Token ids [B, L] of blocks of the train split, spread evenly over it, as a model is given them."""
    blocks = Blocks(text.path / "text", "train")
    chosen = np.unique(np.linspace(0, len(blocks) - 1, CALIBRATION_BLOCKS).round().astype(np.int64))
    return blocks[chosen][:, :-1]
