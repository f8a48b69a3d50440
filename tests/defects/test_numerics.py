"""Numerics belong to a stage: what none of its bytes depend on does not keep it from going on."""

from pathlib import Path

from flows.robustness import BASE_MODEL, SETUP
from tasks.language.stages import BaseConfig, SetupConfig
from tasks.robustness.study import Study
from tests.tasks.tiny import Here, tiny_study


def base_of(root: Path, study: Study, **changed: object) -> str:
    """The end state of one attempt at base, setup being finished; `changed` are execution fields."""
    execution = study.execution.model_copy(update=changed)
    study, stage = study.model_copy(update={"execution": execution}), Here(root / "runs", study.name)
    base = stage(
        BASE_MODEL,
        BaseConfig.of(study, **study.base_fields),
        text=stage(SETUP, SetupConfig.of(study, tokenizer=study.tokenizer)),
    )
    assert base.outcome, "setup is not finished"
    return base.outcome.end_state


def test_another_attack_batch_does_not_keep_a_bounded_base_from_going_on(tmp_path):
    """Seen: `base` was refused for "other numerics", whose attack_batch_examples it never reads."""
    study = tiny_study(tmp_path)
    assert base_of(tmp_path, study, max_steps_per_run=1) == "out_of_time"
    assert base_of(tmp_path, study, attack_batch_examples=3, evaluation_batch_examples=5) == "finished"
