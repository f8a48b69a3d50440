"""The command that makes a run again, as it was written down, gives its fingerprint."""

import shlex
import sys
from pathlib import Path
from typing import Any

import pytest

from deployments.dag.page import Page
from deployments.dag.walk import Handle, Walk
from flows import command
from flows.command import settings
from flows.command.show import NOT_KEPT, again
from storage import durable
from storage.run_directory import RunDirectory
from tests.conftest import ROBUSTNESS


def begun(root: Path, study: Any, page: Page = ROBUSTNESS) -> list[Handle]:
    """Each stage of the page as an attempt leaves it that has just begun."""
    walk = Walk(root, study.name, study.execution)
    page.walk(study, walk)
    for handle in walk.handles:
        inputs = {
            role: {"stage": given.stage.name, "fingerprint": given.run.fingerprint}
            for role, given in handle.inputs.items()
        }
        described = {
            "fingerprint": handle.run.fingerprint,
            "version": handle.stage.version,
            "configuration": handle.config.model_dump(mode="json"),
            "scientific": handle.config.scientific(),
            "external": handle.config.external_inputs(),
            "inputs": inputs,
        }
        handle.run.path.mkdir(parents=True)
        durable.write_json(handle.run.stage_file, described)
        durable.write_json(handle.run.study_file, handle.origin)
    return walk.handles


def command_for(run: RunDirectory) -> str:
    return again(run)[0]


def smoke(*changes: str) -> Any:
    return settings.read_study(ROBUSTNESS, "smoke", list(changes), None)


@pytest.fixture(autouse=True)
def on_path(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """A shell that finds `ratchet` alone."""
    folder = tmp_path_factory.mktemp("bin")
    (folder / "ratchet").touch(0o755)
    monkeypatch.setenv("PATH", str(folder))


CHANGED = ("seed=7", "budget.epochs=0.5", "name=mine", "arms=[baseline, monotonic]")


def test_the_command_of_every_stage_of_a_changed_profile_is_found_and_gives_its_fingerprint(tmp_path, capsys):
    for handle in begun(tmp_path, smoke(*CHANGED))[::4]:
        words = command_for(handle.run)
        assert words == f"ratchet run robustness --profile {handle.run.study_file} --root {tmp_path}"
        assert command.ratchet([*shlex.split(words)[1:], "--dry-run"]) == 0
        assert handle.run.path.name in capsys.readouterr().out, words


def test_a_run_of_an_earlier_version_says_that_its_command_is_not_known(tmp_path):
    run = begun(tmp_path, smoke("seed=7"))[0].run
    run.study_file.unlink()
    assert command_for(run) == NOT_KEPT


def test_the_command_keeps_the_numerics_and_whatever_else_the_study_was_told(tmp_path):
    """It dropped every execution key: other bytes under the same fingerprint."""
    (text := tmp_path / "text.txt").write_text("a text")
    study = smoke(
        "execution.micro_batch_examples=64",
        "execution.cpu_threads=1",
        f"text={{source: files, paths: [{text}]}}",
        "name=yes-no",
    )
    words = command_for(begun(tmp_path, study)[-1].run)
    options = command.ratchet_parser()[0].parse_args(shlex.split(words)[1:])
    assert settings.read_study(ROBUSTNESS, options.profile, options.changes, options.seed) == study


def test_the_command_of_a_sweep_and_of_its_cells_is_found(tmp_path, capsys):
    page = Page(
        ROBUSTNESS.place,
        ROBUSTNESS.function,
        ROBUSTNESS.model,
        {"seed": [1, 2], "constraint.variant": ["mlp_in", "mlp_both"]},
    )
    *cells, table = begun(tmp_path, smoke("budget.epochs=0.5"), page)
    words = command_for(table.run)
    assert words == (
        f"ratchet sweep robustness --profile {table.run.study_file} --over seed=1,2 "
        f"--over constraint.variant=mlp_in,mlp_both --root {tmp_path}"
    )
    assert command.ratchet([*shlex.split(words)[1:], "--dry-run"]) == 0
    assert table.run.path.name in capsys.readouterr().out
    cell = next(one for one in cells if one.stage.name == "aggregate")
    assert command.ratchet([*shlex.split(command_for(cell.run))[1:], "--dry-run"]) == 0
    assert cell.run.path.name in capsys.readouterr().out


def test_a_kept_study_that_is_none_is_no_profile(tmp_path, capsys):
    (file := tmp_path / "study.json").write_text('{"study": []}')
    assert command.ratchet(["run", "robustness", "--profile", str(file), "--dry-run"]) == 2
    assert f"{file} holds no study" in capsys.readouterr().err


def test_the_command_has_its_path_where_the_shell_does_not_find_it_alone(tmp_path, monkeypatch):
    handle = begun(tmp_path, smoke())[0]
    monkeypatch.chdir(tmp_path)
    assert command_for(handle.run).startswith("ratchet run ")
    monkeypatch.setenv("PATH", str(tmp_path))
    beside = Path(sys.executable).with_name("ratchet")
    assert command_for(handle.run).startswith(f"{beside} run ")
    monkeypatch.chdir(beside.parents[1])
    assert command_for(handle.run).startswith(f"{beside.relative_to(Path.cwd())} run ")
