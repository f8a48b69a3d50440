"""The tables say what was measured, how sure it is, where it comes from, and what it must not be taken for."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from storage import durable
from tasks.attacks.effects import attack_effect
from tasks.findings.statistics.comparison import holm
from tests.docs.quotes import document
from tests.tasks.robustness.edited import (
    Stages,
    aggregated,
    contents,
    keep_consistent,
    set_rise,
    transfer_again,
    written,
)
from tests.tasks.tiny import files_of, finished_study

Edit = Callable[[Stages], None]


class Made:
    """aggregate's result and files."""

    def __init__(self, folder: Path, edit: Edit = lambda stages: None, **changed: Any) -> None:
        stages = contents()
        edit(stages)
        self.inputs = written(folder, stages)
        study = finished_study().study.model_copy(update=changed)
        self.result, self.path = aggregated(folder / "out", self.inputs, study)
        self.numbers = durable.read_json(self.path / "final_results.json")
        self.table = (self.path / "table.md").read_text()
        self.html = (self.path / "report.html").read_text()
        self.texts = {
            name: (self.path / name).read_text() for name in ("table.md", "experiment_summary.txt", "report.html")
        }
        self.said = [*self.result.answer, *self.result.not_shown]

    def says(self, words: str) -> bool:
        """Whether it stands in what every text begins with: the answer, its numbers, and what was not shown."""
        first = [" ".join(re.split("<h2|\n## ", text)[0].replace("**", "").split()) for text in self.texts.values()]
        assert all(" ".join(line.split()) in text for line in self.said for text in (first[0], first[1])), self.said
        return all(re.search(words, text) for text in (*first[:2], " ".join(self.said)))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return Made(tmp_path_factory.mktemp("made"))


def rows_of(table: str, heading: str) -> list[list[str]]:
    """The rows of the first table whose header begins with `heading`."""
    block = next(block for block in table.split("\n\n") if block.startswith("| " + heading))
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in block.splitlines()[2:]]


def secondary(made: Made) -> dict[tuple[str, str, str], dict[str, Any]]:
    return {(row["measure"], row["model"], row["reference"]): row for row in made.numbers["secondary"]}


# ------------------------------------------------------------------------------------------------ numbers


def test_the_result_names_what_there_is_to_show(made: Made):
    assert made.result.tables == ["table.md"] and made.result.report == "report.html"
    assert made.result.final_results_digest == durable.sha256_json(made.numbers)
    for name in made.result.figures:
        assert (made.path / name).is_file()


def test_rerunning_gives_the_same_bytes(made: Made, tmp_path: Path):
    again = files_of(Made(tmp_path).path)
    first = files_of(made.path)
    shown = {name for name in first if name.endswith((".md", ".txt", ".html", ".svg", ".json", ".parquet"))} - {
        name for name in first if name.startswith(("locks/", "attempts/"))
    }
    assert len(shown) > 6 and all(first[name] == again[name] for name in shown)


def test_the_table_on_disk_is_that_of_the_results(made: Made):
    said = document("robustness", made.path / "final_results.json")
    assert made.table.startswith(said.markdown().rstrip() + "\n\n## Provenance\n")


def test_the_effects_are_those_of_the_records(made: Made):
    rows = contents()["hotflip-monotonic"]["rows"]
    expected = attack_effect(rows, "monotonic", 100, 0.95, finished_study().study.hotflip.success_relative_increase)
    assert made.numbers["attacks"]["hotflip"]["effects"]["monotonic"] == expected.as_json()


def test_every_secondary_p_value_is_adjusted_for_all_of_them(made: Made):
    found = secondary(made)
    adjusted = holm({key: row["p_value"] for key, row in found.items()})
    assert {key: row["adjusted_p_value"] for key, row in found.items()} == adjusted
    assert ("hotflip increase", "monotonic", "baseline") not in found, "that is the primary one"
    assert {("uat increase", "monotonic", "baseline"), ("test loss", "monotonic", "random-signs")} <= set(found)


def test_every_name_of_a_model_is_explained(made: Made):
    for name in made.numbers["models"]:
        assert f"- {name}: " in made.table or "@" in name


