"""D3, D10, D11, D20, D25 and forged flags: what was called finished, and what was reused."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from storage import durable, markers
from storage.errors import CheckFailed
from storage.records import RecordParts
from tasks.robustness.final_results import FinalResults
from tasks.robustness.sweep import Cell, _require_distinct_seeds
from tests.tasks.tiny import (
    ToyConfig,
    finished_study,
    handles_of,
    stage_run,
    tiny_study,
    toy_attempt,
    toy_directory,
    toy_to_the_end,
)


def test_d03_an_unfinished_run_that_exits_0(tmp_path):
    """The signal's path ended with sys.exit(0), and "partial run" returned 0: dependents started on nothing."""

    def one_of_our_runs() -> tuple[int, bool]:
        code = toy_attempt(tmp_path, ToyConfig(), max_steps_per_run=5).exit_code
        return code, markers.check(toy_directory(tmp_path, ToyConfig()), {}).holds

    def zero_means_finished(run) -> bool:
        ends = [run() for _ in range(3)]
        assert ends[-1] == (0, True)
        return all((code == 0) == finished for code, finished in ends)

    assert zero_means_finished(one_of_our_runs)


def test_d03_unfinished_ends_with_75_and_without_a_marker(tmp_path):
    outcome = toy_attempt(tmp_path, ToyConfig(), max_steps_per_run=5)
    run = toy_directory(tmp_path, ToyConfig())
    assert outcome.exit_code == 75
    assert durable.read_json(run.attempts / "0001.json")["exit_code"] == 75
    assert not run.marker_file.exists() and not run.result_file.exists()


def test_d10_a_cache_that_is_keyed_by_the_number_of_samples(tmp_path):
    """partial/{model}_pile_{n}.json was taken whatever the checkpoint, the variant or the budget."""

    run = stage_run(tmp_path)

    def ours(folder: Path, weights: str) -> str:
        parts = RecordParts(folder, {"fingerprint": "f", "inputs": {"monotonic": weights}}, run.lock)
        if not parts.has("monotonic-00000"):
            row = {"model": "monotonic", "example_id": "1", "tokens_scored": 1, "loss": f"loss of {weights}"}
            parts.write("monotonic-00000", [row])
        import pyarrow.parquet as pq

        return pq.read_table(folder / "monotonic-00000.parquet").to_pylist()[0]["loss"]

    def other_weights_give_another_result(evaluate, folder: Path) -> bool:
        first, again = evaluate(folder, "seed 42"), evaluate(folder, "seed 42")
        assert first == again == "loss of seed 42"
        return evaluate(folder, "seed 1337") == "loss of seed 1337"

    assert other_weights_give_another_result(ours, tmp_path / "ours")


def test_d10_the_variant_is_not_in_the_path(tmp_path):

    def ours(variant: str) -> set[str]:
        handles = handles_of(tmp_path, tiny_study(tmp_path, constraint={"variant": variant}))
        return {
            str(handles[name].run.path)
            for name in ("constrain-non-negative-positive-part", "train-monotonic", "evaluate")
        }

    def apart(places) -> bool:
        return not places("mlp_in") & places("mlp_both")

    assert apart(ours)


def model_sizes(folder: Path, layers: int) -> dict[str, Path]:
    """Stage name -> run directory of a study with so many layers."""
    study = tiny_study(folder)
    sized = study.model_copy(update={"model": study.model.model_copy(update={"layers": layers})})
    return {name: handle.run.path for name, handle in handles_of(folder, sized).items()}


def test_d11_a_guard_that_looks_at_a_folder_without_the_model_in_its_name(tmp_path):
    """A 2.8b run exited 0 as "already complete" because the 1.4b run had finished."""

    def ours(size: int) -> str:
        config = ToyConfig(examples=size)
        if markers.check(toy_directory(tmp_path, config), {}).holds:
            return "already complete"
        assert toy_attempt(tmp_path, config).exit_code == 0
        return "trained"

    def each_size_is_trained_once(run) -> bool:
        return [run(20), run(30), run(20)] == ["trained", "trained", "already complete"]

    assert each_size_is_trained_once(ours)


def test_d20_completion_inferred_from_a_number_of_files(tmp_path):
    """Five epoch files made a stage complete of which seven epochs were asked."""
    config = ToyConfig()
    toy_attempt(tmp_path, config, max_steps_per_run=7, checkpoint_every_steps=1, keep_checkpoints=50)
    run = toy_directory(tmp_path, config)
    assert len(list(run.checkpoints.iterdir())) == 7

    def ours() -> bool:
        return markers.check(run, {}).holds

    assert ours() is False
    toy_to_the_end(tmp_path, config)
    shutil.rmtree(run.checkpoints)  # and pruning, which left one file, does not undo it
    assert ours() is True


def test_d25_a_flag_that_two_model_sizes_share(tmp_path):
    """The flag of stage 2 lay under seed_42 for t5-small and t5-base alike."""

    def ours(layers: int) -> dict[str, Path]:
        return model_sizes(tmp_path, layers)

    def apart(places) -> bool:
        return places(1)["train-baseline"] != places(2)["train-baseline"]

    assert apart(ours)
    shared = {name for name, place in ours(1).items() if ours(2)[name] == place}
    assert shared == {"setup"}  # the text does not depend on the model


# ---------------------------------------------------------------------------------------- forged flags


def test_seeds_that_were_made_by_copying_files_and_touching_flags(tmp_path):
    """Seeds 1337 and 2024 of the earlier system were byte for byte seed 42."""
    study = finished_study()

    forged = tmp_path / "seed_1337"
    shutil.copytree(study.path("train-baseline"), forged)
    (forged / "stage_complete.flag").touch()

    copied = study.copy(tmp_path / "runs")
    other = handles_of(copied.root, study.study.model_copy(update={"seed": 1337}))["train-baseline"]
    shutil.copytree(copied.path("train-baseline"), other.run.path)
    verdict = markers.check_outputs(other.run)
    assert not verdict.holds
    assert "belongs to fingerprint" in verdict.reason


def test_a_marker_that_was_only_touched(tmp_path):
    run = toy_directory(tmp_path, ToyConfig())
    run.path.mkdir(parents=True)
    run.marker_file.touch()

    verdict = markers.check(run, {})
    assert verdict.present and not verdict.holds


def test_two_seeds_with_equal_weights():
    """Identical files were reported as "identical across all three seeds, confirming stability"."""
    results = FinalResults.read_file(finished_study().path("aggregate") / "final_results.json")
    with pytest.raises(CheckFailed, match="seed 42, baseline and seed 2024, baseline: equal weights_digest"):
        _require_distinct_seeds({"seed 42": Cell(results, {}), "seed 2024": Cell(results, {})})
    _require_distinct_seeds({"seed 42": Cell(results, {})})


def test_a_result_that_was_edited_after_its_stage_finished(tmp_path):
    copied = finished_study().copy(tmp_path / "runs")
    file = copied.path("evaluate") / "result.json"

    stamp = file.stat()
    file.write_bytes(file.read_bytes().replace(b"test", b"TEST"))
    os.utime(file, ns=(stamp.st_atime_ns, stamp.st_mtime_ns + 1))
    handles = handles_of(copied.root, copied.study)
    assert not handles["evaluate"].finished
    assert "result.json was edited" in handles["evaluate"].verdict.reason
    assert np.all([handles[name].finished for name in ("setup", "base", "train-baseline")])
