"""Several cells of chance compare the arms: means over them, and intervals that know of cells and of sources.

The cells are copies of the tiny study's aggregate, edited and sealed again: each is one training of every arm.
"""

import copy
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from deployments.dag.sweep import SWEEP
from flows.robustness import METRICS_OF_A_SWEEP, SWEEP_SEEDS, sweep_stage
from storage import durable, markers
from storage.errors import CheckFailed
from storage.locks import acquire
from storage.run_directory import RunDirectory
from tasks.attacks.results import ATTACKS
from tasks.findings.sweep.configuration import SweepConfig
from tasks.robustness import aggregate
from tasks.robustness.report import MODELS
from tasks.stage.run import StageInput
from tests.conftest import REPOSITORY
from tests.tasks.tiny import finished_study, stage_run, tiny_study

ARMS = ("baseline", "monotonic", "random-signs")
SEEDS = (42, 1337, 2024)


@dataclass
class Cell:
    """final_results.json and the records of both attacks, to edit."""

    numbers: dict[str, Any]
    records: dict[str, list[dict[str, Any]]]

    def rows(self, model: str, attack: str = "hotflip") -> list[dict[str, Any]]:
        return [row for row in self.records[attack] if row["model"] == model]

    def added(self, model: str, attack: str = "hotflip") -> float:
        """What the attack adds, in nats per scored token."""
        rows = self.rows(model, attack)
        risen = sum(row["loss_sum_nats"] - row["clean_loss_sum_nats"] for row in rows)
        return risen / sum(row["tokens_scored"] for row in rows)

    def set_added(self, model: str, increase: Callable[[int], float]) -> None:
        """The number of a document -> what hotflip adds there, in nats per scored token."""
        for number, row in enumerate(self.rows(model)):
            row["loss_sum_nats"] = row["clean_loss_sum_nats"] + increase(number) * row["tokens_scored"]


@cache
def _real() -> Cell:
    folder = finished_study().path("aggregate")
    rows = {attack: pq.read_table(folder / f"{attack}.parquet").to_pylist() for attack in ATTACKS}
    return Cell(durable.read_json(folder / "final_results.json"), rows)


def cell(number: int) -> Cell:
    """Another training of the same: other weights, losses further apart; alive, and with an answer."""
    made = copy.deepcopy(_real())
    for place, arm in enumerate(ARMS):
        facts = made.numbers["arms"][arm]
        facts["weights_digest"] = durable.sha256_json([arm, number])
        facts["alive_share"] = 1.0 if arm == "baseline" else 0.5 + 0.1 * number
        made.numbers["models"][arm]["loss_nats_per_token"] += 0.01 * place * number**2
        made.set_added(arm, lambda document, place=place: 0.6 + 0.001 * (document % 2) + 0.001 * number * place)
    made.numbers["primary"] |= {"unanswered": None, "difference": {"value": 0.0, "interval": None}, "answer": None}
    return made


@pytest.fixture
def cells() -> list[Cell]:
    return [cell(number) for number in range(3)]


def finished(root: Path, cells: list[Cell]) -> dict[str, StageInput]:
    """Role -> aggregate of one cell, finished below `root`."""
    real, inputs = finished_study().path("aggregate"), {}
    for number, made in enumerate(cells):
        run = RunDirectory(root, "tiny", "aggregate", durable.sha256_json(number))
        shutil.copytree(real, run.path, ignore=shutil.ignore_patterns("COMPLETE.json", "locks"))
        durable.write_json(run.path / "final_results.json", made.numbers)
        for attack, rows in made.records.items():
            (run.path / f"{attack}.parquet").unlink()
            pq.write_table(pa.Table.from_pylist(rows), run.path / f"{attack}.parquet")
        lock = acquire(run.path / "locks")
        outputs = ["final_results.json", *(f"{attack}.parquet" for attack in made.records)]
        inputs[f"seed {SEEDS[number]}"] = StageInput(run, markers.write(run, outputs, {}, lock).outputs_digest)
        lock.release()
    return inputs


