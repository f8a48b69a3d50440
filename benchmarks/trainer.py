"""Training speed and peak memory beside Hugging Face's Trainer: same model, text, batch, optimizer and precision.

    python -m benchmarks.trainer --size 2M --steps 40 --rounds 5

Each measurement is a process of its own, ours and theirs in turn. `trainer-padded` gives the Trainer documents one by
one, padded to the longest of the batch, as it is often used: only real tokens count there. `ours-malloc` is ours
without `numerics._keep_freed_memory`, `ours-compiled` with `execution.compile=default`, `ours-waits` by a host that is
never ahead of its GPU. `plain` is a bare loop of the same steps; `plain-free` is not deterministic, and either may be
`-compiled`, layer by layer.
"""

import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from benchmarks import language
from tasks.stage import numerics
from tasks.training import loop
from tasks.training import step as ahead
from tasks.training.budget import Budget
from tasks.training.schedule import Schedule
from tests.tasks.tiny import stage_run

WAYS = "ours,ours-malloc,trainer,trainer-padded"
WARM_UP_STEPS = 5
RATE = 1e-4


def main() -> None:
    options = language.arguments(
        __doc__.splitlines()[0], size="2M", device="cpu", batch=16, length=language.LENGTH, steps=40, rounds=5,
        precision="fp32", ways=WAYS, way="",
    )  # fmt: skip
    if options.way:
        sys.stdout.write(json.dumps(measure(options)) + "\n")
        return
    found: dict[str, list[dict[str, float]]] = {way: [] for way in options.ways.split(",")}
    passed_on = ("size", "device", "batch", "length", "steps", "precision")
    for _ in range(options.rounds):
        for way in found:
            command = [sys.executable, "-m", "benchmarks.trainer", "--way", way]
            command += [f"--{name}={getattr(options, name)}" for name in passed_on]
            # for all alike, before torch loads, as tasks.stage.numerics sets it for every stage
            environment = os.environ | {"OMP_WAIT_POLICY": "passive"}
            done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
            found[way].append(json.loads(done.stdout.splitlines()[-1]))
    theirs = statistics.median(row["tokens_per_second"] for row in found["trainer"])
    flops = language.flops_of_a_token(language.network(options.size, "meta", options.length), options.length)
    for way, rows in found.items():
        rates = [row["tokens_per_second"] for row in rows]
        rate = statistics.median(rates)
        peak = statistics.median(row["peak_bytes"] for row in rows)
        sys.stdout.write(
            f"{way:15} {rate:9.0f} useful tokens/s ({min(rates):.0f} to {max(rates):.0f}), {rate / theirs:.2f} x "
            f"trainer, {rate * flops / 1e12:.3g} TFLOP/s, peak {peak / 1e6:.0f} MB\n"
        )
    sys.stdout.write(f"{options}\n{language.machine()}\n")


def measure(options: Any) -> dict[str, float]:
    """Useful tokens per second after a warm-up, and the peak memory of this process or its GPU."""
    if options.way == "ours-malloc":
        numerics._keep_freed_memory = lambda: None
    if options.way.startswith("ours"):
        tokens, seconds = ours(options)
    elif options.way.startswith("plain"):
        tokens, seconds = plain(options, compiled=options.way.endswith("-compiled"), free="-free" in options.way)
    else:
        tokens, seconds = trainer(options, padded=options.way == "trainer-padded")
    gpu = options.device == "cuda"
    peak = torch.cuda.max_memory_allocated() if gpu else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {"tokens_per_second": tokens / seconds, "peak_bytes": peak}


def ours(options: Any) -> tuple[float, float]:
    """Tokens and seconds of the real loop, progress, timing rows and all; checkpoints are measured in stall.py."""
    settings = language.execution(options.device, options.batch)
    if options.way == "ours-compiled":
        settings = settings.model_copy(update={"compile": "default"})
    data = language.blocks(options.length)
    steps = WARM_UP_STEPS + options.steps
    epochs = steps * options.batch / len(data)
    budget = Budget(
        epochs=epochs, effective_batch_examples=options.batch, learning_rate=RATE, precision=options.precision
    )
    schedule = Schedule(budget, len(data))
    assert schedule.total_steps == steps, schedule.total_steps
    problem = language.problem(language.network(options.size, options.device, options.length), data, budget)
    if options.way == "ours-waits":
        ahead.DEVICES = ()
    began: list[float] = []
    made = problem.batch

    def batch(indices: Any, epoch: int) -> Any:
        began.append(time.monotonic())
        return made(indices, epoch)

    problem.batch = batch
    problem.evaluate = measured
    loop.require_disk_for_checkpoints = lambda *_: None  # none is written: that would be the first
    with tempfile.TemporaryDirectory() as folder:
        run = stage_run(Path(folder))
        with suppress(Measured):
            loop.train_problem(run, problem, schedule, 0, settings)
        ended = now(options.device)
        run.lock.release()
    return options.steps * options.batch * (options.length - 1), ended - began[WARM_UP_STEPS]


