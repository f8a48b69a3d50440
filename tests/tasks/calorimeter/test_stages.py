"""The stages of the calorimeter study: arms differ in what they say, masks in how many sensors, bytes in nothing."""

from collections.abc import Iterable

import numpy as np
import pyarrow as pa
import pytest
import torch
from scipy import stats

from deployments.dag.walk import Walk
from storage.errors import BadInput, CheckFailed
from storage.run_directory import RunDirectory
from storage.tensors import read_tensors
from tasks.calorimeter import fit
from tasks.calorimeter.final_results import SCORE, FinalResults, compared
from tasks.calorimeter.fit import normaliser_of
from tasks.calorimeter.judge import Filled, columns, judge, mean_errors
from tasks.calorimeter.report import verdict
from tasks.sensors.batches import Batches, fill_losses
from tasks.sensors.configuration import Filling, Network
from tasks.sensors.networks import Filler
from tasks.sensors.xenon import Events
from tasks.stage.attempt import attempt
from tasks.training.trained import metric_rows
from tests.tasks.calorimeter.tiny import SMOKE, finished
from tests.tasks.tiny import stage_run, what_must_be_equal

MAE, FROZEN, JUDGE = "calorimeter-mae", "calorimeter-inpaint (frozen, seed 0)", "calorimeter-judge"
AFTER = ("calorimeter-audit", "calorimeter-report")
SCRATCH = "calorimeter-regress (scratch, seed 0)"


def results() -> FinalResults:
    return FinalResults.read_file(finished().path("calorimeter-report") / "final_results.json")


def _by_column(rows: Iterable[dict[str, float]]) -> dict[str, np.ndarray]:
    return {name: np.array(of) for name, of in pa.Table.from_pylist([*rows]).to_pydict().items()}


def test_with_other_dead_sensors_and_masks_exact_counts_are_judged(tmp_path):
    """90 % of 4,760 sensors are 4,284, and 60 % of these 2,570."""
    changes = ("showers.dead_share=0.1", "showers.train_events=16", "showers.validation_events=2", "mae.mask_ratio=0.6")
    handles = SMOKE.run_until("calorimeter-look", tmp_path / "runs", SMOKE.study(*changes))
    events = Events.open(handles["calorimeter-showers"].as_input(), "validation")
    filled = Filled.load(finished().input(MAE), events, Filling(mask_ratio=0.6), 0, 2, torch.device("cpu"))
    told = mean_errors(_by_column(filled.errors(0, 2, 100.0)), 0.6)
    assert told["events"] == 2 and (told["live"], told["hidden"]) == (2 * 4284, 2 * 2570)
    assert told["actual_mask_ratio"] == 2570 / 4284 and told["mask_ratio"] == 0.6


def test_only_hidden_sensors_count_and_none_of_them_is_seen():
    given = finished().input("calorimeter-showers")
    normaliser = normaliser_of(finished().input("calorimeter-look"))
    batches = Batches(Events.open(given, "validation"), normaliser, torch.device("cpu"), 0.3)
    batch = batches(np.arange(3), 0)
    assert not (batch.seen[:, 0] * batch.hidden).any() and not (batch.seen[:, 1] * batch.hidden).any()
    predicted = batch.light.clone()
    predicted[~batch.hidden] += 5.0
    assert fill_losses(predicted, batch, 0.1).tolist() == [0.0] * 3
    predicted[batch.hidden] += 1.0
    assert fill_losses(predicted, batch, 0.1).tolist() == pytest.approx([0.95] * 3)  # linear above beta
    assert torch.allclose(batches.photons(batch.light), batch.photons, rtol=1e-3, atol=0.1)
    assert not torch.equal(batches(np.arange(3), 1).hidden, batch.hidden)


def test_every_beginning_is_what_its_arm_says():
    def weights(label: str) -> dict[str, torch.Tensor]:
        return {
            name: value
            for name, value in read_tensors(finished().path(label) / "model" / "model.safetensors").items()
            if name.startswith("encoder.")
        }

    pretrained, frozen, tuned = (weights(label) for label in (MAE, FROZEN, FROZEN.replace("frozen", "finetune")))
    assert all(torch.equal(pretrained[name], frozen[name]) for name in pretrained)
    assert any(not torch.equal(pretrained[name], tuned[name]) for name in pretrained)
    taken = finished().result("calorimeter-regress (mae-init, seed 0)")["taken"]
    assert {*taken["taken"]} == {*pretrained} and all(name.startswith("head.") for name in taken["fresh"])
    assert taken["refused"] and finished().result("calorimeter-regress (scratch, seed 0)")["taken"] is None


