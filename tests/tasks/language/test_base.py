"""base: what it starts from when it is to take the weights of another run."""

import re
from pathlib import Path

import pytest
from safetensors.torch import load_file

from storage import durable
from storage.errors import BadInput
from storage.run_directory import RunDirectory, fingerprint
from tasks.robustness.study import Study
from tasks.stage.attempt import attempt
from tasks.stage.outcome import Outcome
from tasks.training.budget import Budget, LearningGate
from tasks.training.trained import Trained, metric_rows, weights_of
from tests.tasks.tiny import Here, finished_study, handles_of


def begun(root: Path, study: Study) -> tuple[Outcome, Path]:
    """setup and base of `study`, and no more; base's outcome and run directory."""

    class SetupAndBase(Here):
        def __call__(self, stage, config, **inputs):
            runner = super().__call__ if stage.name in ("setup", "base") else super(Here, self).__call__
            return runner(stage, config, **inputs)

    handle = handles_of(root, study, SetupAndBase)["base"]
    assert handle.outcome is not None
    return handle.outcome, handle.run.path


def from_run(place: Path, **text: int) -> Study:
    """The tiny study, its model begun with the weights at `place` and hardly trained."""
    study = finished_study().study
    still = study.model.pretraining.model_copy(update={"learning_rate": 1e-30, "weight_decay": 0.0})
    model = study.model.model_copy(update={"pretraining": still, "init_from": str(place)})
    return study.model_copy(update={"model": model, "splits": study.splits.model_copy(update=text)})


def test_a_pretraining_begins_with_the_weights_of_another_run_and_says_so(tmp_path):
    source = finished_study().path("base")
    outcome, path = begun(tmp_path / "runs", from_run(source))
    assert outcome.end_state == "finished", outcome.message
    there, here = (load_file(base / "model" / "model.safetensors") for base in (source, path))
    assert all((there[name] == here[name]).all() for name in there)
    result = durable.read_json(path / "result.json")
    assert result["init_from"]["fingerprint"][:12] == source.name
    assert path.name != source.name
    untrained = load_file(path / "initial" / "model.safetensors")
    assert any((untrained[name] != there[name]).any() for name in there)


def test_the_weights_are_part_of_the_fingerprint_and_their_place_is_not(tmp_path):
    copy = finished_study().copy(tmp_path / "copy")
    prints = {
        handles_of(tmp_path / "runs", study)["base"].run.fingerprint
        for study in (from_run(finished_study().path("base")), from_run(copy.path("base")))
    }
    assert len(prints) == 1
    assert prints != {finished_study().handles["base"].run.fingerprint}


def test_weights_that_were_trained_with_another_tokenizer_are_refused(tmp_path):
    outcome, _ = begun(tmp_path / "runs", from_run(finished_study().path("base"), split_seed=9))
    assert (outcome.end_state, outcome.exit_code) == ("bad_input", 2)
    assert "were trained with another tokenizer" in outcome.message


def test_weights_of_another_shape_are_refused_with_what_differs(tmp_path):
    study = from_run(finished_study().path("base"))
    wider = study.model.model_copy(update={"hidden_size": 32})
    outcome, _ = begun(tmp_path / "runs", study.model_copy(update={"model": wider}))
    assert (outcome.end_state, outcome.exit_code) == ("bad_input", 2)
    assert "model.hidden_size: 16 there, 32 here" in outcome.message


@pytest.mark.parametrize("place", ["nothing/here", "."])
def test_a_place_without_weights_is_refused_before_any_work(tmp_path, place):
    with pytest.raises(BadInput, match="is no run directory"):
        handles_of(tmp_path / "runs", from_run(tmp_path / place))
    assert not (tmp_path / "runs").exists()


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
