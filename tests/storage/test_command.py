"""python -m storage: what it says of a root, what it removes, and what it hands out."""

import json
import shutil
import subprocess
import sys

import pytest

from storage import durable, locks, markers
from storage.__main__ import Verified, main
from storage.run_directory import LATEST
from tests.storage import runs


@pytest.fixture
def root(tmp_path):
    """Two finished runs and one that is not, each with checkpoints and record parts."""
    root = tmp_path / "root"
    for run in (runs.finished(root, "base"), runs.finished(root, "train"), runs.run_of(root, "train", seed=2)):
        if not run.path.exists():
            runs.fill(run, seed=2)
        for name in ("checkpoints/10/model.safetensors", "records/base-00000.parquet"):
            (run.path / name).parent.mkdir(parents=True)
            (run.path / name).write_bytes(b"x" * 1_000_000)
    return root


def run_in(root, stage="train", seed=1):
    return runs.run_of(root, stage, seed)


def output_of(capsys, *arguments):
    code = main([str(argument) for argument in arguments])
    shown = capsys.readouterr()
    return code, shown.out + shown.err


# ---------------------------------------------------------------------------------------------------- verify


def test_verify_says_one_line_for_each_run_and_how_many_there_are(root, capsys):
    code, printed = output_of(capsys, "verify", root)
    assert code == 0
    names = {seed: run_in(root, "train", seed).path.relative_to(root) for seed in (1, 2)}
    *lines, total = printed.splitlines()
    assert total == "2 of 3 runs verified, 1 unfinished"
    assert sorted(lines) == sorted(
        [
            f"verified    {run_in(root, 'base').path.relative_to(root)}",
            f"verified    {names[1]}",
            f"unfinished  {names[2]}",
        ]
    )


def test_verify_as_json_holds_what_the_lines_say(root, tmp_path, capsys):
    output_of(capsys, "export", root, tmp_path / "copy")
    runs.edit_unnoticed(run_in(root).result_file)
    for place, states in ((root, {"verified": 1, "REFUSED": 1, "unfinished": 1}), (tmp_path / "copy", {"verified": 2})):
        code, printed = output_of(capsys, "verify", place)
        as_json, text = output_of(capsys, "verify", place, "--json")
        found = json.loads(text)
        assert (code, as_json, found["counts"]) == ("REFUSED" in states, code, states)
        assert [Verified(**one).line for one in found["runs"]] == printed.splitlines()[:-1]
    assert main(["verify", str(tmp_path / "none"), "--json"]) == 2
    shown = capsys.readouterr()
    assert shown.out == "" and shown.err.startswith("error: there is no folder")


def test_verify_changes_nothing(root, capsys):
    before = runs.tree(root)
    runs.edit_unnoticed(run_in(root).result_file)
    edited = runs.tree(root)
    assert edited != before
    output_of(capsys, "verify", root)
    assert runs.tree(root) == edited


def forge_by_editing(root):
    runs.edit_unnoticed(run_in(root).path / "model" / "weights.safetensors")
    return run_in(root), "model/weights.safetensors was edited after the stage finished"


def forge_by_touching(root):
    run = run_in(root, seed=2)
    run.marker_file.touch()
    return run, "the marker cannot be read"


def forge_by_copying_a_marker(root):
    run = run_in(root, seed=2)
    shutil.copy(run_in(root).marker_file, run.marker_file)
    return run, "the marker belongs to fingerprint"


def forge_by_copying_a_run(root):
    """Its stage.json then names the run that it was copied from."""
    run = run_in(root, seed=2)
    shutil.rmtree(run.path)
    shutil.copytree(run_in(root).path, run.path)
    return run, "stage.json"


def forge_by_copying_a_run_of_another_stage(root):
    run = run_in(root)
    other = run_in(root, "base")
    shutil.copytree(run.path, other.path.parent / run.path.name)
    return runs.RunDirectory(root, "study", "base", run.fingerprint), "the marker was copied from stage 'train'"


def forge_by_a_later_attempt(root):
    locks.acquire(run_in(root).path / "locks").release()
    return run_in(root), "attempt 2 took the run over"


def lose_the_stage_file(root):
    run_in(root).stage_file.unlink()
    return run_in(root), "stage.json"


def break_the_stage_file(content, reason="it names no fingerprint"):
    def broken(root):
        run_in(root).stage_file.write_text(content)
        return run_in(root), f"stage.json cannot be believed: {reason}"

    return broken