def test_a_regressor_without_normaliser_cannot_start_from_one_that_has_it(tmp_path):
    """A wrong normaliser would show in no number."""
    handle = finished().handles["calorimeter-regress (mae-init, seed 0)"]
    given = {role: source.as_input() for role, source in handle.inputs.items()}
    config = handle.config.model_copy(update={"arm": "raw"})
    with pytest.raises(BadInput, match=r"has the normaliser_digest .* is asked for"):
        fit.regress(stage_run(tmp_path), config, **given)  # type: ignore[arg-type]
    given["start"] = finished().input(FROZEN)
    with pytest.raises(BadInput, match="has the task calorimeter-inpaint, and calorimeter-mae is asked for"):
        fit.regress(stage_run(tmp_path / "task"), handle.config, **given)  # type: ignore[arg-type]
    wider = handle.config.model_copy(update={"network": Network(channels=4, width=16, layers=1, heads=2)})
    with pytest.raises(BadInput, match=r"encoder\.place is float32 \[6, 16\] here, and float32 \[6, 8\] in"):
        fit.regress(stage_run(tmp_path / "width"), wider, **given | {"start": finished().input(MAE)})  # type: ignore[arg-type]


def test_a_training_that_is_broken_off_again_and_again_ends_with_the_same_bytes(tmp_path):
    handle, ends = finished().handles[FROZEN], list[str]()
    copy = RunDirectory(tmp_path, "copy", handle.run.stage, handle.run.fingerprint)
    given = {role: source.as_input() for role, source in handle.inputs.items()}
    execution = handle.config.execution.model_copy(update={"max_steps_per_run": 2})
    while not ends or ends[-1] == "out_of_time":
        config = handle.config.model_copy(update={"execution": execution})
        ends.append(attempt(handle.stage, config, copy, given).end_state)
    assert ends == ["out_of_time"] * 2 + ["finished"]
    assert what_must_be_equal(copy) == what_must_be_equal(handle.run)


def test_where_no_bright_sensor_is_hidden_the_stage_ends_and_names_the_key():
    sums = dict(columns(finished().path(JUDGE) / "records.parquet", model="inpaint-frozen-0"))
    with pytest.raises(CheckFailed, match=r"bright and dim sensors are hidden: .*bright_photons"):
        mean_errors(sums | {"bright": 0 * sums["bright"]}, 0.05)


def test_keys_that_only_judge_train_nothing_again(tmp_path):
    def fingerprints(*changes: str) -> dict[str, str]:
        handles = SMOKE.run(tmp_path, SMOKE.study(*changes), Walk)
        return {label: handle.run.fingerprint for label, handle in handles.items()}

    before, after = fingerprints(), fingerprints("bright_photons=50.0")
    assert {label for label in before if before[label] != after[label]} == {JUDGE, *AFTER}
    assert {label for label in before if before[label] != fingerprints("audit.examples=3")[label]} == {*AFTER}


def test_every_event_of_validation_is_judged_and_intervals_know_of_other_events():
    found, events = results(), Events.open(finished().input("calorimeter-showers"), "validation")
    errors = columns(finished().path(JUDGE) / "records.parquet", model="inpaint-finetune-1")
    assert found.events == found.inpainter["events"] == len(events) == len(errors["event"]) == 24
    handle = finished().handles["calorimeter-inpaint (finetune, seed 1)"]
    how = handle.config.filling, found.seeds[0]  # type: ignore[attr-defined]
    filled = Filled.load(handle.as_input(), events, *how, 5, torch.device("cpu"))
    _, batch = next(filled.batches.in_turn(1, 20, 21))
    with torch.no_grad():
        predicted = filled.batches.photons(filled.network(batch.seen))
    missed, bright = (predicted - batch.photons).abs()[batch.hidden], batch.photons[batch.hidden] >= 100
    assert errors["bright"][20] == bright.sum() and errors["live"][20] == (events.light[20] >= -50).sum() - 48
    assert errors["mae_dim"][20] == pytest.approx(float(missed[~bright].sum()), rel=1e-4)
    near = found.filled["bright"]["neighbours, bright"]
    assert near.standard_deviation == 0 and near.interval is not None  # no seed, but other events
    jackknife = [
        (errors["neighbour_mae_bright"].sum() - error) / (errors["bright"].sum() - count)
        for error, count in zip(errors["neighbour_mae_bright"], errors["bright"], strict=True)
    ]
    half = stats.t.ppf(0.975, 23) * np.std(jackknife) * 23**0.5
    assert near.interval == pytest.approx([near.mean - half, near.mean + half])
    table = (finished().path("calorimeter-report") / "table.md").read_text()
    assert (
        f"the {found.inpainter['bright']:,.0f} bright and {found.inpainter['dim']:,.0f} dim hidden sensors of 24 events"
        in table
    )


