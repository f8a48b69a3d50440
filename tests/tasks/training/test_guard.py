"""The guard of a training: spikes undone with a lower rate, batches skipped, and the same bytes after every kill."""

import json
import math
import re

import pytest
import torch

from storage import durable
from storage.checkpoints import Checkpoints
from storage.errors import CheckFailed
from tasks.findings.final_results import changes_of, numerics_changed
from tasks.stage.run import StageInput
from tasks.training.budget import Budget, SpikeGuard
from tasks.training.loader import examples_of
from tasks.training.order import example_at
from tasks.training.schedule import Schedule
from tasks.training.state import Guarded
from tasks.training.trained import metric_rows, require_budget
from tests.tasks import tiny
from tests.tasks.tiny import (
    HOOKS,
    SEEN,
    ToyConfig,
    toy_attempt,
    toy_directory,
    toy_problem,
    toy_to_the_end,
    what_must_be_equal,
)

RATE = 0.05


def config(**guard):
    """Validations after steps 3, 6, 9 and 12, of two epochs with six windows each."""
    budget = Budget(
        epochs=2.0,
        effective_batch_examples=8,
        learning_rate=RATE,
        decay="constant",
        warmup_ratio=0,
        validations_per_epoch=2,
        guard=SpikeGuard(**guard),
    )
    return ToyConfig(budget=budget)


GUARDED = config()


def first_example(config, step):
    return int(examples_of(Schedule(config.budget, config.examples), example_at, config.seed, step)[0])


@pytest.fixture
def planted(monkeypatch):
    """Faults by step: a function of the learning rate, which gives a factor of the loss of the step's first example."""
    faults = {}

    def with_faults(config):
        problem, schedule = toy_problem(config), Schedule(config.budget, config.examples)
        batch, losses = problem.batch, problem.losses
        problem.batch = lambda indices, epoch: (epoch, batch(indices, epoch))

        def faulty(model, given):
            epoch, inner = given
            factors = torch.ones(len(inner.x))
            for step, factor in faults.items():
                if epoch == schedule.window(step)[0]:
                    rate = problem.optimizer.param_groups[0]["lr"]
                    factors = torch.where(inner.indices == first_example(config, step), factor(rate), factors)
            return losses(model, inner) * factors

        problem.losses = faulty
        return problem

    monkeypatch.setattr(tiny, "toy_problem", with_faults)
    return faults


def at_full_rate(factor):
    return lambda rate: factor if rate > 0.9 * RATE else 1.0


def always(factor):
    return lambda rate: factor


def die_when(now):
    def die():
        if now():
            HOOKS.clear()
            raise ConnectionError("the node died")

    return die


def of(root, config):
    return what_must_be_equal(toy_directory(root, config))


def guard_of(root, config):
    return json.loads(of(root, config)["result"])["training"]["guard"]


def cautions_of(root, config):
    """What a report says of it."""
    return numerics_changed({"toy": changes_of(StageInput(toy_directory(root, config), ""))})


def rows_of(root, config):
    return [json.loads(line) for line in toy_directory(root, config).metrics_file.read_text().splitlines()]


# ------------------------------------------------------------------------------------------------- spikes


