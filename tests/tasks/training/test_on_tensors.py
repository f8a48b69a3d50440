"""`ratchet.train`: a training on tensors in one call is the one of the `Problem` by hand, and says what is wrong."""

from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch.nn.functional import cross_entropy, mse_loss
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

from storage.errors import BadInput
from tasks.stage.run import StageRun
from tasks.training.budget import Budget
from tasks.training.loop import train_problem
from tasks.training.on_tensors import train
from tasks.training.problem import Problem, adamw
from tasks.training.result import described
from tasks.training.schedule import Schedule
from tasks.training.transformers_trainer import train_transformers
from tests.tasks.tiny import stage_run

BUDGET = Budget(steps=12, effective_batch_examples=16, learning_rate=0.1)
X = torch.randn(60, 5, generator=torch.Generator().manual_seed(1))
Y = (X[:, 0] > X[:, 1]).long()
WITH_NAN = Y.double().index_fill(0, torch.tensor([7, 30]), torch.nan)
KNOWN, UNSEEN = (X[:40], Y[:40]), (X[40:], Y[40:])


def model() -> torch.nn.Module:
    torch.manual_seed(3)
    return torch.nn.Linear(5, 2)


def loss(model: torch.nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return cross_entropy(model(x), y, reduction="none")


def right(model: torch.nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return model(x).argmax(1) == y


GIVEN: dict[str, Any] = {
    "loss": loss, "validate": UNSEEN, "budget": BUDGET, "seed": 5, "metrics": {"accuracy": right},
    "decides": "accuracy", "higher": ["accuracy"], "trivial": {"a guess": 0.5},
}  # fmt: skip


def test_it_is_the_training_of_the_problem_by_hand(tmp_path):
    one, other = stage_run(tmp_path / "one"), stage_run(tmp_path / "other")
    told = train(one, trained := model(), KNOWN, **GIVEN)

    def evaluate(network: torch.nn.Module) -> dict[str, float]:
        with torch.no_grad():
            return {
                name: torch.cat([of(network, *rows) for rows in zip(*(part.split(8) for part in UNSEEN), strict=True)])
                .double().mean().item()
                for name, of in {"accuracy": right, "validation_loss": loss}.items()
            }  # fmt: skip

    network = model()
    problem = Problem(
        network, adamw(network, BUDGET), lambda indices, _: [part[indices] for part in KNOWN],
        lambda network, batch: loss(network, *batch), evaluate, decides="accuracy", higher=["accuracy"],
        trivial={"a guess": 0.5},
    )  # fmt: skip
    schedule = Schedule(BUDGET, 40)
    metrics = told.pop("metrics")
    assert metrics == {"best_accuracy": {"higher": True}, "best_validation_loss": {"higher": False}}
    assert told == described(schedule, problem, train_problem(other, problem, schedule, 5, other.execution))
    assert told["best_accuracy"] > 0.5 and told["ratio_to_trivial"] == told["best_accuracy"] / 0.5
    assert one.run.metrics_file.read_bytes() == other.run.metrics_file.read_bytes()
    kept = load_file(one.directory / "model" / "model.safetensors")
    for weights in (network.state_dict(), trained.state_dict()):
        assert kept.keys() == weights.keys() and all(torch.equal(kept[name], weights[name]) for name in kept)
    assert one.outputs[-1] == "model"


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"loss": lambda *given: loss(*given).mean()}, r"train: loss gave shape \[\] for 8 examples: it gives a"),
        ({"metrics": {"accuracy": lambda *_: 0.5}}, r"train: accuracy gave 0\.5 for 8 examples"),
        ({"data": (X, Y[:40])}, r"train: data has shapes \[60, 5\], \[40\]: each tensor has a row for each example"),
        ({"data": []}, "train: data has shapes none"),
        ({"data": (X[:40], WITH_NAN[:40])}, "train: row 7 of tensor 1 of data is not finite"),
        ({"validate": (X[40:] / 0, Y[40:])}, "train: row 0 of tensor 0 of validate is not finite"),
        ({"loss": lambda m, x, y: mse_loss(m(x)[:, :1], y.float(), reduction="none").mean(1)},
         r"\[8\]\)\) that is different to the input size \(torch.Size\(\[8, 1\]\).* `model\(rows\)\.squeeze\(1\)`"),
        ({"validate": UNSEEN[0]}, r"data has shapes \[40, 5\], \[40\], and validate \[20, 5\]: an example is the same"),
        ({"validate": (X[40:, :4], Y[40:])}, r"and validate \[20, 4\], \[20\]: an example is the same in both"),
        ({"metrics": {"validation_loss": right}}, "validation_loss is the mean of `loss`"),
        ({"model": torch.nn.BatchNorm1d(5)}, "give execution.micro_batch_examples=16, the whole batch"),
        ({"validate": torch.tensor(1.0)}, r"train: validate has shapes \[\]"),
        ({"data": "digits.csv"}, "train: data is a tensor or array, or a list of such"),
        ({"decides": "acuracy"}, "are accuracy, validation_loss: acuracy, which decides, must be among them"),
        ({"higher": ["acuracy"]}, "Problem.higher names acuracy"),
        ({"higher": "accuracy"}, r"it holds names of metrics, such as \('accuracy',\)"),
        ({"trivial": {"a guess": 0.0}}, "the trivial value of a guess is 0.0"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_told(tmp_path, wrong, told):
    given = {"model": model(), "data": KNOWN} | GIVEN | wrong
    with pytest.raises(BadInput, match=told):
        train(stage_run(tmp_path), given.pop("model"), given.pop("data"), **given)
    assert not (tmp_path / "model").exists()


def by_tensors(run: StageRun) -> None:
    train(run, model(), KNOWN, **GIVEN)


def by_transformers(run: StageRun) -> None:
    network = GPT2LMHeadModel(GPT2Config(vocab_size=3, n_positions=4, n_embd=4, n_layer=1, n_head=1))
    arguments = TrainingArguments(run.scratch, max_steps=2, save_steps=1, use_cpu=True, disable_tqdm=True, report_to=[])
    rows = [{"input_ids": torch.tensor([0, 1]), "labels": torch.tensor([0, 1])}]
    train_transformers(run, Trainer(network, arguments, train_dataset=rows))


def by_script(run: StageRun) -> None:
    run.command("touch", "last.pt", checkpoints="last.pt")


@pytest.mark.parametrize("first", [by_tensors, by_transformers, by_script])
@pytest.mark.parametrize("second", [by_tensors, by_transformers, by_script])
def test_a_second_training_in_a_stage_is_refused(tmp_path, first, second):
    """Seen: it went on from the checkpoints of the first, and had its numbers."""
    first(run := stage_run(tmp_path))
    kept = sorted(run.run.checkpoints.rglob("*"))
    with pytest.raises(BadInput, match="A stage has one: make each a stage of its own"):
        second(run)
    assert kept == sorted(run.run.checkpoints.rglob("*")) != []


def test_a_module_that_works_in_place_leaves_the_data_as_they_are(tmp_path):
    known, unseen = [[part.clone() for part in parts] for parts in (KNOWN, UNSEEN)]
    in_place = torch.nn.Sequential(torch.nn.ReLU(inplace=True), model())
    train(stage_run(tmp_path), in_place, known, **GIVEN | {"validate": unseen})
    assert torch.equal(known[0], KNOWN[0]) and torch.equal(unseen[0], UNSEEN[0])
