"""Influence scores beside those of kronfluence 1.0.1: agreement, time, and what each makes of four faults.

make .venv-kronfluence; python -m benchmarks.influence --agreement --speed --faults
python -m benchmarks.influence --device cuda     (never run on one yet; cpu: small sizes, a test of it)

Both compute EK-FAC of the same model on the same examples with true labels (labels drawn from the model differ from run
to run in kronfluence), in batches of equal size, fp32 with eigenvectors in fp64, on one thread of a CPU.
"""

import argparse
import copy
import logging
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from storage.errors import CheckFailed
from tasks.influence.factors import compute_factors, decomposed
from tasks.influence.kept import ModuleStatistics, require_usable
from tasks.influence.plan import Limits, Machine, factor_plan, this_machine
from tasks.influence.scores import gathered, scores
from tasks.influence.task import Task, token_losses

PEER = Path(__file__).parents[1] / ".venv-kronfluence"
KINDS = ("linear",)
"""kronfluence knows no embeddings."""


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


@dataclass(frozen=True)
class Case:
    """A model with inputs [N, ...] and labels ([N], or [N, T] where -100 is no label) and a mask of what is real."""

    name: str
    model: nn.Module
    inputs: torch.Tensor
    labels: torch.Tensor
    mask: torch.Tensor | None = None

    def task(self) -> Task:
        positions = lambda batch, module: None  # noqa: E731
        if self.mask is not None:
            positions = lambda batch, module: self.mask[batch[2]]  # noqa: E731
        return Task(
            self.model,
            len(self.inputs),
            lambda indices: (self.inputs[indices], self.labels[indices], indices),
            lambda model, batch, generator: token_losses(model(batch[0]), batch[1], generator),
            positions,
        )


class Attention(nn.Module):
    """A causal language model of one layer: tokens -> logits; token 0 is padding, on either side."""

    def __init__(self, vocabulary: int, width: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        values, length = self.embedding(tokens), tokens.shape[1]
        real = (tokens != 0)[:, None, :] & torch.ones(length, length, dtype=torch.bool, device=tokens.device).tril()
        real = real | torch.eye(length, dtype=torch.bool, device=tokens.device)
        query, key, value = self.qkv(values).chunk(3, -1)
        values = values + self.out(functional.scaled_dot_product_attention(query, key, value, attn_mask=real))
        return self.head(values + self.down(functional.gelu(self.up(values))))


def mlp(examples: int, width: int = 64) -> Case:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 4))
    return Case(f"MLP 32-{width}-{width}-4", model, torch.randn(examples, 32), torch.randint(0, 4, (examples,)))