class Measured(Exception):
    """Ends a training whose steps are made."""


def measured(_: Any) -> float:
    raise Measured


def plain(options: Any, compiled: bool, free: bool) -> tuple[float, float]:
    """The same steps with nothing around them: what a loop by hand would do, one wait for the device in each."""
    language.execution(options.device, options.batch)
    torch.use_deterministic_algorithms(not free)
    model = language.network(options.size, options.device, options.length)
    if compiled:
        for layer in model.gpt_neox.layers:
            layer.compile()
    budget = Budget(epochs=1.0, effective_batch_examples=options.batch, learning_rate=RATE)
    problem, began = language.problem(model, language.blocks(options.length), budget), 0.0
    for step in range(WARM_UP_STEPS + options.steps):
        if step == WARM_UP_STEPS:
            began = now(options.device)
        batch = problem.batch(np.arange(step * options.batch, (step + 1) * options.batch), 0)
        with torch.autocast(options.device, torch.bfloat16, enabled=options.precision == "bf16"):
            loss = problem.losses(model, batch).mean()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), budget.max_gradient_norm)
        loss.item()
        problem.optimizer.step()
        problem.optimizer.zero_grad()
    return options.steps * options.batch * (options.length - 1), now(options.device) - began


def now(device: str) -> float:
    """The time, once the device has done what it was asked."""
    if device == "cuda":
        torch.cuda.synchronize()
    return time.monotonic()


def trainer(options: Any, padded: bool) -> tuple[float, float]:
    """The same steps by `transformers.Trainer` with its own defaults, but for what must be equal."""
    from transformers import Trainer, TrainerCallback, TrainingArguments

    torch.set_num_threads(2)
    model = language.network(options.size, options.device, options.length)
    if padded:
        data = [{"input_ids": torch.from_numpy(document[: options.length])} for document in language.documents()]
    else:
        data = [{"input_ids": block, "labels": block} for block in language.blocks(options.length)]
    useful: list[int] = []

    def collate(rows: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
        useful.append(sum(len(row["input_ids"]) - 1 for row in rows))
        ids = torch.nn.utils.rnn.pad_sequence([row["input_ids"] for row in rows], batch_first=True, padding_value=-100)
        mask = ids != -100
        return {"input_ids": ids.clamp_min(0), "labels": ids} | ({"attention_mask": mask.long()} if padded else {})

    times: dict[int, float] = {}

    class Clock(TrainerCallback):
        def on_step_begin(self, _: Any, state: Any, *__: Any, **___: Any) -> None:
            times.setdefault(state.global_step, time.monotonic())

        def on_step_end(self, _: Any, state: Any, *__: Any, **___: Any) -> None:
            times[state.global_step] = time.monotonic()

    with tempfile.TemporaryDirectory() as folder:
        settings = TrainingArguments(
            output_dir=folder,
            per_device_train_batch_size=options.batch,
            max_steps=WARM_UP_STEPS + options.steps,
            learning_rate=RATE,
            weight_decay=0.01,
            warmup_steps=(WARM_UP_STEPS + options.steps) // 10,
            max_grad_norm=1.0,
            bf16=options.precision == "bf16",
            use_cpu=options.device == "cpu",
            save_strategy="no",
            report_to=[],
            logging_steps=10,
            disable_tqdm=True,
            dataloader_drop_last=True,
        )
        Trainer(model, settings, train_dataset=data, data_collator=collate, callbacks=[Clock()]).train()
    seconds = times[WARM_UP_STEPS + options.steps] - times[WARM_UP_STEPS]
    return sum(useful[WARM_UP_STEPS : WARM_UP_STEPS + options.steps]), seconds


if __name__ == "__main__":
    main()
