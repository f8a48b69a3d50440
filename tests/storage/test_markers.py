"""A marker is believed only while it holds: every way to forge one is refused, and the refusal says why."""

import contextlib
import json
import os
import shutil

import pytest

from storage import durable, locks, markers
from storage.locks import LockLost
from storage.run_directory import RunDirectory
from tests.storage import runs


@pytest.fixture
def run(tmp_path):
    return runs.finished(tmp_path)


def verdicts(run: RunDirectory, inputs=None) -> tuple[markers.Verdict, markers.Verdict]:
    """Of the quick check and of the full one."""
    inputs = runs.INPUTS if inputs is None else inputs
    return markers.check(run, inputs), markers.check(run, inputs, full=True)


def assert_refused(run: RunDirectory, reason: str, inputs=None) -> None:
    for verdict in verdicts(run, inputs):
        assert not verdict.holds and verdict.present
        assert reason in verdict.reason
        assert not verdict.outputs_digest


# ------------------------------------------------------------------------------------------------ that hold


def test_a_fresh_marker_holds_and_lists_every_file_of_every_output(run):
    quick, full = verdicts(run)
    assert quick == full == markers.check_outputs(run)
    assert quick.holds and quick.reason == ""
    marker = runs.marker_of(run)
    assert sorted(marker["outputs"]) == [
        "metrics.jsonl",
        "model/tokenizer/vocabulary.json",
        "model/weights.safetensors",
        "result.json",
        "stage.json",
    ]
    assert marker["outputs"]["result.json"]["sha256"] == durable.sha256_file(run.result_file)
    assert quick.outputs_digest == marker["outputs_digest"]
    assert marker["inputs"] == runs.INPUTS and marker["lock"] == 1


def test_a_glance_reads_no_large_output_and_sees_its_size(run, monkeypatch):
    weights = run.path / "model" / "weights.safetensors"
    weights.write_bytes(bytes(1000))
    assert markers.glance(run).reason.startswith("model/weights.safetensors was edited after the stage finished")
    monkeypatch.setattr(markers, "GLANCED_BYTES", 999)
    assert markers.glance(run).holds and not markers.check_outputs(run, full=False).holds
    weights.unlink()
    weights.write_bytes(b"short")
    assert markers.glance(run).reason == "model/weights.safetensors has 5 bytes, the marker says 1000"
    weights.unlink()
    assert markers.glance(run).reason == "model/weights.safetensors is missing"


def test_an_unfinished_run_differs_from_a_refused_one(tmp_path):
    run = runs.run_of(tmp_path)
    assert markers.check(run, {}) == markers.Verdict(False, "no marker", present=False)
    runs.fill(run)
    assert not markers.check(run, {}).present


@pytest.mark.parametrize("keep_times", [True, False])
def test_a_copied_root_still_holds(run, tmp_path, keep_times):
    elsewhere = tmp_path / "elsewhere"
    shutil.copytree(run.root / "study", elsewhere / "study", copy_function=shutil.copy2 if keep_times else shutil.copy)
    copy = RunDirectory(elsewhere, run.study, run.stage, run.fingerprint)
    assert copy.result_file.stat().st_ino != run.result_file.stat().st_ino
    assert all(verdict.holds for verdict in verdicts(copy))


def test_touching_outputs_and_marker_changes_nothing(run):
    for file in (run.marker_file, run.result_file, run.path / "model" / "weights.safetensors"):
        os.utime(file, (1, 1))
    assert all(verdict.holds for verdict in verdicts(run))


def test_what_is_not_an_output_may_change_and_go(run):
    run.timing_file.write_text("{}")
    run.progress_file.write_text("{}")
    (run.checkpoints / "5").mkdir(parents=True)
    assert all(verdict.holds for verdict in verdicts(run))


def test_the_outputs_digest_depends_on_bytes_and_names_and_on_nothing_else(tmp_path):
    first, again = runs.finished(tmp_path / "a"), runs.finished(tmp_path / "b")
    assert markers.check_outputs(first).outputs_digest == markers.check_outputs(again).outputs_digest
    other = runs.run_of(tmp_path / "c")
    runs.fill(other, seed=2)
    assert runs.finish(other).outputs_digest != markers.check_outputs(first).outputs_digest
    renamed = runs.run_of(tmp_path / "d")
    runs.fill(renamed)
    (renamed.path / "model" / "weights.safetensors").rename(renamed.path / "model" / "weights")
    assert runs.finish(renamed).outputs_digest != markers.check_outputs(first).outputs_digest


