"""What an audit asks of the models of arms: losses on the validation split, as they are and with sublayers replaced,
signs, movement and order. Losses go through transformers' own forward, one text or pair at a time without padding."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn
from transformers import PreTrainedModel

from storage.errors import CheckFailed, require_equal
from tasks.findings.audit import Again, Asked
from tasks.language import model as language
from tasks.language.blocks import Blocks
from tasks.language.pairs import Pairs
from tasks.monotonic.arm import ARMS
from tasks.monotonic.certificate import against_a_proof, certify_sublayer, fall_in_float64, scope
from tasks.monotonic.constraint import AllowedSigns
from tasks.monotonic.keep import measure_movement
from tasks.monotonic.order import order_on_text
from tasks.monotonic.result import ArmResult, ModelOrder, VerifiedWeights
from tasks.monotonic.stages import ASKED
from tasks.monotonic.sublayer import feed_forward_sublayers
from tasks.stage.run import StageInput

Hooks = Mapping[nn.Module, Callable[..., torch.Tensor | None]]
NOTHING: Hooks = {}
Stages = Mapping[str, StageInput]


class Validation:
    """The validation split, of which models are asked."""

    def __init__(self, blocks: Blocks, touch: Callable[[], None]) -> None:
        self.blocks, self.touch = blocks, touch

    @torch.no_grad()
    def loss(self, model: PreTrainedModel, hooks: Hooks = NOTHING, another: bool = False) -> float:
        """Loss in nats per token, with these forward hooks; of pairs also of the summary of another article."""
        handles, total = [module.register_forward_hook(hook) for module, hook in hooks.items()], 0.0
        where = next(model.parameters()).device
        for number in range(len(self.blocks)):
            row_L, blocks = self.blocks[np.array([number])][0].to(where), self.blocks
            if isinstance(blocks, Pairs):
                article_L, summary_L = row_L[: blocks.packed.article_tokens], row_L[blocks.packed.article_tokens :]
                end = int((article_L == blocks.packed.end_of_text_id).int().argmax()) + 1
                if another:
                    number = (number + 1) % len(blocks)
                    summary_L = blocks[np.array([number])][0].to(where)[blocks.packed.article_tokens :]
                asked_L = summary_L[: blocks.lengths[number]]
                mean = model(input_ids=article_L[None, :end], labels=asked_L[None]).loss
                total += mean.double().item() * len(asked_L)
            else:
                log_p_LV = model(input_ids=row_L[None, :-1]).logits[0].log_softmax(-1)
                total -= log_p_LV.gather(-1, row_L[1:, None]).double().mean().item()
            self.touch()
        for handle in handles:
            handle.remove()
        return total / self.blocks.weight

    def loss_of(self, model: PreTrainedModel, name: str) -> float:
        """The loss of a model, or of the summary of another article, by the name of what is held against it."""
        return self.loss(model, another=name == "another_summary")

    def unigram_loss(self, counts_V: np.ndarray) -> float:
        return float(-np.log((counts_V + 1) / (counts_V.sum() + len(counts_V)))[self.blocks.predicted()].mean())


def validation_losses(recorded: Mapping[str, float], computed: Callable[[str], float]) -> Asked[str]:
    """Of each name, such as `base` or `untrained`, the loss on the validation split."""

    def again(name: str) -> Iterator[Again]:
        yield Again(f"the validation loss of {name}", recorded[name], computed(name))

    return _asked("validation losses", list(recorded), again)


def liveness(name: str, arm: ArmResult, model: PreTrainedModel, on: Validation) -> Iterator[Asked[Any]]:
    """The loss as it is and with each sublayer's outputs replaced by their mean, and the ranks of the outputs."""
    layers = {layer: model.get_submodule(layer) for layer in arm.sublayers.effective_rank}
    outputs: dict[str, _Outputs] = {layer: _Outputs() for layer in layers}
    mean_is_read = not any(isinstance(module, nn.LayerNorm) for module in model.modules())

    def replace(layer: str) -> Callable[..., torch.Tensor]:
        return lambda _module, _given, output: outputs[layer].mean.to(output).expand_as(output)

    whole = on.loss(model, {module: outputs[layer].add for layer, module in layers.items()})
    without = on.loss(model, {module: replace(layer) for layer, module in layers.items()})

    def again(facts: tuple[str, float, float]) -> Iterator[Again]:
        yield Again(f"the validation loss of {name}{facts[0]}", facts[1], facts[2])

    recorded = arm.sublayers.loss_nats_per_token, arm.sublayers.loss_with_means_nats_per_token
    means = " with its sublayers replaced by their means"
    yield _asked("losses of liveness", [("", recorded[0], whole), (means, recorded[1], without)], again)

    def rank(layer: str) -> Iterator[Again]:
        computed = outputs[layer].rank(mean_is_read)
        yield Again(f"the rank of {layer} of {name}", arm.sublayers.effective_rank[layer], computed, computed)

    yield _asked("ranks", list(layers), rank)


