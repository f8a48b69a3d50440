"""constrain, train-baseline, train-monotonic, train-placebo: where arms start, and how all are trained.

One training function and one budget serve every arm. The arms differ in where they start and in what keeps the signs of
the constrained layers. Everything else is the same code with the same numbers.
"""

from collections.abc import Callable
from contextlib import ExitStack
from functools import partial

import torch
from torch import nn
from transformers import PreTrainedModel

from storage.errors import BadInput
from tasks.language import model as language
from tasks.language.pairs import packed_split
from tasks.language.snapshots import list_snapshots, snapshot_checks
from tasks.language.stages import snapshot_folder
from tasks.language.training import Checks, train_language_model
from tasks.monotonic import keep
from tasks.monotonic.constraint import (
    AllowedSigns,
    constrained_modules,
    constrained_sublayers,
    matrix,
    project,
    signs_of,
    verify,
)
from tasks.monotonic.keep import measure_movement, movement_checks
from tasks.monotonic.result import ArmResult, Liveness
from tasks.monotonic.stages import ConstrainConfig, Start, TrainConfig
from tasks.stage.execution import Execution
from tasks.stage.numerics import device
from tasks.stage.run import StageInput, StageRun
from tasks.training.problem import adamw
from tasks.training.schedule import Schedule


def constrain(run: StageRun, config: ConstrainConfig, text: StageInput, base: StageInput) -> dict[str, object]:
    """Publishes `signs/`, the sign that each constrained weight may have, and `model/`, where training starts."""
    variant = config.variant
    model = language.load(base.path / "model").to(device(config.execution))
    allowed = signs_of(model, variant, config.signs, config.seeds)
    set_start(model, variant, allowed, config.start)
    verify(model, variant, allowed)
    with run.publish("signs") as folder:
        allowed.save(folder)
    with run.publish("model") as folder:
        language.save(model.cpu(), text.path / "text" / "tokenizer", folder)
    return {}


def train_arm(run: StageRun, config: TrainConfig, text: StageInput, start: StageInput) -> ArmResult:
    """Trains the model of `start`, the base model's stage or constrain's. Publishes `model/` and `snapshots/`.

    Unless `config.by` is free, `start` is constrain's: its `signs/` are kept, and verified afterwards.
    """
    load_start = partial(language.load, start.path / "model")
    model = load_start()
    allowed = None if config.by == "free" else AllowedSigns.load(start.path / "signs")
    if allowed:
        keep.prepare(model, config.variant, allowed, config.by)
    snapshots = {snapshot_folder(share): share for share in config.snapshots}

    def optimizer(_: nn.Module, schedule: Schedule) -> torch.optim.Optimizer:
        if allowed is None:
            return adamw(model, schedule.budget)
        return keep.optimizer(model, config.variant, allowed, config.by, schedule)

    def checks(schedule: Schedule) -> Checks:
        checked = snapshot_checks(run, text, snapshots, schedule)
        if allowed:
            moving = movement_checks(load_start, config.variant, allowed, config.required_movement, schedule)
            for step, moved in moving.items():
                checked.setdefault(step, []).extend(moved)
        return checked

    train_language_model(
        run,
        model,
        text,
        config.budget,
        config.seed,
        config.execution,
        make_optimizer=optimizer,
        make_checks=checks,
        replaced=config.replaced,
    )
    verified = verify(model, config.variant, allowed) if allowed else None
    keep.bake(model, config.variant)
    with run.publish("model") as folder:
        language.save(model, text.path / "text" / "tokenizer", folder)
    list_snapshots(run, snapshots)
    return ArmResult(
        constraint=verified,
        sublayers=_liveness(run, model, text, config.variant, config.execution),
        movement=measure_movement(model, config.variant, load_start()),
    )


def _liveness(run: StageRun, model: PreTrainedModel, text: StageInput, variant: str, execution: Execution) -> Liveness:
    """Liveness of the sublayers that the variant names, on the validation split."""
    validation = packed_split(text.path / "text", "validation")
    loss = partial(
        language.validation_loss,
        blocks=validation,
        batch_size=execution.micro_batch_examples,
        after_batch=run.progress.touch,
    )
    return measure_liveness(model.to(device(execution)), variant, loss)


NORMS = {
    "GPTNeoXMLP": ("post_attention_layernorm", "mlp", "dense_h_to_4h", "dense_4h_to_h"),
    "GPT2MLP": ("ln_2", "mlp", "c_fc", "c_proj"),
}
"""Class of a feed-forward sublayer -> in its transformer block, the LayerNorm that it reads and it itself; in it, the
input and output projections."""


@torch.no_grad()
def shift(model: PreTrainedModel, variant: str) -> None:
    """Makes the weights that `variant` names non-negative in place, without changing what the model computes.

    A LayerNorm with scale g and bias b gives x with sum(x / g) = sum(b / g), whatever it reads. So adding c / g to a
    row of W_in adds the same c sum(b / g) to its unit for every text, which its bias takes away; and adding d to a
    column of W_out adds d times the unit to every coordinate of the residual stream, whose mean each later LayerNorm
    takes away. With c and d large enough all weights are >= 0, and the model is the function that it was.

    In float64, then rounded to the weights' format. BadInput for a network with which that cannot be: it needs
    LayerNorm with a scale above 0, with its mean taken away.
    """
    blocks = [
        (getattr(block, norm), getattr(getattr(block, holder), into), getattr(getattr(block, holder), out_of))
        for block in model.modules()
        for kind, (norm, holder, into, out_of) in NORMS.items()
        if type(getattr(block, holder, None)).__name__ == kind
    ]
    if not blocks:
        raise BadInput(
            f"constraint.start shifted needs a network with LayerNorm, GPT-NeoX or GPT-2, not {type(model).__name__}"
        )
    for norm, into, out_of in blocks:
        _shift_rows(norm, into)
        if variant == "mlp_both":
            _shift_columns(out_of)


