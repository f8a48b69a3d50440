"""The room on the disk is estimated from what the study will keep."""

import pytest

from tasks.language.base import model_bytes
from tasks.language.stages import BaseConfig
from tasks.monotonic.stages import ChooseConfig, TrainConfig
from tests.tasks.tiny import finished_study, handles_of, tiny_study


def test_the_estimate_grows_with_what_is_kept():
    one, two = (model_bytes(10, models=5, trainings=3, keep_checkpoints=keep) for keep in (1, 2))
    assert one == 10 * 4 * (5 + 3 * 3 * (2 + 2))
    assert two - one == 10 * 4 * 3 * 3 * 2  # one more that is kept, and what was best then
    assert model_bytes(10, models=6, trainings=3, keep_checkpoints=1) - one == 10 * 4


def test_as_many_models_are_estimated_as_a_finished_study_holds():
    study = finished_study()
    there = [file for file in study.root.rglob("model.safetensors") if "checkpoints" not in file.parts]
    assert BaseConfig.of(study.study, **study.study.base_fields).models_of_study == len(there) == 8


@pytest.mark.parametrize(
    ("changed", "models"),
    [
        ({"arms": ["baseline", "monotonic"], "snapshots": []}, 5),
        ({"snapshots": [0.25, 0.5, 0.75]}, 10),
        ({"arms": ["baseline", "monotonic", "random-signs", "earlier-system"]}, 10),
        ({"learning_rates": [1e-3, 1e-2]}, 14),  # of each arm two trials and a copy of the chosen one
    ],
)
def test_arms_snapshots_and_trials_are_counted(changed, models, tmp_path):
    study = tiny_study(tmp_path, **changed)
    config = BaseConfig.of(study, **study.base_fields)
    configs = [handle.config for handle in handles_of(tmp_path, study).values()]
    assert config.models_of_study == models
    assert config.trainings_of_study == sum(isinstance(one, TrainConfig | BaseConfig) for one in configs)
    assert sum(isinstance(one, ChooseConfig) for one in configs) in (0, len(study.arms))


def test_a_model_that_is_loaded_has_neither_training_nor_snapshots_of_its_own(tmp_path):
    scratch = tiny_study(tmp_path)
    hub = {"source": "hub", "model": "EleutherAI/pythia-70m", "revision": "0" * 40}
    loaded = tiny_study(tmp_path, model=hub)
    config, ours = (BaseConfig.of(study, **study.base_fields) for study in (loaded, scratch))
    assert ours.models_of_study - config.models_of_study == 1  # untrained; the snapshot is the baseline's then
    assert ours.trainings_of_study - config.trainings_of_study == 1
