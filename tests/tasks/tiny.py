"""Small things that many tests share: a toy training stage, a tiny language model, and a tiny study, finished once.

The toy network trains in milliseconds and has dropout, so that a lost generator state shows in its weights. The tiny
study runs the real page with the real stages, without Prefect, once in a test run; tests that change it copy it.
"""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch import nn

from deployments.dag.walk import Handle, Walk
from storage import durable
from storage.locks import acquire
from storage.run_directory import RunDirectory, fingerprint
from tasks.language.configuration import FromScratch, LocalFiles, Splits
from tasks.language.stages import LanguageExecution
from tasks.robustness.study import Study
from tasks.stage.attempt import attempt
from tasks.stage.outcome import Outcome
from tasks.stage.run import Stage, StageInput, StageRun
from tasks.stage.study import StageConfiguration
from tasks.training.budget import Budget
from tasks.training.draws import normal_at
from tasks.training.loop import train_problem
from tasks.training.order import FileOrder, example_at
from tasks.training.problem import Problem, adamw
from tasks.training.result import described
from tasks.training.schedule import Schedule
from tests.once import made_once
from tests.tasks.toy_config import TOY as TOY
from tests.tasks.toy_config import ToyConfig

torch.set_num_threads(1)  # two threads on cores that others use wait for each other: tiny models become 25 times slower

# ------------------------------------------------------------------------------------------- toy training

SEEN: list[list[int]] = []
"""The examples of every micro-batch that the toy trained on, in order."""

HOOKS: dict[str, Callable[[], None]] = {}
"""`batch` and `evaluate` are called there, if set: to send a signal, or to die."""


class ToyNetwork(nn.Module):
    """Four numbers to one, through dropout."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(4, 16), nn.Linear(16, 1)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.outer(self.dropout(torch.tanh(self.inner(x)))).squeeze(-1)


@dataclass(frozen=True)
class ToyBatch:
    """Dataset indices [B] and inputs [B, 4]."""

    indices: torch.Tensor
    x: torch.Tensor


def toy_problem(config: ToyConfig) -> Problem:
    """The toy as the training loop takes it."""
    torch.manual_seed(0)
    network = ToyNetwork(config.dropout)
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(config.examples + 20, 4, generator=generator)
    y = torch.sin(x).sum(1) + 0.1 * torch.randn(len(x), generator=generator)

    def batch(indices: np.ndarray, epoch: int) -> ToyBatch:
        SEEN.append(indices.tolist())
        HOOKS.get("batch", lambda: None)()
        given = x[torch.from_numpy(indices)]
        if config.noise:
            given = given + config.noise * normal_at(config.seed, "noise", epoch, indices, (4,))
        return ToyBatch(torch.from_numpy(indices), given)

    def tokens(indices: np.ndarray, _epoch: int) -> np.ndarray:
        return 1 + indices % 3

    def losses(model: nn.Module, batch: ToyBatch) -> torch.Tensor:
        indices = batch.indices
        values = (model(batch.x) - y[indices]) ** 2
        if config.weighted:
            values = values * tokens(indices, 0)
        if config.poisoned_loss is not None:
            values = torch.where(indices == config.poisoned_loss, torch.inf, values)
        if config.poisoned_gradient in indices.tolist():
            values = values + torch.sqrt(model.outer.weight.sum() * 0)  # 0 itself, with an infinite slope
        return values

    @torch.no_grad()
    def evaluate(model: nn.Module) -> float | dict[str, float]:
        HOOKS.get("evaluate", lambda: None)()
        held_out = torch.arange(config.examples, len(x))
        errors = model(x[held_out]) - y[held_out]
        found = {"absolute_error": errors.abs(), "squared_error": errors**2, "bias": errors}
        found = {name: values.mean().item() for name, values in found.items()}
        found["closeness"] = 1 / (1 + found["squared_error"])
        return {name: found[name] for name in config.metrics} or found["squared_error"]

    return Problem(
        network,
        adamw(network, config.budget),
        batch,
        losses,
        evaluate,
        weights=tokens if config.weighted else None,
        decides=[*config.metrics, "validation_loss"][0],
        higher=config.higher,
        trivial={"mean": config.trivial} if config.trivial else {},
        order=FileOrder(config.files, 2) if config.files else example_at,
    )


def train_toy(run: StageRun, config: ToyConfig) -> dict[str, Any]:
    """The toy's work as a stage."""
    problem = toy_problem(config)
    schedule = Schedule(config.budget, config.examples)
    position = train_problem(run, problem, schedule, config.seed, config.execution)
    with run.publish("model") as folder:
        save_file(problem.model.state_dict(), folder / "model.safetensors")
    return {
        "steps": position.step,
        "best_step": position.best_step,
        "validations": position.validations,
        "training": described(schedule, problem, position),
    }


