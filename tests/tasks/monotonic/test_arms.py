"""The arms: one training function, what it verifies and measures, and snapshots that survive any kill."""

import shutil

import pytest

from storage import durable
from storage.run_directory import RunDirectory, fingerprint
from tasks.language import model as language
from tasks.language.blocks import Blocks
from tasks.monotonic.constraint import AllowedSigns, verify
from tasks.monotonic.numbers import facts_of_arms
from tasks.monotonic.result import ArmResult
from tasks.stage.attempt import attempt
from tasks.training.trained import Trained, metric_rows
from tests.tasks.monotonic.arms_of_tiny import ARMS, KEPT, TRAIN, finished_arms, training_of
from tests.tasks.tiny import files_of, what_must_be_equal


def loaded(name: str):
    return language.load(finished_arms()[2][name].run.path / "model")


@pytest.mark.parametrize("arm", ARMS)
def test_each_arm_keeps_the_signs_that_it_should_and_measures_the_model_on_disk(arm):
    _, _, handles = finished_arms()
    result, model = ArmResult.read(handles[arm].as_input()), loaded(arm)
    if arm in KEPT:
        allowed = AllowedSigns.load(handles[f"{arm} start"].run.path / "signs")
        assert result.constraint == verify(model, "mlp_both", allowed)
    else:
        assert result.constraint is None
    validation = Blocks(handles["text"].run.path / "text", "validation")
    assert result.sublayers.loss_nats_per_token == language.validation_loss(model, validation, 16)
    rows = metric_rows(handles[arm].run.metrics_file)
    assert result.sublayers.loss_nats_per_token == Trained.of_rows(rows, "validation_loss").best
    assert set(result.sublayers.effective_rank) == {f"gpt_neox.layers.{i}.mlp" for i in range(2)}
    assert result.movement.free > 0
    assert (result.movement.constrained is None) == (arm == "feed-forward-off")


def test_the_arms_spend_the_same_and_end_apart():
    study, _, handles = finished_arms()
    arms = {arm: handles[arm].as_input() for arm in ARMS}
    facts = facts_of_arms(arms, study.constraint, Blocks(handles["text"].run.path / "text", "train"))
    assert len({(str(of.budget), of.steps, of.tokens_trained) for of in facts.values()}) == 1
    assert {name: of.by for name, of in facts.items()} == {name: training_of(study, name).by for name in ARMS}
    assert len({of.weights_digest for of in facts.values()}) == len(ARMS)
    off = facts["feed-forward-off"]
    assert abs(off.sublayers.rise_nats_per_token) < 1e-5 and set(off.sublayers.effective_rank.values()) == {1.0}


def test_the_earlier_system_s_weights_hardly_move_and_the_monotonic_arm_s_do():
    _, _, handles = finished_arms()
    moved = {arm: ArmResult.read(handles[arm].as_input()).movement for arm in ("monotonic", "earlier-system")}
    share = {arm: movement.constrained / movement.free for arm, movement in moved.items()}
    assert share["earlier-system"] < 0.1 < 0.3 < share["monotonic"]


# ----------------------------------------------------------------------------------------------- snapshots


def test_snapshots_of_base_and_baseline_are_models_on_the_way_and_listed_as_outputs():
    _, _, handles = finished_arms()
    validation = Blocks(handles["text"].run.path / "text", "validation")
    for name in ("base", "baseline"):
        run = handles[name].run
        assert sorted(folder.name for folder in (run.path / "snapshots").iterdir()) == ["0.33", "0.66"]
        for share in ("0.33", "0.66"):
            folder = run.path / "snapshots" / share
            loss = language.validation_loss(language.load(folder), validation, 16)
            assert (folder / "tokenizer.json").is_file()
            rows = metric_rows(run.metrics_file)
            step = max(1, round(float(share) * rows[-1]["step"]))
            assert durable.read_json(folder / "snapshot.json")["step"] == step
            by_step = {row["step"]: row["validation_loss"] for row in rows if "validation_loss" in row}
            assert by_step.get(step, loss) == loss, "as the training itself found it"
        outputs = durable.read_json(run.marker_file)["outputs"]
        assert {f"snapshots/{share}/model.safetensors" for share in ("0.33", "0.66")} <= set(outputs)
    assert not (handles["monotonic"].run.path / "snapshots").exists()


