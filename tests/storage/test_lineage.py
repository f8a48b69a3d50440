"""What determines a result, and in what two results differ: in themselves and in all that they read."""

from pathlib import Path
from typing import Any

import pytest

from storage import durable
from storage.lineage import Difference, Lineages, differing
from storage.run_directory import RunDirectory, fingerprint


def run_of(
    root: Path, stage: str, scientific: dict[str, Any], version: int = 1, **inputs: RunDirectory
) -> RunDirectory:
    """A run directory that was begun; `text` among the scientific fields is read from outside."""
    external = {"files": {"a.txt": scientific.pop("text")}} if "text" in scientific else {}
    prints = {role: given.fingerprint for role, given in inputs.items()}
    run = RunDirectory(root, "study", stage, fingerprint(stage, version, scientific, external, prints))
    read = {role: {"stage": given.stage, "fingerprint": given.fingerprint} for role, given in inputs.items()}
    described = {"fingerprint": run.fingerprint, "version": version, "scientific": scientific, "external": external}
    run.path.mkdir(parents=True, exist_ok=True)
    durable.write_json(run.stage_file, described | {"inputs": read})
    return run


def between(there: RunDirectory, here: RunDirectory) -> list[Difference]:
    lineages = Lineages()
    return differing(lineages.of(there), lineages.of(here))


def study(root: Path, text: str = "old", seed: int = 1, level: float = 0.9, version: int = 1) -> RunDirectory:
    """setup -> two trainings of one seed -> a table."""
    setup = run_of(root, "setup", {"split": {"share": 0.1}, "text": text})
    trained = {arm: run_of(root, "train", {"arm": arm, "seed": seed}, version, text=setup) for arm in ("free", "bound")}
    return run_of(root, "table", {"level": level}, text=setup, **trained)


def test_what_differs_is_named_once_with_every_stage_that_it_differs_in_and_the_nearest_first(tmp_path):
    found = between(study(tmp_path), study(tmp_path, text="new", seed=2, level=0.95, version=3))
    assert found == [
        Difference("level", 0.9, 0.95, ("table",)),
        Difference("external.files.a.txt", "old", "new", ("setup",)),
        Difference("seed", 1, 2, ("train",)),
        Difference("version", 1, 3, ("train",)),
    ]
    assert between(study(tmp_path), study(tmp_path)) == []


def test_an_input_that_only_one_reads_and_a_field_that_only_one_has_are_named(tmp_path):
    setup = run_of(tmp_path, "setup", {})
    plain = run_of(tmp_path, "table", {"level": 1})
    reading = run_of(tmp_path, "table", {"level": 1, "wide": True}, text=setup)
    named = [(one.name, one.there, one.here) for one in between(plain, reading)]
    assert named == [("wide", "absent", True), ("reads text", "absent", "setup")]
    assert [(one.there, one.here) for one in between(reading, plain)] == [(True, "absent"), ("setup", "absent")]


@pytest.mark.parametrize("content", [None, "{", "[]", '{"version": 1}'])
def test_what_was_removed_or_damaged_upstream_is_said_to_be_lost(tmp_path, content):
    old, new = study(tmp_path, text="old"), study(tmp_path, text="new")
    lost = next(path for path in tmp_path.glob("study/setup/*/stage.json") if "old" in path.read_text())
    lost.unlink() if content is None else lost.write_text(content)
    assert between(old, new) == [Difference("stage.json", "lost", "there", ("setup",))]


def test_a_stage_file_that_was_edited_to_read_itself_ends_all_the_same(tmp_path):
    run = study(tmp_path)
    described = durable.read_json(run.stage_file)
    described["inputs"]["self"] = {"stage": run.stage, "fingerprint": run.fingerprint}
    durable.write_json(run.stage_file, described)
    assert run in Lineages().of(run).runs()
    assert between(run, study(tmp_path, seed=2))


def test_the_values_of_a_key_are_those_of_the_run_and_of_all_that_it_reads(tmp_path):
    lineages = Lineages()
    values = lineages.values(lineages.of(study(tmp_path)))
    assert values == {"level": {"0.9"}, "split.share": {"0.1"}, "arm": {"free", "bound"}, "seed": {"1"}}
    assert next(iter(values)) == "level"
