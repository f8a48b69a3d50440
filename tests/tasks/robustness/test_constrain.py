"""The constrain stage and what train-monotonic makes of it, on the tiny study."""

from __future__ import annotations

import math

import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from torch.nn.functional import softplus

from tasks.language.model import load
from tasks.monotonic import constraint
from tasks.robustness import arms
from tasks.training.optimizer import adamw
from tasks.training.schedule import Schedule
from tests.tasks.tiny import bytes_are_equal, finished_study, stage_run


@pytest.fixture(scope="module")
def study():
    return finished_study()


def test_constrain_leaves_absolute_weights_and_counts_the_signs_that_changed(study):
    base, model = (load(study.path(stage) / "model") for stage in ("base", "constrain"))
    result = study.result("constrain")
    changed = total = 0
    for name, module in constraint.constrained_modules(model, "mlp_both").items():
        original = base.get_submodule(name).weight.detach()
        assert torch.allclose(module.weight, original.abs(), rtol=3e-6, atol=1e-8)
        changed, total = changed + (original < 0).sum().item(), total + original.numel()
    assert result["share_of_signs_changed"] == changed / total
    assert 0.4 < changed / total < 0.6
    assert result["constraint"]["layers_checked"] == 4 and result["constraint"]["weights_checked"] == total
    assert 0 <= result["max_difference_from_absolute_weight"] < 1e-6
    for key in ("validation_perplexity_before", "validation_perplexity_after"):
        assert math.isfinite(result[key]) and result[key] > 1
    assert result["validation_perplexity_before"] != result["validation_perplexity_after"]


def test_only_the_named_weights_differ_from_the_base_model(study):
    base, model = (load(study.path(stage) / "model").state_dict() for stage in ("base", "constrain"))
    named = {f"{name}.weight" for name in study.result("constrain")["constraint"]["layers"]}
    assert {name for name in base if not torch.equal(base[name], model[name])} == named


def test_initial_holds_the_free_parameters_of_the_baked_model(study):
    free = load_file(study.path("constrain") / "initial" / "v.safetensors")
    model = load(study.path("constrain") / "model")
    assert len(free) == 4
    for name, v in free.items():
        baked = model.get_submodule(name.split(".parametrizations")[0]).weight
        assert torch.equal(softplus(v), baked)


def test_after_training_every_effective_weight_on_disk_is_non_negative(study):
    model = load(study.path("train-monotonic") / "model")
    assert constraint.verify(model, "mlp_both").as_json() == study.result("train-monotonic")["constraint"]


def test_training_moved_the_constrained_weights(study):
    before, after = (load(study.path(stage) / "model") for stage in ("constrain", "train-monotonic"))
    for name in study.result("constrain")["constraint"]["layers"]:
        assert (before.get_submodule(name).weight != after.get_submodule(name).weight).float().mean() > 0.99


def test_both_arms_decay_every_effective_matrix_alike_and_nothing_else(study, monkeypatch, tmp_path):
    """V itself is left out of AdamW's decay, which would pull W toward ln 2."""
    given = {}

    class Seen(Exception):
        pass

    def capture(run, model, text, budget, *_, make_optimizer=lambda m, s: adamw(m, s.budget), **__):
        one_step = Schedule(budget.model_copy(update={"warmup_ratio": 0.5}), 1)  # its only step has the peak rate
        given["optimizer"], given["model"] = make_optimizer(model, one_step), model
        raise Seen

    monkeypatch.setattr(arms, "train_language_model", capture)
    budget = study.study.budget.model_copy(update={"learning_rate": 1e-3, "weight_decay": 0.1})
    config = study.study.for_training("monotonic").model_copy(update={"budget": budget})
    starts = {"baseline": (arms.train_baseline, "base"), "monotonic": (arms.train_monotonic, "constrain")}
    for train, start in starts.values():
        with pytest.raises(Seen):
            train(stage_run(tmp_path / start), config, text=study.input("setup"), start=study.input(start))
        model = given["model"]
        matrices = {name: m for name, m in model.named_modules() if isinstance(m, nn.Linear | nn.Embedding)}
        before = {name: module.weight.detach().clone() for name, module in matrices.items()}
        others = {name: p.detach().clone() for name, p in model.named_parameters() if p.ndim == 1}
        for parameter in model.parameters():
            parameter.grad = torch.zeros_like(parameter)
        given["optimizer"].step()
        for name, module in matrices.items():
            assert torch.allclose(module.weight, before[name] * (1 - 1e-4), rtol=5e-6, atol=1e-9), (start, name)
        assert all(torch.equal(dict(model.named_parameters())[name], value) for name, value in others.items())


def test_training_starts_from_constrain_s_free_parameters_bit_for_bit(study, monkeypatch, tmp_path):
    given = {}

    class Seen(Exception):
        pass

    def capture(run, model, *_, **__):
        given.update({name: p.detach().clone() for name, p in model.named_parameters()})
        raise Seen

    monkeypatch.setattr(arms, "train_language_model", capture)
    with pytest.raises(Seen):
        config = study.study.for_training("monotonic")
        arms.train_monotonic(stage_run(tmp_path), config, text=study.input("setup"), start=study.input("constrain"))
    for name, v in load_file(study.path("constrain") / "initial" / "v.safetensors").items():
        assert bytes_are_equal(given[name], v)