def begun_again(tmp_path, arm: str, snapshots=None, **execution):
    """A fresh run directory for an arm on the finished inputs, and a function that makes one attempt."""
    study, _, handles = finished_arms()
    config = training_of(study, arm)
    settings = config.execution.model_copy(update=execution)
    config = config.model_copy(update={"execution": settings} | ({} if snapshots is None else {"snapshots": snapshots}))
    inputs = {"text": handles["text"].as_input(), "start": handles[f"{arm} start"].as_input()}
    prints = {role: given.run.fingerprint for role, given in inputs.items()}
    run = RunDirectory(tmp_path, "tiny", TRAIN.name, fingerprint(TRAIN.name, 1, config.scientific(), {}, prints))
    return run, lambda: attempt(TRAIN, config, run, inputs)


def everything(run: RunDirectory) -> dict[str, bytes]:
    return what_must_be_equal(run) | files_of(run.path / "snapshots")


def test_an_arm_that_was_stopped_again_and_again_ends_with_the_same_bytes(tmp_path):
    _, _, handles = finished_arms()
    for arm in ("baseline", "monotonic"):
        run, once = begun_again(tmp_path, arm, max_steps_per_run=1)
        assert run.fingerprint == handles[arm].run.fingerprint
        outcomes = [once()]
        while outcomes[-1].exit_code == 75:
            outcomes.append(once())
        assert outcomes[-1].exit_code == 0 and len(outcomes) > 3, outcomes[-1]
        assert everything(run) == everything(handles[arm].run)
        outputs = [durable.read_json(each.marker_file)["outputs"] for each in (run, handles[arm].run)]
        assert {name: file["sha256"] for name, file in outputs[0].items() if name != "stage.json"} == {
            name: file["sha256"] for name, file in outputs[1].items() if name != "stage.json"
        }


def test_a_kill_between_snapshot_and_checkpoint_keeps_the_snapshot_and_other_inputs_replace_it(tmp_path):
    run, once = begun_again(tmp_path, "baseline", max_steps_per_run=2)
    assert once().exit_code == 75
    shutil.rmtree(run.checkpoints)  # the kill took every checkpoint
    kept, stale = (run.path / "snapshots" / share for share in ("0.33", "0.66"))
    assert kept.is_dir()
    shutil.copytree(kept, stale)
    described = durable.read_json(stale / "snapshot.json")
    durable.write_json(stale / "snapshot.json", described | {"inputs": {"start": "other weights"}})
    inode = (kept / "model.safetensors").stat().st_ino
    while (outcome := once()).exit_code == 75:
        pass
    assert outcome.exit_code == 0, outcome
    assert (kept / "model.safetensors").stat().st_ino == inode, "not written twice"
    assert everything(run) == everything(finished_arms()[2]["baseline"].run)


def test_a_snapshot_that_was_taken_away_is_asked_for_by_name(tmp_path):
    run, once = begun_again(tmp_path, "baseline", max_steps_per_run=2)
    assert once().exit_code == 75
    shutil.rmtree(run.path / "snapshots" / "0.33")
    while (outcome := once()).exit_code == 75:
        pass
    assert outcome.exit_code == 2 and "snapshots/0.33 is missing" in outcome.text


def test_a_snapshot_through_softplus_holds_the_effective_weights(tmp_path):
    run, once = begun_again(tmp_path, "earlier-system", snapshots=[0.5])
    assert once().exit_code == 0
    handles = finished_arms()[2]
    model = language.load(run.path / "snapshots" / "0.5")
    verify(model, "mlp_both", AllowedSigns.load(handles["earlier-system start"].run.path / "signs"))
    assert files_of(run.path / "model") == files_of(handles["earlier-system"].run.path / "model"), (
        "training saw nothing"
    )


def test_training_starts_from_the_signs_and_weights_on_disk_and_refuses_others(tmp_path):
    study, _, handles = finished_arms()
    config = training_of(study, "monotonic").model_copy(update={"variant": "mlp_in"})
    inputs = {"text": handles["text"].as_input(), "start": handles["monotonic start"].as_input()}
    prints = {role: given.run.fingerprint for role, given in inputs.items()}
    run = RunDirectory(tmp_path, "tiny", TRAIN.name, fingerprint(TRAIN.name, 1, config.scientific(), {}, prints))
    outcome = attempt(TRAIN, config, run, inputs)
    assert outcome.exit_code == 2 and "made for 4 layers and the model has 2" in outcome.text
