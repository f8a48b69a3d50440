"""What the report of the direction study says follows from its numbers, and it says no more than they show."""

import re
from typing import Any

import pytest

from flows import command, icecube
from storage import durable
from storage.errors import CheckFailed
from tasks.findings.sweep.results import numbers_of
from tasks.icecube import report
from tasks.icecube.final_results import ANGLE, FinalResults, TrialFacts, TrialSeed, _end, trial_facts
from tasks.icecube.stages import TrainConfig
from tasks.training.budget import Budget, LearningGate
from tasks.training.schedule import Schedule
from tasks.training.trained import Trained as Course
from tests.docs.quotes import document
from tests.flows.test_terminal import lines_at
from tests.tasks.icecube.tiny import finished

TRIVIAL = 88.0


def ended(seed: int, how: str, degrees: float | None) -> TrialSeed:
    failed = "the loss at step 2" if how == "numerical_failure" else None
    return TrialSeed(seed=seed, ended=how, validation_angle_degrees=degrees, failed=failed, gradient_norm_max=3.0)


def trial(*by_seed: tuple[str, float | None], **changes: Any) -> TrialFacts:
    return trial_facts(changes, [ended(seed, *one) for seed, one in enumerate(by_seed, 1)], 0.25, TRIVIAL)


HEALED, BAD = [("finished", 5.0), ("finished", 9.0)], [("numerical_failure", None), ("not_learning", 87.0)]
NORMALISED = {"inputs": "normalised"}


def of(**trials: TrialFacts) -> FinalResults:
    """The smoke study's results with other trials."""
    found = FinalResults.read_file(finished().path("icecube-report") / "final_results.json")
    named = {name.replace("_", "-"): one for name, one in trials.items()}
    trivial = found.trivial.model_copy(update={"best_constant_degrees": TRIVIAL})
    runs = found.runs | {f"{name}-{seed}": found.runs["look"] for name, one in named.items() for seed in one.seeds}
    return found.model_copy(update={"trials": named, "trivial": trivial, "runs": runs})


@pytest.mark.parametrize(
    ("by_seed", "worst", "healed", "learned"),
    [
        (HEALED, ("finished", 2), True, 2),
        ([("finished", 5.0), ("finished", 22.1)], ("finished", 2), False, 2),
        ([("finished", 5.0), ("finished", 22.0)], ("finished", 2), True, 2),
        ([("finished", 79.3), ("finished", 5.0)], ("finished", 1), False, 1),
        ([("not_learning", 87.0), ("finished", 5.0)], ("not_learning", 1), False, 1),
        ([("not_learning", 80.0), ("finished", 85.0)], ("not_learning", 1), False, 0),
        ([("not_learning", 5.0), ("not_learning", 87.0)], ("not_learning", 2), False, 0),
        ([("finished", 5.0), ("numerical_failure", None)], ("numerical_failure", 2), False, 1),
        ([("numerical_failure", None), ("numerical_failure", None)], ("numerical_failure", 1), False, 0),
    ],
)
def test_the_worst_seed_stands_for_a_trial(by_seed: Any, worst: tuple[str, int], healed: bool, learned: int):
    found = trial(*by_seed)
    assert (found.seeds[str(found.seed)].ended, found.seed, found.healed, found.learned_seeds) == (
        *worst,
        healed,
        learned,
    )


