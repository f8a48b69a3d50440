"""The constrain stage: what it leaves of the base model, and the signs beside it."""

from __future__ import annotations

import math

import pytest
import torch

from storage.locks import acquire
from storage.run_directory import RunDirectory
from tasks.attacks.stages import for_starts
from tasks.language.model import load
from tasks.monotonic.arms import constrain
from tasks.monotonic.constraint import constrained_modules, verify
from tasks.monotonic.result import ConstrainResult
from tasks.monotonic.signs import AllowedSigns
from tasks.stage.run import StageRun
from tests.tasks.monotonic.arms_of_tiny import arms_page, finished_arms
from tests.tasks.tiny import Here, files_of

EXPECTED = {
    "monotonic": lambda w, s: w.clamp(min=0),
    "own-signs": lambda w, s: w,
    "random-signs": lambda w, s: s * (s * w).clamp(min=0),
    "per-unit-signs": lambda w, s: s * (s * w).clamp(min=0),
    "feed-forward-off": lambda w, s: 0 * w,
    "earlier-system": lambda w, s: w.abs(),
}


@pytest.mark.parametrize("arm", EXPECTED)
def test_constrain_leaves_the_start_of_its_arm_and_says_what_it_changed(arm):
    _, _, handles = finished_arms()
    run = handles[f"{arm} start"].as_input()
    base, model = load(handles["base"].run.path / "model"), load(run.path / "model")
    allowed = AllowedSigns.load(run.path / "signs")
    result = ConstrainResult.read(run)
    changed = 0
    for name, layer in constrained_modules(model, "mlp_both").items():
        original = base.get_submodule(name).weight.detach()
        assert torch.equal(layer.weight, EXPECTED[arm](original, allowed.layers[name]))
        changed += (layer.weight != original).sum().item()
    total = result.constraint.weights_checked
    assert result.share_of_weights_changed == changed / total and result.constraint.layers_checked == 4
    assert result.constraint == verify(model, "mlp_both", allowed)
    assert (result.signs, result.start) == (allowed.kind, "absolute" if arm == "earlier-system" else "positive-part")
    unchanged = result.validation_perplexity_before == result.validation_perplexity_after
    assert unchanged == (arm == "own-signs") and result.validation_perplexity_before > 1


def test_only_the_named_weights_differ_from_the_base_model():
    _, _, handles = finished_arms()
    run = handles["monotonic start"].as_input()
    base, model = (load(path / "model").state_dict() for path in (handles["base"].run.path, run.path))
    named = {f"{name}.weight" for name in ConstrainResult.read(run).constraint.layers}
    assert {name for name in base if not torch.equal(base[name], model[name])} == named


def test_a_distilled_start_is_the_same_twice_and_nearer_to_the_base_model_than_the_positive_part(tmp_path):
    study, _, handles = finished_arms()
    inputs = {role: handles[role].as_input() for role in ("text", "base")}
    config = for_starts(study)[study.start_of("monotonic")].model_copy(update={"start": "distilled"})
    runs = [RunDirectory(tmp_path / name, "tiny", "constrain", "0" * 64) for name in ("a", "b")]
    for run in runs:
        work = StageRun(run, {"fingerprint": run.fingerprint, "inputs": {}}, acquire(run.path / "locks"), tmp_path)
        result = constrain(work, config, **inputs)
    assert files_of(runs[0].path / "model") == files_of(runs[1].path / "model")
    positive = ConstrainResult.read(handles["monotonic start"].as_input())
    losses = [math.log(r.validation_perplexity_after) for r in (result, positive)]
    base = math.log(result.validation_perplexity_before)
    assert abs(losses[0] - base) < abs(losses[1] - base)


def test_the_page_of_the_tests_runs_each_start_once():
    study, root, handles = finished_arms()
    assert handles["monotonic start"] is handles["unconstrained-start start"]
    assert all(handle.finished for handle in arms_page(study, Here(root, study.name)).values())