def test_an_unedited_run_is_not_hashed_by_a_quick_look(run, monkeypatch):
    hashed = []
    original = durable.sha256_file
    monkeypatch.setattr(durable, "sha256_file", lambda file: hashed.append(file) or original(file))
    assert markers.check(run, runs.INPUTS).holds and not hashed
    assert markers.check(run, runs.INPUTS, full=True).holds and len(hashed) == 5


# ------------------------------------------------------------------------------------------- forged markers


FORGED = {
    "of another stage": (
        lambda run: shutil.copy(runs.finished(run.root, stage="base").marker_file, run.marker_file),
        "the marker was copied from stage 'base'",
    ),
    "from before a later attempt": (
        lambda run: locks.acquire(run.path / "locks").release(),
        "the marker was written by attempt 1, but attempt 2 took the run over",
    ),
}


@pytest.mark.parametrize(("forge", "reason"), FORGED.values(), ids=FORGED)
def test_a_forged_marker_is_refused(run, forge, reason):
    forge(run)
    assert_refused(run, reason)


def test_a_touched_marker_of_an_unfinished_run_is_refused(tmp_path):
    run = runs.run_of(tmp_path)
    runs.fill(run)
    run.marker_file.touch()
    assert_refused(run, "COMPLETE.json is not JSON")


@pytest.mark.parametrize("content", ["{}", "[]", "null", "3", '"finished"', '{"outputs": {}}', '{"outputs": [1]}'])
def test_json_that_is_no_marker_is_refused(run, content):
    run.marker_file.write_text(content)
    assert_refused(run, "the marker lists no outputs")


def test_a_marker_that_is_a_folder_is_refused(run):
    run.marker_file.unlink()
    run.marker_file.mkdir()
    assert_refused(run, "the marker cannot be read")


def test_a_whole_run_directory_copied_from_another_seed_is_refused(run):
    other = runs.run_of(run.root, seed=2)
    shutil.copytree(run.path, other.path)
    assert_refused(other, f"the marker belongs to fingerprint {run.fingerprint[:12]}, not to this run")


def test_a_marker_copied_to_a_run_that_did_not_finish_is_refused(run, tmp_path):
    unfinished = runs.run_of(tmp_path / "elsewhere")
    runs.fill(unfinished)
    (unfinished.path / "model" / "weights.safetensors").unlink()
    locks.acquire(unfinished.path / "locks").release()
    shutil.copy(run.marker_file, unfinished.marker_file)
    assert_refused(unfinished, "model/weights.safetensors is missing")


# ------------------------------------------------------------------------------------------- edited markers


def another_fingerprint(marker):
    marker["fingerprint"] = "f" * 64


def another_stage(marker):
    marker["stage"] = "base"


def another_format(marker):
    marker["format"] = 2


def another_lock(marker):
    marker["lock"] = 7


def an_output_fewer(marker):
    del marker["outputs"]["model/weights.safetensors"]


def another_digest(marker):
    marker["outputs"]["result.json"]["sha256"] = "0" * 64


def another_size(marker):
    marker["outputs"]["result.json"]["size"] += 1


def another_input(marker):
    marker["inputs"]["setup"] = "b" * 64


def an_input_fewer(marker):
    marker["inputs"] = {}


def an_input_more(marker):
    marker["inputs"]["base"] = "c" * 64


EDITS = {
    another_fingerprint: "belongs to fingerprint ffffffffffff",
    another_stage: "was copied from stage 'base'",
    another_format: "has format 2, not 1",
    another_lock: "was written by attempt 7, but attempt 1",
    an_output_fewer: "outputs digest is not that of the outputs it lists",
    another_digest: "outputs digest is not that of the outputs it lists",
    another_size: "result.json has ",
    another_input: "the input 'setup' is not the one that was read",
    an_input_fewer: "the marker lists the inputs [], the stage reads ['setup']",
    an_input_more: "the marker lists the inputs ['base', 'setup'], the stage reads ['setup']",
}


@pytest.mark.parametrize("edit", EDITS)
def test_an_edited_marker_is_refused(run, edit):
    runs.rewrite_marker(run, edit, sign=False)
    assert_refused(run, "the marker was edited after it was written")