@pytest.mark.parametrize("fault", [1e4, math.inf, math.nan])
@pytest.mark.parametrize(("step", "back"), [(8, 6), (7, 6), (9, 6), (2, 0)])
def test_a_spike_is_undone_up_to_the_validation_before_it_and_trained_with_a_lower_rate(
    tmp_path, planted, step, back, fault
):
    planted[step] = at_full_rate(fault)
    assert toy_attempt(tmp_path, GUARDED, keep_checkpoints=1, checkpoint_every_steps=1).end_state == "finished"
    (rollback,) = guard_of(tmp_path, GUARDED)["rollbacks"]
    assert (rollback["from_step"], rollback["to_step"]) == (step, back)
    (caution,) = cautions_of(tmp_path, GUARDED)
    assert caution.startswith("**toy went back") and caution.endswith(f"to step {back} from step {step}.")
    rows = rows_of(tmp_path, GUARDED)
    rates = {row["step"]: row["learning_rate"] for row in rows if "learning_rate" in row}
    assert rates == {at: RATE if at <= back else RATE / 3 for at in (3, 6, 9, 10, 12)}
    assert [row["step"] for row in rows if "went_back_from_step" in row] == [back]
    assert [row["step"] for row in rows if "train_loss" in row] == [3, 6, 9, 10, 12]
    logged = toy_directory(tmp_path, GUARDED).metrics_file
    training = durable.read_json(toy_directory(tmp_path, GUARDED).result_file)["training"]
    assert [one["to_step"] for one in training["guard"]["rollbacks"]] == [back]
    require_budget("the toy", logged, metric_rows(logged), GUARDED.budget, GUARDED.examples)
    unguarded = GUARDED.budget.model_copy(update={"guard": None})
    with pytest.raises(CheckFailed, match="the toy, whose budget has no guard, went back or skipped batches"):
        require_budget("the toy", logged, metric_rows(logged), unguarded, GUARDED.examples)


def test_a_validation_that_is_not_finite_is_undone_too(tmp_path, monkeypatch):
    def failing(config):
        problem = toy_problem(config)
        evaluate = problem.evaluate
        problem.evaluate = lambda model: (
            math.nan if problem.optimizer.param_groups[0]["lr"] == RATE else evaluate(model)
        )
        return problem

    monkeypatch.setattr(tiny, "toy_problem", failing)
    assert toy_to_the_end(tmp_path, GUARDED, max_steps_per_run=1)[-1].end_state == "finished"
    assert [(row["from_step"], row["to_step"]) for row in guard_of(tmp_path, GUARDED)["rollbacks"]] == [(3, 0)]


def test_a_spike_at_every_rate_ends_the_training_after_so_many_times(tmp_path, planted):
    planted[8] = always(1e4)
    outcome = toy_attempt(tmp_path, GUARDED)
    assert outcome.end_state == "numerical_failure"
    assert "the loss is " in outcome.message and "more than 10 times its running best of " in outcome.message
    assert "at step 8, batch examples [" in outcome.message and str(first_example(GUARDED, 8)) in outcome.message
    run = toy_directory(tmp_path, GUARDED)
    assert [row["step"] for row in rows_of(tmp_path, GUARDED) if "went_back_from_step" in row] == [6, 6]
    assert run.checkpoints.joinpath("6").is_dir()
    once = config(max_rollbacks=0)
    assert toy_attempt(tmp_path, once).end_state == "numerical_failure"
    assert "went_back" not in toy_directory(tmp_path, once).metrics_file.read_text()


def test_the_running_best_is_the_lowest_exponential_mean_and_only_a_multiple_of_it_a_spike():
    guard, guarded = SpikeGuard(spike_factor=2.0), Guarded()
    for loss in (4.0, 2.0, 30.0, 1.0):
        guarded.add(loss)
    assert guarded.best == pytest.approx(0.9 * 4 + 0.1 * 2)  # 3.8; afterwards the mean is higher
    guarded.require_no_spike(guard, 5, 2 * guarded.best, [])
    with pytest.raises(Exception, match=r"more than 2 times its running best of 3\.8,"):
        guarded.require_no_spike(guard, 5, 2.001 * guarded.best, [])
    Guarded(mean=-1.0, best=-1.0).require_no_spike(guard, 5, 100.0, [])


# ---------------------------------------------------------------------------------------------- the same bytes


@pytest.fixture
def twice(planted):
    """A spike at two rates, the second in another place, and a batch to skip on the way back."""
    planted[8] = at_full_rate(1e4)
    planted[11] = lambda rate: 1e4 if rate > 0.9 * RATE / 3 else 1.0
    planted[7] = always(math.nan)
    return config(max_skips=1)


