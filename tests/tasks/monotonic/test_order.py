"""The stage order: every model under its own name, the same inputs for all, and no model twice."""

from pathlib import Path
from typing import Any

import pytest
import torch

from storage.errors import Stop
from tasks.language import model as language
from tasks.language.setup import setup
from tasks.language.stages import SetupConfig
from tasks.monotonic import order as module
from tasks.monotonic.constraint import constrained_modules
from tasks.monotonic.numbers import order_of
from tasks.monotonic.order import order, order_on_text, seen_inputs
from tasks.monotonic.result import ModelOrder
from tasks.monotonic.stages import OrderConfig
from tasks.monotonic.sublayer import feed_forward_sublayers
from tasks.stage.run import StageInput, StageRun
from tests.tasks.monotonic.test_certificate import neox, non_negative, with_biases
from tests.tasks.tiny import save_model, stage_run, tiny_model, tiny_study

MODELS = ["base", "monotonic", "relu-monotonic"]


def network(name: str) -> Any:
    model = tiny_model(vocabulary=350, activation="relu" if name == "relu-monotonic" else "gelu")
    if name != "base":
        with torch.no_grad():
            for layer in constrained_modules(model, "mlp_both").values():
                layer.weight.abs_()
    return model


@pytest.fixture(scope="module")
def given(tmp_path_factory) -> dict[str, StageInput]:
    """What setup wrote, and a model under each name."""
    folder = tmp_path_factory.mktemp("given")
    inputs = {}
    for name in ["text", *MODELS]:
        run = stage_run(folder / name)
        if name == "text":
            study = tiny_study(folder)
            setup(run, SetupConfig.of(study, tokenizer=study.tokenizer))
        else:
            save_model(run.directory / "model", network(name))
        inputs[name] = StageInput(run.run, "0" * 64)
    return inputs


@pytest.fixture
def config(tmp_path) -> OrderConfig:
    study = tiny_study(tmp_path)
    return OrderConfig(models=MODELS, variant="mlp_both", execution=study.execution)


def finished(run: StageRun, config: OrderConfig, given: dict[str, StageInput]) -> tuple[dict[str, ModelOrder], bytes]:
    order(run, config, **given)
    return order_of(StageInput(run.run, ""), config.models), (run.directory / "records.parquet").read_bytes()


def test_each_model_has_its_own_answer(tmp_path, config, given):
    result, _ = finished(stage_run(tmp_path / "run"), config, given)
    assert list(result) == MODELS
    assert [one.certificate.certified for one in result.values()] == ["no", "no", "yes"]
    assert [one.certificate.activation for one in result.values()] == ["gelu", "gelu", "relu"]
    assert {one.certificate.variant for one in result.values()} == {"mlp_both"}
    assert {one.on_text.inputs for one in result.values()} == {12}
    free, *monotone = (one.on_text for one in result.values())
    assert 0.3 < free.share < 0.7 and all(one.share == 0.0 for one in monotone)


def test_a_continuation_examines_no_model_twice_and_ends_with_the_same_bytes(tmp_path, config, given, monkeypatch):
    expected = finished(stage_run(tmp_path / "at-once"), config, given)
    loaded: list[str] = []

    def load(folder: Path) -> Any:
        loaded.append(next(name for name, source in given.items() if folder.is_relative_to(source.path)))
        return language_load(folder)

    language_load = language.load
    monkeypatch.setattr(module.language, "load", load)
    run = stage_run(tmp_path / "stopped")
    go_on = iter(range(4))  # asked three times for each model of two sublayers: stopped during the second

    def check() -> None:
        if next(go_on, None) is None:
            raise Stop("sigterm", "asked to stop")

    monkeypatch.setattr(run.stop, "check", check)
    with pytest.raises(Stop):
        order(run, config, **given)
    assert loaded == MODELS[:2]
    run.lock.release()
    assert finished(stage_run(tmp_path / "stopped"), config, given) == expected
    assert loaded == [*MODELS[:2], *MODELS[1:]]


TEXTS = [[0, 5, 9, 3, 7, 7, 2], [0, 60, 4], [0, 8, 8, 1, 33, 12, 14, 2, 50, 6]]


def on_these_texts(model):
    sublayers = feed_forward_sublayers(model, "mlp_both")
    return order_on_text(sublayers, seen_inputs(model, sublayers, TEXTS, per_text=3, batch=2))


@pytest.mark.parametrize("activation", ["relu", "monotone-parts"])
def test_a_monotone_sublayer_keeps_every_order_and_a_free_one_about_half(activation):
    kept, free = on_these_texts(non_negative(neox(activation))), on_these_texts(with_biases(neox(activation)))
    assert kept.inputs == free.inputs == 9 and (kept.share, kept.share_of_size) == (0.0, 0.0) and kept.lowest >= 0
    assert 0.3 < free.share < 0.7 and 0.3 < free.share_of_size < 0.7 and free.lowest < 0


def test_shares_are_those_of_all_changes():
    model = with_biases(neox("gelu"))
    sublayers = feed_forward_sublayers(model, "mlp_both")
    seen = seen_inputs(model, sublayers, TEXTS, per_text=3, batch=2)
    changes = []
    for sublayer in sublayers:
        x = seen[sublayer.name]
        larger = torch.maximum(x, torch.cat([x[1:], x[:1]]))
        with torch.no_grad():
            changes.append(sublayer.module(larger) - sublayer.module(x))
    found, numbers = order_on_text(sublayers, seen), torch.stack(changes)
    assert found.changes == numbers.numel()
    assert found.share == pytest.approx((numbers < 0).double().mean().item(), abs=2 / numbers.numel())
    assert found.share_of_size == pytest.approx((-numbers.clamp_max(0).sum() / numbers.abs().sum()).item(), rel=1e-4)
    assert found.lowest == pytest.approx(numbers.min().item(), rel=1e-3)


def test_a_sublayer_that_is_switched_off_has_no_negative_number():
    model = neox("gelu")
    with torch.no_grad():
        for sublayer in feed_forward_sublayers(model, "mlp_both"):
            for layer in sublayer.layers.values():
                layer.weight.zero_()
    assert on_these_texts(with_biases(model)).share == 0.0


@pytest.mark.parametrize("batch", [1, 2, 10])
def test_inputs_are_those_of_each_text_by_itself(batch):
    """Every place of the text, as it is read alone, without padding."""
    model = with_biases(neox("gelu"))
    sublayers = feed_forward_sublayers(model, "mlp_both")
    seen = seen_inputs(model, sublayers, TEXTS, per_text=100, batch=batch)
    for sublayer in sublayers:
        alone = []
        hook = sublayer.module.register_forward_pre_hook(lambda _, given, alone=alone: alone.append(given[0][0]))
        with torch.no_grad():
            for ids in TEXTS:
                model(input_ids=torch.tensor([ids]))
        hook.remove()
        assert torch.allclose(seen[sublayer.name], torch.cat(alone), rtol=1e-4, atol=1e-6)
    assert not any(sublayer.module._forward_pre_hooks for sublayer in sublayers)
