"""`ratchet compare`: two runs of one stage, by configuration, by how they were made, and by what they found."""

import re
from pathlib import Path

import pytest

from deployments.dag.walk import Handle
from flows import command
from storage import durable
from tests.flows.answers import Study, finished
from tests.flows.test_again import begun, smoke
from tests.tasks.inversion import tiny as inversion


def last(root: Path, **fields: object) -> Handle:
    return finished(root, Study.model_validate({"name": "one"} | fields))[-1]


def compared(capsys: pytest.CaptureFixture[str], one: Handle, other: Handle, *options: str) -> list[str]:
    assert command.ratchet(["compare", str(one.run.path), str(other.run.path), *options]) == 0
    return capsys.readouterr().out.splitlines()


def test_what_differs_is_said_first_of_the_configuration_upstream_too_then_of_the_results(tmp_path, capsys):
    one, other = last(tmp_path), last(tmp_path, words=20, seed=7)
    lines = compared(capsys, one, other)
    assert [line.split("  (finished")[0] for line in lines[:2]] == [f"A  {one.run.path}", f"B  {other.run.path}"]
    assert lines[2:] == [
        "configuration, of all that they read too: 2 differ",
        "  seed: 42 -> 7  (answer)",
        "  words: 10 -> 20  (count)",
        "numerics and versions: equal",
        "results (final_results.json): 2 of 47 values differ, and 1 that name digests or run directories",
        "  answer: few -> many",
        "  loss: 3.33333 -> 6.66667 (+3.33)",
        "outputs: byte-equal are 1 of 4; differ: final_results.json, result.json, table.md",
    ]


def test_a_long_list_is_cut_with_a_count_and_shown_whole_when_asked_for(tmp_path, capsys):
    one, other = last(tmp_path), last(tmp_path, level=0.9)
    lines = compared(capsys, one, other)
    assert "results (final_results.json): 40 of 47 values differ" in lines
    assert "  and 20 more: --all shows them" in lines and "  of.part-2: 1.9 -> 1.8 (-0.1)" in lines
    whole = compared(capsys, one, other, "--all")
    assert len(whole) == len(lines) + 19 and "  curve[1].loss: 0.95 -> 0.9 (-0.05)" in whole


def test_the_same_work_elsewhere_is_equal_in_everything_byte_for_byte(tmp_path, capsys):
    one, other = finished(tmp_path / "here", Study(name="one"))[0], finished(tmp_path / "there", Study(name="one"))[0]
    assert compared(capsys, one, other)[2:] == [
        "configuration, of all that they read too: equal",
        "numerics and versions: equal",
        "results (result.json): equal, all 1 values",
        "outputs: byte-equal, 1 of 1 by the digests in the markers",
    ]


def test_other_numerics_versions_and_commits_are_named_with_their_stage_upstream_too(tmp_path, capsys):
    (counted, one), (_, other) = (finished(tmp_path / place, Study(name="one")) for place in ("here", "there"))
    described = durable.read_json(counted.run.stage_file)
    others = described["numerics"] | {"torch": "2.0", "cpu_threads": 4}
    durable.write_json(counted.run.stage_file, described | {"numerics": others, "numerics_changes": [{}]})
    for handle in (counted, one):
        record = durable.read_json(handle.run.attempts / "0001.json")
        record["versions"]["numpy"], record["source"] = "1.0", {"commit": "c" * 40, "dirty_digest": "d"}
        durable.write_json(handle.run.attempts / "0001.json", record)
    now = durable.read_json(other.run.attempts / "0001.json")
    lines = compared(capsys, one, other)
    part = lines[lines.index("numerics and versions: 5 differ") + 1 :][:5]
    assert part[0] == f"  numpy: 1.0 -> {now['versions']['numpy']}  (answer, count)"
    assert part[1].startswith(f"  commit: {'c' * 12} with changes -> ") and part[1].endswith("  (answer, count)")
    assert part[2:] == [
        f"  torch: 2.0 -> {now['versions']['torch']}  (count)",
        "  cpu_threads: 4 -> absent  (count)",
        "  changes of numerics between attempts: 1 -> absent  (count)",
    ]


def test_what_is_not_finished_has_no_results_to_compare(tmp_path, capsys):
    one, failed = (
        finished(tmp_path, Study(name="one"))[0],
        finished(tmp_path, Study(name="one", words=9, fails=True))[0],
    )
    lines = compared(capsys, one, failed)
    assert lines[1].startswith(
        f"B  {failed.run.path}  (not finished: check failed in attempt 1: the words are there: measured 0"
    )
    assert f"results: there is no result.json in {failed.run.path}" in lines
    assert lines[-1].startswith("outputs: not compared")


def test_runs_that_cannot_be_compared_are_bad_input(tmp_path, capsys):
    count, answer = finished(tmp_path, Study(name="one"))
    for other, said in ((count, "which answer other questions"), (answer, f"both are {answer.run.path}")):
        assert command.ratchet(["compare", str(answer.run.path), str(other.run.path)]) == 2
        assert said in capsys.readouterr().err
    assert command.ratchet(["compare", answer.run.path.name, "0" * 12, "--root", str(tmp_path)]) == 2
    assert "begins with '000000000000'" in capsys.readouterr().err


def test_exported_results_are_compared_as_their_origin_is(tmp_path, capsys):
    one, other = last(tmp_path / "runs"), last(tmp_path / "runs", words=20)
    of_origin = compared(capsys, one, other)[2:]
    assert command.ratchet(["export", str(tmp_path / "runs"), str(tmp_path / "copy")]) == 0
    capsys.readouterr()
    names = [one.run.path.name, other.run.path.name]
    assert command.ratchet(["compare", *names, "--root", str(tmp_path / "copy")]) == 0
    assert capsys.readouterr().out.splitlines()[2:] == of_origin


def test_bytes_of_a_run_whose_marker_does_not_hold_are_never_called_equal(tmp_path, capsys):
    """Seen: a result was edited, its size kept; its value was said to differ, and its bytes to be equal."""
    one, edited = last(tmp_path / "runs"), last(tmp_path / "edited")
    file = edited.run.path / "final_results.json"
    file.write_text(file.read_text().replace('"many"', '"mane"').replace('"few"', '"fex"'))
    lines = compared(capsys, one, edited)
    assert "its marker does not hold: final_results.json was edited after the stage finished" in lines[1]
    assert lines[-1] == "outputs: not compared, since B is not finished"


def test_a_difference_names_the_key_that_a_person_sets(tmp_path, capsys):
    """The field of a stage alone was named, such as `attack.flips`, which `--set` does not take."""
    one, other = (begun(tmp_path / str(flips), smoke(f"hotflip.flips={flips}"))[-1] for flips in (2, 3))
    lines = compared(capsys, one, other)
    assert lines[2:4] == ["keys of the study, as --set takes them: 1 differ", "  hotflip.flips: 2 -> 3"]
    assert lines[4] == "configuration, of all that they read too: 2 differ", "beside the fields of both stages"


def test_of_two_trainings_the_best_validations_are_compared_which_no_result_repeats(capsys):
    handles = inversion.finished().handles
    one, other = (handles[f"inversion-train (adversarial, seed {seed})"] for seed in (0, 1))
    lines = compared(capsys, one, other)
    assert any(re.match(r"  best.validation_mse: 0\.\d+ -> 0\.\d+ \([+-]", line) for line in lines), lines