@pytest.fixture
def whole(twice, tmp_path):
    assert toy_attempt(tmp_path / "whole", twice).end_state == "finished"
    told = guard_of(tmp_path / "whole", twice)
    assert [(row["from_step"], row["to_step"]) for row in told["rollbacks"]] == [(8, 6), (11, 9)]
    assert [row["step"] for row in told["skipped"]] == [7]
    SEEN.clear()
    return of(tmp_path / "whole", twice)


@pytest.mark.parametrize("every", [None, 1])
@pytest.mark.parametrize("steps_per_run", [1, 2, 5])
def test_in_pieces_it_goes_back_in_the_same_way(tmp_path, twice, whole, steps_per_run, every):
    changed = {"max_steps_per_run": steps_per_run, "checkpoint_every_steps": every, "keep_checkpoints": 1}
    toy_to_the_end(tmp_path / "pieces", twice, **changed, loader_workers=2)
    assert of(tmp_path / "pieces", twice) == whole


@pytest.mark.parametrize("calls", range(13, 34, 2))
def test_killed_around_a_spike_it_goes_back_in_the_same_way(tmp_path, twice, whole, calls, caplog):
    HOOKS["batch"] = die_when(lambda: len(SEEN) == calls)
    assert toy_attempt(tmp_path / "k", twice, checkpoint_every_steps=1, keep_checkpoints=1).end_state == "crashed"
    assert toy_attempt(tmp_path / "k", twice, keep_checkpoints=1).end_state == "finished"
    assert of(tmp_path / "k", twice) == whole
    passed_over = [message for message in caplog.messages if "metrics.jsonl" in message]
    assert all("went back" in message for message in passed_over), "nobody altered its rows"


@pytest.mark.parametrize("removals", range(3))
def test_killed_while_it_removes_what_it_left_it_goes_back_in_the_same_way(
    tmp_path, twice, whole, removals, monkeypatch
):
    remove, left = Checkpoints.remove_after, iter(range(removals + 8, -1, -1))

    def die(checkpoints, step):
        if next(left, None) == 0:
            raise ConnectionError("the node died")
        remove(checkpoints, step)

    with monkeypatch.context() as dying:
        dying.setattr(Checkpoints, "remove_after", die)
        assert toy_attempt(tmp_path / "k", twice, checkpoint_every_steps=1).end_state == "crashed"
    assert toy_attempt(tmp_path / "k", twice).end_state == "finished"
    assert of(tmp_path / "k", twice) == whole


def test_a_damaged_checkpoint_to_go_back_to_is_made_again_from_one_before(tmp_path, twice, whole):
    toy_attempt(tmp_path / "k", twice, max_steps_per_run=6, keep_checkpoints=3)
    (toy_directory(tmp_path / "k", twice).checkpoints / "6" / "model.safetensors").write_bytes(b"torn")
    assert toy_attempt(tmp_path / "k", twice).end_state == "finished"
    assert of(tmp_path / "k", twice) == whole


def test_steps_that_were_undone_are_no_lack_of_progress_and_count_as_this_attempt_s(tmp_path, planted, monkeypatch):
    """Three automatic attempts without progress end a stage; going back is some."""
    monkeypatch.setenv("RATCHET_STARTED_BY", "automatic")
    late = GUARDED.model_copy(update={"examples": 93})  # 12 windows an epoch: validations after 6 and 12
    planted[11] = at_full_rate(1e4)
    outcomes = toy_to_the_end(tmp_path, late, max_steps_per_run=1)
    assert outcomes[-1].end_state == "finished"
    stopped = [int(re.search(r"after step (\d+)", outcome.message)[1]) for outcome in outcomes[:-1]]
    assert stopped == [*range(1, 11), *range(7, 24)]


