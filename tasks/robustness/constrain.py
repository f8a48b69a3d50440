"""constrain: the base model with non-negative weights in the layers that the variant names, untrained."""

from __future__ import annotations

from safetensors.torch import save_file

from tasks.language import model as language
from tasks.language.blocks import Blocks
from tasks.monotonic import constraint
from tasks.robustness.results import ConstrainResult
from tasks.robustness.study import ConstrainConfig
from tasks.stage.numerics import device
from tasks.stage.run import StageInput, StageRun


def constrain(run: StageRun, config: ConstrainConfig, text: StageInput, base: StageInput) -> ConstrainResult:
    """Publishes `initial/` (the free parameters V) and `model/` (the effective weights W baked in)."""
    variant = config.constraint.variant
    validation = Blocks(text.path / "text", "validation")
    batch_size = config.execution.micro_batch_examples
    model = language.load(base.path / "model").to(device(config.execution))
    before = language.validation_loss(model, validation, batch_size)

    originals = {
        name: module.weight.detach().clone() for name, module in constraint.constrained_modules(model, variant).items()
    }
    modules = constraint.constrain(model, variant)
    verified = constraint.verify(model, variant)
    flipped = sum(int((weight < 0).sum()) for weight in originals.values())
    error = max((modules[name].weight.detach() - weight.abs()).abs().max().item() for name, weight in originals.items())
    after = language.validation_loss(model, validation, batch_size)

    with run.publish("initial") as folder:
        free = constraint.free_parameters(model, variant)
        save_file({name: v.detach().cpu().contiguous() for name, v in free.items()}, folder / "v.safetensors")
    constraint.bake(model.cpu(), variant)
    with run.publish("model") as folder:
        language.save(model, text.path / "text" / "tokenizer", folder)
    return ConstrainResult(
        variant=variant,
        constraint=verified,
        share_of_signs_changed=flipped / verified.weights_checked,
        max_difference_from_absolute_weight=error,
        validation_perplexity_before=language.perplexity(before),
        validation_perplexity_after=language.perplexity(after),
        weights_digest=language.weights_digest(run.directory / "model"),
    )