class _Outputs:
    """Sums over tokens of a sublayer's outputs: their number, sum and products."""

    def __init__(self) -> None:
        self.number, self.sum, self.products = 0, torch.zeros(()), torch.zeros(())

    def add(self, _module: nn.Module, _given: object, output: torch.Tensor) -> None:
        output_TD = output.flatten(0, -2).double().cpu()
        self.number, self.sum = self.number + len(output_TD), self.sum + output_TD.sum(0)
        self.products = self.products + output_TD.T @ output_TD

    @property
    def mean(self) -> torch.Tensor:
        return self.sum / self.number

    def rank(self, mean_is_read: bool) -> float:
        """exp(entropy of the shares of variance), without what a LayerNorm takes away; 1 of a constant output."""
        covariance = (self.products / self.number - torch.outer(self.mean, self.mean)).numpy()
        if not mean_is_read:
            centred = np.eye(len(covariance)) - 1 / len(covariance)
            covariance = centred @ covariance @ centred
        variances = np.linalg.svd(covariance, compute_uv=False)
        if variances.sum() <= 1e-12 * float(self.products.diagonal().sum()) / self.number:
            return 1.0
        shares = variances[variances > 0] / variances.sum()
        return float(np.exp(-(shares * np.log(shares)).sum()))


def signs(name: str, arm: ArmResult, model: PreTrainedModel, start: StageInput | None) -> Iterator[Asked[Any]]:
    """CheckFailed where a constrained weight has not its own sign; asked is what the result says of these weights."""
    recorded = arm.constraint
    if (recorded is None) != (start is None):
        raise CheckFailed(f"{name} keeps signs that a start gave it", "one of the two", "both, or none")
    if recorded is None or start is None:
        return
    fixed = {"non-negative": torch.tensor(1), "off": torch.tensor(0)}.get(str(ARMS[name].signs))
    allowed = AllowedSigns.load(start.path / "signs").layers
    if {*allowed} != {*recorded.layers}:
        raise CheckFailed(f"{name} keeps signs in the layers of its start", recorded.layers, [*allowed])
    weights = {layer: model.get_submodule(layer).weight.detach().cpu() for layer in recorded.layers}
    for layer, weight in weights.items():
        sign = allowed[layer] if fixed is None else fixed
        if wrong := int((weight * sign < 0).sum() + ((sign == 0) & (weight != 0)).sum()):
            raise CheckFailed(
                f"the weights of {layer} in model/ of {name} have the signs they may have",
                f"{wrong:,} of {weight.numel():,} have not, the smallest is {weight.min().item():g}",
                f"signs {ARMS[name].signs}",
            )
    number = sum(weight.numel() for weight in weights.values())
    computed = {
        "weights_checked": number,
        "min_weight": min(weight.min().item() for weight in weights.values()),
        "max_weight": max(weight.max().item() for weight in weights.values()),
        "share_of_zeros": sum(int((weight == 0).sum()) for weight in weights.values()) / number,
    }

    def again(field: str) -> Iterator[Again]:
        what = f"{field.replace('_', ' ')} of the constrained weights of {name}"
        yield Again(what, getattr(recorded, field), computed[field], abs(computed[field]) or 1.0)

    assert {*computed} == {*VerifiedWeights.model_fields} - {"layers"}
    yield _asked("signs", list(computed), again)


