"""base and the arms: averaged weights, and a training that learns nothing."""

import re

from safetensors.torch import load_file

from storage import durable
from storage.run_directory import RunDirectory, fingerprint
from tasks.stage.attempt import attempt
from tasks.training.budget import Budget, LearningGate
from tasks.training.trained import Trained, metric_rows, weights_of
from tests.tasks.tiny import Here, finished_study, handles_of


def test_averaged_weights_are_kept_by_the_constrained_arm_too(tmp_path):
    study = finished_study().study
    averaged = study.model_copy(update={"budget": study.budget.model_copy(update={"ema_decay": 0.9})})
    copy = finished_study().copy(tmp_path / "copy")
    handle = handles_of(copy.root, averaged, Here)["train-monotonic"]
    assert handle.finished, handle.outcome
    best = Trained.of_rows(metric_rows(handle.run.metrics_file), "validation_loss").best_step
    assert load_file(handle.run.checkpoints / str(best) / "average.safetensors")
    assert weights_of(handle.as_input()) != weights_of(finished_study().input("train-monotonic"))
    assert durable.read_json(handle.run.result_file)["constraint"] is not None


def test_a_language_model_no_better_than_unigrams_ends_as_not_learning_where_the_budget_asks(tmp_path):
    handle = finished_study().handles["train-baseline"]
    gate = LearningGate(max_ratio=1.0, by_step=2)
    budget = Budget(steps=4, effective_batch_examples=16, learning_rate=1e-9, not_learning=gate)
    config = handle.config.model_copy(update={"budget": budget})
    inputs = {role: source.as_input() for role, source in handle.inputs.items()}
    given = {role: source.run.fingerprint for role, source in inputs.items()}
    print_ = fingerprint(handle.stage.name, handle.stage.version, config.scientific(), {}, given)
    outcome = attempt(handle.stage, config, RunDirectory(tmp_path, "tiny", handle.stage.name, print_), inputs)
    assert outcome.end_state == "not_learning", outcome
    assert re.search(r"by step 2 the lowest validation_loss is .* needs no learning \(unigram\)", outcome.message)
