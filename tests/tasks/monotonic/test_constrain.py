"""The constrain stage: what it leaves of the base model, and the signs beside it."""

import pytest
import torch

from tasks.language.model import load
from tasks.monotonic.constraint import AllowedSigns, constrained_modules, verify
from tests.tasks.monotonic.arms_of_tiny import arms_page, finished_arms
from tests.tasks.tiny import Here

EXPECTED = {
    "monotonic": lambda w, s: w.clamp(min=0),
    "own-signs": lambda w, s: w,
    "random-signs": lambda w, s: s * (s * w).clamp(min=0),
    "per-unit-signs": lambda w, s: s * (s * w).clamp(min=0),
    "feed-forward-off": lambda w, s: 0 * w,
    "earlier-system": lambda w, s: w.abs(),
}


@pytest.mark.parametrize("arm", EXPECTED)
def test_constrain_leaves_the_start_of_its_arm(arm):
    _, _, handles = finished_arms()
    run = handles[f"{arm} start"].as_input()
    base, model = load(handles["base"].run.path / "model"), load(run.path / "model")
    allowed = AllowedSigns.load(run.path / "signs")
    for name, layer in constrained_modules(model, "mlp_both").items():
        original = base.get_submodule(name).weight.detach()
        assert torch.equal(layer.weight, EXPECTED[arm](original, allowed.layers[name]))
    verified = verify(model, "mlp_both", allowed)
    assert len(verified.layers) == 4


def test_only_the_named_weights_differ_from_the_base_model():
    _, _, handles = finished_arms()
    run = handles["monotonic start"].as_input()
    base, model = (load(path / "model").state_dict() for path in (handles["base"].run.path, run.path))
    named = {f"{name}.weight" for name in constrained_modules(load(run.path / "model"), "mlp_both")}
    assert {name for name in base if not torch.equal(base[name], model[name])} == named


def test_the_page_of_the_tests_runs_each_start_once():
    study, root, handles = finished_arms()
    assert handles["monotonic start"] is handles["unconstrained-start start"]
    assert all(handle.finished for handle in arms_page(study, Here(root, study.name)).values())