def toy_directory(root: Path, config: ToyConfig) -> RunDirectory:
    print_ = fingerprint(TOY.name, TOY.version, config.scientific(), config.external_inputs(), {})
    return RunDirectory(root, "tiny", TOY.name, print_)


def toy_attempt(root: Path, config: ToyConfig, **changed: Any) -> Outcome:
    """One attempt at the toy; `changed` are execution fields."""
    settings = config.execution.model_copy(update=changed)
    return attempt(TOY, config.model_copy(update={"execution": settings}), toy_directory(root, config), {})


def toy_to_the_end(root: Path, config: ToyConfig, **changed: Any) -> list[Outcome]:
    """Attempts until one finishes; all outcomes."""
    outcomes = [toy_attempt(root, config, **changed)]
    while outcomes[-1].exit_code == 75:
        assert len(outcomes) < 100, "it never finishes"
        outcomes.append(toy_attempt(root, config, **changed))
    return outcomes


def files_of(folder: Path) -> dict[str, bytes]:
    """Name -> bytes of every file below a folder."""
    return {file.relative_to(folder).as_posix(): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def what_must_be_equal(run: RunDirectory) -> dict[str, bytes]:
    """Everything that a training leaves and that no kill may change: last checkpoint, metrics, result, model."""
    last = max(run.checkpoints.iterdir(), key=lambda folder: int(folder.name))
    kept = {f"checkpoint/{name}": data for name, data in files_of(last).items() if name != "manifest.json"}
    kept |= {f"model/{name}": data for name, data in files_of(run.path / "model").items()}
    state = json.loads(kept["checkpoint/state.json"])
    del state["rng"]["python"]  # Prefect's threads of other tests draw from the same global generator
    kept["checkpoint/state.json"] = durable.canonical_json(state)
    kept["step"] = last.name.encode()
    return kept | {"metrics": run.metrics_file.read_bytes(), "result": run.result_file.read_bytes()}


def what_changed(root: Path, config: ToyConfig) -> tuple[dict[str, bytes], list[dict[str, Any]]]:
    """What a toy left that no kill may change, its result without numerics; and how these changed on the way."""
    left = what_must_be_equal(toy_directory(root, config))
    result = json.loads(left["result"])
    changes = result.pop("numerics_changes", [])
    return left | {"result": durable.canonical_json(result)}, changes


def stage_run(folder: Path) -> StageRun:
    """What a stage's work is given, held by this process, outside any attempt."""
    run = RunDirectory(folder, "tiny", "toy", "0" * 64)
    run.path.mkdir(parents=True, exist_ok=True)
    return StageRun(run, {"fingerprint": run.fingerprint, "inputs": {}}, acquire(run.path / "locks"), folder / "cache")


# --------------------------------------------------------------------------------------------- tiny model


def tiny_model(layers: int = 2, vocabulary: int = 61, length: int = 16, seed: int = 0, **shape: int) -> Any:
    """An untrained GPT-NeoX of a few thousand weights."""
    from tasks.language.model import untrained

    fields = {"hidden_size": 16, "attention_heads": 2, "feed_forward_size": 32} | shape
    config = FromScratch(vocabulary_size=300, layers=layers, init_seed=seed, pretraining=Budget(), **fields)
    return untrained(config, vocabulary, length).eval()


def save_model(folder: Path, model: Any) -> Path:
    """Saves the model with a stand-in for a tokenizer, as every stage does."""
    from tasks.language.model import save

    tokenizer = folder.parent / f"{folder.name}-tokenizer"
    tokenizer.mkdir()
    (tokenizer / "tokenizer.json").write_text("{}")
    folder.mkdir()
    save(model, tokenizer, folder)
    return folder


# --------------------------------------------------------------------------------------------- tiny study


class Here(Walk):
    """Runs each stage of a page in this process, without Prefect."""

    def __call__(self, stage: Stage, config: StageConfiguration, **inputs: Handle) -> Handle:
        handle = super().__call__(stage, config, **inputs)
        if not handle.finished and not handle.waits_for and handle.outcome is None:
            given = {role: source.as_input() for role, source in inputs.items()}
            handle.outcome = attempt(stage, config, handle.run, given)
            torch.set_num_threads(1)  # a stage without execution settings leaves their default
            handle.check_marker()
        return handle


@dataclass(frozen=True)
class FinishedStudy:
    """A study on disk and the handles of its page."""

    root: Path
    study: Study
    handles: dict[str, Handle]

    def path(self, stage: str) -> Path:
        return self.handles[stage].run.path

    def input(self, stage: str) -> StageInput:
        return self.handles[stage].as_input()

    def result(self, stage: str) -> dict[str, Any]:
        return durable.read_json(self.handles[stage].run.result_file)

    def copy(self, folder: Path) -> FinishedStudy:
        """The same study on other disk space, to be changed. Nothing ran there."""
        shutil.copytree(self.root, folder)
        return FinishedStudy(folder, self.study, handles_of(folder, self.study))


def tiny_study(folder: Path, **changed: Any) -> Study:
    """A study of seconds on generated text below `folder`."""
    text = folder / "text.jsonl"
    if not text.exists():
        text.write_text("".join(json.dumps({"text": line}) + "\n" for line in sentences(300)))
    fields: dict[str, Any] = {
        "name": "tiny",
        "seed": 42,
        "text": LocalFiles(paths=[str(text)]),
        "splits": Splits(
            evaluation_share=0.1,
            validation_documents=5,
            test_documents=6,
            attack_search_documents=5,
            attack_evaluation_documents=5,
        ),
        "sequence_length": 16,
        "model": FromScratch(
            vocabulary_size=350,
            hidden_size=16,
            layers=2,
            attention_heads=2,
            feed_forward_size=32,
            pretraining=Budget(epochs=0.1, effective_batch_examples=16, learning_rate=3e-3),
        ),
        "base_checks": {"max_ratio_to_unigram": 100.0, "max_ratio_to_untrained": 100.0},
        "arms": ["baseline", "monotonic", "random-signs"],
        "snapshots": [0.5],
        "budget": Budget(epochs=0.1, effective_batch_examples=16, learning_rate=1e-2, validations_per_epoch=20),
        "uat": {
            "trigger_tokens": 3,
            "restarts": 2,
            "iterations": 4,
            "candidates": 6,
            "batch_documents": 2,
            "text_tokens": 12,
            "control_triggers": 2,
        },
        "hotflip": {"documents": 4, "flips": 2, "candidates": 6, "text_tokens": 14, "control_draws": 2},
        "evaluation": {"bootstrap_resamples": 100},
        "execution": LanguageExecution(micro_batch_examples=16, cpu_threads=1),
    }
    return Study.model_validate(fields | changed)


def sentences(count: int) -> list[str]:
    """Distinct texts of 20 to 60 words out of 400, always the same."""
    chance = random.Random(5)
    syllables = ["ba", "cor", "di", "fen", "gul", "ha", "jin", "kel", "lo", "mar", "nes", "por", "qua", "rit", "sol"]
    words = ["".join(chance.choices(syllables, k=chance.randint(1, 3))) for _ in range(400)]
    return [" ".join(chance.choices(words, k=chance.randint(20, 60))) for _ in range(count)]


def handles_of(root: Path, study: Study, runner: type[Walk] = Walk) -> dict[str, Handle]:
    """Stage name, with its cell where it has one (`uat-base`) -> handle of the robustness page."""
    from flows.robustness import page

    walk = runner(root, study.name)
    page(study, walk)
    return {
        f"{handle.stage.name}-{handle.config.cell}" if handle.config.cell else handle.stage.name: handle
        for handle in walk.handles
    }


@cache
def finished_study() -> FinishedStudy:
    """The tiny study, run through every real stage once. Read only."""
    folder = made_once("tiny", lambda folder: all_finished(handles_of(folder / "runs", tiny_study(folder), Here)))
    study = tiny_study(folder)
    return FinishedStudy(folder / "runs", study, handles_of(folder / "runs", study))


def all_finished(handles: dict[str, Handle]) -> dict[str, Handle]:
    unfinished = {name: handle.outcome for name, handle in handles.items() if not handle.finished}
    assert not unfinished, unfinished
    return handles


def bytes_are_equal(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Equal in every bit, not only in value."""
    return a.dtype == b.dtype and a.shape == b.shape and a.numpy().tobytes() == b.numpy().tobytes()