@pytest.mark.parametrize(("edit", "reason"), EDITS.items())
def test_an_edited_marker_with_its_digest_made_anew_is_refused(run, edit, reason):
    runs.rewrite_marker(run, edit, sign=True)
    assert_refused(run, reason)


def test_a_marker_that_says_digests_of_its_own_is_found_by_the_full_look(run):
    """Every digest in it made to match: the bytes themselves are then all that is left to ask."""

    def lie(marker):
        marker["outputs"]["result.json"]["sha256"] = "0" * 64
        marker["outputs_digest"] = markers.outputs_digest(marker["outputs"])

    runs.rewrite_marker(run, lie, sign=True)
    quick, full = verdicts(run)
    assert full.reason == "result.json was edited after the stage finished: its digest differs"
    assert quick.holds, "a quick check reads no bytes of files that nobody touched"
    os.utime(run.result_file)
    assert_refused(run, "result.json was edited after the stage finished")


def test_a_marker_that_hides_an_output_of_a_folder_is_refused(run):
    def hide(marker):
        del marker["outputs"]["model/weights.safetensors"]
        marker["outputs_digest"] = markers.outputs_digest(marker["outputs"])

    runs.rewrite_marker(run, hide, sign=True)
    assert_refused(run, "model/weights.safetensors was added after the stage finished")


@pytest.mark.parametrize(
    "change",
    [
        {"outputs": {"result.json": None}},
        {"outputs": {"result.json": 5}},
        {"outputs": {"result.json": {}}},
        {"outputs": {"result.json": {"size": None, "sha256": None}}},
        {"outputs": {"a\0b": {"size": 1}}},
        {"outputs": {"model": {"size": 4096}}},
        {"outputs": {"x" * 5000: {"size": 1}}},
        {"outputs": {"/etc/../..": {"size": 1}}},
        {"inputs": 5},
        {"inputs": None},
        {"inputs": ["setup"]},
        {"inputs": {"setup": None}},
        {"lock": float("nan")},
        {"lock": None},
        {"lock": [1]},
        {"stage": None},
        {"fingerprint": 5},
        {"fingerprint": None},
        {"format": "1"},
    ],
    ids=str,
)
def test_a_marker_with_values_that_make_no_sense_is_refused_and_breaks_nothing(run, change):
    marker = runs.marker_of(run) | change
    with contextlib.suppress(AttributeError):  # where it can be made at all
        marker["outputs_digest"] = markers.outputs_digest(marker["outputs"])
    for sign in (False, True):
        signature = marker.pop("marker_digest", None)
        with contextlib.suppress(ValueError):
            signature = durable.sha256_json(marker) if sign else signature
        marker["marker_digest"] = signature
        run.marker_file.write_text(json.dumps(marker))
        assert_refused(run, "")
        if "inputs" not in change:
            assert not markers.check_outputs(run).holds


# ------------------------------------------------------------------------------------------- edited outputs


def test_an_output_replaced_by_another_of_the_same_size_and_time_is_refused(run):
    """Another inode gives it away to the quick check too."""
    file = run.path / "model" / "weights.safetensors"
    before = file.stat()
    (run.path / "other").write_bytes(b"x" * before.st_size)
    os.utime(run.path / "other", ns=(before.st_atime_ns, before.st_mtime_ns))
    (run.path / "other").rename(file)
    assert_refused(run, "model/weights.safetensors was edited after the stage finished")


@pytest.mark.parametrize("name", ["result.json", "model/weights.safetensors"])
def test_other_bytes_under_the_same_size_time_and_inode_are_found_by_the_full_look(run, name):
    """What the quick check cannot see. Reports, inputs and verify use the full one."""
    runs.edit_unnoticed(run.path / name)
    quick, full = verdicts(run)
    assert quick.holds
    assert (
        full.reason
        == markers.check_outputs(run).reason
        == f"{name} was edited after the stage finished: its digest differs"
    )


def test_a_deleted_output_folder_is_refused(run):
    shutil.rmtree(run.path / "model")
    assert_refused(run, "model/tokenizer/vocabulary.json is missing")


def test_an_output_that_became_a_folder_is_refused(run):
    run.result_file.unlink()
    run.result_file.mkdir()
    assert_refused(run, "result.json ")