def test_of_regressors_that_learn_nothing_nothing_is_said():
    found = results()
    untaught = {arm for arm, of in found.missed[SCORE].items() if max(of.values.values()) >= 1}
    assert untaught and untaught == {name for row in found.differences[:3] for name in row.unlearned}


@pytest.mark.parametrize("of", [SCORE, "bright"])
def test_arms_that_are_equal_to_the_last_digit_are_refused_but_for_neighbours_that_all_seeds_share(of):
    """Seen: `allow_equal` was for every table, so an arm that never reached its training was compared as another."""
    config, found = finished().handles["calorimeter-report"].config, results()
    values = {SCORE: found.missed[SCORE], **found.filled}
    tables = {of: {arm: dict(mean.values) for arm, mean in arms.items()} for of, arms in values.items()}
    first, second = [arm for arm in tables[of] if "neighbours" not in arm][:2]
    tables[of][second] = tables[of][first]
    with pytest.raises(CheckFailed, match=f"{first}, seed 0 and {second}, seed 0 have the same value"):
        compared(tables, lambda *_: None, config)


def test_records_are_in_the_order_of_seeds_whatever_the_page_s(tmp_path):
    handle, run = finished().handles[JUDGE], stage_run(tmp_path)
    given = {role: handle.inputs[role].as_input() for role in ("data", "inpaint-frozen-1", "inpaint-frozen-0")}
    assert judge(run, handle.config, **given) == {}  # type: ignore[arg-type]
    ours, theirs = (columns(folder / "records.parquet") for folder in (run.directory, handle.run.path))
    same = np.isin(theirs["model"], [*given])
    assert all(np.array_equal(ours[name], theirs[name][same]) for name in ours)


def test_the_full_detector_is_read_at_the_size_of_the_document():
    shape = SMOKE.page.model(name="document").network
    assert sum(of.numel() for of in Filler(shape).parameters()) > 3e6
    with torch.no_grad():
        assert Filler(shape)(torch.rand(2, 2, 4760)).shape == (2, 4760)


def with_(*states: str) -> str:
    """The verdict where the differences are these, in their order."""
    rows = [
        row.model_copy(update={"better": state == "better", "worse": state == "worse"})
        for row, state in zip(results().differences, states, strict=True)
    ]
    return verdict(rows)


def test_the_verdict_names_what_is_shown_and_nothing_else():
    said = "Yes: pretraining helps; inpainting is better on bright, worse on dim sensors."
    assert with_("better", "better", "", "better", "worse") == said
    harms = "No: pretraining harms; inpainting is not shown better than neighbours' means."
    assert with_("worse", "worse", "better", "", "") == harms
    assert with_("", "", "", "better", "better").endswith("; inpainting is better than neighbours' means.")


def test_pretraining_is_said_to_help_only_where_it_beats_training_for_as_long_too():
    for longer, begins in {"": "Not shown: ", "worse": "No: training longer helps more; "}.items():
        assert with_("better", longer, "better", "better", "better").startswith(begins)
    assert with_("", "better", "", "", "").startswith("Not shown: that pretraining helps; ")
    steps = {
        label: metric_rows(finished().path(label) / "metrics.jsonl")[-1]["step"]
        for label in (
            MAE,
            SCRATCH,
            SCRATCH.replace("scratch", "scratch-longer"),
            SCRATCH.replace("scratch", "mae-init"),
        )
    }
    pretrained, equal, longer, begun = steps.values()
    assert longer == pretrained + equal and begun == equal


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("seeds=[1,1]", "seeds has 1 twice"),
        ("network.width=9", "no multiple of heads"),
        ("showers.most_energy_mev=10.0", "no energy lies between"),
        ("mae.mask_ratio=1.0", "mask_ratio"),
        ("bright_photons=1e12", "no sensor would be bright"),
        ("showers.most_energy_mev=1e12", "such events would be refused"),
        ("showers.dead_share=0.99999", "dead_share"),
        ("budget={steps: 4}", "budget and mae_budget: one budget has epochs and the other steps"),
    ],
)
def test_what_cannot_be_is_refused_before_any_work(change, said):
    with pytest.raises(BadInput, match=said):
        SMOKE.study(change)