# ------------------------------------------------------------------------------------------------ liveness


def of_liveness(arm: str, share: float) -> Edit:
    """An arm whose constrained layers do `share` of what the baseline's do."""

    def edit(stages: Stages) -> None:
        set_rise(stages, arm, share)

    return edit


def test_every_row_of_a_placebo_with_dead_layers_says_so_in_bold(tmp_path: Path):
    """In every table of both texts, those of differences too; names of run directories are none."""
    made = Made(tmp_path, of_liveness("random-signs", 0.05))
    rows = [line for line in made.table.splitlines() if re.search(r"\| [0-9a-f]{12} +\|$", line)]
    cells = [cell.strip() for row in rows for cell in row.split("|")[1:-1] if "random-signs" in cell]
    page = made.html[: made.html.rindex(">What was checked<")]
    cells += re.findall(r"<td[^>]*>((?:<strong>)?[^<]*random-signs[^<]*(?:</strong>)?)</td>", page)
    bold = [cell for cell in cells if re.match(r"(\*\*|<strong>).*\(dead.*\)(\*\*|</strong>)$", cell)]
    assert len(cells) > 20 and cells == bold
    assert made.says("constrained layers of random-signs are dead")


def test_the_primary_question_is_not_answered_for_dead_layers(tmp_path: Path):
    made = Made(tmp_path, of_liveness("monotonic", 0.05))
    assert made.numbers["primary"]["answer"] is None
    assert made.says("Not answered: the constrained layers of the monotonic arm are dead.* costs 5.0%")


def test_layers_that_have_collapsed_are_called_dead_everywhere_or_nowhere(tmp_path: Path):
    """Rows and answer went by the rank of their outputs too, and what stands first by the share alone."""

    def collapsed(stages: Stages) -> None:
        ranks = stages["random-signs"]["result"]["sublayers"]["effective_rank"]
        ranks |= dict.fromkeys(ranks, 1.0)

    made = Made(tmp_path, collapsed)
    assert made.says("constrained layers of random-signs are dead.* effective rank of 1.0 in the median")
    assert "(dead)" in made.table and "random-signs 100%" not in made.table
    assert made.numbers["primary"]["from_placebos"] == {}


def test_layers_that_live_are_not_called_dead(tmp_path: Path):
    made = Made(tmp_path, of_liveness("monotonic", 0.5))
    assert "(dead)" not in made.table and "monotonic 50%" in made.table


def test_weights_that_hardly_moved_are_named_in_bold(tmp_path: Path):
    def still(stages: Stages) -> None:
        moved = stages["baseline"]["result"]["movement"]["constrained"]
        stages["random-signs"]["result"]["movement"]["constrained"] = 0.01 * moved

    assert Made(tmp_path, still).says("constrained weights of random-signs hardly moved .*random-signs 1.0%")


# --------------------------------------------------------------------------------------- the primary answer


def of_difference(nats: dict[str, float]) -> Edit:
    """hotflip adds so much more to each token of a model than to the baseline's, with a little spread."""

    def edit(stages: Stages) -> None:
        rows = {row["example_id"]: row for row in stages["hotflip-baseline"]["rows"]}
        for row in rows.values():  # so much that no search ends below the clean loss
            row["loss_sum_nats"], row["success"] = row["clean_loss_sum_nats"] + 2.0 * row["tokens_scored"], True
        for model, more in nats.items():
            for place, row in enumerate(stages[f"hotflip-{model}"]["rows"]):
                reference, tokens = rows[row["example_id"]], row["tokens_scored"]
                for column in ("clean_loss_sum_nats", "text_clean_loss_sum_nats"):
                    row[column] = reference[column]
                risen = reference["loss_sum_nats"] + tokens * (more + 0.001 * (-1) ** place)
                row["loss_sum_nats"] = risen
                clean = row["text_clean_loss_sum_nats"] / row["text_tokens"]
                share = finished_study().study.hotflip.success_relative_increase * clean
                row["success"] = (risen - row["clean_loss_sum_nats"]) / tokens > share
        keep_consistent(stages, "hotflip")

    return edit