@pytest.mark.parametrize("name", ["model/pytorch_model.bin", "model/tokenizer/added_tokens.json", "model/new/a"])
def test_a_file_added_to_an_output_folder_is_refused_by_name(run, name):
    """from_pretrained would read it."""
    (run.path / name).parent.mkdir(exist_ok=True)
    (run.path / name).write_text("{}")
    assert_refused(run, f"{name} was added after the stage finished")


# ---------------------------------------------------------------------------------------------------- inputs


def test_an_input_whose_outputs_changed_makes_its_dependents_stale(run):
    assert_refused(run, "the input 'setup' is not the one that was read: its outputs have changed", {"setup": "b" * 64})
    assert markers.check_outputs(run).holds, "its own outputs are as they were"


def test_an_input_that_was_made_again_with_the_same_bytes_changes_nothing(tmp_path):
    setup = runs.finished(tmp_path, "setup")
    digest = markers.check_outputs(setup).outputs_digest
    train = runs.run_of(tmp_path)
    runs.fill(train)
    runs.finish(train, {"setup": digest})
    setup.marker_file.unlink()
    setup.result_file.write_bytes(setup.result_file.read_bytes())
    runs.finish(setup)
    assert markers.check(train, {"setup": markers.check_outputs(setup).outputs_digest}, full=True).holds

    durable.write_json(setup.result_file, {"loss": 0.25, "seed": 3})
    runs.finish(setup)
    verdict = markers.check(train, {"setup": markers.check_outputs(setup).outputs_digest})
    assert "the input 'setup' is not the one that was read" in verdict.reason


def test_other_inputs_than_the_stage_reads_are_refused(run):
    assert_refused(run, "the marker lists the inputs ['setup'], the stage reads []", {})
    assert_refused(run, "the stage reads ['base', 'setup']", runs.INPUTS | {"base": "b" * 64})


# --------------------------------------------------------------------------------------------------- writing


def test_no_marker_is_written_while_an_output_is_missing(tmp_path):
    run = runs.run_of(tmp_path)
    runs.fill(run)
    shutil.rmtree(run.path / "model")
    with pytest.raises(FileNotFoundError, match="model, which is not there"):
        runs.finish(run)
    assert not run.marker_file.exists()


def test_no_marker_is_written_by_a_holder_that_was_taken_over(tmp_path):
    run = runs.run_of(tmp_path)
    runs.fill(run)
    lock = locks.acquire(run.path / "locks")
    (run.path / "locks" / "2.json").write_text("{}")
    with pytest.raises(LockLost):
        markers.write(run, runs.OUTPUTS, runs.INPUTS, lock)
    lock.release()
    assert not run.marker_file.exists()


def test_a_marker_that_does_not_read_back_is_taken_away_again(tmp_path, monkeypatch):
    """A disk that returns other bytes than it was given: here, one that changes them with the marker's write."""
    run = runs.run_of(tmp_path)
    runs.fill(run)
    original = durable.write_json

    def write_on_a_bad_disk(path, value):
        original(path, value)
        runs.edit_unnoticed(run.path / "model" / "weights.safetensors")

    monkeypatch.setattr(durable, "write_json", write_on_a_bad_disk)
    with pytest.raises(OSError, match="did not read back: model/weights"):
        runs.finish(run)
    assert not run.marker_file.exists()


def test_a_full_disk_leaves_no_marker(tmp_path):
    run = runs.run_of(tmp_path)
    runs.fill(run)
    with runs.files_no_larger_than(500), pytest.raises(OSError, match=r"File too large.*COMPLETE\.json"):
        runs.finish(run)
    assert not run.marker_file.exists() and not runs.temporaries(run.path)
    assert runs.finish(run).holds


def test_one_that_was_taken_over_while_it_read_its_outputs_back_leaves_the_new_marker_alone(tmp_path, monkeypatch):
    run = runs.run_of(tmp_path)
    runs.fill(run)
    lock = locks.acquire(run.path / "locks")
    check = markers.check

    def taken_over_meanwhile(*arguments, **named):
        monkeypatch.setattr(markers, "check", check)
        (run.path / "locks" / f"{lock.number + 1}.json").write_text("{}")
        run.marker_file.write_text('{"of": "the new holder"}')
        return check(*arguments, **named)

    monkeypatch.setattr(markers, "check", taken_over_meanwhile)
    with pytest.raises(locks.LockLost):
        markers.write(run, runs.OUTPUTS, runs.INPUTS, lock)
    lock.release()
    assert run.marker_file.read_text() == '{"of": "the new holder"}'
