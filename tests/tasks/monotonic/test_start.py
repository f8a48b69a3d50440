"""Where constrained weights start: positive part and absolute."""

import pytest
import torch

from tests.tasks.monotonic.architectures import LAYERS, begun, network
from tests.tasks.tiny import bytes_are_equal

EVERY = pytest.mark.parametrize(("architecture", "variant"), LAYERS)


@pytest.mark.parametrize("signs", ["non-negative", "random"])
@EVERY
def test_positive_part_and_absolute_of_every_architecture(architecture, variant, signs):
    for start in ("positive-part", "absolute"):
        model, base = network(architecture), network(architecture)
        allowed = begun(model, variant, signs, start, by="projection")
        for name in LAYERS[architecture, variant]:
            weight, sign = base.get_submodule(name).weight.detach(), allowed.layers[name]
            expected = sign * ((sign * weight).clamp(min=0) if start == "positive-part" else weight.abs())
            assert torch.equal(model.get_submodule(name).weight, expected)
        before, named = base.state_dict(), {f"{name}.weight" for name in LAYERS[architecture, variant]}
        changed = {n for n, tensor in model.state_dict().items() if not bytes_are_equal(tensor, before[n])}
        assert changed == named
