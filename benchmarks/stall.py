"""What checkpoints cost: tokens per second with and without, in alternating blocks of one training.

    python -m benchmarks.stall --size 110M --pairs 6 --seconds 60

A block with checkpoints begins with one; all that it slows down (the copy, hashing, writing, fsync) falls into it. On a
machine whose speed varies from minute to minute the second figure says more: the copy, and what the steps during each
write took beyond the usual step.
"""

import json
import statistics
import sys
import tempfile
import time
from pathlib import Path

from benchmarks import language
from tasks.training.budget import Budget
from tasks.training.loader import micro_batches
from tasks.training.saver import Saver
from tasks.training.schedule import Schedule
from tasks.training.state import Position, State
from tasks.training.step import optimizer_step
from tests.tasks.tiny import stage_run


def main() -> None:
    options = language.arguments(
        __doc__.splitlines()[0], size="110M", device="cpu", batch=4, pairs=6, seconds=60.0, folder="."
    )
    settings = language.execution(options.device, options.batch)
    data = language.blocks()
    budget = Budget(epochs=1e6, effective_batch_examples=options.batch, learning_rate=1e-5)
    schedule = Schedule(budget, len(data))
    problem = language.problem(language.network(options.size, options.device), data, budget)
    state = State(problem.model, problem.optimizer, Position())
    rates: dict[bool, list[float]] = {True: [], False: []}
    with (
        tempfile.TemporaryDirectory(dir=options.folder) as folder,
        Saver(run := stage_run(Path(folder)), settings, state) as saver,
        micro_batches(problem.batch, schedule, problem.order, 0, 0, options.batch, 0) as batches,
    ):

        def block(saves: bool, seconds: float) -> float:
            began, steps = time.monotonic(), 0
            if saves:
                saver.save()
            while time.monotonic() - began < seconds:
                started = time.monotonic()
                optimizer_step(problem, schedule, state, batches, options.batch, 0)
                steps += 1
                saver.stepped(time.monotonic() - started)
            return steps * options.batch * (language.LENGTH - 1) / (time.monotonic() - began)

        block(True, 0.1)  # memory for the copy is taken once
        saver.finish()
        for _ in range(options.pairs):
            for saves in (False, True):
                rates[saves].append(block(saves, options.seconds))
                saver._wait()
            told = [f"{rates[saves][-1]:.1f} tokens/s {'with' if saves else 'without'}" for saves in (False, True)]
            sys.stdout.write(", ".join(told) + "\n")
            sys.stdout.flush()
        written = list(map(json.loads, run.run.timing_file.read_text().splitlines()))[1:]
    stalls = [1 - with_ / without for without, with_ in zip(rates[False], rates[True], strict=True)]
    parameters = sum(parameter.numel() for parameter in problem.model.parameters())
    parts = ("copy_seconds", "waited_seconds", "slowed_seconds")
    counted = statistics.median(sum(row[part] for part in parts) for row in written) / options.seconds
    middle = {key: statistics.median(row[key] for row in written) for key in ("copy_seconds", "write_seconds")}
    sys.stdout.write(
        f"{parameters / 1e6:.0f} M parameters, {written[0]['bytes'] / 1e9:.2f} GB a checkpoint, one each "
        f"{options.seconds:.0f} s: stall {statistics.median(stalls):.2%} (median of {len(stalls)}: "
        f"{', '.join(f'{stall:.2%}' for stall in sorted(stalls))}), counted step by step {counted:.2%}; copy "
        f"{middle['copy_seconds']:.2f} s, write in the background {middle['write_seconds']:.2f} s\n"
        f"{language.machine()}\n"
    )


if __name__ == "__main__":
    main()