def swept(folder: Path, inputs: dict[str, StageInput], **changed: Any) -> tuple[dict[str, Any], str]:
    """What the sweep returned, and its table."""
    run = stage_run(folder / "out")
    run.run = replace(run.run, root=folder / "runs")
    named = {f"seed {seed}": [seed] for seed, _ in zip(SEEDS, inputs, strict=False)}
    config = SweepConfig(
        **({"study": "tiny", "keys": ["seed"], "cells": named, "metrics": METRICS_OF_A_SWEEP} | changed)
    )
    result = aggregate.sweep_seeds(run, config, **inputs)
    drawn = ["figures/answer.svg"] * any("nats per token (" in one for one in result.answer)
    assert result.figures[: len(drawn)] == drawn
    return durable.read_json(run.directory / "final_results.json"), (run.directory / "table.md").read_text()


def of_cells(folder: Path, cells: list[Cell]) -> tuple[dict[str, Any], str]:
    return swept(folder, finished(folder / "runs", cells))


def test_what_an_attack_adds_is_compared_over_cells_and_sources_together(tmp_path: Path, cells: list[Cell]):
    found, table = of_cells(tmp_path, cells)
    over = found["primary"]["difference"]
    values = [made.added("monotonic") - made.added("baseline") for made in cells]
    assert over["of_seeds"] == pytest.approx(values) and over["value"] == pytest.approx(sum(values) / 3)
    assert over["sources"] == len({row["source"] for row in cells[0].rows("base")})
    assert over["standard_error_of_seeds"] > 0 and over["standard_error_of_sources"] >= 0
    assert over["interval"][0] < over["value"] < over["interval"][1] and "over 3 trainings of each" in table


def set_at_equal_loss(made: Cell, arm: str, nats: float | None) -> None:
    """What hotflip adds on the arm, less what it adds at the same clean loss without constraint."""
    (row,) = [row for row in made.numbers["attacks"]["hotflip"]["at_equal_loss"] if row["model"] == arm]
    row["increase_nats_per_token"] = None if nats is None else {"value": nats, "interval": None, "p_value": None}


def test_the_answer_over_cells_says_in_how_many_other_ways_no_difference_is_shown(tmp_path: Path, cells: list[Cell]):
    alone = "with the search on each model alone"
    for number, made in enumerate(lowered(cells, "monotonic")):
        set_at_equal_loss(made, "monotonic", -0.3 - 0.001 * number)
        found = made.numbers["primary"]["by_fewer_attacks"]
        for way in found:
            nats = (-0.3, 0.1, -0.2)[number] if way == alone else -0.3 - 0.001 * number
            found[way] = {"value": nats, "interval": None, "p_value": None}
    found, table = of_cells(tmp_path, cells)
    ways = found["primary_in_other_ways"]
    assert ways[alone]["value"] == pytest.approx(-0.4 / 3) and ways[alone]["interval"][1] > 0
    assert ways["at equal clean loss"]["value"] == pytest.approx(-0.301)
    assert "**Not shown: not there in 1 of 3 other ways to count.**" in table
    assert f"in 1 of 3 other ways to count, by Student's t over cells alone ({alone}), and" in table
    assert f"| monotonic - baseline, {alone} " in table


def test_a_caution_names_its_cells_where_it_is_not_of_all(tmp_path: Path, cells: list[Cell]):
    cells[1].numbers["numerics_changes"] = {"monotonic": [{}]}
    _, table = of_cells(tmp_path, cells)
    assert f"- **Numerics changed between attempts of monotonic** in seed {SEEDS[1]}." in table.splitlines()


def lowered(cells: list[Cell], *arms: str) -> list[Cell]:
    """The cells where hotflip adds half as much on these arms."""
    for number, made in enumerate(cells):
        for arm in arms:
            made.set_added(arm, lambda document, number=number: 0.3 + 0.001 * (document % 2) + 0.001 * number)
    return cells


def other_ways(cells: list[Cell], unknown: int | None = None) -> list[Cell]:
    """The cells where every other way to count says the same, but of one cell what it adds at equal clean loss."""
    for number, made in enumerate(cells):
        set_at_equal_loss(made, "monotonic", None if number == unknown else -0.3)
        for way in (found := made.numbers["primary"]["by_fewer_attacks"]):
            found[way] = {"value": -0.3 - 0.001 * number, "interval": None, "p_value": None}
    return cells