def test_every_row_of_numbers_ends_with_its_run_directory(made: Made):
    """In the file and on the page: provenance itself comes behind, and is about the runs."""
    table = made.table.partition("\n## Provenance\n")[0]
    headers = [block.splitlines()[0] for block in table.split("\n\n") if block.startswith("| ")]
    of_numbers = [[cell.strip() for cell in header.split("|")[1:-1]] for header in headers]
    assert len(of_numbers) >= 8
    body = made.html[: made.html.index(">Provenance</h2>")]
    on_page = re.findall(r"<thead>(.*?)</thead>", body, re.DOTALL)
    of_numbers += [re.findall(r"<th[^>]*>(.*?)</th>", header, re.DOTALL) for header in on_page]
    last = {re.sub("<[^>]*>", "", header[-1]).strip() for header in of_numbers}
    assert len(on_page) >= 8 and last == {"run", "required", "where"}  # the last two are of what was checked
    runs = {Path(run).name for run in made.numbers["runs"].values()}
    for block in table.split("\n\n"):
        if block.startswith("| ") and block.splitlines()[0].rstrip(" |").endswith("run"):
            assert {line.rstrip(" |").rsplit(" ", 1)[1] for line in block.splitlines()[2:]} <= runs


def test_the_primary_comparison_by_fewer_attacks_is_adjusted_with_the_rest(made: Made):
    tested = secondary(made)
    for way, row in made.numbers["primary"]["by_fewer_attacks"].items():
        assert tested[f"hotflip increase {way}", "monotonic", "baseline"]["p_value"] == row["p_value"]


def four_sources_suffice() -> dict[str, Any]:
    """A confidence level at which they can show something: of four the p-value is never below 0.125."""
    return {"evaluation": finished_study().study.evaluation.model_copy(update={"confidence_level": 0.85})}


@pytest.mark.parametrize(
    ("nats", "answer", "said"),
    [
        ({"monotonic": 0.0}, "equivalent", "Not shown, on one seed: as hard to attack, .*two one-sided tests at 15%"),
        ({"monotonic": 0.008}, "differs within the margin", "Not shown, on one seed: easier"),
        ({"monotonic": 0.5}, "differs", "Not shown, on one seed: easier .*more than the margin of 0.02"),
        ({"monotonic": -0.5, "random-signs": -0.5}, "differs", "No: not told apart from a placebo"),
        ({"monotonic": -0.5, "random-signs": 0.0}, "differs", "Perhaps: harder .*one seed"),
    ],
)
def test_the_question_is_answered_and_claimed_only_beyond_every_placebo(
    tmp_path: Path, nats: dict[str, float], answer: str, said: str
):
    made = Made(tmp_path, of_difference(nats), **four_sources_suffice())
    assert made.numbers["primary"]["answer"]["answer"] == answer
    assert re.search(f"{said}", made.table.replace("\n", " ")) and made.says(said.partition(" .*")[0])


@pytest.mark.parametrize("nats", [0.0, -0.5])
def test_four_sources_decide_nothing_and_every_page_says_so(tmp_path: Path, nats: float):
    """However narrow the interval is: exchanges of four sources give no p-value below 0.125."""
    made = Made(tmp_path, of_difference({"monotonic": nats, "random-signs": 0.0}))
    found = made.numbers["primary"]
    assert found["answer"]["answer"] == "undecided" and found["answer"]["least_p_value"] == 0.125
    assert found["difference"]["interval"][1] < 0.01 and found["sources"] == 4
    assert made.says(r"either way: 4 sources cannot show it\. .*; one seed\).* of so few give no p below 0.125")


def test_a_difference_with_a_wide_interval_is_undecided(tmp_path: Path):
    def wide(stages: Stages) -> None:
        of_difference({"monotonic": 0.0})(stages)
        for place, row in enumerate(stages["hotflip-monotonic"]["rows"]):
            row["loss_sum_nats"] += row["tokens_scored"] * 0.3 * (-1) ** place
            share = finished_study().study.hotflip.success_relative_increase
            clean = row["text_clean_loss_sum_nats"] / row["text_tokens"]
            row["success"] = (row["loss_sum_nats"] - row["clean_loss_sum_nats"]) / row["tokens_scored"] > share * clean
        keep_consistent(stages, "hotflip")

    assert Made(tmp_path, wide).numbers["primary"]["answer"]["answer"] == "undecided"