def _shift_rows(norm: nn.LayerNorm, into: nn.Module) -> None:
    """W_ui + c_u / g_i >= 0 for every unit u, its bias less by c_u sum(b / g)."""
    scale_D, bias_D = norm.weight.double(), norm.bias.double()
    if not (scale_D > 0).all():
        raise BadInput(
            f"constraint.start shifted needs LayerNorm scales above 0, and one here is {scale_D.min().item():g}: take "
            "positive-part or absolute"
        )
    weight_UD = matrix(into, into.weight)
    weights_UD = weight_UD.double()
    c_U = (-weights_UD * scale_D).amax(1).clamp(min=0)
    weight_UD.copy_((weights_UD + c_U[:, None] / scale_D).clamp(min=0))
    into.bias.copy_(into.bias.double() - c_U * (bias_D / scale_D).sum())


def _shift_columns(out_of: nn.Module) -> None:
    """W_iu + d_u >= 0 for every unit u: the residual stream rises as a whole, which no LayerNorm sees."""
    weight_DU = matrix(out_of, out_of.weight)
    weights_DU = weight_DU.double()
    weight_DU.copy_((weights_DU + (-weights_DU).amax(0).clamp(min=0)).clamp(min=0))


@torch.no_grad()
def set_start(model: PreTrainedModel, variant: str, allowed: AllowedSigns, start: Start) -> None:
    """Gives the layers of `variant` in the base model `model` weights of their allowed signs s, in place.

    positive-part: s max(s W, 0); absolute: s |W|; shifted: W itself, moved up by what the network takes away again (for
    non-negative weights).
    """
    if start == "shifted":
        return shift(model, variant)
    layers = constrained_modules(model, variant)
    signs = allowed.of(layers)
    for name, layer in layers.items():
        sign = signs[name].to(layer.weight.device)
        if start == "absolute":
            layer.weight.abs_().mul_(sign)
        else:
            project(layer.weight, sign)


CONSTANT = 1e-12
"""Variance below this share of the mean square is rounding: the output is constant."""


class _OutputMoments:
    """Sums over the tokens of a sublayer's outputs, float64: their number, sum [D] and products [D, D]."""

    def __init__(self, mean_is_read: bool) -> None:
        self.mean_is_read = mean_is_read
        self.tokens, self.sum_D, self.products_DD = 0, torch.zeros(()), torch.zeros(())

    def add(self, output: torch.Tensor, read: torch.Tensor | None) -> None:
        """`read`: which positions of `output` are tokens, and no padding; None: all."""
        outputs_TD = (output.flatten(0, -2) if read is None else output[read.bool()]).detach().double()
        self.tokens += len(outputs_TD)
        self.sum_D = self.sum_D.to(outputs_TD) + outputs_TD.sum(0)
        self.products_DD = self.products_DD.to(outputs_TD) + outputs_TD.T @ outputs_TD

    def mean_D(self) -> torch.Tensor:
        return self.sum_D / self.tokens

    def effective_rank(self) -> float:
        """exp(entropy of the shares of variance) (Roy and Vetterli 2007); 1 for a constant output."""
        mean_D = self.mean_D()
        square = self.products_DD.diagonal().sum() / self.tokens
        covariance_DD = self.products_DD / self.tokens - torch.outer(mean_D, mean_D)
        if not self.mean_is_read:  # over coordinates: every LayerNorm that reads the output takes it away
            covariance_DD = covariance_DD - covariance_DD.mean(0, keepdim=True)
            covariance_DD = covariance_DD - covariance_DD.mean(1, keepdim=True)
        variances_D = torch.linalg.eigvalsh(covariance_DD.cpu()).clamp_min(0)
        total = variances_D.sum()
        if total <= CONSTANT * square.cpu():
            return 1.0
        shares_D = variances_D / total
        return float(torch.exp(-torch.special.xlogy(shares_D, shares_D).sum()))


@torch.no_grad()
def measure_liveness(model: PreTrainedModel, variant: str, loss: Callable[[nn.Module], float]) -> Liveness:
    """Two passes of `loss`, the mean loss in nats per token over one fixed text: as it is, and with mean outputs.

    The means are over the tokens of that same text. Memory: two [D, D] for each sublayer, D its width.
    """
    sublayers = constrained_sublayers(model, variant)
    mean_is_read = not any(isinstance(module, nn.LayerNorm) for module in model.modules())
    moments = {name: _OutputMoments(mean_is_read) for name in sublayers}

    def collect(name: str) -> Callable[..., None]:
        part = "decoder_" if name.startswith("decoder.") else ""
        return lambda _module, _inputs, output: moments[name].add(output, inputs.get(f"{part}attention_mask"))

    inputs: dict[str, torch.Tensor] = {}
    with ExitStack() as hooks:
        see = model.register_forward_pre_hook(lambda _, __, kwargs: inputs.update(kwargs), with_kwargs=True)
        hooks.enter_context(see)
        for name, module in sublayers.items():
            hooks.enter_context(module.register_forward_hook(collect(name)))
        alive = loss(model)
    means = {name: moment.mean_D() for name, moment in moments.items()}

    def replace(name: str) -> Callable[..., torch.Tensor]:
        return lambda _module, _inputs, output: means[name].to(output).expand_as(output)

    with ExitStack() as hooks:
        for name, module in sublayers.items():
            hooks.enter_context(module.register_forward_hook(replace(name)))
        dead = loss(model)
    return Liveness(
        loss_nats_per_token=alive,
        loss_with_means_nats_per_token=dead,
        effective_rank={name: moment.effective_rank() for name, moment in moments.items()},
    )