def language(examples: int, vocabulary: int = 60, width: int = 32, length: int = 16) -> Case:
    torch.manual_seed(0)
    model = Attention(vocabulary, width)
    tokens = torch.randint(1, vocabulary, (examples, length))
    padded = torch.arange(length)[None] < torch.randint(0, length // 2, (examples, 1))  # on the left
    tokens = tokens.masked_fill(padded, 0)
    labels = torch.cat([tokens[:, 1:], torch.full((examples, 1), -100)], 1)
    labels = labels.masked_fill(padded, -100)
    return Case(f"causal LM of width {width}", model, tokens, labels, ~padded)


def ours(case: Case, queries: int, batch: int, folder: Path) -> tuple[torch.Tensor, float, float]:
    """Scores [Q, N], seconds for the factors and for the scores."""
    task, everything = case.task(), np.arange(len(case.inputs))
    began = time.perf_counter()
    plan = factor_plan(case.model, this_machine(next(case.model.parameters()).device), Limits(kinds=KINDS))
    compute_factors(task, everything, folder, plan, labels="true", batch=batch)
    between = time.perf_counter()
    found = gathered(scores(task, task, everything, everything[:queries], folder, batch=batch))
    return found, between - began, time.perf_counter() - between


def theirs(case: Case, queries: int, batch: int, folder: Path) -> tuple[torch.Tensor, float, float]:
    """The same of kronfluence."""
    sys.path.append(str(PEER))
    from kronfluence.analyzer import Analyzer, prepare_model
    from kronfluence.arguments import FactorArguments, ScoreArguments
    from kronfluence.task import Task as TheirTask
    from torch.utils.data import TensorDataset

    class Adapter(TheirTask):
        def compute_train_loss(self, batch: Any, model: nn.Module, sample: bool = False) -> torch.Tensor:
            return token_losses(model(batch[0]), batch[1]).sum()

        def compute_measurement(self, batch: Any, model: nn.Module) -> torch.Tensor:
            return self.compute_train_loss(batch, model)

        def get_attention_mask(self, batch: Any) -> Any:
            return batch[2] if len(batch) > 2 else None

    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore", FutureWarning)

    masks = [] if case.mask is None else [case.mask.long()]
    everything = TensorDataset(case.inputs, case.labels, *masks)
    some = TensorDataset(*(tensor[:queries] for tensor in everything.tensors))
    began = time.perf_counter()
    model = prepare_model(copy.deepcopy(case.model), Adapter())
    analyzer = Analyzer("benchmark", model, Adapter(), cpu=True, output_dir=str(folder), disable_tqdm=True)
    arguments = FactorArguments(strategy="ekfac", use_empirical_fisher=True)
    analyzer.fit_all_factors("f", everything, per_device_batch_size=batch, factor_args=arguments)
    between = time.perf_counter()
    analyzer.compute_pairwise_scores(
        "s", "f", some, everything, per_device_query_batch_size=queries, per_device_train_batch_size=batch,
        score_args=ScoreArguments(damping_factor=None),
    )  # fmt: skip
    found = analyzer.load_pairwise_scores("s")["all_modules"]
    return found, between - began, time.perf_counter() - between


def agreement() -> None:
    for case in (mlp(300), language(120)):
        with tempfile.TemporaryDirectory() as folder:
            mine, *_ = ours(case, 20, 30, Path(folder) / "ours")
            peer, *_ = theirs(case, 20, 30, Path(folder) / "theirs")
        pearson = float(torch.corrcoef(torch.stack([mine.flatten(), peer.flatten()]))[0, 1])
        say(f"{case.name}: relative difference {float((mine - peer).norm() / peer.norm()):.2g}, Pearson {pearson:.9f}")


def speed(rounds: int, batch: int) -> None:
    for case in (mlp(1000), mlp(4000), language(500, 1000, 64, 64)):
        found: dict[str, list[tuple[float, float]]] = {"ours": [], "kronfluence": []}
        for _ in range(rounds):
            for name, way in (("ours", ours), ("kronfluence", theirs)):
                with tempfile.TemporaryDirectory() as folder:
                    _, factors, scoring = way(case, 50, batch, Path(folder) / "f")
                found[name].append((factors, scoring))
        medians = {
            name: [statistics.median(column) for column in zip(*rows, strict=True)] for name, rows in found.items()
        }
        ratio = sum(medians["kronfluence"]) / sum(medians["ours"])
        told = "; ".join(
            f"{name} factors {first:.2f} s, scores {second:.2f} s" for name, (first, second) in medians.items()
        )
        say(f"{case.name}, {len(case.inputs)} x 50, batches of {batch}: {ratio:.1f} times as fast ({told})")


def faults() -> None:
    """One example with a NaN, one with an Inf, a module that the solver refuses, and identity for eigenvectors."""
    case = mlp(300)
    for name, wrong in (("NaN", float("nan")), ("Inf", float("inf"))):
        spoiled = replace(case, inputs=case.inputs.clone())
        spoiled.inputs[123, 4] = wrong
        for who, way in (("ours", ours), ("kronfluence", theirs)):
            with tempfile.TemporaryDirectory() as folder:
                say(f"one {name} among 9,600 inputs: {who}: {_outcome(way, spoiled, Path(folder))}")
    solve = torch.linalg.eigh
    with tempfile.TemporaryDirectory() as folder, _eigh(lambda matrix, *_: _refusing(solve, matrix)):
        outcome = _outcome(theirs, case, Path(folder))
        say(f"a solver that refuses 65: kronfluence: {outcome}; {len([*Path(folder).rglob('*eigenv*')])} files of it")
    with tempfile.TemporaryDirectory() as folder:
        plan = factor_plan(case.model, Machine(1 << 34, solves=64), Limits(kinds=KINDS))
        solvers = {"torch": lambda matrix: _refusing(solve, matrix)}
        found = compute_factors(
            case.task(), np.arange(300), Path(folder), plan, labels="true", solvers=solvers, batch=30
        )
        say(f"  ours, by a plan that knows: {[(one.name, one.treatment, one.why) for one in plan]}, {len(found)} kept")
        unplanned = factor_plan(case.model, Machine(1 << 34), Limits(kinds=KINDS))
        found = compute_factors(
            case.task(), np.arange(300), Path(folder) / "2", unplanned, labels="true", solvers=solvers, batch=30
        )
        say(f"  ours, by one that does not: {_told(found)}")
    with tempfile.TemporaryDirectory() as folder, _eigh(lambda matrix, *_: _identity(matrix)):
        say(f"identity for eigenvectors: kronfluence: {_outcome(theirs, case, Path(folder))}")
    with tempfile.TemporaryDirectory() as folder:
        solvers = {"torch": _identity}
        plan = factor_plan(case.model, this_machine("cpu"), Limits(kinds=KINDS))
        found = compute_factors(
            case.task(), np.arange(300), Path(folder), plan, labels="true", solvers=solvers, batch=30
        )
        say(f"  ours: {_told(found)}")


def _told(found: list[ModuleStatistics]) -> str:
    try:
        require_usable(found, 0.05)
    except CheckFailed as error:
        return f"{', '.join(f'{one.name}: {one.status}' for one in found)}; {error}"
    return "nothing noticed"


def _outcome(way: Callable[..., tuple[torch.Tensor, float, float]], case: Case, folder: Path) -> str:
    try:
        found, *_ = way(case, 10, 30, folder / "f")
    except Exception as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0][:200]}"
    return f"no error, {100 * float((~found.isfinite()).float().mean()):.0f} % of the scores are not finite"


