"""A study written as functions is the study that the same page and configurations by hand would be."""

from __future__ import annotations

from pathlib import Path

import pytest

from deployments.dag.page import Page, load_page
from deployments.dag.walk import Handle
from flows.command.settings import read_study
from storage import durable
from storage.errors import BadInput
from tasks.training.__main__ import continue_run
from tests.tasks.tiny import Here

ARMS = '''
"""Which arm is higher?"""
from typing import Annotated, Literal

import ratchet as r

@r.stage(needs="cpu", torch=False)
def base(run, size: Annotated[int, r.knob("How large.", ge=1)] = 3):
    return {"size": size}

@r.stage(needs="training", version=2)
def arm(run, base, seed: int, how: Literal["up", "down"], fold: int, by: float = 0.5):
    return {"value": base.result["size"] + fold + (by if how == "up" else -by), "threads": run.execution.cpu_threads}

@r.stage(needs="cpu", torch=False)
def table(run, base, arms, first):
    """Of a dictionary and a list of arms."""
    values = {how: given.result["value"] for how, given in arms.items()}
    return {"arms": values, "first": [given.result["value"] for given in first]}

@r.study
def which(folds: Annotated[int, r.knob("Folds of each arm.", ge=1)] = 2):
    made = base()
    arms = {f"{how}_{fold}": arm(made, how=how, fold=fold) for how in ("up", "down") for fold in range(folds)}
    return table(made, arms, first=[arms["up_0"], arms["down_0"]])
'''


def page_of(folder: Path, text: str = ARMS, name: str = "which") -> Page:
    (folder / f"{name}.py").write_text(text)
    return load_page(str(folder / f"{name}.py"))


def walked(folder: Path, *changes: str, seed: int = 42) -> list[Handle]:
    page = page_of(folder)
    study = read_study(page, None, [*changes], seed)
    here = Here(folder / "runs", study.name, study.execution)
    return page.walk(study, here)


def results(handles: list[Handle]) -> list[dict[str, object]]:
    return [durable.read_json(handle.run.result_file) for handle in handles]


def test_stages_read_what_their_parameters_name_one_a_dictionary_or_a_list(tmp_path: Path) -> None:
    handles = walked(tmp_path)
    assert [handle.stage.name for handle in handles] == ["which-base", *["which-arm"] * 4, "which-table"]
    assert [handle.label for handle in handles][1:3] == ["which-arm (how up, fold 0)", "which-arm (how up, fold 1)"]
    *_, table = results(handles)
    assert table == {"arms": {"up_0": 3.5, "up_1": 4.5, "down_0": 2.5, "down_1": 3.5}, "first": [3.5, 2.5]}
    assert [*handles[-1].inputs] == [
        "base",
        "arms_up_0",
        "arms_up_1",
        "arms_down_0",
        "arms_down_1",
        "first_0",
        "first_1",
    ]


def test_keys_of_the_study_are_the_defaults_and_name_the_runs_that_read_them(tmp_path: Path) -> None:
    before = [handle.run.fingerprint for handle in walked(tmp_path)]
    after = [handle.run.fingerprint for handle in walked(tmp_path, "by=1.0")]
    assert before[0] == after[0] and not {*before[1:]} & {*after[1:]}
    other_seed = [handle.run.fingerprint for handle in walked(tmp_path, seed=1)]
    assert before[0] == other_seed[0] and before[1] != other_seed[1]
    assert len(walked(tmp_path, "folds=1")) == 4
    more_threads = walked(tmp_path, "execution.cpu_threads=1")
    assert [handle.run.fingerprint for handle in more_threads] == before, "an execution key names no run"
    arm = handles_of_arm(walked(tmp_path, "size=9"))[0]
    assert (arm.stage.version, arm.stage.needs, arm.config.numerics.fields) == (
        2,
        "training",
        ("micro_batch_examples",),
    )


def handles_of_arm(handles: list[Handle]) -> list[Handle]:
    return [handle for handle in handles if handle.stage.name == "which-arm"]


def test_a_stage_is_told_how_the_study_works_and_goes_on_from_its_run_directory(tmp_path: Path) -> None:
    arm = handles_of_arm(walked(tmp_path, "execution.cpu_threads=1"))[0]
    assert durable.read_json(arm.run.result_file)["threads"] == 1
    (arm.run.path / "COMPLETE.json").unlink()
    assert continue_run(arm.run.path, tmp_path).end_state == "finished"
    assert durable.read_json(arm.run.result_file)["value"] == 3.5


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("def which(", "def other(", r"which\.py:\d+: .*is called other\(\): call it which\(\), like"),
        ("how=how, fold=fold", "how=how", r"which\.py:\d+: .*fold: Field required"),
        ('("up", "down")', '("up", "left")', r"which\.py:\d+: .*how: Input should be 'up' or 'down'"),
        ("arm(made, how", "arm(3, how", r"which\.py:\d+: stage which-arm: base is 3, and not what"),
        ("fold=fold)", "fould=fold)", r"which\.py:\d+: the stage arm has no parameter 'fould'; did you mean 'fold'\?"),
        ("    return table", "    return base", r"which\.py:\d+: the stage base has no parameter 'first'; it has size"),
        ("@r.study", "base()\n\n@r.study", r"which\.py:\d+: base\(\) is a stage: call it in a function with @study"),
        ("arms, first):", "arms, first, by: float = 0.7):", "table and arm both have by, with other types or defaults"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_told_with_its_line(tmp_path: Path, old: str, new: str, told: str) -> None:
    assert ARMS.count(old) == 1
    with pytest.raises(BadInput, match=told):
        page = page_of(tmp_path, ARMS.replace(old, new))
        page.walk(read_study(page, None, [], None), Here(tmp_path / "runs", "which"))


@pytest.mark.parametrize("change", ["size=0", "folds=0", "sizes=3"])
def test_limits_and_names_of_keys_hold_before_any_work(tmp_path: Path, change: str) -> None:
    with pytest.raises(BadInput, match=change.partition("=")[0]):
        walked(tmp_path, change)
    assert not (tmp_path / "runs").exists()
