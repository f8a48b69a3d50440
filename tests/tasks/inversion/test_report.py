"""What the report of the inversion study says follows from its numbers, and it says no more than they show."""

from typing import Any

import pytest

from flows import command
from storage.errors import CheckFailed
from tasks.findings.compare import compare
from tasks.findings.configuration import Metric
from tasks.inversion.final_results import Cell, FinalResults, _arm, descent_parts
from tasks.inversion.report import arm_tables, document, standing, verdict
from tasks.inversion.stages import SPLITS, TrainConfig, TrainResult, Trivial
from tasks.training.trained import Trained
from tests.flows.test_terminal import lines_at
from tests.tasks.inversion.tiny import finished

VALUES = {
    "none": {"0": 1.00, "1": 1.10, "2": 0.90, "3": 1.05},
    "adversarial": {"0": 1.11, "1": 1.19, "2": 1.01, "3": 1.15},
    "adversarial-as-published": {"0": 1.31, "1": 1.42, "2": 1.20, "3": 1.36},
}
PAIRS = [["adversarial", "none"], ["adversarial-as-published", "none"], ["adversarial-as-published", "adversarial"]]
METRIC = Metric(higher=False, pairs=PAIRS)
CELL = Trained(
    best_step=1, last_step=2, last=2.0, validations=[[2.0, 2.0]], clipped_share=0.0, largest_gradient_norm=1.0
)  # fmt: skip


def of(values: dict[str, dict[str, float]], min_seeds: int = 3, learned: bool = True) -> FinalResults:
    """The smoke study's results with other values."""
    found = FinalResults.read_file(finished().path("inversion-report") / "final_results.json")
    unlearned = () if learned else list(values)
    differences = [*compare({"": values}, {"": METRIC}, 0.95, min_seeds, unlearned).differences[""]]
    arms = {
        name: found.arms[name].model_copy(
            update={
                "values": of_arm,
                "mean": sum(of_arm.values()) / len(of_arm),
                "learned": learned,
                "cells": dict.fromkeys(of_arm, CELL),
                "out_of_distribution": found.arms[name].out_of_distribution.model_copy(update={"values": of_arm}),
            }
        )
        for name, of_arm in values.items()
    }
    runs = found.runs | {f"{name}-{seed}": found.runs[f"{name}-0"] for name in values for seed in "23"}
    changed = {
        "arms": arms,
        "runs": runs,
        "differences": differences,
        "descent_parts": descent_parts("none", arms, differences),
    }
    return found.model_copy(update=changed | {"min_seeds": min_seeds, "seeds": [0, 1, 2, 3], "learned_ratio": 0.9})


def answered(results: FinalResults) -> str:
    return verdict(results, results.against_reference)


def test_the_recorded_pilot_is_worse_than_predicting_zero() -> None:
    """It was called successful."""
    assert standing(0.0688, Trivial(zero=0.0584, mean=0.0343)) == "worse than predicting zero (0.0584)"
    assert standing(0.04, Trivial(zero=0.0584, mean=0.0343)) == "worse than predicting the mean (0.0343)"
    assert standing(0.0343, Trivial(zero=0.0584, mean=0.0343)) == "worse than predicting the mean (0.0343)"
    assert standing(0.0171, Trivial(zero=0.0584, mean=0.0343)) == "49.9% of predicting the mean (0.0343)"


BETTER = VALUES | {"adversarial": {seed: value - 0.2 for seed, value in VALUES["adversarial"].items()}}
SAME = VALUES | {name: dict(zip("0123", values, strict=True)) for name, values in {
    "adversarial": [1.02, 1.07, 0.93, 1.04], "adversarial-as-published": [0.99, 1.12, 0.88, 1.06]
}.items()}  # fmt: skip


@pytest.mark.parametrize(
    ("given", "said", "lacking"),
    [
        ({"values": BETTER}, "Yes: adversarial is better than none.", ""),
        ({"values": VALUES}, "No: adversarial is worse than none and adversarial-as-published is worse than none.", ""),
        ({"values": SAME}, "No difference is shown over 4 seeds.", "No difference is shown: adversarial"),
        (
            {"values": VALUES, "min_seeds": 5},
            "No difference is shown: 4 seeds are too few.",
            "Of fewer than 5 seeds nothing is called better",
        ),
        (
            {"values": VALUES, "learned": False},
            "Not shown: none itself is not shown to learn.",
            "**Not shown to learn: none, adversarial, adversarial-as-published.**",
        ),
    ],
)
def test_an_arm_is_called_better_or_worse_only_where_the_seeds_show_it(given: dict[str, Any], said: str, lacking: str):
    results = of(**given)
    assert answered(results) == said and lacking in " ".join(document(results).not_shown)
    shown = {one.arm for one in results.differences if one.better or one.worse}
    assert bool(shown) == (not said.startswith(("Not shown", "No difference is shown")))


