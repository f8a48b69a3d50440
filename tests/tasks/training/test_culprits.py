"""Of a step that fails, the examples, the tensor and the module are named; it is kept, and can be made again."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from storage import durable
from storage.errors import BadInput, NumericalFailure
from tasks.stage.generators import generator_tensors
from tasks.stage.outcome import outcome_of
from tasks.training import culprits as module
from tasks.training.culprits import FOLDER, FailedStep, Step, find_culprits, locate, read_step, tensors_of
from tests.tasks.tiny import SEEN, ToyBatch, ToyConfig, toy_attempt, toy_directory, toy_problem

WINDOW = 8


def step(*cut: int) -> Step:
    """The examples 0 to 7, cut into micro-batches of these sizes."""
    indices = np.split(np.arange(WINDOW), np.cumsum(cut)[:-1])
    return Step(1, 0, indices, WINDOW, generator_tensors(False), False)


@pytest.mark.parametrize("cut", [(8,), (4, 4), (3, 3, 2)])
@pytest.mark.parametrize(("poison", "tensor"), [("loss", "the loss"), ("gradient", "the gradient of outer.weight")])
def test_the_one_example_is_found_wherever_the_batch_is_cut(cut, poison, tensor):
    problem = toy_problem(ToyConfig())
    plain = problem.losses

    def losses(model: nn.Module, batch: ToyBatch) -> torch.Tensor:
        found = plain(model, batch)
        wrong = batch.indices == 5
        if poison == "loss":
            return torch.where(wrong, torch.nan, found)
        steep = torch.sqrt(model.outer.weight.sum() * 0)  # 0 itself, with an infinite slope
        return torch.stack([loss + steep if is_wrong else loss for loss, is_wrong in zip(found, wrong, strict=True)])

    problem.losses = losses
    found = find_culprits(problem, step(*cut))
    assert found and (found.examples, found.tensor, found.together) == ([5], tensor, False)


def test_the_module_where_it_begins_is_the_innermost_one_and_the_input_is_told_from_it():
    class Spoils(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x / 0 * 0

    problem = toy_problem(ToyConfig())
    problem.model.outer = nn.Sequential(nn.Linear(16, 8), Spoils(), nn.Linear(8, 1))
    found = find_culprits(problem, step(8))
    assert found and (found.module, found.tensor) == ("outer.1", "the loss")
    assert [seen.module for seen in found.modules if seen.not_finite] == ["outer.1", "outer.2", "outer"]

    problem = toy_problem(ToyConfig())
    batch = problem.batch
    problem.batch = lambda indices, epoch: ToyBatch(
        torch.from_numpy(indices), torch.where(torch.from_numpy(indices)[:, None] == 2, torch.nan, batch(indices, 0).x)
    )
    found = find_culprits(problem, step(8))
    assert found and (found.module, found.examples) == ("the input of inner", [2])


def test_a_gradient_that_is_spoilt_everywhere_began_where_the_backward_pass_does():
    problem = toy_problem(ToyConfig())
    problem.losses = lambda model, batch: torch.sqrt(model(batch.x) * 0)
    found = find_culprits(problem, step(8))
    assert found and (found.tensor, found.module) == ("the gradient of outer.bias", "outer")


def test_what_overflows_only_as_a_sum_blames_no_example():
    problem = toy_problem(ToyConfig())
    problem.losses = lambda model, batch: 3e38 * model.outer.bias.expand(len(batch.indices))
    made = Step(1, 0, [np.arange(WINDOW)], 1.0, generator_tensors(False), False)
    problem.model.outer.bias.data.fill_(0.1)
    found = find_culprits(problem, made)
    assert found and found.together and found.examples == list(range(WINDOW))
    assert found.tensor == "the gradient of outer.bias"


def test_a_step_of_finite_gradients_has_no_culprit_however_large_their_norm():
    problem = toy_problem(ToyConfig())
    problem.losses = lambda model, batch: 1e25 * model.inner.weight.sum().expand(len(batch.indices))
    assert find_culprits(problem, step(8)) is None


def test_of_a_batch_too_large_to_search_nothing_is_said_of_each_alone(monkeypatch):
    monkeypatch.setattr(module, "MOST_BACKWARDS", 2)
    problem = toy_problem(ToyConfig())
    problem.losses = lambda model, batch: torch.sqrt(model(batch.x) * 0)
    found = find_culprits(problem, step(8))
    assert found and not found.together and not found.complete and found.examples == list(range(WINDOW))
    monkeypatch.setattr(module, "_save_step", lambda *_: None)
    failed = FailedStep(step(8), range(WINDOW), "the norm")
    assert locate(SimpleNamespace(), problem, failed).batch == 0, "so that nobody takes them all for culprits"
    monkeypatch.undo()
    monkeypatch.setattr(module, "_save_step", lambda *_: None)
    assert locate(SimpleNamespace(), problem, failed).batch == WINDOW


def test_a_sound_step_has_no_culprits_and_changes_nothing():
    problem = toy_problem(ToyConfig())
    before = {name: value.clone() for name, value in problem.model.state_dict().items()}
    assert find_culprits(problem, step(4, 4)) is None
    assert all(torch.equal(value, before[name]) for name, value in problem.model.state_dict().items())
    assert all(parameter.grad is None for parameter in problem.model.parameters())


def poisoned(root: Path, **changed: Any) -> ToyConfig:
    """The toy whose third step has an example with an infinite loss."""
    SEEN.clear()
    toy_attempt(root / "order", ToyConfig(), max_steps_per_run=3)
    return ToyConfig(poisoned_loss=SEEN[-1][1], **changed)


def test_a_failed_training_names_the_culprit_and_how_to_go_on(tmp_path):
    """Seen: it named the whole batch."""
    config = poisoned(tmp_path)
    outcome = toy_attempt(tmp_path, config)
    assert outcome.end_state == "numerical_failure"
    said = f"the loss is not finite at step 3, batch examples [{config.poisoned_loss}] (1 of a batch of 8)"
    assert said in outcome.text
    assert len(outcome_of(NumericalFailure(1, range(500), "the loss")).text) < 500, "not every example of a large batch"


def test_the_step_is_kept_and_made_again_of_what_is_kept(tmp_path):
    config = poisoned(tmp_path)
    toy_attempt(tmp_path, config)
    folder = toy_directory(tmp_path, config).path / FOLDER
    kept, made = read_step(folder)
    assert (kept.step, kept.culprits) == (3, [config.poisoned_loss])
    assert {*load_file(folder / "batch.safetensors")} == {"batch.indices", "batch.x"}
    problem = toy_problem(config)
    problem.model.load_state_dict(load_file(folder / "model.safetensors"))
    torch.manual_seed(99)
    found = find_culprits(problem, made)
    assert found and (found.tensor, found.examples) == (kept.tensor, kept.culprits)
    drawn = torch.rand(1)
    torch.manual_seed(7)
    find_culprits(problem, made)
    assert torch.equal(torch.rand(1), drawn), "with the generators that are kept"


@pytest.mark.parametrize("hindrance", [OSError(28, "No space left on device"), RuntimeError("out of memory")])
def test_what_hinders_the_search_or_the_keeping_does_not_hide_the_failure(tmp_path, hindrance, monkeypatch):
    def fail(*_: Any) -> None:
        raise hindrance

    config = poisoned(tmp_path)
    monkeypatch.setattr(module, "_save_step" if isinstance(hindrance, OSError) else "find_culprits", fail)
    outcome = toy_attempt(tmp_path, config)
    assert outcome.end_state == "numerical_failure" and "the loss is not finite at step 3" in outcome.text
    log = next(toy_directory(tmp_path, config).attempts.glob("*.log")).read_text()
    assert "the failed step could not be " in log
    kept = toy_directory(tmp_path, config).path / FOLDER
    assert kept.is_dir() is isinstance(hindrance, RuntimeError), "a search that fails does not lose the step"


def test_a_step_that_another_version_kept_is_refused_in_a_sentence(tmp_path):
    config = poisoned(tmp_path)
    toy_attempt(tmp_path, config)
    folder = toy_directory(tmp_path, config).path / FOLDER
    described = durable.read_json(folder / "failure.json")
    del described["micro_batch"]
    durable.write_json(folder / "failure.json", described)
    with pytest.raises(BadInput, match=r"failure\.json was written by another version .* \(attempts/ in "):
        read_step(folder)


def test_tensors_of_batches_of_any_form():
    one, other = torch.zeros(2), torch.ones(1)
    assert tensors_of(one) == {"batch": one}
    assert set(tensors_of({"a": one, "b": [other, "text", {"c": one}]})) == {"batch.a", "batch.b.0", "batch.b.2.c"}
    assert set(tensors_of(ToyBatch(one, other))) == {"batch.indices", "batch.x"}
    assert tensors_of("text") == {}