AS_FOUND, NORMALISE = trial(*BAD), trial(*HEALED, **NORMALISED)
DROPOUT, WITH_DROPOUT = trial(*BAD, dropout=0.1), trial(*HEALED, dropout=0.1)
BUNDLE = trial(*HEALED, dropout=0.1, **NORMALISED)
OTHER_RATE = trial(*HEALED, learning_rate=1e-4, **NORMALISED)
ONE_SEED = {
    "as_found": trial(BAD[0]), "normalise": trial(HEALED[0], **NORMALISED), "dropout": trial(BAD[0], dropout=0.1)
}  # fmt: skip
NOT_TOLD_APART = "Healed by {}; what was the cause is not told apart."
CASES: dict[str, tuple[dict[str, TrialFacts], str, str]] = {
    "scaling alone heals": (
        {"as_found": AS_FOUND, "normalise": NORMALISE, "dropout": DROPOUT},
        "Raw inputs: scaling them alone heals, and nothing that leaves them raw does.",
        "Not healed by dropout (1 of 2 not finite, 1 of 2 not learning).",
    ),
    "learned from raw inputs too, however far from healed": (
        {
            "as_found": AS_FOUND, "normalise": NORMALISE,
            "dropout": trial(("finished", 35.0), ("finished", 37.0), dropout=0.1),
        },
        "Raw inputs were a cause, and not alone: scaling them alone heals, and nothing that leaves them raw does.",
        "Not healed by dropout (35.0 to 37.0 degrees).",
    ),
    "one seed": (
        ONE_SEED,
        "Perhaps raw inputs: scaling them alone heals, and nothing that leaves them raw does, but with one seed no "
        "cause is named (trial_seeds).",
        "Not healed by dropout (1 of 1 not finite).",
    ),
    "another change heals too": (
        {"as_found": AS_FOUND, "normalise": NORMALISE, "dropout": WITH_DROPOUT},
        NOT_TOLD_APART.format("normalise and dropout"),
        "Every trial has the same short budget.",
    ),
    "nothing as found": ({"normalise": NORMALISE, "dropout": DROPOUT}, NOT_TOLD_APART.format("normalise"), "dropout"),
    "nothing else tried": ({"as_found": AS_FOUND, "normalise": NORMALISE}, NOT_TOLD_APART.format("normalise"), ""),
    "only a bundle": (
        {"as_found": AS_FOUND, "bundle": BUNDLE, "dropout": DROPOUT},
        NOT_TOLD_APART.format("bundle"),
        "Not healed by dropout",
    ),
    "only with another rate": (
        {"as_found": AS_FOUND, "bundle": OTHER_RATE, "dropout": DROPOUT},
        NOT_TOLD_APART.format("bundle"),
        "Not healed by dropout",
    ),
    "one way to scale did not": (
        {
            "as_found": AS_FOUND, "normalise": trial(*BAD, **NORMALISED), "batch_norm": trial(*HEALED, batch_norm=True),
            "dropout": DROPOUT,
        },
        NOT_TOLD_APART.format("batch-norm"),
        "Not healed by normalise (1 of 2 not finite, 1 of 2 not learning); dropout",
    ),
    "nothing healed": ({"as_found": AS_FOUND}, "Not found: no trial healed the training.", ""),
    "nothing to heal": (
        {"as_found": trial(*HEALED), "dropout": DROPOUT},
        "Nothing was to heal: as found the training learned.",
        "Not healed by dropout",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_a_cause_is_named_only_where_the_trials_show_it(case: str):
    trials, said, lacking = CASES[case]
    found = report.document(of(**trials))
    assert found.verdict == said and lacking in " ".join(found.not_shown)
    assert ("; as found: " in found.lead) == ("as_found" in trials and not trials["as_found"].healed)


def test_a_trial_means_what_it_changes_whatever_it_is_called():
    """Seen: the control had to be called as-found, and the trial of the inputs normalise, or the study was refused."""
    usual = {"as_found": AS_FOUND, "normalise": NORMALISE, "dropout": DROPOUT}
    renamed = dict(zip(("plain", "scaled", "forgetful"), usual.values(), strict=True))
    said, other = (report.document(of(**trials)).verdict for trials in (usual, renamed))
    assert said == other and said.startswith("Raw inputs: ")


@pytest.mark.parametrize(
    ("validations", "last", "early", "said"),
    [
        ([[10.0, 80.0], [20.0, 60.0]], 20, None, "finished"),
        ([[10.0, 86.0]], 10, None, "not_learning"),
        ([[5.0, 86.0]], 5, None, None),
        ([[10.0, 60.0]], 10, None, None),
        ([[10.0, 60.0], [20.0, 50.0]], 21, None, None),
        ([[10.0, 60.0], [15.0, 70.0]], 15, 1, "finished"),
        ([[5.0, 85.0], [8.0, 86.0]], 8, 1, "not_learning"),
        ([], 0, None, None),
    ],
)
def test_the_end_of_a_trial_is_that_of_its_budget(validations: Any, last: int, early: int | None, said: str | None):
    gate = LearningGate(max_ratio=0.9, by_step=10)
    budget = Budget(steps=20, learning_rate=1e-3, not_learning=gate, patience_validations=early)
    if said is None:
        with pytest.raises(CheckFailed, match="the trial ends as its budget has it"):
            _end("the trial", Schedule(budget, 100), validations, last, TRIVIAL)
    else:
        assert _end("the trial", Schedule(budget, 100), validations, last, TRIVIAL) == said


def test_a_training_at_another_rate_than_the_recommended_one_is_refused():
    given = finished().input("icecube-train")
    budget = given.configuration(TrainConfig).budget
    assert Course.of("the training", given, ANGLE, budget, 200).best_step
    with pytest.raises(CheckFailed, match="the learning rate of the training at step"):
        Course.of("the training", given, ANGLE, budget.model_copy(update={"learning_rate": 0.5}), 200)


def test_every_row_of_numbers_names_its_run_and_the_table_on_disk_is_that_of_the_results():
    path = finished().path("icecube-report")
    text = document("icecube", path / "final_results.json").markdown()
    assert (path / "table.md").read_text().startswith(text.rstrip() + "\n\n## Provenance\n")
    runs = {file.rsplit("/", 1)[1] for file in durable.read_json(path / "final_results.json")["runs"].values()}
    shown = re.findall(r"\| ([0-9a-f]{12}) +\|$", text, re.MULTILINE)
    assert set(shown) <= runs and len(shown) > 12


def test_the_numbers_of_a_sweep_are_numbers_of_the_results():
    of_page = {metric.title for metric in icecube.METRICS_OF_A_SWEEP}
    assert {
        title for title, *_ in numbers_of(finished().input("icecube-report"), icecube.METRICS_OF_A_SWEEP)
    } == of_page


def test_the_study_ends_in_a_terminal_with_its_answer_in_at_most_15_lines(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.ratchet(["run", "icecube", "--profile", "smoke", "--root", str(finished().root)]) == 0
    printed, result = capsys.readouterr().out, finished().result("icecube-report")
    assert lines_at(80, printed) <= 15 and all(line in printed for line in result["answer"])