def test_which_part_of_a_difference_is_the_descent_is_said() -> None:
    (part,) = [line for line in document(of(VALUES)).not_shown if "descent" in line]
    assert part == (
        "**The descent's part**: adversarial-as-published differs from none by +30.62%, and adversarial, the same with "
        "the corrected descent, by +10.12%. The descent makes +20.49%, 67% of the difference, which the seeds show."
    )
    assert "which is not shown to differ from none." in " ".join(document(of(VALUES, min_seeds=5)).not_shown)


def test_arms_that_differ_in_something_else_are_told_as_such_and_not_as_descents() -> None:
    """Seen in the study of steps: each number of them was called a descent, and one step the corrected one."""
    found = of(VALUES)
    other = found.arms["adversarial-as-published"]
    more = other.model_copy(
        update={"mining": other.mining.model_copy(update={"descent": "corrected", "descent_steps": 5})}
    )
    arms = found.arms | {"adversarial-as-published": more}
    assert descent_parts("none", arms, found.differences) == []
    said = document(found.model_copy(update={"arms": arms, "descent_parts": []})).not_shown
    assert "descent" not in " ".join(said)


def test_an_arm_that_has_not_learned_is_compared_with_nothing() -> None:
    results = of(VALUES, learned=False)
    assert "adversarial - none: not compared, as adversarial and none are not shown to learn" in document(results).lead
    table = arm_tables(results, "", results.arms, results.differences, Trivial(zero=3.0, mean=3.0))[1].markdown()
    assert "not learned: adversarial and none" in table and "**worse**" not in table
    assert "Not shown to learn" not in document(of(VALUES)).markdown()


@pytest.mark.parametrize(("errors", "learned"), [((0.4, 0.5), True), ((0.4, 0.6), False)])
def test_an_arm_has_learned_where_every_seed_came_as_low_as_was_required(errors: tuple[float, ...], learned: bool):
    stage = finished().input("inversion-train (none, seed 0)")
    facts = stage.configuration(TrainConfig), TrainResult.read(stage), ""
    cells = {str(seed): Cell(dict.fromkeys(SPLITS, error), CELL, *facts) for seed, error in enumerate(errors)}
    assert _arm(cells, 0.5, 0.95).learned == learned


def test_the_table_on_disk_is_that_of_the_results() -> None:
    path = finished().path("inversion-report")
    text = document(FinalResults.read_file(path / "final_results.json")).markdown()
    assert (path / "table.md").read_text().startswith(text.rstrip() + "\n\n## Provenance\n")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"adversarial": VALUES["none"]}, "none, seed 0 and adversarial, seed 0 have the same value"),
        ({"adversarial": {"0": 1.5, "1": 1.2, "3": 1.3}}, "no value of adversarial, seed 2"),
    ],
)
def test_equal_arms_and_missing_cells_end_the_report(change: dict[str, Any], said: str) -> None:
    """Forty runs of the recorded study were one configuration, and three of them had the same error."""
    with pytest.raises(CheckFailed, match=said):
        compare({"inside": VALUES, "outside": VALUES | change}, {"inside": METRIC, "outside": METRIC}, 0.95, 3)


POINTS = [[10.0, 5.0], [20.0, 3.0], [30.0, 4.0], [40.0, 3.5], [50.0, 2.0], [60.0, 9.0]]


def test_late_divergence_is_told_with_the_seed_and_both_steps() -> None:
    found = of(VALUES)
    cell = CELL.model_copy(update={"best_step": 50, "last_step": 60, "last": 9.0, "validations": POINTS})
    arm = found.arms["none"].model_copy(update={"values": {"0": 2.0}, "mean": 2.0, "cells": {"0": cell}})
    table = document(found.model_copy(update={"arms": found.arms | {"none": arm}})).markdown()
    assert "- **none diverges late**: with seed 0 the error is 2 at step 50, which was kept, and 9 at step 60." in table


def test_the_study_ends_in_a_terminal_with_its_answer_in_at_most_15_lines(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.ratchet(["run", "inversion", "--profile", "smoke", "--root", str(finished().root)]) == 0
    printed, result = capsys.readouterr().out, finished().result("inversion-report")
    assert lines_at(80, printed) <= 15 and all(line in printed for line in result["answer"])
