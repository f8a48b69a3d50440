"""Factors on disk: each example counted, a module a file, and what is not right found and named."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from storage.errors import BadInput, CheckFailed, Stop
from tasks.influence.factors import SOLVERS, compute_factors
from tasks.influence.kept import complete, degraded, require_usable
from tasks.influence.plan import Machine, factor_plan
from tasks.influence.scores import gathered, scores
from tasks.influence.task import Task, Told, require_faithful, token_losses
from tests.tasks.influence.models import classifier, diagonal, everything, factors, language, planned


def _files(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in sorted(folder.iterdir())}


@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
def test_a_text_alone_and_padded_on_the_left_in_a_batch_has_one_gradient(tied):
    task = language(tied)
    require_faithful(task, planned(task), everything(task), tolerance=1e-9)


def test_the_basis_of_tied_weights_is_that_of_the_linear_layer(tmp_path):
    tied, untied = language(tied=True), language()
    untied.model.load_state_dict(tied.model.state_dict())
    sides = []
    for task in (tied, untied):
        plan = [one for one in planned(task) if one.name == "head"]
        name = f"{len(plan[0].modules)}"
        [head] = compute_factors(task, everything(task), tmp_path / name, plan, labels="true")
        sides.append([{**side, "rungs": None, "residual": None} for side in head.sides])
    assert sides[0] == sides[1]


def test_a_model_that_reads_its_padding_is_refused_by_example_and_module(tmp_path):
    task = language(reads_padding=True)
    with pytest.raises(CheckFailed, match=r"gradient of example 0 by embedding in a batch.*Padding is read"):
        factors(task, tmp_path)


def test_examples_that_mix_in_a_batch_are_found(tmp_path):
    task = classifier()
    plain = task.losses
    mixing = replace(
        task, losses=lambda model, batch, draw: plain(model, (batch[0] - batch[0].mean(0), batch[1]), draw)
    )
    with pytest.raises(CheckFailed, match="gradient of example 0 by 0 in a batch"):
        factors(mixing, tmp_path)


def test_a_weight_that_is_used_past_its_module_is_found(tmp_path):
    task = classifier()
    last = task.model[2]
    past = replace(
        task,
        losses=lambda model, batch, draw: token_losses(model(batch[0]) @ last.weight @ last.weight.T, batch[1], draw),
    )
    with pytest.raises(CheckFailed, match="gradient of example 0 by 2 in a batch"):
        factors(past, tmp_path)


class _Shared(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.again = nn.Linear(3, 4), nn.Linear(4, 4, bias=False)
        self.last, self.act = nn.Linear(4, 4), nn.ReLU(inplace=True)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        values = self.act(self.first(rows))
        for _ in range(2):  # one weight, two calls
            values = self.act(self.again(values))
        return self.last(values.mean(1))


def test_shared_calls_frozen_weights_and_activations_in_place_have_autograd_s_gradients():
    torch.manual_seed(0)
    rows, labels = torch.randn(6, 5, 3).double(), torch.randint(0, 4, (6,))
    model = _Shared().double()
    model.first.weight.requires_grad_(False)
    task = Task(
        model,
        6,
        lambda indices: (rows[indices], labels[indices]),
        lambda network, batch, draw: token_losses(network(batch[0]), batch[1], draw),
    )
    require_faithful(task, planned(task), everything(task), tolerance=1e-9)
    assert not model.first.weight.requires_grad and model.training and model.last.weight.grad is None


def test_a_loss_that_is_not_finite_names_its_example(tmp_path):
    task = classifier()
    inputs, labels = task.batch(everything(task))
    inputs[17, 2] = float("nan")
    spoiled = replace(task, batch=lambda indices: (inputs[indices], labels[indices]))
    with pytest.raises(CheckFailed, match="loss of example 17: measured not finite"):
        factors(spoiled, tmp_path)


class _Root(nn.Module):
    """Two layers with a root between: at 0 its derivative is infinite while the loss is finite."""

    def __init__(self) -> None:
        super().__init__()
        self.below, self.above = nn.Linear(3, 3), nn.Linear(3, 2)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.above((self.below(inputs) - self.below.bias).abs().sqrt())


def test_a_gradient_that_is_not_finite_costs_the_modules_it_reaches_and_no_other(tmp_path):
    torch.manual_seed(0)
    inputs, labels = torch.randn(20, 3), torch.randint(0, 2, (20,))
    inputs[11] = 0
    model = _Root()
    with torch.no_grad():
        model.below.bias.zero_()
    task = Task(
        model,
        20,
        lambda indices: (inputs[indices], labels[indices]),
        lambda network, batch, draw: token_losses(network(batch[0]), batch[1], draw),
    )
    found = compute_factors(task, everything(task), tmp_path, planned(task), labels="true")
    assert [(one.name, one.status) for one in found] == [("below", "not_finite"), ("above", "ok")]
    [side] = [side for side in found[0].sides if side["status"] == "not_finite"]
    assert side["module"] == "below rows.0" and side["rungs"] == ["9 values are not finite, the first at [0, 0]"]
    assert degraded(found) == ["below"]
    with pytest.raises(CheckFailed, match=r"degraded modules: measured 1 of 2 \(below\), required at most 5%"):
        require_usable(found, 0.05)
    require_usable(found, 0.5)
    plan = diagonal(task)
    found = compute_factors(task, everything(task), tmp_path / "diagonal", plan, labels="true")
    assert [(one.name, one.status) for one in found] == [("below", "not_finite"), ("above", "diagonal")]
    assert degraded(found) == ["below"]
    assert gathered(scores(task, task, everything(task), np.arange(3), tmp_path)).isfinite().all()


def test_a_module_that_sees_other_rows_than_the_examples_is_named(tmp_path):
    task = classifier()
    halved = nn.Sequential(*task.model)

    def losses(
        model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor], draw: torch.Generator | None
    ) -> torch.Tensor:
        half = model(batch[0][: len(batch[0]) // 2 + 1])
        return token_losses(torch.cat([half, half])[: len(batch[0])], batch[1], draw)

    with pytest.raises(CheckFailed, match="rows of 0: measured 2, required 3"):
        factors(replace(task, model=halved, losses=losses), tmp_path)
    unused = nn.ModuleDict({"used": task.model, "unused": nn.Linear(2, 2)})
    through = replace(task, model=unused, losses=lambda model, *rest: task.losses(model["used"], *rest))
    with pytest.raises(CheckFailed, match="examples counted in unused: measured 0, required 3"):
        factors(through, tmp_path / "unused")


def test_fewer_examples_than_planned_are_refused(tmp_path):
    task = classifier()
    factors(task, tmp_path)
    file = tmp_path / "2.json"
    told = json.loads(file.read_text())
    file.write_text(json.dumps({**told, "examples": 26}))
    with pytest.raises(CheckFailed, match="examples in the factors of 2: measured 26, required 40"):
        complete(tmp_path, task.model)


def test_factors_of_something_else_are_neither_continued_nor_scored(tmp_path):
    task, other = classifier(), classifier(seed=1)
    factors(task, tmp_path)
    for options in ({"labels": "sampled"}, {"seed": 1}, {"batch": 7}, {"seed": 1, "anew": True}):
        with pytest.raises(BadInput, match=f"factors of another {next(iter(options))}: take a new folder"):
            factors(task, tmp_path, **options)
    with pytest.raises(BadInput, match="another content, model"):
        factors(other, tmp_path)
    with pytest.raises(CheckFailed, match="digest of the model whose factors"):
        next(scores(other, other, everything(other), everything(other), tmp_path))
    altered = replace(task, batch=lambda indices: (task.batch(indices)[0].flip(-1), task.batch(indices)[1]))
    with pytest.raises(BadInput, match="factors of another content: "):
        factors(altered, tmp_path)


def test_factors_in_other_batches_begin_anew_and_nothing_of_a_process_that_was_killed_stays(tmp_path):
    """Seen: after a kill between two steps the file of the first stayed, and the folder had another digest."""
    task = classifier()
    factors(task, tmp_path / "other", batch=7)
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "notes.txt").write_text("somebody's own")
    for options in ({}, {"batch": 7, "anew": True}):
        factors(task, tmp_path / "new", **options)
        (tmp_path / "new" / "0.moments.safetensors").write_bytes(b"left behind")
        factors(task, tmp_path / "new", **options)
    found, expected = (
        {file.name: file.read_bytes() for file in (tmp_path / name).iterdir()} for name in ("new", "other")
    )
    assert found.pop("notes.txt") == b"somebody's own" and found == expected


def test_a_kill_while_factors_begin_anew_leaves_none_of_another_batch(tmp_path, monkeypatch):
    """The request is the last that changes: with a new one first, what was computed before would pass for its own."""
    task, unlink = classifier(), Path.unlink
    factors(task, tmp_path / "other", batch=7)
    for nth in range(6):
        factors(task, folder := tmp_path / str(nth))
        count = iter(range(100))

        def killed(path: Path, missing_ok: bool = False, nth: int = nth, count: Iterator[int] = count) -> None:
            if next(count) == nth:
                raise SystemExit
            unlink(path, missing_ok)

        monkeypatch.setattr(Path, "unlink", killed)
        with pytest.raises(SystemExit):
            factors(task, folder, batch=7, anew=True)
        monkeypatch.undo()
        factors(task, folder, batch=7, anew=True)
        assert {file.name: file.read_bytes() for file in folder.iterdir()} == {
            file.name: file.read_bytes() for file in (tmp_path / "other").iterdir()
        }


def test_an_oversize_module_is_done_in_blocks_that_the_solver_takes(tmp_path):
    task, seen = classifier(width=300), []

    def small_only(matrix: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        seen.append(len(matrix))
        return torch.linalg.eigh(matrix)

    plan = factor_plan(task.model, Machine(1 << 34, (12, 2), solves=128))
    found = compute_factors(task, everything(task), tmp_path, plan, labels="true", solvers={"torch": small_only})
    assert [one.treatment for one in plan] == ["blocks", "blocks"]
    assert sorted(seen) == [3, 6, 99, 100, 100, 100, 101, 101]
    assert [one.status for one in found] == ["blocks", "blocks"] and degraded(found) == ["0", "2"]
    assert gathered(scores(task, task, everything(task), np.arange(3), tmp_path)).isfinite().all()


def test_a_module_with_a_diagonal_side_says_so_and_is_degraded(tmp_path):
    """Seen: `ok`, with a Pearson correlation of .61 with the scores of the whole."""
    task = classifier(width=300)
    plan = [
        one if one.name == "0" else replace(one, row_block=1, treatment="blocks", chosen=False) for one in planned(task)
    ]
    found = compute_factors(task, everything(task), tmp_path, plan, labels="true")
    assert [one.status for one in found] == ["ok", "one_side"] and degraded(found) == ["2"]


def _dead_layer() -> Task:
    task = classifier(layers=3)
    with torch.no_grad():
        task.model[2].bias.fill_(-100.0)  # behind tanh, as after one step with too high a rate
    return task


def _saturated() -> Task:
    task = classifier(layers=3)
    with torch.no_grad():
        task.model[4].bias.copy_(torch.tensor([1e4, 0.0, 0.0]))
    return replace(task, batch=lambda at: (task.batch(at)[0], 0 * task.batch(at)[1]))


@pytest.mark.parametrize(
    ("made", "dead", "labels"), [(_dead_layer, ["0", "2"], "true"), (_saturated, ["0", "2", "4"], "sampled")]
)
def test_a_module_that_no_gradient_reaches_has_no_curvature_and_is_left_out(made, dead, labels, tmp_path):
    """Seen: every module `ok`, and NaN for every row, as 0 was divided by 0."""
    task = made()
    found = compute_factors(task, everything(task), tmp_path, planned(task), labels=labels)
    assert [one.name for one in found if one.status == "no_curvature"] == degraded(found) == dead
    with pytest.raises(CheckFailed, match=rf"{len(dead)} of 3 \({', '.join(dead)}\)"):
        require_usable(found, 0.05)
    of = scores(task, task, everything(task), np.arange(3), tmp_path)
    if len(dead) < 3:
        assert gathered(of).isfinite().all()
    else:
        with pytest.raises(CheckFailed, match=r"usable factors: measured 0.*0: no_curvature"):
            gathered(of)


def test_scores_that_are_not_finite_are_refused_by_module(tmp_path):
    task = classifier()
    blind = replace(task, batch=lambda at: (task.batch(at)[0] * torch.tensor([1.0, 0, 1, 1, 1]), task.batch(at)[1]))
    compute_factors(blind, everything(task), tmp_path, diagonal(task), labels="true")
    asked = (blind, blind, everything(task), np.arange(3), tmp_path)
    assert gathered(scores(*asked)).isfinite().all()
    with pytest.raises(CheckFailed, match=r"queries 0 to 2 by examples 0 to 31: measured not finite by 0, required"):
        gathered(scores(*asked, damping=0.0))


def test_losses_that_draw_no_label_are_not_taken_for_sampled_ones(tmp_path):
    task = classifier()
    true = replace(task, losses=lambda model, batch, draw: task.losses(model, batch, None))
    with pytest.raises(BadInput, match=r"draw no label with the generator.*labels='true'"):
        factors(true, tmp_path / "sampled", labels="sampled")
    factors(true, tmp_path)


def test_drawn_labels_are_the_same_by_seed(tmp_path):
    task = classifier()
    same, again, other = (
        _files(factors(task, tmp_path / str(at), labels="sampled", seed=seed)) for at, seed in enumerate((1, 1, 2))
    )
    assert same == again and same["2.json"] != other["2.json"]


def _interrupted(what: str, number: int) -> Told:
    def told(count: int, _: int, unit: str) -> None:
        if (unit, count) == (what, number):
            raise Stop("sigterm", "asked to stop")

    return told


LAYERS = 4


def _killed_at(task: Task, folder: Path, what: str, number: int) -> list[int]:
    """Factors that were stopped there, and then continued: the dimensions that the continuation solved."""
    with pytest.raises(Stop):
        factors(task, folder, batch=20, told=_interrupted(what, number))
    solved: list[int] = []

    def counting(matrix: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        solved.append(len(matrix))
        return torch.linalg.eigh(matrix)

    factors(task, folder, batch=20, solvers={**SOLVERS, "torch": counting})
    return solved


def test_a_kill_at_each_module_costs_that_module_alone(tmp_path):
    task = classifier(layers=LAYERS)
    undisturbed = _files(factors(task, tmp_path / "undisturbed", batch=20))
    for module in range(LAYERS):
        solved = _killed_at(task, tmp_path / str(module), "modules decomposed", module + 1)
        assert len(solved) == 2 * (LAYERS - module - 1)
        assert _files(tmp_path / str(module)) == undisturbed
    assert len(_killed_at(task, tmp_path / "first", "examples in second moments", 20)) == 2 * LAYERS
    assert not _killed_at(task, tmp_path / "last", "examples in Lambda", 20)
    assert _files(tmp_path / "first") == _files(tmp_path / "last") == undisturbed


@pytest.mark.parametrize("harm", ["removed", "cut", "altered"])
def test_a_file_that_was_harmed_costs_its_module_alone(tmp_path, harm):
    task = classifier(layers=LAYERS)
    undisturbed = _files(factors(task, tmp_path))
    for module in (0, 2, 4, 6):
        file = tmp_path / f"{module}.finished.safetensors"
        data = file.read_bytes()
        if harm == "removed":
            file.unlink()
        else:
            file.write_bytes(data[:-9] if harm == "cut" else data[:-1] + bytes([data[-1] ^ 1]))
        with pytest.raises(CheckFailed, match=f"factors of {module}: measured planned, required finished"):
            complete(tmp_path, task.model)
        times = {each: each.stat().st_mtime_ns for each in tmp_path.iterdir()}
        factors(task, tmp_path)
        assert _files(tmp_path) == undisturbed
        changed = {each for each, time in times.items() if each.stat().st_mtime_ns != time}
        assert changed <= {file, tmp_path / f"{module}.json"}


KILLED = """
import os, signal, sys
from pathlib import Path
from tests.tasks.influence.models import classifier, factors
def told(count, of, what):
    if (what, count) == ("modules decomposed", 2):
        os.kill(os.getpid(), signal.SIGKILL)
factors(classifier(layers=4), Path(sys.argv[1]), told=told)
"""


def test_a_real_kill_between_two_modules_loses_no_finished_one(tmp_path):
    task = classifier(layers=LAYERS)
    died = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path / "killed")], cwd=os.getcwd(), timeout=120)
    assert died.returncode == -signal.SIGKILL
    steps = {file.name.split(".")[1] for file in (tmp_path / "killed").glob("*.safetensors")}
    assert steps == {"eigen", "moments"}
    eigen = {file: file.stat().st_mtime_ns for file in (tmp_path / "killed").glob("*.eigen.safetensors")}
    assert len(eigen) == 2
    with pytest.raises(Stop):
        factors(task, tmp_path / "killed", told=_interrupted("modules decomposed", 1))
    assert {file: file.stat().st_mtime_ns for file in eigen} == eigen
    assert _files(factors(task, tmp_path / "killed")) == _files(factors(task, tmp_path / "undisturbed"))
