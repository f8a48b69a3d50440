"""The stages from the text to the trained arms, run once on the tiny study with their own small page."""

from functools import cache
from pathlib import Path

from deployments.dag.walk import Handle, Walk
from tasks.language.stages import BaseConfig, SetupConfig
from tasks.monotonic.arm import ARMS as every_arm
from tasks.monotonic.stages import ConstrainConfig, TrainConfig
from tasks.robustness.study import Study
from tasks.stage.run import Stage
from tests.once import made_once
from tests.tasks.tiny import Here, all_finished, tiny_study

KEPT = ["monotonic", "own-signs", "random-signs", "per-unit-signs", "feed-forward-off", "earlier-system"]
"""The arms whose signs are kept."""
ARMS = ["baseline", *KEPT, "unconstrained-start"]

SETUP = Stage("setup", SetupConfig, "tasks.language.setup:setup")
BASE = Stage("base", BaseConfig, "tasks.language.base:base")
CONSTRAIN = Stage("constrain", ConstrainConfig, "tasks.monotonic.arms:constrain")
TRAIN = Stage("train-arm", TrainConfig, "tasks.monotonic.arms:train_arm")


def arms_study(folder: Path, **changed: object) -> Study:
    """The tiny study with every arm, and snapshots at a third and at two thirds."""
    return tiny_study(folder, arms=ARMS, snapshots=[0.33, 0.66], **changed)


def training_of(study: Study, arm: str) -> TrainConfig:
    """How an arm is trained; the baseline also keeps snapshots, as one does whose base was loaded."""
    (fields,) = study.training_fields(arm)
    return TrainConfig.of(study, **fields | {"snapshots": study.snapshots if arm == "baseline" else []})


def arms_page(study: Study, stage: Walk) -> dict[str, Handle]:
    """text, base, `<arm> start` and each arm -> handle."""
    text = stage(SETUP, SetupConfig.of(study, tokenizer=study.tokenizer))
    base = stage(BASE, BaseConfig.of(study, **study.base_fields), text=text)
    handles = {"text": text, "base": base}
    starts = {
        name: stage(CONSTRAIN, ConstrainConfig.of(study, **fields), text=text, base=base)
        for name, fields in study.start_fields.items()
    }
    for arm in study.arms:
        start = starts[study.start_of(arm)] if every_arm[arm].signs else base
        handles[f"{arm} start"] = start
        handles[arm] = stage(TRAIN, training_of(study, arm), text=text, start=start)
    return handles


@cache
def finished_arms() -> tuple[Study, Path, dict[str, Handle]]:
    """The study, the root of its run directories, and its handles. Read only."""
    folder = made_once("arms", lambda folder: all_finished(_arms(folder, Here)))
    return arms_study(folder), folder / "runs", _arms(folder, Walk)


def _arms(folder: Path, runner: type[Walk]) -> dict[str, Handle]:
    study = arms_study(folder)
    return arms_page(study, runner(folder / "runs", study.name))