def test_micro_batches_that_were_halved_on_the_way_back_are_whole_where_the_way_is_made_again(tmp_path, planted):
    def out_of_memory(rate):
        if rate < 0.9 * RATE and len(SEEN[-1]) > 2:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return 1.0

    planted[9], planted[7] = at_full_rate(1e4), out_of_memory
    assert toy_attempt(tmp_path / "whole", GUARDED, fit_memory=True).end_state == "finished"
    expected = of(tmp_path / "whole", GUARDED)
    changes = json.loads(expected["result"])["numerics_changes"]
    assert changes == [{"after_rollbacks": 1, "from_step": 7, "micro_batch_examples": 2}]
    SEEN.clear()
    HOOKS["batch"] = die_when(lambda: [len(some) for some in SEEN[-2:]] == [2, 2])
    assert toy_attempt(tmp_path / "k", GUARDED, fit_memory=True).end_state == "crashed"
    SEEN.clear()
    assert toy_attempt(tmp_path / "k", GUARDED, fit_memory=True).end_state == "finished"
    assert [len(some) for some in SEEN[:8]] == [4] * 6 + [2] * 2  # steps 7 to 9, and 7 again
    assert of(tmp_path / "k", GUARDED) == expected


# --------------------------------------------------------------------------------------------------- skipping


@pytest.mark.parametrize("what", ["poisoned_loss", "poisoned_gradient"])
def test_a_batch_that_is_not_finite_is_skipped_and_its_examples_are_counted(tmp_path, planted, what):
    poisoned = first_example(GUARDED, 4)
    skipping = config(max_skips=1, max_rollbacks=0).model_copy(update={what: poisoned})
    toy_attempt(tmp_path, skipping, max_steps_per_run=3)
    before = (toy_directory(tmp_path, skipping).checkpoints / "3" / "model.safetensors").read_bytes()
    toy_attempt(tmp_path, skipping, max_steps_per_run=1)
    assert (toy_directory(tmp_path, skipping).checkpoints / "4" / "model.safetensors").read_bytes() == before
    toy_to_the_end(tmp_path, skipping)
    skipped = guard_of(tmp_path, skipping)["skipped"]
    assert [row["examples"] for row in skipped] == [[poisoned]] * 2  # once in each epoch
    assert f"[{poisoned}] from step 4, [{poisoned}] from step" in cautions_of(tmp_path, skipping)[0]
    told = [row for row in rows_of(tmp_path, skipping) if "skipped_examples" in row]
    assert [(row["step"], row["skipped_examples"]) for row in told] == [(r["step"], r["examples"]) for r in skipped]


def test_too_many_skipped_in_a_row_end_the_training_with_the_examples(tmp_path, planted):
    for step in (4, 5, 6):
        planted[step] = always(math.nan)
    skipping = config(max_skips=2, max_rollbacks=0)
    outcome = toy_attempt(tmp_path, skipping)
    assert outcome.end_state == "numerical_failure"
    assert (
        f"the loss is not finite at step 6, batch examples [{first_example(GUARDED, 6)}] (1 of a batch of 5)"
        in outcome.message
    )
    del planted[5]
    assert toy_attempt(tmp_path / "apart", skipping).end_state == "finished"


def test_a_training_all_of_whose_steps_are_skipped_for_a_while_still_writes_its_rows(tmp_path, planted):
    for step in range(1, 7):
        planted[step] = always(math.nan)
    skipping = config(max_skips=6)
    assert toy_attempt(tmp_path, skipping).end_state == "finished"
    assert [row["step"] for row in rows_of(tmp_path, skipping) if "train_loss" in row] == [9, 10, 12]


def test_a_training_most_of_whose_steps_were_skipped_is_not_called_finished(tmp_path, planted):
    for step in range(1, 8):
        planted[step] = always(math.nan)
    outcomes = toy_to_the_end(tmp_path, config(max_skips=1000), max_steps_per_run=5)
    assert outcomes[-1].end_state == "check_failed" and "7 of 12" in outcomes[-1].message
    assert not toy_directory(tmp_path, config(max_skips=1000)).result_file.exists()


def test_a_training_without_a_guard_has_none_in_its_checkpoints(undisturbed):
    assert "guard" not in json.loads(undisturbed["checkpoint/state.json"])["position"]
