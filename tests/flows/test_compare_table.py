"""`ratchet compare FILE.csv`: what it shows, and what it refuses."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from flows import command

HEAD = "arm,seed,mse\n"
ROWS = (
    "none,0,0.0096\nnone,1,0.0097\nnone,2,0.0095\nadversarial,0,0.0099\nadversarial,1,0.0101\nadversarial,2,0.00985\n"
)


@pytest.fixture
def table(tmp_path: Path) -> Path:
    file = tmp_path / "table.csv"
    file.write_text(HEAD + ROWS)
    return file


def compare(file: Path, *options: str) -> int:
    return command.ratchet(["compare", str(file), *options])


def test_a_table_of_arms_and_seeds_is_compared(table, capsys):
    assert compare(table, "--by", "arm", "--pair", "seed") == 0
    said = capsys.readouterr().out
    assert (
        "**adversarial is worse than none**: adversarial - none: +0.00035, +3.65% (interval" in said
        and "undecided" not in said
    )
    assert "| none        |     3 |  0.0096 | 0.00935159 to 0.00984841 |" in said


def test_with_too_few_seeds_nothing_is_called_better(table, capsys):
    assert compare(table, "--min-seeds", "5") == 0
    said = capsys.readouterr().out
    assert "3 seeds are too few" in said and "worse than" not in said


def test_every_two_arms_are_compared_or_each_with_the_reference(table, capsys):
    table.write_text(table.read_text() + "random,0,0.00961\nrandom,1,0.00969\nrandom,2,0.00951\n")
    assert compare(table) == 0
    assert "over the 3 comparisons" in capsys.readouterr().out
    assert compare(table, "--reference", "random") == 0
    said = capsys.readouterr().out
    assert "over the 2 comparisons" in said and "adversarial is worse than random" in said


def test_what_should_be_high_and_may_be_equal_is_compared_when_that_is_said(table, capsys):
    table.write_text("arm,seed,accuracy\n" + ROWS.replace("none,1,0.0097", "none,1,0.0096"))
    assert compare(table) == 2
    assert "--allow-equal" in capsys.readouterr().err
    assert compare(table, "--allow-equal", "--higher-is-better") == 0
    said = capsys.readouterr().out
    assert "**adversarial is better than none**" in said and "above 0 the arm is better" in said
    assert "Higher is better." in said


@pytest.mark.parametrize(
    ("text", "options", "said"),
    [
        (HEAD.replace(",", ";") + ROWS.replace(",", ";"), [], "separated by semicolons: save it with commas"),
        (HEAD + ROWS + "none,0,0.5\n", [], "line 8: arm none, seed 0 is there twice"),
        (HEAD + ROWS.replace("none,1,0.0097\n", ""), [], "no value of none, seed 1"),
        (HEAD + ROWS.replace("0.0101", "0.0099"), [], "have the same value, 0.0099"),
        (HEAD + ROWS.replace("0.0101", "much"), [], "line 6: mse is 'much', and not a number"),
        (HEAD + ROWS.replace("0.0101", "nan"), [], "adversarial, seed 1 is nan"),
        (HEAD + ROWS + "none,3\n", [], "line 8: 3 columns are wanted"),
        (HEAD, [], "has no rows"),
        (HEAD + "none,0,1\nnone,1,2\n", [], "1 arm: two or more are compared"),
        (HEAD + ROWS, ["--by", "army"], "no column 'army' (--by): it has arm, seed, mse"),
        (HEAD + ROWS, ["--reference", "nobody"], "no arm 'nobody' (--reference)"),
        ("arm,seed,mse,loss\nnone,0,1,2\n", [], "say with --value which column is compared: mse, loss"),
        (HEAD + ROWS, ["another"], "leave out another"),
    ],
)
def test_a_table_that_cannot_be_compared_is_refused_with_the_place(table, capsys, text, options, said):
    table.write_text(text)
    assert compare(table, *options) == 2
    assert said in capsys.readouterr().err


def of_ten_seeds(file: Path) -> dict[str, dict[str, float]]:
    """Means and deviations as the recorded study has them; most of what is peculiar to a seed all arms share."""
    recorded = {"none": (9.69245e-3, 2.15e-5), "random": (9.73053e-3, 5.96e-5), "adversarial": (9.77702e-3, 2.33e-5)}
    chance = np.random.default_rng(4)
    shared, values = chance.standard_normal(10), dict[str, dict[str, float]]()
    for arm, (mean, deviation) in recorded.items():
        drawn = 2 * shared + chance.standard_normal(10)
        exact = mean + deviation * (drawn - drawn.mean()) / drawn.std()
        values[arm] = {str(seed): float(value) for seed, value in enumerate(exact)}
    lines = [f"{arm},{seed},{value!r}\n" for arm, of_arm in values.items() for seed, value in of_arm.items()]
    file.write_text(HEAD + "".join(lines))
    return values


def test_both_t_tests_are_scipy_s_and_welch_s_those_that_were_published(table, capsys):
    values = of_ten_seeds(table)
    assert compare(table, "--json") == 0
    found = {(one["reference"], one["arm"]): one for one in json.loads(capsys.readouterr().out)["comparisons"]}
    published = {
        ("none", "random"): (1.80, 0.098),
        ("none", "adversarial"): (8.008, 2.5e-7),
        ("random", "adversarial"): (2.18, 0.0505),
    }
    for (reference, arm), (t, p) in published.items():
        one, ours, theirs = found[reference, arm], list(values[arm].values()), list(values[reference].values())
        assert one["unpaired"]["t"] == pytest.approx(t, rel=0.01)
        assert one["unpaired"]["p"] == pytest.approx(p, rel=0.03)
        for name, test in (
            ("paired", stats.ttest_rel(ours, theirs)),
            ("unpaired", stats.ttest_ind(ours, theirs, equal_var=False)),
        ):
            assert one[name]["t"] == pytest.approx(test.statistic) and one[name]["p"] == pytest.approx(test.pvalue)
            assert one[name]["degrees_of_freedom"] == pytest.approx(test.df)
            assert one[name]["interval"] == pytest.approx(list(test.confidence_interval(0.95)))


def test_rows_in_another_order_are_paired_by_their_seed_and_not_by_their_place(table, capsys):
    """Nothing failed where values were paired as they came."""

    def compared() -> dict[tuple[str, str], dict[str, Any]]:
        assert compare(table, "--json") == 0
        rows = json.loads(capsys.readouterr().out)["comparisons"]
        return {(one["reference"], one["arm"]): one | {"paired.p": one["paired"]["p"]} for one in rows}

    of_ten_seeds(table)
    ordered = compared()
    head, *rows = table.read_text().splitlines()
    table.write_text("\n".join([head, *np.random.default_rng(0).permutation(rows)]))
    found = compared()
    for (reference, arm), one in ordered.items():
        again = found.get((reference, arm)) or found[arm, reference]
        for name in ("p", "paired.p", "p_exchange", "p_adjusted"):
            assert again[name] == pytest.approx(one[name]), name


def test_where_the_two_tests_disagree_it_is_asked_which_one_is_meant(table, capsys):
    """By pairs one arm was called worse where Welch's t, and the publication, show no difference."""
    of_ten_seeds(table)
    assert compare(table) == 0
    said = capsys.readouterr().out
    (question,) = [line for line in said.splitlines() if "Which is meant?" in line and "adversarial and" in line]
    assert "adversarial and random: the pairs show a difference" in question and "Welch's t does not" in question
    assert "--test paired" in question and "--test unpaired" in question
    assert "| undecided" in said and "adversarial is worse than random" not in said
    assert compare(table, "--test", "paired") == 0
    said = capsys.readouterr().out
    assert "**adversarial is worse than random**" in said and "undecided" not in said
    assert compare(table, "--test", "unpaired") == 0
    said = capsys.readouterr().out
    assert "No difference between adversarial and random" in said and "**adversarial is worse than none**" in said
    assert "p and interval are of Welch's t" in said and "p Welch" not in said, "the same p twice"