def test_a_difference_beyond_every_placebo_lacks_another_base_model(tmp_path: Path, cells: list[Cell]):
    found, table = of_cells(tmp_path, other_ways(lowered(cells, "monotonic")))
    difference = found["primary"]["difference"]
    assert found["primary"]["answer"]["answer"] == "differs" and difference["value"] < -0.29
    assert difference["interval"][1] < 0 and "3 trainings of each)" in table
    assert "**Perhaps: " in table and "because all of them train from one base model. It is less than on every" in table


def test_a_way_that_a_cell_does_not_know_is_not_there(tmp_path: Path, cells: list[Cell]):
    _, table = of_cells(tmp_path, other_ways(lowered(cells, "monotonic"), unknown=1))
    assert "1 of 3 other ways to count, by Student's t over cells alone (at equal clean loss), and all of" in table


def test_a_placebo_that_lives_in_some_cells_only_is_named_and_not_passed_over(tmp_path: Path, cells: list[Cell]):
    other_ways(lowered(cells, "monotonic"))
    cells[1].numbers["arms"]["random-signs"]["alive_share"] = 0.02
    cells[1].numbers["primary"]["from_placebos"] = {}
    found, table = of_cells(tmp_path, cells)
    assert found["primary"]["from_placebos"] == {}
    assert "random-signs, living in some cells only, was not compared" in table and "It is less than" not in table


@pytest.mark.parametrize(
    ("arms", "answer", "sign", "said"),
    [
        (["monotonic", "random-signs"], "differs", -1, "No: not told apart from a placebo."),
        (["baseline", "random-signs"], "differs", 1, "No: easier to attack than the baseline."),
        ([], "equivalent", 0, "No: as hard to attack, within the margin."),
    ],
)
def test_what_is_no_claim_for_the_constraint(
    tmp_path: Path, cells: list[Cell], arms: list[str], answer: str, sign: int, said: str
):
    found, table = of_cells(tmp_path, lowered(cells, *arms))
    assert found["primary"]["answer"]["answer"] == answer
    assert sign * found["primary"]["difference"]["value"] > 0.29 or (not sign and "equivalent" in answer)
    assert f"**{said}**" in table and "- That the constraint makes the model harder to attack, " in table


def test_cells_that_disagree_leave_the_question_undecided(tmp_path: Path, cells: list[Cell]):
    cells[0].set_added("monotonic", lambda _: 0.9)
    found, _ = of_cells(tmp_path, lowered(cells[:2], "baseline"))
    assert found["primary"]["answer"]["answer"] == "undecided"


def test_a_cell_without_an_answer_leaves_the_sweep_without_one(tmp_path: Path, cells: list[Cell]):
    cells[1].numbers["primary"] |= {"unanswered": "the constrained layers of monotonic are dead", "difference": None}
    found, table = of_cells(tmp_path, cells)
    assert found["primary"]["answer"] is None and found["primary"]["difference"] is None
    assert "**Not answered: the constrained layers of monotonic are dead.**" in table


def test_an_arm_that_is_dead_in_the_mean_stands_in_bold(tmp_path: Path, cells: list[Cell]):
    for made, share in zip(cells, (0.01, 0.2, 0.02), strict=True):
        made.numbers["arms"]["random-signs"]["alive_share"] = share
    _, table = of_cells(tmp_path, cells)
    assert "| **random-signs (dead)** |" in table and "**monotonic (dead)**" not in table
    assert not re.search(r"\| (\w+, )?random-signs +\|", table), "in every table"
    dead = f"- **The constrained layers of random-signs are dead** in seed {SEEDS[0]}, seed {SEEDS[2]}."
    assert dead in table.split("\n## ")[0].splitlines()
    page = (tmp_path / "out").rglob("report.html")
    assert "<strong>random-signs (dead)</strong>" in next(page).read_text()


def test_a_cell_that_stopped_is_shown_as_missing(tmp_path: Path, cells: list[Cell]):
    inputs = finished(tmp_path / "runs", cells[:2])
    named = {f"seed {seed}": [seed] for seed in (*SEEDS[:2], 7)}
    found, table = swept(tmp_path, inputs, cells=named, missing=["seed 7"])
    assert "- Missing, because a stage stopped: seed 7." in table.split("\n## ")[0]
    assert [name for name, cell in found["cells"].items() if cell["run"] is None] == ["seed 7"]
    assert re.search(r"\| +7 \|( missing +\|)+ - ", table)
    assert len(found["primary"]["difference"]["of_seeds"]) == 2