def test_an_arm_whose_clean_loss_no_snapshot_reaches_is_not_compared_at_equal_loss(tmp_path: Path):
    def far(stages: Stages) -> None:
        for row in stages["uat-monotonic"]["rows"]:
            for column in ("clean_loss_sum_nats", "text_clean_loss_sum_nats", "loss_sum_nats"):
                row[column] += 5.0 * row["text_tokens"]
        keep_consistent(stages, "uat")

    made = Made(tmp_path, far)
    found = {row["model"]: row for row in made.numbers["attacks"]["uat"]["at_equal_loss"]}
    assert found["monotonic"]["increase_nats_per_token"] is None and not found["monotonic"]["covered"]
    assert "not known" in made.table


# ------------------------------------------------------------------------------------------------ attacks


def test_one_model_that_reads_nothing_is_told_in_bold_and_not_refused(tmp_path: Path):
    def blinded(stages: Stages) -> None:
        for row in stages["uat-random-signs"]["rows"]:
            clean = row["clean_loss_sum_nats"]
            row |= {"loss_sum_nats": clean, "blind_loss_sum_nats": clean, "budget_losses_sum_nats": [clean] * 3}
        transfer_again(stages, "uat")

    masked = "uat: the gradient search does not beat blind search at equal cost on .*random-signs"
    assert Made(tmp_path, blinded).says(masked)


def test_an_attack_that_has_not_converged_is_told_in_the_first_lines_of_every_report(tmp_path: Path):
    def growing(stages: Stages) -> None:
        for row in stages["uat-base"]["rows"]:
            clean, last = row["clean_loss_sum_nats"], row["clean_loss_sum_nats"] + 10.0
            row["loss_sum_nats"] = last
        keep_consistent(stages, "uat")
        for row in stages["uat-base"]["rows"]:
            clean, last = row["clean_loss_sum_nats"], row["loss_sum_nats"]
            row["budget_losses_sum_nats"] = [clean, clean + 1.0, last]

    assert Made(tmp_path, growing).says("uat has not converged: the last 70% .* base 90%")


def test_a_search_that_was_luckier_on_one_model_makes_no_difference_between_models(tmp_path: Path):
    """The search on monotonic finds 0.3 nats less; what was found for base does as much to it as to the baseline."""

    def unlucky(stages: Stages) -> None:
        of_difference({"monotonic": -0.3})(stages)
        lucky = {row["example_id"]: row["loss_sum_nats"] for row in stages["hotflip-baseline"]["rows"]}
        rows = stages["transfer"]["rows"]
        for row in rows:
            found_for = tuple(row[name] for name in ("attack", "search", "found_for", "model"))
            if found_for == ("hotflip", "gradient", "base", "monotonic"):
                row["loss_sum_nats"] = lucky[row["example_id"]]

    made = Made(tmp_path, unlucky, **four_sources_suffice())
    primary = made.numbers["primary"]
    assert primary["difference"]["value"] == pytest.approx(0.0, abs=1e-9)
    assert primary["answer"]["answer"] == "equivalent"
    assert made.numbers["attacks"]["hotflip"]["attacked_by"]["monotonic"] == {"base": 4}
    assert re.search(r"hotflip: what other searches found does more .* monotonic \+0\.3", made.table)


def test_a_masked_search_answers_nothing(tmp_path: Path):
    def masked(stages: Stages) -> None:
        for row in stages["hotflip-monotonic"]["rows"]:
            row["blind_loss_sum_nats"] = row["loss_sum_nats"] + 1.0
        transfer_again(stages, "hotflip")

    assert "no more than blind search on monotonic" in Made(tmp_path, masked).numbers["primary"]["unanswered"]


def test_sublayers_that_do_nothing_in_the_baseline_answer_nothing(tmp_path: Path):
    def idle(stages: Stages) -> None:
        for arm in ("baseline", "monotonic", "random-signs"):
            set_rise(stages, arm, 0.001)

    assert "do nothing in the baseline either" in Made(tmp_path, idle).numbers["primary"]["unanswered"]
