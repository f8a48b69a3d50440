"""What a training recomputes: the same loss in parts, the memory that this takes, and the choice by it."""

import shutil
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from storage import durable
from tasks.language import memory
from tasks.language import model as language
from tasks.language.memory import kept_for_backward, peak_bytes
from tasks.stage.attempt import attempt
from tasks.stage.outcome import Outcome
from tests.tasks.monotonic.architectures import network
from tests.tasks.tiny import FinishedStudy, finished_study, tiny_model, what_must_be_equal


@pytest.mark.parametrize("layers", [False, True])
@pytest.mark.parametrize("architecture", ["gpt_neox", "gpt2", "llama", "qwen3"])
def test_a_loss_in_parts_is_that_of_the_whole(architecture, layers, monkeypatch):
    monkeypatch.setattr(language, "ROWS_AT_ONCE", 10)  # of 48
    model = network(architecture).train()
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    if layers:
        model.gradient_checkpointing_enable()
    tokens, results = torch.randint(0, 61, (3, 17), generator=torch.Generator().manual_seed(1)), []
    for losses in (language.block_losses, language.block_losses_in_parts):
        model.zero_grad()
        (made := losses(model, tokens)).sum().backward()
        results.append([made.detach(), *(parameter.grad for parameter in model.parameters())])
    for whole, in_parts in zip(*results, strict=True):
        assert torch.allclose(whole, in_parts, rtol=1e-6, atol=1e-6)


PARAMETERS, LAYERS, WIDTH, VOCABULARY, TOKENS = 1_414_647_808, 24, 2048, 50_304, 8 * 2048
"""The network of benchmarks/language.py with 1.4 B parameters, and a micro-batch."""


@pytest.mark.parametrize(
    ("layers", "accumulates", "measured"), [(False, False, 60.4e9), (False, True, 66.05e9), (True, False, 30.6e9)]
)
def test_the_memory_is_what_an_h100_took_within_15_percent(layers, accumulates, measured):
    """bf16, 8 x 2,048 tokens, of which what a layer keeps is scaled up from small ones; by hand beside the logits."""
    kept = []
    for number in (2, 4):
        model = tiny_model(number, 61, 128, hidden_size=256, feed_forward_size=1024, attention_heads=2).train()
        if layers:
            model.gradient_checkpointing_enable()
        with torch.autocast("cpu", torch.bfloat16):
            tokens = torch.zeros(8, 129, dtype=torch.long)
            kept.append(kept_for_backward(model, partial(language.block_losses, model, tokens)))
    copies = 0 if layers else 12 * WIDTH**2 * 2 * LAYERS
    of_small = (kept[1] - kept[0]) / 2 - (0 if layers else 12 * 256**2 * 2)
    of_layers = int(of_small / (8 * 128 * 256) * TOKENS * WIDTH * LAYERS) + copies
    logits = TOKENS * VOCABULARY
    moment = memory.MOMENT_BYTES * logits + (of_layers // LAYERS if layers else 0)
    estimate = peak_bytes(4 * PARAMETERS, of_layers + 4 * logits, moment, accumulates)
    assert estimate == pytest.approx(measured, rel=0.15)


AUTO = {"micro_batch_examples": 4, "gradient_checkpointing": "auto", "cpu_threads": 1, "checkpoint_every_steps": 1}
NEEDS = {"nothing": 300, "loss": 200, "layers": 100}


def attempt_with(study: FinishedStudy, usable: float, patch: pytest.MonkeyPatch, **changed: Any) -> Outcome:
    """The baseline's training, begun or continued where the device has so many of the bytes of NEEDS."""
    patch.setattr(memory, "memory_bytes", lambda _: usable / memory.USABLE)
    patch.setattr(memory, "peak_bytes", lambda *_: NEEDS[next(ways)])
    ways = iter(NEEDS)
    patch.setattr(memory, "TENSORS_PER_CHECKPOINT", 0)
    handle = study.handles["train-baseline"]
    execution = handle.config.execution.model_copy(update=AUTO | changed)
    config = handle.config.model_copy(update={"execution": execution})
    return attempt(handle.stage, config, handle.run, {role: of.as_input() for role, of in handle.inputs.items()})


@pytest.fixture
def untrained(tmp_path: Path) -> FinishedStudy:
    study = finished_study().copy(tmp_path / "runs")
    shutil.rmtree(study.path("train-baseline"))
    return study


def way_of(study: FinishedStudy) -> str:
    return durable.read_json(study.handles["train-baseline"].run.stage_file)["numerics"]["recomputed"]


@pytest.mark.parametrize(("usable", "way"), [(300, "nothing"), (299, "loss"), (199, "layers"), (10, "layers")])
def test_as_little_is_recomputed_as_the_memory_allows_and_a_stop_changes_no_byte(
    untrained, tmp_path, monkeypatch, usable, way
):
    monkeypatch.setattr(language, "ROWS_AT_ONCE", 10)
    again = untrained.copy(tmp_path / "again")
    assert attempt_with(untrained, usable, monkeypatch).end_state == "finished" and way_of(untrained) == way
    while (outcome := attempt_with(again, usable, monkeypatch, max_steps_per_run=2)).end_state == "out_of_time":
        pass
    assert outcome.end_state == "finished", outcome.text
    left, whole = (what_must_be_equal(study.handles["train-baseline"].run) for study in (again, untrained))
    assert left == whole


def test_a_continuation_takes_the_first_attempts_way_and_is_refused_where_that_does_not_fit(untrained, monkeypatch):
    assert attempt_with(untrained, 250, monkeypatch, max_steps_per_run=1).end_state == "out_of_time"
    refused = attempt_with(untrained, 150, monkeypatch, max_steps_per_run=1)
    assert (refused.end_state, way_of(untrained)) == ("bad_input", "loss")
    assert "begun with recomputed=loss" in refused.text and "it goes on with recomputed=layers" in refused.text
    assert attempt_with(untrained, 999, monkeypatch, max_steps_per_run=1).end_state == "out_of_time"
    assert way_of(untrained) == "loss", "more memory is no reason to make other bytes"
    allowed = attempt_with(untrained, 150, monkeypatch, allow_numerics_change=True)
    assert (allowed.end_state, way_of(untrained)) == ("finished", "loss")
    (change,) = untrained.result("train-baseline")["numerics_changes"]
    assert change["recomputed"] == "layers" and change["device"] == "cpu"


def test_without_auto_nothing_is_recorded_and_a_sound_device_trains_the_same_bytes(untrained, tmp_path, monkeypatch):
    again = untrained.copy(tmp_path / "again")
    attempt_with(untrained, 999, monkeypatch, gradient_checkpointing=False)
    attempt_with(again, 999, monkeypatch)
    left, plain = (what_must_be_equal(study.handles["train-baseline"].run) for study in (again, untrained))
    assert left == plain
    assert "recomputed" not in durable.read_json(untrained.handles["train-baseline"].run.stage_file)["numerics"]
