"""Several seeds compare the arms: means with Student's t intervals, each seed with its own run."""

from __future__ import annotations

import copy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from storage import durable, markers
from storage.errors import CheckFailed
from storage.locks import acquire
from storage.run_directory import RunDirectory
from tasks.robustness import sweep
from tasks.robustness.final_results import SweepResults
from tasks.stage.run import StageInput
from tasks.sweep.configuration import SweepConfig
from tests.tasks.robustness.synthetic import aggregated, contents, study, written
from tests.tasks.robustness.test_aggregate import WINNERS
from tests.tasks.tiny import stage_run

SEEDS = (42, 1337)
T_975_OF_TWO = 12.706204736432095


@pytest.fixture(scope="module")
def of_seed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """final_results.json of two studies that differ in the seed."""
    found = {}
    for number, seed in enumerate(SEEDS):
        configured, folder = study(seed=seed), tmp_path_factory.mktemp(f"seed-{seed}")
        inputs = written(folder, contents(configured, seed=number))
        _, path = aggregated(folder / "out", inputs, configured)
        found[f"seed_{seed}"] = durable.read_json(path / "final_results.json")
    return found


def finished(root: Path, of_seed: dict[str, dict[str, Any]]) -> dict[str, StageInput]:
    """Role -> aggregate of one seed, finished below `root`."""
    inputs = {}
    for role, numbers in of_seed.items():
        run = RunDirectory(root, "quick", "aggregate", durable.sha256_json(role))
        run.path.mkdir(parents=True)
        durable.write_json(run.stage_file, {"version": 1, "numerics": {}, "external": {}})
        durable.write_json(run.path / "final_results.json", numbers)
        lock = acquire(run.path / "locks")
        inputs[role] = StageInput(run, markers.write(run, ["final_results.json"], {}, lock).outputs_digest)
        lock.release()
    return inputs


def swept(folder: Path, inputs: dict[str, StageInput]) -> tuple[dict[str, Any], str]:
    run = stage_run(folder / "out")
    run.run = SimpleNamespace(root=folder / "runs")
    cells = {role: [seed] for role, seed in zip((*inputs, "seed 7"), (*SEEDS, 7), strict=True)}
    config = SweepConfig(study="quick", keys=["seed"], cells=cells, missing=["seed 7"])
    sweep.sweep_seeds(run, config, **inputs)
    assert (run.directory / "report.html").read_text().count("<svg") == 1
    return durable.read_json(run.directory / "final_results.json"), (run.directory / "table.md").read_text()


@pytest.fixture
def both(tmp_path: Path, of_seed: dict[str, Any]) -> tuple[dict[str, Any], str]:
    return swept(tmp_path, finished(tmp_path / "runs", of_seed))


def require_mean(mean: dict[str, Any], values: list[float]) -> None:
    half = T_975_OF_TWO * abs(values[0] - values[1]) / 2  # t * s / sqrt(2)
    assert mean["mean"] == pytest.approx(sum(values) / 2)
    assert mean["interval"] == pytest.approx([mean["mean"] - half, mean["mean"] + half])
    assert mean["seeds"] == 2 and values[0] != values[1]


def test_two_seeds_give_the_mean_difference_with_its_interval(both: tuple[dict[str, Any], str]):
    found, table = both
    mean = found["monotonic_minus_baseline_nats_per_token"]
    require_mean(
        mean,
        [
            result["models"]["monotonic"]["loss_nats_per_token"] - result["models"]["baseline"]["loss_nats_per_token"]
            for result in found["of_seed"].values()
        ],
    )
    assert found["seeds"] == list(SEEDS)
    low, high = mean["interval"]
    assert f"{mean['mean']:+.4f} nats per token, 95% interval {low:+.4f} to {high:+.4f}" in table
    assert "over 2 seeds" in table and not WINNERS.search(table)


@pytest.mark.parametrize(
    ("attack", "what"),
    [("uat", "increase_nats_per_token"), ("hotflip", "increase_nats_per_token"), ("hotflip", "success_rate")],
)
def test_each_attack_has_the_mean_difference_between_the_arms(both: tuple[dict[str, Any], str], attack: str, what: str):
    found, table = both
    effects = [result["attacks"][attack]["effects"] for result in found["of_seed"].values()]
    values = [effect["monotonic"][what]["value"] - effect["baseline"][what]["value"] for effect in effects]
    mean = found["attacks_monotonic_minus_baseline"][attack][what]
    require_mean(mean, values)
    form, scale = ("{:+.1f}", 100) if what == "success_rate" else ("{:+.4f}", 1)
    middle, *bounds = [form.format(scale * number) for number in (mean["mean"], *mean["interval"])]
    (line,) = [line for line in table.splitlines() if line.startswith(f"| {attack} ") and f" {middle} " in line]
    assert " to ".join(bounds) in line


