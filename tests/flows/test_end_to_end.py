"""The smoke study through the real command, and every contract of the run directory."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import load_file

from deployments.dag.walk import Handle, Walk
from flows import robustness
from flows.command import settings
from storage import __main__ as storage_command
from storage import durable, markers
from tasks.attacks import transfer
from tasks.attacks.stages import KEY_COLUMNS
from tasks.training.trained import weights_of
from tests.conftest import REPOSITORY, ROBUSTNESS

ATTACKED = ["base", "baseline", "monotonic"]
ATTACKS = [f"{attack} ({model})" for attack in ("uat", "hotflip") for model in ATTACKED]
CONSTRAIN = "constrain (non-negative-positive-part)"
TRAINED = ["base", "train-baseline", "train-monotonic"]
STAGES = ["setup", "base", CONSTRAIN, *TRAINED[1:], "evaluate", "order", *ATTACKS, "transfer", "audit", "aggregate"]


def _handles(root: Path) -> dict[str, Handle]:
    study = settings.read_study(ROBUSTNESS, "smoke", [], None)
    walk = Walk(root, study.name)
    robustness.page(study, walk)
    return {handle.label: handle for handle in walk.handles}


def _copy(root: Path, to: Path) -> Path:
    return Path(shutil.copytree(root, to / "runs", symlinks=True))


def test_every_stage_is_finished_and_fully_verifies(smoke_root):
    handles = _handles(smoke_root)
    assert list(handles) == STAGES
    for handle in handles.values():
        handle.check_marker(full=True)
        assert handle.finished, handle.verdict.reason


@pytest.mark.parametrize("stage", STAGES)
def test_the_run_directory_keeps_its_contract(smoke_root, stage):
    run = _handles(smoke_root)[stage].run
    assert run.path == smoke_root / "smoke" / stage.partition(" ")[0] / run.fingerprint[:12]
    described = durable.read_json(run.stage_file)
    assert (
        described["fingerprint"] == run.fingerprint
        and described["version"] == _handles(smoke_root)[stage].stage.version
    )
    assert described["numerics"].get("cpu_threads") == (None if stage in ("setup", "aggregate") else 2)
    attempt = durable.read_json(run.attempts / "0001.json")
    assert (attempt["end_state"], attempt["exit_code"], attempt["attempt"]) == ("finished", 0, 1)
    assert attempt["pid"] and attempt["host"] and attempt["boot_id"] and attempt["versions"]["torch"]
    assert attempt["started_at"] <= attempt["ended_at"]
    assert (run.path / "locks" / "1.released").exists()
    progress = durable.read_json(run.progress_file)
    assert progress["alive_at"] >= attempt["started_at"]
    assert not list(run.path.rglob(durable.TEMPORARY_PREFIX + "*"))


def test_markers_list_outputs_and_inputs_and_never_checkpoints(smoke_root):
    handles = _handles(smoke_root)
    for handle in handles.values():
        marker = durable.read_json(handle.run.marker_file)
        assert "result.json" in marker["outputs"] and "stage.json" in marker["outputs"]
        assert not [name for name in marker["outputs"] if name.startswith(("checkpoints", "records/", "timing"))]
        assert marker["inputs"] == {role: given.verdict.outputs_digest for role, given in handle.inputs.items()}


def test_results_hold_no_clock_and_no_machine(smoke_root):
    """What a stage says must not change with the day or the host, or every dependent would run again."""
    for handle in _handles(smoke_root).values():
        text = handle.run.result_file.read_text()
        for word in ("second", "time", "host", "version", str(smoke_root)):
            assert word not in text, f"{handle.stage.name} result holds {word!r}"


def test_models_and_records_are_what_their_digests_say(smoke_root):
    handles = _handles(smoke_root)
    digests = {stage: weights_of(handles[stage].as_input()) for stage in (*TRAINED, CONSTRAIN)}
    assert len({*digests.values()}) == len(digests)
    shared = {"model", "example_id", "source", "tokens_scored", "loss_sum_nats"}
    keys = {"order": ("model",), "transfer": transfer.KEY_COLUMNS}
    for stage in ("order", "transfer", *ATTACKS, "evaluate"):
        run = handles[stage].run
        rows = pq.read_table(run.path / "records.parquet").to_pylist()
        columns = keys.get(stage, KEY_COLUMNS)
        assert len({tuple(row[column] for column in columns) for row in rows}) == len(rows) > 0
        assert shared <= set(rows[0]) or stage == "order"
    assert set(rows[0]) == shared
    tokens = {}
    for row in rows:
        tokens.setdefault(row["example_id"], set()).add(row["tokens_scored"])
    assert len(tokens) == 20 and all(len(counts) == 1 for counts in tokens.values())


def test_metrics_carry_their_step_once(smoke_root):
    for stage in TRAINED:
        rows = [json.loads(line) for line in _handles(smoke_root)[stage].run.metrics_file.read_text().splitlines()]
        trained = [row["step"] for row in rows if "train_loss" in row]
        assert trained == sorted(set(trained)) and rows[-1]["validation_loss"] > 0


def test_the_table_shows_every_model_its_run_and_one_seed(smoke_root):
    handles = _handles(smoke_root)
    table = (handles["aggregate"].run.path / "table.md").read_text()
    for model in ("unigram", "untrained", "base", "constrained-untrained", "baseline", "monotonic"):
        assert f"| {model} " in table
    for stage in (*TRAINED, "evaluate", *ATTACKS):
        assert handles[stage].run.path.relative_to(smoke_root).as_posix() in table
    assert "One seed" in table and "toy size" in table and "same budget" in table
    assert "better" not in table and "robust" not in table


def test_a_finished_study_says_so_and_runs_nothing(smoke_root):
    command = [sys.executable, "-m", "flows.robustness", "--profile", "smoke", "--root", str(smoke_root)]
    attempts = sorted(smoke_root.rglob("attempts/*"))
    environment = os.environ | {"PREFECT_API_URL": "http://127.0.0.1:9/api"}  # nobody answers: nobody is asked
    done = subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0 and "the study is finished" in done.stdout, done.stderr
    assert sorted(smoke_root.rglob("attempts/*")) == attempts
    done = subprocess.run([*command, "--status"], cwd=REPOSITORY, env=environment, capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.count("  finished") == len(STAGES)


def test_a_copied_root_still_holds_and_verifies(smoke_root, tmp_path, capsys):
    copied = _copy(smoke_root, tmp_path)
    assert all(handle.finished for handle in _handles(copied).values())
    assert storage_command.main(["verify", str(copied)]) == 0
    printed = capsys.readouterr().out
    assert printed.count("verified  ") == len(STAGES) and printed.endswith(
        f"\n{len(STAGES)} of {len(STAGES)} runs verified\n"
    )
    assert re.search(r"^verified    smoke/uat/\w+ \(baseline\)$", printed, re.MULTILINE)


def test_pruning_invalidates_nothing(smoke_root, tmp_path):
    copied = _copy(smoke_root, tmp_path)
    assert storage_command.main(["prune", str(copied), "--yes"]) == 0
    assert not list(copied.rglob("checkpoints")) and not list(copied.rglob("records"))
    assert all(handle.finished for handle in _handles(copied).values())


def test_an_edited_result_runs_again_and_its_dependents_only_if_bytes_differ(smoke_root, tmp_path, run_here):
    copied = _copy(smoke_root, tmp_path)
    edited = _handles(copied)["base"].run
    edited.result_file.write_text(edited.result_file.read_text().replace("unigram", "Unigram"))
    before = _handles(copied)
    assert not before["base"].finished and "result.json was edited" in before["base"].verdict.reason
    code, printed = run_here("--root", copied, "--set", "execution.keep_checkpoints=3")
    assert code == 0, printed
    assert durable.read_json(edited.generation_file)["history"][0]["reason"].startswith("the marker was refused")
    after = _handles(copied)
    attempts = {stage: len(list(after[stage].run.attempts.glob("*.json"))) for stage in STAGES}
    assert attempts == dict.fromkeys(STAGES, 1) | {"base": 2}
    digest = durable.read_json(_handles(smoke_root)["base"].run.marker_file)["outputs_digest"]
    assert markers.check_outputs(edited).outputs_digest == digest


def test_a_forged_marker_is_named_and_the_stage_runs_again(smoke_root, tmp_path, run_here):
    copied = _copy(smoke_root, tmp_path)
    run = _handles(copied)["aggregate"].run
    run.marker_file.write_text("")
    code, printed = run_here("--root", copied, "--status")
    assert code == 75 and "its marker does not hold: the marker cannot be read" in printed
    code, printed = run_here("--root", copied)
    assert code == 0 and _handles(copied)["aggregate"].finished


def _edit_unnoticed(file: Path, old: str, new: str) -> None:
    """Other bytes with the size, the times and the inode that the file had: only a full look can see it."""
    before, text = file.stat(), file.read_text()
    assert old in text and len(old) == len(new)
    with file.open("r+") as opened:
        opened.write(text.replace(old, new, 1))
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))


def _sign(marker_file: Path, **described: object) -> None:
    """Makes a marker say of result.json what is given, and signs it as someone would who has read our source."""
    marker = durable.read_json(marker_file)
    marker["outputs"]["result.json"] |= described
    marker["outputs_digest"] = markers.outputs_digest(marker["outputs"])
    marker.pop("marker_digest")
    marker_file.write_text(json.dumps(marker | {"marker_digest": durable.sha256_json(marker)}))


def test_a_forged_table_is_never_shown_as_finished(smoke_root, tmp_path, run_here):
    copied = _copy(smoke_root, tmp_path)
    run = _handles(copied)["aggregate"].run
    (run.path / "table.md").write_text((run.path / "table.md").read_text().replace("| monotonic ", "| monotonix ", 1))
    stat = (run.path / "table.md").stat()
    marker = durable.read_json(run.marker_file)
    marker["outputs"]["table.md"] |= {"mtime_ns": stat.st_mtime_ns, "inode": stat.st_ino}
    run.marker_file.write_text(json.dumps(marker))
    _sign(run.marker_file)
    assert _handles(copied)["aggregate"].finished, "the quick look believes it"
    code, printed = run_here("--root", copied)
    assert code == 75 and "the study is finished" not in printed
    assert "aggregate does not hold: table.md was edited after the stage finished" in printed


def test_an_input_that_only_a_full_check_finds_altered_is_named_once_and_then_made_again(
    smoke_root, tmp_path, run_here
):
    copied = _copy(smoke_root, tmp_path)
    run = _handles(copied)["base"].run
    _handles(copied)["aggregate"].run.marker_file.unlink()
    stat = run.result_file.stat()
    _sign(run.marker_file, mtime_ns=stat.st_mtime_ns, inode=stat.st_ino)
    _edit_unnoticed(run.result_file, '"unigram"', '"Unigram"')
    assert _handles(copied)["base"].finished, "the quick look believes it"
    code, printed = run_here("--root", copied)
    assert code == 1 and "the outputs of base" in printed, printed
    code, printed = run_here("--root", copied)
    assert code == 0 and _handles(copied)["aggregate"].finished, printed


def test_verify_finds_a_result_whose_input_was_made_again_with_other_bytes(smoke_root, tmp_path, capsys):
    copied = _copy(smoke_root, tmp_path)
    run = _handles(copied)["base"].run
    run.result_file.write_text(run.result_file.read_text().replace("unigram", "Unigram"))
    _sign(run.marker_file, sha256=durable.sha256_file(run.result_file))
    assert storage_command.main(["verify", str(copied)]) == 1
    printed = capsys.readouterr().out
    assert "7 of 16 runs verified, 9 REFUSED" in printed and "the input 'base' is not the one that was read" in printed


def test_a_study_of_a_pretrained_folder_and_local_files(smoke_root, tmp_path, run_here):
    """The real loading code on a local copy: tokenizer and model by `from_pretrained`, text of one file."""
    model = shutil.copytree(_handles(smoke_root)["base"].run.path / "model", tmp_path / "model")
    parquets = (_handles(smoke_root)["setup"].run.path / "text").glob("*.parquet")
    rows = [row for file in parquets for row in pq.read_table(file).to_pylist()]
    lines = (json.dumps({"text": row["text"]}) for row in rows)
    (tmp_path / "text.jsonl").write_text("\n".join(lines))
    sets = [
        f"text={{source: files, paths: [{tmp_path}/text.jsonl]}}",
        "splits={evaluation_share: 0.15, validation_documents: 4, test_documents: 4, attack_search_documents: 2, "
        "attack_evaluation_documents: 2}",
        "hotflip.documents=2",
        f"model={{source: directory, path: {model}}}",
    ]
    arguments = [argument for change in sets for argument in ("--set", change)]
    code, printed = run_here("--root", tmp_path / "runs", *arguments)
    assert code == 0 and "| untrained" not in printed, printed
    (base,) = (tmp_path / "runs").glob("smoke/base/*/model")
    kept, given = (load_file(folder / "model.safetensors") for folder in (base, Path(model)))
    assert kept.keys() == given.keys() and all(torch.equal(kept[name], given[name]) for name in kept)