FORGERIES = [
    forge_by_editing,
    forge_by_touching,
    forge_by_copying_a_marker,
    forge_by_copying_a_run,
    forge_by_copying_a_run_of_another_stage,
    forge_by_a_later_attempt,
    lose_the_stage_file,
    *map(break_the_stage_file, ["[]", "{}", "null", '{"fingerprint": null}', '{"fingerprint": 5}']),
    *(break_the_stage_file(content, "") for content in ("", "{", '{"fingerprint": "' + "0" * 64 + '"}')),
]


@pytest.mark.parametrize("forge", FORGERIES)
def test_verify_refuses_what_does_not_hold_with_the_reason_and_exit_code_1(root, capsys, forge):
    run, reason = forge(root)
    code, printed = output_of(capsys, "verify", root)
    assert code == 1
    refused = [line for line in printed.splitlines() if line.startswith("REFUSED")]
    assert len(refused) == 1
    assert refused[0].startswith(f"REFUSED     {run.path.relative_to(root)}: ") and reason in refused[0]
    assert f"{run_in(root, 'base').path.relative_to(root)}\n" in printed, "the others are still verified"
    assert printed.count("verified ") == (2 if "copy" in forge.__name__ or "touch" in forge.__name__ else 1)


# ----------------------------------------------------------------------------------- one study, and the link


@pytest.fixture
def two_studies(root):
    """A second study beside the first, which does not verify."""
    shutil.copytree(root / "study", root / "other")
    runs.edit_unnoticed(root / "other" / "train" / run_in(root).path.name / "result.json")
    return root


def test_of_one_study_alone_nothing_else_is_verified_pruned_or_exported(two_studies, tmp_path, capsys):
    code, printed = output_of(capsys, "verify", two_studies, "--study", "study")
    assert code == 0 and printed.count("verified ") == 2 and "other" not in printed
    assert output_of(capsys, "verify", two_studies, "--study", "other")[0] == 1
    code, printed = output_of(capsys, "prune", two_studies, "--study", "study", "--yes")
    assert printed.count("removed") == 4 and "other" not in printed
    assert len(list(two_studies.glob("other/*/*/checkpoints"))) == 3
    assert output_of(capsys, "export", two_studies, tmp_path / "all")[0] == 1
    code, printed = output_of(capsys, "export", two_studies, tmp_path / "one", "--study", "study")
    assert code == 0 and sorted(file.name for file in (tmp_path / "one").iterdir()) == ["MANIFEST.json", "study"]
    code, printed = output_of(capsys, "verify", tmp_path / "one")
    assert code == 0 and printed.count("verified ") == 2


def test_of_an_export_of_all_one_study_can_be_verified(root, tmp_path, capsys):
    shutil.copytree(root / "study", root / "other")
    assert output_of(capsys, "export", root, tmp_path / "copy")[0] == 0
    (tmp_path / "copy" / "other" / "train" / run_in(root).path.name / "result.json").write_text("{}")
    code, printed = output_of(capsys, "verify", tmp_path / "copy", "--study", "study")
    assert code == 0 and printed.count("verified ") == 2 and "other" not in printed
    assert output_of(capsys, "verify", tmp_path / "copy")[0] == 1


def test_a_study_that_is_not_there_is_an_error_that_names_those_that_are(root, tmp_path, capsys):
    for arguments in (["verify"], ["prune"], ["export", tmp_path / "copy"]):
        code, printed = output_of(capsys, arguments[0], root, *arguments[1:], "--study", "stud")
        assert code == 2 and printed == f"error: there is no study 'stud' below {root}: there are study\n"


def test_the_link_to_the_newest_result_is_neither_verified_nor_pruned_and_is_the_same_in_an_export(
    root, tmp_path, capsys
):
    said = {command: output_of(capsys, command, root) for command in ("verify", "prune")}
    run = run_in(root).path
    (root / "study" / LATEST).symlink_to(run.relative_to(root / "study"))
    assert said == {command: output_of(capsys, command, root) for command in ("verify", "prune")}
    assert output_of(capsys, "export", root, tmp_path / "copy")[0] == 0
    copied = tmp_path / "copy" / "study" / LATEST
    assert copied.is_symlink() and copied.resolve() == tmp_path / "copy" / run.relative_to(root)
    assert not copied.readlink().is_absolute() and output_of(capsys, "verify", tmp_path / "copy")[0] == 0
    output_of(capsys, "prune", root, "--yes")
    assert (root / "study" / LATEST).resolve() == run and markers.check_outputs(run_in(root)).holds