def test_one_run_alone_is_not_compared(capsys):
    assert command.ratchet(["compare", "abcdef"]) == 2
    assert "two runs, or one table FILE.csv" in capsys.readouterr().err


def test_without_pairs_what_could_be_shown_is_of_welchs_t(table, capsys):
    """It told the paired test's, a tenth of it, beside Welch's interval."""
    of_ten_seeds(table)
    assert compare(table, "--test", "unpaired", "--json") == 0
    for one in json.loads(capsys.readouterr().out)["comparisons"]:
        half = (one["interval"][1] - one["interval"][0]) / 2
        assert half < one["smallest_shown"] < 3 * half


@pytest.mark.parametrize("others", ["3,4,5", "3,4"])
def test_arms_that_share_no_seed_are_compared_without_pairs(table, capsys, others):
    values = {"none": [0.0096, 0.0097, 0.0095], "adversarial": [0.0199, 0.0202, 0.0196][: len(others.split(","))]}
    seeds = {"none": "0,1,2", "adversarial": others}
    rows = [f"{arm},{s},{v}" for arm in values for s, v in zip(seeds[arm].split(","), values[arm], strict=True)]
    table.write_text(HEAD + "\n".join(rows))
    assert compare(table) == 2 and "share no seed: leave one of them out, or --test unpaired" in capsys.readouterr().err
    assert compare(table, "--test", "unpaired", "--min-seeds", "2", "--json") == 0
    (found,) = json.loads(capsys.readouterr().out)["comparisons"]
    test = stats.ttest_ind(values["adversarial"], values["none"], equal_var=False)
    assert found["p"] == pytest.approx(test.pvalue) and found["worse"]
    assert found["interval"] == pytest.approx([*test.confidence_interval(0.95)])


@pytest.mark.parametrize(("first", "second"), [((3, 3, 3), (3, 3, 3)), ((3, 3, 3), (4, 4, 4)), ((0, 0, 0), (1, 0, 2))])
def test_counts_without_spread_or_of_mean_0_are_compared(table, capsys, first, second):
    """A traceback, a JSON file that said Infinity, and no way on."""
    rows = [f"{arm},{s},{v}" for arm, values in (("a", first), ("b", second)) for s, v in enumerate(values)]
    table.write_text(HEAD + "\n".join(rows))
    for test in ("paired", "unpaired"):
        assert compare(table, "--allow-equal", "--test", test) == 0
        assert "No difference between b and a" in (said := capsys.readouterr().out) or "shows no difference" in said
        assert compare(table, "--allow-equal", "--test", test, "--json") == 0
        (found,) = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)["comparisons"]
        assert not found["better"] and not found["worse"]