def movement(name: str, arm: ArmResult, model: PreTrainedModel, start: StageInput, variant: str) -> Asked[str]:
    """How far weights moved, by the stage's own code."""
    recorded = _flat(arm.movement.as_json())
    computed = _flat(measure_movement(model.cpu(), variant, language.load(start.path / "model")).as_json())
    require_equal(f"what {name} tells of its movement", [*recorded], [*computed])

    def again(field: str) -> Iterator[Again]:
        yield Again(f"movement of {name}, {field}", recorded[field], computed[field], abs(computed[field]) or 1.0)

    return _asked("movement", list(recorded), again)


def order(
    name: str, recorded: ModelOrder, model: PreTrainedModel, variant: str, seen: Mapping[str, torch.Tensor]
) -> Asked[str]:
    """Proofs of all sublayers from their weights, the pair of inputs that refutes one, and how far they keep order on
    text; by the stage's own formulas. What is called unknown is searched again, for a pair that refutes it."""
    sublayers = {sublayer.name: sublayer for sublayer in feed_forward_sublayers(model, variant)}
    certificate, worst = recorded.certificate, recorded.certificate.sublayers[0]
    on_text, of_text = order_on_text([*sublayers.values()], seen).as_json(), recorded.on_text.as_json()

    def again(part: str) -> Iterator[Again]:
        if part == "text":
            for field, computed in on_text.items():
                scale = abs(computed) or 1.0 if field in ("lowest", "changes", "inputs") else 1.0
                yield Again(f"{field} of {name} on text", of_text[field], computed, scale)
        elif part == "worst":
            pair = worst.counterexample
            if certificate.certified == "no" and pair is not None:
                x, y = np.array(pair.x), np.array(pair.y)
                fall = fall_in_float64(sublayers[worst.sublayer], x, y, pair.output)
                yield Again(f"the fall that refutes the order of {name}", pair.fall, fall, fall)
                slope = -fall / float((y - x).sum())
                yield Again(f"the steepest fall of {name}", worst.worst_violation_found, slope, slope)
            yield _same(f"the answer on {name} is that on its worst sublayer", certificate.certified, worst.certified)
            every = [*sublayers.values()]
            of_all = (certificate.scope, certificate.variant, certificate.activation, certificate.tensors_checked)
            layers = sum(len(sublayer.layers) for sublayer in every)
            yield _same(f"what was looked at of {name}", of_all, (scope(every), variant, every[0].activation, layers))
            yield _same(f"a pair refutes the order of {name}", pair is not None, certificate.certified == "no")
        else:
            recorded = next((own for own in certificate.sublayers if own.sublayer == part), None)
            against = against_a_proof(sublayers[part])
            answer = (
                None
                if recorded is None
                else (recorded.certified == "yes", recorded.reason.split("; ") if against else against)
            )
            yield _same(f"whether {part} of {name} is proved, and why not", answer, (not against, against))
            if recorded is not None and recorded.certified == "unknown":
                refuted = certify_sublayer(sublayers[part], seen[part]).certified == "no"
                yield Again(f"whether a pair refutes the order of {part} of {name}", 0.0, float(refuted))

    return _asked("order", ["text", "worst", *sublayers], again)


def _same(what: str, recorded: object, computed: object) -> Again:
    return Again(what, float(recorded == computed), 1.0)


def _flat(values: object, name: str = "") -> dict[str, float]:
    """The numbers of a JSON value by their names; None is left out."""
    inner = values.items() if isinstance(values, dict) else enumerate(values) if isinstance(values, list) else ()
    numbers = {key: number for each, value in inner for key, number in _flat(value, f"{name} {each}".strip()).items()}
    return numbers | ({name: values} if isinstance(values, int | float) else {})


def _asked(kind: str, rows: Sequence[Any], again: Callable[[Any], Iterator[Again]]) -> Asked[Any]:
    unit = "nats per token" if "losses" in kind else "of its size, or of a share"
    return Asked(kind, rows, again, unit, ASKED[kind])