def test_a_folder_that_is_not_there_is_an_error(tmp_path, capsys):
    for command in (["verify"], ["prune", "--yes"]):
        code, printed = output_of(capsys, *command, tmp_path / "nowhere")
        assert code == 2 and printed == f"error: there is no folder {tmp_path / 'nowhere'}\n"


def test_it_is_a_command(root):
    done = subprocess.run(
        [sys.executable, "-m", "storage", "verify", root],
        cwd=runs.REPOSITORY,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0 and "2 of 3 runs verified, 1 unfinished" in done.stdout, done.stderr


# ----------------------------------------------------------------------------------------------------- prune


def test_prune_without_yes_only_says_what_would_go(root, capsys):
    before = runs.tree(root)
    code, printed = output_of(capsys, "prune", root)
    assert code == 0 and runs.tree(root) == before
    assert printed.count("would remove") == 4
    assert printed.splitlines()[-1] == "4.0 MB would be freed; add --yes to remove"


def test_prune_with_yes_removes_what_finished_runs_do_not_need_and_their_markers_hold(root, capsys):
    before = runs.tree(root)
    code, printed = output_of(capsys, "prune", root, "--yes")
    assert code == 0 and printed.splitlines()[-1] == "4.0 MB freed"
    gone = set(before) - set(runs.tree(root))
    assert len(gone) == 4 and all("/checkpoints/" in name or "/records/" in name for name in gone)
    for stage in ("base", "train"):
        run = run_in(root, stage)
        assert not run.checkpoints.exists()
        assert markers.check(run, runs.INPUTS, full=True).holds
    unfinished = run_in(root, seed=2)
    assert (unfinished.checkpoints / "10" / "model.safetensors").exists() and (unfinished.path / "records").exists()


def test_pruning_twice_frees_nothing_more(root, capsys):
    output_of(capsys, "prune", root, "--yes")
    assert output_of(capsys, "prune", root, "--yes") == (0, "0 bytes freed\n")


@pytest.mark.parametrize("forge", FORGERIES)
def test_prune_removes_nothing_of_a_run_whose_marker_does_not_hold(root, capsys, forge):
    run, _ = forge(root)
    before = runs.tree(run.path)
    output_of(capsys, "prune", root, "--yes")
    assert runs.tree(run.path) == before


def test_prune_leaves_a_run_alone_that_a_live_process_holds(root, capsys):
    run = run_in(root, seed=2)
    lock = locks.acquire(run.path / "locks")
    markers.write(run, runs.OUTPUTS, runs.INPUTS, lock)
    output_of(capsys, "prune", root, "--yes")
    assert run.checkpoints.exists()
    lock.release()
    output_of(capsys, "prune", root, "--yes")
    assert not run.checkpoints.exists() and markers.check_outputs(run).holds


# ---------------------------------------------------------------------------------------------------- export


def test_export_copies_results_of_finished_runs_with_a_manifest_and_no_weights(root, tmp_path, capsys):
    for run in (run_in(root), run_in(root, "base")):
        durable.write_json(run.attempts / "0001.json", {}) if run.attempts.exists() else run.attempts.mkdir()
        (run.attempts / "0001.json").write_text("{}")
        (run.path / "table.md").write_text("| a |")
        (run.path / "notes.txt").write_text("a person's own")
        (run.path / "figures").mkdir()
        (run.path / "figures" / "losses.svg").write_text("<svg/>")
        lock = locks.acquire(run.path / "locks")
        markers.write(run, [*runs.OUTPUTS, "figures", "table.md"], runs.INPUTS, lock)
        lock.release()
    code, printed = output_of(capsys, "export", root, tmp_path / "copies" / "first")
    folder = tmp_path / "copies" / "first"
    assert code == 0
    copied = runs.tree(folder)
    manifest = json.loads(copied.pop("MANIFEST.json"))
    assert printed == f"{len(manifest)} files in {folder}\n"
    assert {name: durable.sha256_file(folder / name) for name in copied} == manifest
    assert {name: runs.tree(root)[name] for name in copied} == copied
    of_train = run_in(root).path.relative_to(root).as_posix()
    names = {name.removeprefix(of_train + "/") for name in copied if name.startswith(of_train)}
    of_marker = {"stage.json", "result.json", "metrics.jsonl", "table.md", "figures/losses.svg"}
    assert names == of_marker | {"COMPLETE.json", "attempts/0001.json"}
    assert not any(run_in(root, seed=2).path.name in name for name in copied), "unfinished"


@pytest.fixture
def exported(root, tmp_path, capsys):
    assert output_of(capsys, "export", root, tmp_path / "copy")[0] == 0
    return tmp_path / "copy"


def test_an_export_is_verified_by_its_manifest_and_called_a_copy(root, exported, capsys):
    code, printed = output_of(capsys, "verify", exported)
    places = [run_in(root, stage).path.relative_to(root).as_posix() for stage in ("base", "train")]
    assert code == 0 and printed.splitlines() == [
        *(f"verified    {place} (exported copy)" for place in places),
        "2 of 2 runs verified",
    ]


def test_an_export_that_was_edited_is_refused_with_the_name_of_the_file(root, exported, capsys):
    place = run_in(root).path.relative_to(root).as_posix()
    (exported / place / "result.json").write_text("{}")
    code, printed = output_of(capsys, "verify", exported)
    assert code == 1 and f"REFUSED     {place}: {place}/result.json is not what was exported" in printed
    manifest = json.loads((exported / "MANIFEST.json").read_text())
    manifest[f"{place}/result.json"] = durable.sha256_file(exported / place / "result.json")
    (exported / "MANIFEST.json").write_text(json.dumps(manifest))
    code, printed = output_of(capsys, "verify", exported)
    assert code == 1 and f"REFUSED     {place}: {place}/result.json is not what its marker lists" in printed
    (exported / place / "result.json").unlink()
    assert output_of(capsys, "verify", exported)[0] == 1
    (exported / "MANIFEST.json").write_text("[")
    assert output_of(capsys, "verify", exported)[0] == 1


def test_export_refuses_a_folder_that_is_there(root, tmp_path, capsys):
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "mine").write_text("mine")
    code, printed = output_of(capsys, "export", root, tmp_path / "there")
    assert code == 2 and f"{tmp_path / 'there'} is there already" in printed
    assert runs.tree(tmp_path / "there") == {"mine": b"mine"}


