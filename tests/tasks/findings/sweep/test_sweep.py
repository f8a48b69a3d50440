"""The stage over the cells of a sweep: every cell's numbers, means over seeds, and what is missing."""

from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from storage import durable, markers
from storage.errors import BadInput, CheckFailed
from storage.locks import acquire
from storage.run_directory import RunDirectory
from tasks.findings.publish import Published
from tasks.findings.sweep.configuration import SweepConfig, Swept
from tasks.findings.sweep.results import Numbers, SweepResults, numbers_of
from tasks.findings.sweep.sweep import sweep
from tasks.stage.run import StageInput
from tests.tasks.tiny import stage_run

T_975_OF_TWO = 12.706204736432095
FILES = ("table.md", "report.html")
CELLS = {f"seed {seed}, width {width}": [seed, width] for seed in (1, 2) for width in ("narrow", "wide")}


def finished(root: Path, name: str, result: dict[str, Any], final: dict[str, Any] | None = None) -> StageInput:
    run = RunDirectory(root, "toy", "fit", durable.sha256_json(name))
    run.path.mkdir(parents=True)
    durable.write_json(run.stage_file, {"version": 1, "numerics": {}, "external": {}})
    durable.write_json(run.result_file, result)
    if "trivial" in result:
        run.metrics_file.write_bytes(durable.canonical_json({"step": 1, **result}) + b"\n")
    if final is not None:
        durable.write_json(run.path / "final_results.json", final)
    lock = acquire(run.path / "locks")
    outputs = ["result.json", *(["final_results.json"] if final is not None else [])]
    digest = markers.write(run, outputs, {}, lock).outputs_digest
    lock.release()
    return StageInput(run, digest)


def made(folder: Path, given: dict[str, dict[str, Any]], **fields: Any) -> tuple[Published, Path]:
    """The sweep over cells with these results, and its folder."""
    inputs = {name: finished(folder / "runs", name, result) for name, result in given.items()}
    run = stage_run(folder / "out")
    run.run = replace(run.run, root=folder / "runs")
    return sweep(run, SweepConfig(**({"study": "toy"} | fields)), **inputs), run.directory


def loss(seed: int, width: str) -> float:
    return {"narrow": 2.0, "wide": 1.0}[width] + seed / 10


def swept(folder: Path, missing: list[str], **fields: Any) -> tuple[SweepResults, str, str]:
    """Results, table and report of the toy sweep without the cells that are missing."""
    given = {
        name: {"loss": {"test": loss(*values)}, "letters": 26, "ok": True}
        for name, values in CELLS.items()
        if name not in missing
    }
    published, out = made(folder, given, keys=["seed", "width"], cells=CELLS, missing=missing, **fields)
    for figure in published.figures:
        ElementTree.parse(out / figure)
    return SweepResults.read_file(out / "final_results.json"), *((out / name).read_text() for name in FILES)


def by_metric(stage: StageInput, declared: list[Swept]) -> Numbers:
    found: Numbers = {}
    for title, label, number, _ in numbers_of(stage, declared):
        found.setdefault(title, {})[label] = number
    return found


def swept_as(title: str, numbers: str) -> Swept:
    return Swept(title=title, numbers=numbers, higher=None)


def rows(table: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines() if line.startswith("|")]


def test_seeds_give_a_mean_with_its_interval_for_each_combination_of_the_other_keys(tmp_path):
    results, table, report = swept(tmp_path, [])
    assert [*results.means["loss"]] == ["width narrow", "width wide"]
    mean = results.means["loss"]["width narrow"]
    half = T_975_OF_TWO * 0.1 / 2
    assert mean.mean == pytest.approx(2.15) and len(mean.values) == 2
    assert mean.interval == pytest.approx([2.15 - half, 2.15 + half])
    assert ["width narrow", "2", "2.15", f"{2.15 - half:.6g} to {2.15 + half:.6g}", "0.0707"] in rows(table)
    for name, (seed, width) in CELLS.items():
        assert [str(seed), width, f"{loss(seed, width):.6g}", results.runs[name].rsplit("/", 1)[-1]] in rows(table)
    assert report.count("<svg") == 2 and "width wide" in report and "missing" not in table
    assert ["letters", "26"] in rows(table), "what nothing varied here changes stands apart"
    assert "is better" not in table + report


def test_a_missing_cell_is_shown_as_missing_in_table_figure_and_results(tmp_path):
    lost = "seed 2, width wide"
    results, table, report = swept(tmp_path, [lost], causes={lost: "fit: check failed"})
    assert results.missing == [lost] and list(results.cells) == list(CELLS)
    assert ["2", "wide", "missing", "-"] in rows(table)
    assert ["width wide", "1", "1.1", "none (one value)", "-"] in rows(table), "one seed has no interval"
    assert f"Missing, because a stage stopped: {lost} (fit: check failed)." in table and lost in report
    assert "width wide (1 missing)" in report and "3 of 4 cells" in report


def test_a_combination_that_is_missing_for_every_seed_is_shown(tmp_path):
    _, table, report = swept(tmp_path, ["seed 1, width wide", "seed 2, width wide"])
    assert ["1", "wide", "missing", "-"] in rows(table) and "width wide (missing)" in report


def test_cells_that_gave_the_same_are_named(tmp_path):
    _, table, _ = swept(tmp_path, [], metrics=[swept_as("letters", "letters")])
    assert "Equal in every number: seed 1, width narrow and seed 1, width wide; " in table


