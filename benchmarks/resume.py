"""How long a continuation takes to its first new step, early and late in a training.

python -m benchmarks.resume --size 29M --repeats 5
"""

import statistics
import sys
import tempfile
import time
from pathlib import Path

from benchmarks import language
from tasks.stage.run import StageRun
from tasks.training.budget import Budget
from tasks.training.loader import micro_batches
from tasks.training.loop import METRICS_EVERY_STEPS, _restore
from tasks.training.saver import Saver
from tasks.training.schedule import Schedule
from tasks.training.state import Position, State
from tasks.training.step import optimizer_step
from tests.tasks.tiny import stage_run

POSITIONS = (1_000, 1_000_000)


def _lay_down_rows(run: StageRun, steps: int) -> None:
    """The metric and timing rows that a training of so many steps would have left."""
    metric = '{"learning_rate":1e-05,"step":%d,"train_loss":5.0731201171875}\n'
    timing = '{"at":1795276800.25,"seconds":0.731201171875,"step":%d}\n'
    run.run.metrics_file.write_text("".join(metric % step for step in range(10, steps, METRICS_EVERY_STEPS)))
    run.run.timing_file.write_text("".join(timing % step for step in range(steps)))


def main() -> None:
    options = language.arguments(__doc__.splitlines()[0], size="29M", device="cpu", batch=4, repeats=5, folder=".")
    settings = language.execution(options.device, options.batch)
    data = language.blocks()
    budget = Budget(epochs=1e5, effective_batch_examples=options.batch, learning_rate=1e-5)
    schedule = Schedule(budget, len(data))
    first_steps: dict[int, list[float]] = {step: [] for step in POSITIONS}
    places: dict[int, list[float]] = {step: [] for step in POSITIONS}
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        runs = {step: stage_run(Path(folder) / str(step)) for step in POSITIONS}
        for step, run in runs.items():
            _lay_down_rows(run, step)
            problem = language.problem(language.network(options.size, options.device), data, budget)
            state = State(problem.model, problem.optimizer, Position())
            with micro_batches(problem.batch, schedule, problem.order, 0, step - 2, options.batch, 0) as batches:
                state.position.step = step - 2
                optimizer_step(problem, schedule, state, batches, options.batch, 0)
                with Saver(run, settings, state) as saver:
                    optimizer_step(problem, schedule, state, batches, options.batch, 0)
                    saver.save()
        for _ in range(options.repeats):
            for step, run in runs.items():
                problem = language.problem(language.network(options.size, options.device), data, budget)
                state = State(problem.model, problem.optimizer, Position())
                for rows in ("metrics", "timing"):
                    vars(run).pop(rows, None)  # a new attempt has read nothing yet
                began = time.monotonic()
                _restore(run, state)
                placed = time.monotonic()
                with micro_batches(
                    problem.batch, schedule, problem.order, 0, state.position.step, options.batch, 0
                ) as batches:
                    first = next(batches)
                    places[step].append(time.monotonic() - placed)
                    optimizer_step(problem, schedule, state, iter([first]), options.batch, 0)
                    run.timing.append({"step": state.position.step})
                assert state.position.step == step + 1
                first_steps[step].append(time.monotonic() - began)
        for run in runs.values():
            run.lock.release()
    for step in POSITIONS:
        sys.stdout.write(
            f"position {step:>9,}: first new step after {statistics.median(first_steps[step]):.3f} s, the data "
            f"position in {1000 * statistics.median(places[step]):.2f} ms (medians of {options.repeats})\n"
        )
    early, late = (statistics.median(first_steps[step]) for step in POSITIONS)
    sys.stdout.write(f"ratio late / early {late / early:.3f}\n{language.machine()}\n")


if __name__ == "__main__":
    main()
