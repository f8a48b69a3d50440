"""A search whose body is compiled: the same bytes over kills, and what eager finds."""

import os
import shutil
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._dynamo.exc import InternalTorchDynamoError

from storage import durable
from tasks.attacks import hotflip
from tasks.attacks.compiled import compile_search
from tasks.attacks.scoring import Victim
from tasks.attacks.trigger import TriggerSearch
from tasks.language.stages import LanguageExecution
from tasks.stage.execution import Execution
from tests.tasks.attacks.test_stages import Attacked, attacked
from tests.tasks.tiny import tiny_model, tiny_study

STAGE = "uat-base"


@pytest.fixture(scope="module")
def eager(tmp_path_factory: pytest.TempPathFactory) -> Attacked:
    """With passes of four sequences, which a position's candidates fill."""
    folder = tmp_path_factory.mktemp("attacks")
    settings = LanguageExecution(micro_batch_examples=16, cpu_threads=1, attack_batch_examples=4)
    return attacked(folder / "runs", tiny_study(folder, execution=settings))


def asked(study: Attacked, **execution: Any) -> Any:
    settings = study.study.execution.model_copy(update={"compile": "default", **execution})
    return study.study.model_copy(update={"execution": settings})


def without(study: Attacked, root: Path, stage: str = STAGE) -> Path:
    study.copy(root)
    shutil.rmtree(root / study.path(stage).relative_to(study.root))
    return root


def outputs(path: Path) -> dict[str, bytes]:
    return {name: (path / name).read_bytes() for name in ("records.parquet", "result.json", "stage.json")}


class Faulty:
    """`torch.compile`, which makes the network as it is, and fails from this call on."""

    def __init__(self, at_call: int) -> None:
        self.at_call, self.calls, self.with_gradient, self.shapes = at_call, 0, 0, set[tuple[int, ...]]()

    def __call__(self, body: Any, mode: str, dynamic: bool) -> Any:
        assert (mode, dynamic) == ("default", False)
        torch._dynamo.utils.counters["frames"]["ok"] += 1

        def called(**read: torch.Tensor) -> torch.Tensor:
            (given,) = read.values()
            self.calls += 1
            self.with_gradient += given.requires_grad
            self.shapes.add(tuple(given.shape[:2]))
            if self.calls >= self.at_call:
                raise InternalTorchDynamoError("planted\nwith a second line")
            return body(**read)

        return called


def stopping(monkeypatch: pytest.MonkeyPatch, *at: int) -> None:
    """SIGTERM before these steps of all attempts."""
    real, calls = TriggerSearch.step, 0

    def step(search: TriggerSearch) -> None:
        nonlocal calls
        calls += 1
        if calls in at:
            os.kill(os.getpid(), signal.SIGTERM)
        real(search)

    monkeypatch.setattr(TriggerSearch, "step", step)


def test_a_compiled_search_that_is_stopped_has_the_bytes_of_one_piece_and_finds_what_eager_does(
    eager, tmp_path, monkeypatch
):
    """With the real compiler of a CPU."""
    whole = attacked(without(eager, tmp_path / "whole"), asked(eager))
    assert durable.read_json(whole.path(STAGE) / "stage.json")["numerics"]["compile"] == "default"
    assert torch._dynamo.utils.counters["frames"]["ok"] >= 1
    stopping(monkeypatch, 3, 6, 12)
    root, ends = without(eager, tmp_path / "pieces"), []
    while not ends or ends[-1] == "sigterm":
        pieces = attacked(root, asked(eager))
        ends.append(pieces.handles[STAGE].outcome.end_state)
    assert ends == ["sigterm"] * 3 + ["finished"]
    assert outputs(pieces.path(STAGE)) == outputs(whole.path(STAGE))
    found, same = whole.uat("base"), eager.uat("base")
    assert found.gradient.best.trigger_ids == same.gradient.best.trigger_ids
    losses = [[each.search_loss_nats_per_token for each in uat.gradient.restarts] for uat in (found, same)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    assert whole.rows(STAGE) == eager.rows(STAGE), "the judge is never compiled"


@pytest.mark.parametrize("stage", [STAGE, "hotflip-base"])
def test_a_compiler_that_fails_ends_the_search_with_what_to_set_and_it_goes_on_without(
    stage, eager, tmp_path, monkeypatch
):
    monkeypatch.setattr(torch, "compile", Faulty(at_call=4))
    root = without(eager, tmp_path / "runs", stage)
    refused = attacked(root, asked(eager)).handles[stage].outcome
    assert refused.end_state == "bad_input" and "InternalTorchDynamoError: planted" in refused.text
    assert "or set execution.compile=none" in refused.text
    assert "compile was default, is None" in attacked(root, asked(eager, compile="none")).handles[stage].outcome.text
    found = attacked(root, asked(eager, compile="none", allow_numerics_change=True))
    assert outputs(found.path(stage))["records.parquet"] == outputs(eager.path(stage))["records.parquet"]


def test_texts_in_lockstep_have_their_gradients_compiled_too(eager, tmp_path, monkeypatch):
    monkeypatch.setattr(torch, "compile", faulty := Faulty(at_call=10**9))
    monkeypatch.setattr(hotflip, "texts_together", lambda victim: 4)
    found = attacked(without(eager, tmp_path / "runs", "hotflip-base"), asked(eager))
    assert faulty.with_gradient > 1
    for own, other in zip(found.rows("hotflip-base"), eager.rows("hotflip-base"), strict=True):
        assert own["replacements"] == other["replacements"]
        assert own["search_losses_sum_nats"] == pytest.approx(other["search_losses_sum_nats"], rel=1e-5)


def test_stages_that_compile_nothing_do_not_say_that_they_did(eager, tmp_path):
    root = eager.copy(tmp_path / "runs")
    shutil.rmtree(root / eager.path("transfer").relative_to(eager.root))
    found = attacked(root, asked(eager))
    numerics = durable.read_json(found.path("transfer") / "stage.json")["numerics"]
    assert "compile" not in numerics and "device" in numerics
    assert numerics == durable.read_json(eager.path("transfer") / "stage.json")["numerics"]


@pytest.mark.parametrize(
    ("rows", "tokens", "calls"), [(1, 12, 0), (3, 12, 2), (3, 13, 0), (4, 13, 2), (5, 13, 2), (4, 16, 2), (4, 17, 0)]
)
def test_what_is_filled_up_has_the_losses_and_gradients_of_what_is_not(rows, tokens, calls, monkeypatch):
    """Texts of up to 12 tokens, in passes of four: three quarters of a shape are compiled, and no less."""
    monkeypatch.setattr(torch, "compile", faulty := Faulty(at_call=10**9))
    plain = Victim(tiny_model(length=40, vocabulary=40, seed=4), 0, 4)
    filled = replace(plain)
    compile_search(Execution(compile="default"), filled, tokens)
    texts = [[1 + (7 * row + place) % 39 for place in range(12 - row % 2)] for row in range(rows)]
    everywhere = [torch.ones(len(text), dtype=torch.bool) for text in texts]
    for own, other in zip(plain.losses([[]] * rows, texts), filled.losses([[]] * rows, texts), strict=True):
        torch.testing.assert_close(own, other)
    gradients = (victim.gradients([[]] * rows, texts, everywhere) for victim in (plain, filled))
    for own, other in zip(*gradients, strict=True):
        torch.testing.assert_close(own, other)
    assert faulty.calls == calls and faulty.shapes == ({(4, tokens)} if calls else set())
