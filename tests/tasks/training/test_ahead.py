"""A host that runs ahead of its device says and keeps what one does that waits; here the device is a CPU."""

import pytest

from tasks.training import step as ahead
from tasks.training.culprits import FOLDER
from tests.tasks.tiny import SEEN, ToyConfig, files_of, toy_attempt, toy_directory, toy_to_the_end, what_must_be_equal

PLAIN = ToyConfig()
CLIPPED, UNCLIPPED = PLAIN.budget.max_gradient_norm, 1e9


@pytest.fixture
def runs_ahead(monkeypatch):
    monkeypatch.setattr(ahead, "DEVICES", ("cuda", "cpu"))


def read_until_the_failure(config, root, **changed):
    SEEN.clear()
    return toy_attempt(root, config, **changed), [example for some in SEEN for example in some]


@pytest.mark.parametrize(
    "changed", [{}, {"checkpoint_every_steps": 1}, {"max_steps_per_run": 5}, {"loader_workers": 2}]
)
@pytest.mark.parametrize("micro_batch", [3, 8])
def test_a_sound_training_keeps_the_same_bytes(tmp_path, runs_ahead, monkeypatch, micro_batch, changed):
    config = PLAIN.model_copy(update={"weighted": True, "noise": 0.1})
    toy_to_the_end(tmp_path / "ahead", config, micro_batch_examples=micro_batch, **changed)
    monkeypatch.setattr(ahead, "DEVICES", ())
    toy_to_the_end(tmp_path / "waits", config, micro_batch_examples=micro_batch)
    left = [what_must_be_equal(toy_directory(tmp_path / way, config)) for way in ("ahead", "waits")]
    assert left[0] == left[1]


@pytest.mark.parametrize("what", ["poisoned_loss", "poisoned_gradient"])
@pytest.mark.parametrize(("place", "clip"), [(0, CLIPPED), (17, CLIPPED), (22, UNCLIPPED), (44, CLIPPED)])
def test_a_step_that_is_not_finite_is_told_and_kept_as_by_a_host_that_waits(
    tmp_path, runs_ahead, monkeypatch, what, place, clip
):
    """At the first step, two in the middle of an epoch, and the last of it, where the host looks at once."""
    read_until_the_failure(PLAIN, tmp_path / "order", max_steps_per_run=6)
    poisoned = [example for some in SEEN for example in some][place]
    budget = PLAIN.budget.model_copy(update={"max_gradient_norm": clip})
    config = PLAIN.model_copy(update={what: poisoned, "budget": budget})
    outcome, read = read_until_the_failure(config, tmp_path / "ahead", checkpoint_every_steps=2)
    monkeypatch.setattr(ahead, "DEVICES", ())
    waited, read_waiting = read_until_the_failure(config, tmp_path / "waits", checkpoint_every_steps=2)
    assert outcome.text.replace("/ahead/", "/waits/") == waited.text and f"[{poisoned}]" in outcome.text
    left, as_waiting = (toy_directory(tmp_path / way, config) for way in ("ahead", "waits"))
    assert files_of(left.path / FOLDER) == files_of(as_waiting.path / FOLDER)
    assert files_of(left.checkpoints).keys() == files_of(as_waiting.checkpoints).keys()
    for name, data in files_of(left.checkpoints).items():
        if name.endswith(".safetensors"):
            assert data == files_of(as_waiting.checkpoints)[name], name
    if place == 17:
        assert read[:32] == read_waiting[:24] + read[24:32], "step 4 was made before anybody looked at step 3"
        assert read[32:40] == read[16:24], "and then step 3 again"


def test_a_norm_beyond_fp32_is_no_failure_for_a_host_that_runs_ahead(tmp_path, runs_ahead, monkeypatch):
    """The device leaves the step out, as its sum of squares is infinite; the host makes it, the norm in fp64."""
    from tests.tasks import tiny

    plain = tiny.toy_problem

    def steep(config):
        problem = plain(config)
        losses = problem.losses
        problem.losses = lambda model, batch: 1e20 * losses(model, batch)
        return problem

    monkeypatch.setattr(tiny, "toy_problem", steep)
    assert toy_attempt(tmp_path / "ahead", PLAIN).end_state == "finished"
    monkeypatch.setattr(ahead, "DEVICES", ())
    toy_attempt(tmp_path / "waits", PLAIN)
    left = [what_must_be_equal(toy_directory(tmp_path / way, PLAIN)) for way in ("ahead", "waits")]
    assert left[0] == left[1]