def test_numbers_are_the_scalars_of_the_final_results_else_of_the_result(tmp_path):
    result = {"steps": 3, "done": True, "name": "x", "curve": [1, 2], "numerics_changes": {"a": 1}}
    assert by_metric(finished(tmp_path, "one", result), []) == {"steps": {"": 3.0}}
    final = {"loss": {"a b": 0.5, "c": {"d": 1}}}
    both = finished(tmp_path, "both", result, final)
    assert by_metric(both, []) == {"loss": {"a b": 0.5}, "loss.c": {"d": 1.0}}
    assert by_metric(both, [swept_as("{of}, d", "loss.{of}.d")]) == {"c, d": {"": 1.0}}
    with pytest.raises(BadInput, match=r"final_results\.json has no number that a sweep could show \(perplexity\)"):
        numbers_of(both, [swept_as("perplexity", "perplexity")])


def test_results_that_were_edited_are_refused(tmp_path):
    cells = {name: finished(tmp_path, name, {"loss": 1.0}) for name in ("seed 1", "seed 2")}
    file = cells["seed 1"].run.result_file
    file.write_text(file.read_text().replace("1.0", "0.5"))
    config = SweepConfig(study="toy", keys=["seed"], cells={"seed 1": [1], "seed 2": [2]})
    with pytest.raises(CheckFailed, match=r"result\.json was edited"):
        sweep(stage_run(tmp_path / "out"), config, **cells)


def test_numbers_of_one_metric_stand_beside_each_other_in_table_and_figure(tmp_path):
    """A method, its trivial baseline, and how both depend on the key."""
    cells = {f"width {width}, seed {seed}": [width, seed] for width in (1, 4, 16) for seed in (1, 2)}
    lost = "width 16, seed 2"
    given = {
        name: {"loss": {"chance": 3.0, "dropout 0.2": 1 / width + seed / 100}}
        for name, (width, seed) in cells.items()
        if name != lost
    }
    _, out = made(tmp_path, given, keys=["width", "seed"], cells=cells, missing=[lost])
    report, table = (out / "report.html").read_text(), rows((out / "table.md").read_text())
    assert ["width", "seed", "chance", "dropout 0.2", "run"] in table
    assert ["16", "2", "missing", "missing", "-"] in table
    assert ["dropout 0.2, width 1", "2", "1.015", "0.951469 to 1.07853", "0.00707"] in table
    assert ["chance, width 16", "1", "3", "none (one value)", "-"] in table
    assert "dropout 0.2, width 4: 0.26, 0.27; dropout 0.2, width 16 (1 missing): 0.0725." in report


def test_a_page_declares_its_metrics_and_of_two_attacks_nothing_is_compared_with_the_others(tmp_path):
    of_page = [
        Swept(title="loss", numbers="models.{arm}.loss", higher=False, pairs=[["b", "a"]], unit="nats"),
        swept_as("increase by {attack}", "attacks.{attack}.{arm}"),
        swept_as("filled", "filled.{arm}_dim"),
        Swept(title="steps", numbers="models.{of}.steps", higher=None, compared=False),
    ]
    values = {
        "models": {"a": {"loss": 1}, "b": {"loss": 2, "steps": 3}, "c": None},
        "attacks": {attack: {"a": 1.0, "b@0.5": 1.0} for attack in ("x", "y")},
        "filled": {"mae_dim": 1, "neighbour_mae_dim": 2, "mae_bright": 3},
    }
    stage = finished(tmp_path, "one", values)
    assert {title: [*numbers] for title, numbers in by_metric(stage, of_page).items()} == {
        "loss": ["a", "b"], "increase by x": ["a", "b@0.5"], "increase by y": ["a", "b@0.5"],
        "filled": ["mae", "neighbour_mae"], "steps": [""],
    }  # fmt: skip
    assert [title for title, *_, metric in numbers_of(stage, of_page) if metric is None] == ["steps"]
    loss = next(metric for title, *_, metric in numbers_of(stage, of_page) if title == "loss")
    assert (loss.higher, loss.pairs, loss.unit) == (False, [["b", "a"]], "nats")


@pytest.mark.parametrize(
    ("values", "numbers", "higher"),
    [
        (
            {"fit": {"best_loss": 1, "best_f1": 0.5, "steps": 9, "metrics": {"best_f1": {"higher": True}}}, "kept": 3},
            {"best_f1": {"fit": 0.5}, "fit": {"best_loss": 1, "steps": 9}, "kept": {"": 3}},
            {"best_f1": True, "kept": None},
        ),
        (
            {"f1": {"up": 1, "down": 2}, "metrics": {"f1": {"higher": True, "pairs": [["up", "down"]]}}},
            {"f1": {"up": 1, "down": 2}},
            {"f1": True},
        ),
        ({"metrics": {"f1": 0.9}, "best_step": True}, {"metrics": {"f1": 0.9}}, {"metrics": None}),
    ],
    ids=["of a training", "of a report", "numbers that are called so"],
)
def test_who_makes_the_numbers_declares_which_are_metrics_and_what_stands_beside_them_is_none(
    values, numbers, higher, tmp_path
):
    stage = finished(tmp_path, "one", values)
    assert by_metric(stage, []) == numbers
    assert {title: metric.higher for title, *_, metric in numbers_of(stage, []) if metric} == higher


def test_a_sweep_says_which_of_its_trainings_learned_nothing(tmp_path):
    learned, nothing = ({"trivial": {"mean": 1.0}, "ratio_to_trivial": ratio} for ratio in (0.9, 1.0))
    given = {
        name: {"loss": float(number), **(nothing if number == 2 else learned)} for number, name in enumerate(CELLS)
    }
    _, out = made(tmp_path, given, keys=["seed", "width"], cells=CELLS)
    assert all("1 of 4 trainings is no better than mean" in (out / file).read_text() for file in FILES)