def test_every_cell_and_arm_has_its_effects_and_names_its_run(tmp_path: Path, cells: list[Cell]):
    found, table = of_cells(tmp_path, cells)
    for of_cell, made in zip(found["cells"].values(), cells, strict=True):
        assert (tmp_path / "runs" / of_cell["run"] / "COMPLETE.json").is_file()
        assert f"| {Path(of_cell['run']).name} |" in table
        for attack, findings in made.numbers["attacks"].items():
            for arm in ARMS:
                effect = findings["effects"][arm]
                expected = {
                    f"increase by {attack}": effect["increase_nats_per_token"]["value"],
                    f"control increase by {attack}": effect["control_increase_nats_per_token"]["value"],
                    f"blind increase by {attack}": effect["blind_increase_nats_per_token"]["value"],
                    f"clean loss of {attack}": effect["clean_loss_nats_per_token"],
                }
                if attack == "hotflip":
                    expected["success rate"] = effect["success_rate"]["value"]
                assert {title: of_cell["numbers"][title][arm] for title in expected} == expected


@pytest.mark.parametrize("arm", ARMS)
def test_two_cells_with_the_same_weights_are_one_training_and_refused(tmp_path: Path, cells: list[Cell], arm: str):
    weights = cells[0].numbers["arms"][arm]["weights_digest"]
    cells[2].numbers["arms"][arm]["weights_digest"] = weights
    with pytest.raises(CheckFailed, match=rf"weights of its own: .* seed 42, {arm} and seed 2024, {arm}: equal"):
        of_cells(tmp_path, cells)


@pytest.mark.parametrize("file", ["final_results.json", "hotflip.parquet"])
def test_a_cell_s_results_that_were_edited_are_refused(tmp_path: Path, cells: list[Cell], file: str):
    inputs = finished(tmp_path / "runs", cells)
    edited = inputs["seed 1337"].path / file
    edited.write_bytes(edited.read_bytes().replace(b"monotonic", b"monotonix", 1))
    with pytest.raises(CheckFailed, match=rf"{file} was edited"):
        swept(tmp_path, inputs)


@pytest.mark.parametrize(
    ("keys", "missing", "stage"),
    [
        (["seed"], [], SWEEP_SEEDS),
        (["model.init_seed"], [], SWEEP_SEEDS),
        (["seed", "model.init_seed"], [], SWEEP_SEEDS),
        (["constraint.variant"], [], SWEEP),
        (["seed", "constraint.variant"], [], SWEEP),
        (["seed"], ["b"], SWEEP),
    ],
)
def test_cells_of_chance_alone_compare_the_arms_and_all_others_stand_side_by_side(
    keys: list[str], missing: list[str], stage: object, tmp_path: Path
):
    study = tiny_study(tmp_path, evaluation={"bootstrap_resamples": 100, "confidence_level": 0.9})
    config = SweepConfig(study="tiny", keys=keys, cells={"a": [1], "b": [2]}, missing=missing)
    taken, given = sweep_stage(study, config)
    assert taken is stage and given.confidence_level == 0.9


def headers(text: str) -> set[tuple[str, ...]]:
    """The columns of each table, without those that stand for models and cells."""
    lines = text.splitlines()
    rows = [before for before, line in pairwise(lines) if line.startswith("| ---") and before.startswith("| ")]
    cells = [[cell.strip().strip("*").removesuffix(" (dead)") for cell in row.split("|")[1:-1]] for row in rows]
    kept = lambda cell: cell not in MODELS and not re.match(r"on |[\w.]*seed \d+$", cell)  # noqa: E731
    return {tuple(filter(kept, row)) for row in cells}


def test_the_results_that_are_shown_have_the_columns_of_the_tables_that_are_made(tmp_path: Path, cells: list[Cell]):
    lines = (REPOSITORY / "docs" / "results.md").read_text().splitlines()
    shown = headers("\n".join(line[2:] for line in lines if line.startswith("> ")))
    _, table = of_cells(tmp_path, cells)
    study = (finished_study().path("aggregate") / "table.md").read_text()
    assert shown and shown <= headers(table) | headers(study)