def test_a_seed_that_stopped_is_shown_as_missing(both: tuple[dict[str, Any], str]):
    found, table = both
    assert found["missing"] == ["seed 7"] and "Missing, because a stage of theirs stopped: seed 7." in table
    (line,) = [line for line in table.splitlines() if re_seed(line) == "7"]
    assert line.count("missing") == 5


def test_seeds_that_all_gave_the_same_have_no_interval(both: tuple[dict[str, Any], str]):
    found, _ = both
    found["attacks_monotonic_minus_baseline"]["hotflip"]["success_rate"] |= {"mean": 0.0, "interval": [0.0, 0.0]}
    table = sweep.table(SweepResults.model_validate(found))
    (line,) = [line for line in table.splitlines() if "success rate, percentage points" in line]
    assert [cell.strip() for cell in line.split("|")[3:5]] == ["+0.0", "-"]


def test_both_effects_and_the_clean_loss_of_every_seed_and_arm_stand_in_the_table(both: tuple[dict[str, Any], str]):
    found, table = both
    for result in found["of_seed"].values():
        for attack, arms in result["attacks"].items():
            for arm in ("baseline", "monotonic"):
                effect = arms["effects"][arm]
                (line,) = [
                    line
                    for line in table.splitlines()
                    if [cell.strip() for cell in line.split("|")][1:4] == [str(result["seeds"][0]), attack, arm]
                ]
                assert f"{effect['increase_nats_per_token']['value']:+.4f}" in line
                assert f"{effect['clean_loss_nats_per_token']:.4f}" in line
                assert f"{effect['relative_increase']['value']:+.2%}" in line


def test_every_row_of_a_seed_names_its_run(both: tuple[dict[str, Any], str], tmp_path: Path):
    found, table = both
    for seed, place in zip(SEEDS, found["runs"].values(), strict=True):
        assert (tmp_path / "runs" / place / "COMPLETE.json").is_file()
        lines = [line for line in table.splitlines() if re_seed(line) == str(seed)]
        assert len(lines) == 6 and all(place.rsplit("/", 1)[-1] in line for line in lines) and place in lines[-1]
    assert max(len(line) for line in table.splitlines() if line.startswith("|")) <= 120


def re_seed(line: str) -> str:
    return line.split("|")[1].strip() if line.startswith("|") else ""


@pytest.mark.parametrize("arm", ["baseline", "monotonic"])
def test_two_seeds_with_the_same_weights_are_one_training_and_refused(
    tmp_path: Path, of_seed: dict[str, Any], arm: str
):
    copied = copy.deepcopy(of_seed)
    copied["seed_1337"]["arms"][arm]["weights_digest"] = copied["seed_42"]["arms"][arm]["weights_digest"]
    with pytest.raises(CheckFailed, match=rf"every seed of train-{arm} .*seed_42 and seed_1337 have equal"):
        swept(tmp_path, finished(tmp_path / "runs", copied))


def test_a_seed_s_results_that_were_edited_are_refused(tmp_path: Path, of_seed: dict[str, Any]):
    inputs = finished(tmp_path / "runs", of_seed)
    file = inputs["seed_42"].path / "final_results.json"
    file.write_text(file.read_text().replace("quick", "quicK"))
    with pytest.raises(CheckFailed, match=r"final_results\.json was edited"):
        swept(tmp_path, inputs)


def test_the_table_says_what_was_studied_and_calls_a_toy_a_toy(both: tuple[dict[str, Any], str]):
    _, table = both
    assert "toy size" in table and "GPTNeoXForCausalLM" in table and "random triggers of the same length" in table
    assert "- constrained-untrained: base with" in table and "docstrings of Python's standard library" in table
    assert "attack - control, nats per token" in table and "relative increase" in table


def test_the_table_carries_the_cautions_of_each_seed_and_says_what_seeds_vary(both: tuple[dict[str, Any], str]):
    found, text = both
    assert "Both arms had the same budget." in text and "order of the training examples" in text
    assert "one base model, one initialisation, one text" in text
    found["of_seed"]["seed_1337"]["unequal_budgets_reason"] = "a warmer start"
    found["of_seed"]["seed_1337"]["numerics_changes"] = {"train-monotonic": [{}]}
    text = sweep.table(SweepResults.model_validate(found))
    assert "unequal budgets:** a warmer start" in text
    assert "Numerics changed between attempts of train-monotonic" in text