def _refusing(solve: Callable[..., Any], matrix: torch.Tensor) -> Any:
    if len(matrix) > 64:
        raise RuntimeError("cusolverDnXsyevd_bufferSize: CUSOLVER_STATUS_INVALID_VALUE")
    return solve(matrix)


def _identity(matrix: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return matrix.diagonal().clone(), torch.eye(len(matrix), dtype=matrix.dtype)


@contextmanager
def _eigh(by: Callable[..., Any]) -> Iterator[None]:
    """The peer's solver replaced, since it has no parameter for one."""
    before = torch.linalg.eigh
    torch.linalg.eigh = by
    try:
        yield
    finally:
        torch.linalg.eigh = before


def on_device(device: torch.device) -> None:
    """The largest eigendecomposition of the T5 document, and factors and scores of a causal model; small ones on a CPU.

    Never run on a GPU yet.
    """
    dimension, case = (32_128, language(2000, 8000, 256, 128)) if device.type == "cuda" else (1_000, language(60))
    say(f"{device}: {this_machine(device)}")
    matrix = torch.randn(dimension, 256, device=device, dtype=torch.float64)
    began = time.perf_counter()
    found = decomposed(matrix @ matrix.T / 256, f"{dimension:,}")
    seconds, peak = time.perf_counter() - began, torch.cuda.max_memory_allocated() / 1e9 if device.type == "cuda" else 0
    say(f"{dimension:,} in fp64: {found.status}, {seconds:.1f} s with its check, {peak:.1f} GB; {found.rungs}")
    moved = {name: getattr(case, name).to(device) for name in ("model", "inputs", "labels", "mask")}
    with tempfile.TemporaryDirectory() as folder:
        _, factors, scoring = ours(replace(case, **moved), 50, 64, Path(folder) / "f")
    say(f"{case.name}, {len(case.inputs):,} x 50: factors {factors:.1f} s, scores {scoring:.1f} s")


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name in ("agreement", "speed", "faults"):
        options.add_argument(f"--{name}", action="store_true")
    options.add_argument("--device", type=torch.device)
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--batch", type=int, default=32)
    given = options.parse_args()
    torch.set_num_threads(1)
    say(f"torch {torch.__version__}, Python {sys.version.split()[0]}")
    if given.agreement:
        agreement()
    if given.speed:
        speed(given.rounds, given.batch)
    if given.faults:
        faults()
    if given.device:
        on_device(given.device)


if __name__ == "__main__":
    main()