@pytest.mark.parametrize("forge", FORGERIES)
def test_export_refuses_everything_when_one_run_does_not_hold_and_leaves_nothing(root, tmp_path, capsys, forge):
    run, _ = forge(root)
    code, printed = output_of(capsys, "export", root, tmp_path / "copies" / "first")
    assert code == 1
    assert f"REFUSED     {run.path.relative_to(root)}" in printed and "nothing was exported" in printed
    assert not (tmp_path / "copies").exists()


def test_export_to_a_full_disk_leaves_nothing(root, small_disk, capsys):
    run = run_in(root)
    (run.path / "timing.jsonl").write_bytes(b"x" * 1_000_000)
    assert main(["export", str(root), str(small_disk / "copy")]) == 1
    assert "No space left on device" in capsys.readouterr().err
    assert runs.tree(small_disk) == {}


def test_a_folder_without_runs_is_an_error_and_not_silence(tmp_path, capsys):
    assert main(["verify", str(tmp_path)]) == 2
    assert "there are no runs below" in capsys.readouterr().err


# ---------------------------------------------------------------------------------------------------- the root


def test_the_root_is_the_first_word_or_an_option_or_runs(root, tmp_path, monkeypatch, capsys):
    """`export` has a word behind it, which is never taken for the root."""
    named = output_of(capsys, "verify", root)
    assert named[0] == 0 and output_of(capsys, "verify", "--root", root) == named
    monkeypatch.chdir(tmp_path)
    root.rename("runs")
    assert output_of(capsys, "verify") == named
    for number, words in enumerate((["runs", "{}"], ["{}"], ["--root", "runs", "{}"], ["{}", "--root", "runs"])):
        code, printed = output_of(capsys, "export", *(word.format(f"copy-{number}") for word in words))
        assert code == 0 and f"files in copy-{number}" in printed, words
    code, printed = output_of(capsys, "export", "copy-4", "--root", "nothing")
    assert code == 2 and "no folder nothing" in printed
