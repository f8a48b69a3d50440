"""Names from data: a field that becomes a path, pattern, attribute or code is declared, and fed what leads elsewhere.

One that is not in both lists fails, and so does a new place where one is used as it stands.
"""

import ast
import json
import os
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from deployments.views.tensorboard import TensorBoard
from flows import command
from flows.command.show import again
from storage import attempts, checkpoints, durable, locks, markers
from storage.__main__ import main as storage_command
from storage.errors import BadInput, CheckFailed
from storage.inside import FIELDS, Name
from storage.run_directory import RunDirectory, run_in
from tasks.language.model_files import model_manifest
from tasks.stage.reopened import reopen
from tasks.stage.saved import _unpack
from tasks.stage.scratch import ScratchCheckpoints
from tasks.stage.study import StudyBase
from tests.conftest import REPOSITORY
from tests.storage import runs

HOSTILE = ["../../../../x", "/x", "link", "*", "'\"", "a\nb", "", "..", "x\0y"]
REFUSED = {"../../../../x", "/x", "..", "x\0y", ""}
"""The others may be names of files: what lies there is read where it is no link."""
REFUSALS = (BadInput, CheckFailed, ValueError, OSError)
"""What a command makes one line of."""


def marker(run: RunDirectory, value: str) -> None:
    def change(content: dict[str, Any]) -> None:
        content["outputs"][value] = content["outputs"]["result.json"]
        content["outputs_digest"] = markers.outputs_digest(content["outputs"])

    runs.rewrite_marker(run, change, sign=True)
    if not (verdict := markers.check_outputs(run)).holds:
        raise BadInput(verdict.reason)


def manifest(run: RunDirectory, value: str) -> None:
    folder = run.checkpoints / "1"
    folder.mkdir(parents=True)
    body: dict[str, Any] = {"step": 1, "files": {value: {"size": 0, "xxh3_128": ""}}}
    durable.write_json(folder / checkpoints.MANIFEST, body | {"digest": durable.sha256_json(body)})
    checkpoints.verify(folder)


def scratch(run: RunDirectory, value: str, key: str = "scratch") -> None:
    folder = run.path / "scratch"
    (folder / ".copies/1.1").mkdir(parents=True)
    (folder / ".copies/1.1/last.pt").write_text("theirs")
    (folder / "link").symlink_to(run.root.parent)
    lock = locks.acquire(run.path / "locks")
    try:
        kept = checkpoints.Checkpoints(run.checkpoints, {}, lock)
        first = ScratchCheckpoints(folder, "last.pt", kept)
        (folder / "last.pt").write_text("mine")
        first.add(folder / "last.pt")
        (step,) = kept.steps()
        state = kept.verified(step).state
        kept.save(step, {}, state | {key: value if key == "link" else f".copies/{step}.1/{value}"})
        if newest := ScratchCheckpoints(folder, "last.pt", kept).newest():
            assert newest.parent == folder and newest.resolve().is_relative_to(folder.resolve()), newest
    finally:
        lock.release()


def generator(run: RunDirectory, value: str) -> None:
    state = np.random.default_rng(1).bit_generator.state | {"bit_generator": value}
    seeds = {"entropy": 1, "spawn_key": [], "pool_size": 4, "n_children_spawned": 0}
    _unpack({"numpy.Generator": {"list": [{"dict": state}, {"dict": seeds}]}}, {})


def stage_field(name: str) -> Callable[[RunDirectory, str], None]:
    def feed(run: RunDirectory, value: str) -> None:
        changed = {"fingerprint": value, "inputs": {"text": {"stage": value, "fingerprint": "ab"}}}
        content = durable.read_json(run.stage_file) | {"inputs": {}} | {name: changed.get(name, value)}
        durable.write_json(run.stage_file, content)
        run_in(run.path)

    return feed


def code(name: str) -> Callable[[RunDirectory, str], None]:
    def feed(run: RunDirectory, value: str) -> None:
        described = {"configuration_type": "tasks.stage.study:StageConfiguration", "work": "tasks.x:f", "inputs": {}}
        content = (
            durable.read_json(run.stage_file) | described | {"configuration": {}, "version": 1, name: f"{value}:f"}
        )
        durable.write_json(run.stage_file, content)
        reopen(run.path, run.path)

    return feed


def page(run: RunDirectory, value: str) -> None:
    durable.write_json(run.study_file, {"page": value, "study": {}, "over": {}})
    assert shlex.split(again(run)[0])[2] == value.removeprefix("flows.")


def result(name: str) -> Callable[[RunDirectory, str], None]:
    def feed(run: RunDirectory, value: str) -> None:
        (run.path / "link").symlink_to(run.root.parent / "x")
        durable.write_json(run.result_file, {name: [value]})
        markers.output(run, durable.read_json(run.result_file)[name][0])

    return feed


def exported(run: RunDirectory, value: str) -> None:
    (run.root / "link").symlink_to(run.root.parent / "x")
    place = run.path.relative_to(run.root).as_posix()
    durable.write_json(run.root / "MANIFEST.json", {f"{place}/COMPLETE.json": "0", value: "0", f"{place}/{value}": "0"})
    if storage_command(["verify", str(run.root)]):
        raise BadInput("refused")


def record(run: RunDirectory, value: str) -> None:
    run.attempts.mkdir()
    durable.write_json(run.attempts / "0001.json", {"attempt": value})
    if attempts.newest(run.attempts) is None:
        raise BadInput("it counts as none")


def folder(run: RunDirectory, value: str) -> None:
    """No folder is called `..` or has a / or a NUL."""
    odd = run.root / value.replace("/", "_").replace("\0", "_").strip(".").ljust(1, "_") / "train" / "0123456789ab"
    odd.mkdir(parents=True)
    (odd / "stage.json").write_text("{}")
    (odd / "metrics.jsonl").write_text('{"step": 1, "train_loss": 1}\n')
    (run.path / "metrics.jsonl").unlink()
    board = TensorBoard(run.root, run.root.parent / "to")
    board.update()
    board.close()


def script(run: RunDirectory, value: str) -> None:
    os.chdir(run.root)
    Path("train.py").write_text(f"save(1, 'a.tmp')\nos.replace('a.tmp', {value + '.pt'!r})\nadd_argument('--resume')\n")
    assert command.ratchet(["init", "theirs", "--train-py", "train.py"]) == 0
    assert len(ast.parse(Path("theirs.py").read_text()).body) == 5


def study(run: RunDirectory, value: str) -> None:
    name = StudyBase(name=value).name
    assert name == "link", "a folder's own name like any other"


def weights(run: RunDirectory, value: str) -> None:
    model = run.path / "model"
    for file in ("config.json", "tokenizer.json"):
        (model / file).write_text("{}")
    (model / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"w": value}}))
    model_manifest(str(model))


FED: dict[str, Callable[[RunDirectory, str], None]] = {
    "COMPLETE.json: outputs": marker,
    "MANIFEST.json of an export": exported,
    "checkpoints/*/manifest.json: files": manifest,
    "checkpoints/*/state.json: scratch": scratch,
    "checkpoints/*/state.json: link": lambda run, value: scratch(run, value, "link"),
    "checkpoints/*/state.json: bit_generator": generator,
    "stage.json: fingerprint": stage_field("fingerprint"),
    "stage.json: inputs": stage_field("inputs"),
    "stage.json: configuration_type": code("configuration_type"),
    "stage.json: work": code("work"),
    "study.json: page": page,
    "result.json: report": result("report"),
    "result.json: tables": result("tables"),
    "attempts/*.json: attempt": record,
    "a folder of a run": folder,
    "a script of --train-py": script,
    "a profile: name": study,
    "*.index.json of a model: weight_map": weights,
}
TAKES_ANY = {"a folder of a run", "a script of --train-py", "study.json: page"}
"""They are a name like any other, and change nothing elsewhere."""


def test_each_declared_field_is_fed():
    assert sorted(FED) == sorted(field for fields in FIELDS.values() for field in fields) and len(FED) == 18


@pytest.mark.parametrize("value", HOSTILE, ids=range(len(HOSTILE)))
@pytest.mark.parametrize("field", FED)
def test_a_field_leads_nowhere_else_whatever_it_says(tmp_path, monkeypatch, field, value):
    monkeypatch.chdir(tmp_path)
    run = runs.finished(tmp_path / "home/a/b/c/runs")
    around = [run.root.parent / "x", *(folder / "x" for folder in run.root.parents[1:4]), run.root / "x"]
    for witness in around:
        witness.write_text("mine")
    (run.path / "a").mkdir()
    if field in TAKES_ANY:
        FED[field](run, value)
    else:
        try:
            FED[field](run, value)
        except REFUSALS:
            pass
        else:
            assert value not in REFUSED
    assert {witness.read_text() for witness in around} == {"mine"}
    assert not Path("/x").exists()


def test_a_name_is_no_text_but_by_its_own_methods(tmp_path):
    name = Name('a"*\n\u202e')
    with pytest.raises(TypeError):
        tmp_path / name
    with pytest.raises(TypeError):
        os.path.join(tmp_path, name)
    assert name.code == f"{name}" == r'"a\"*\n\u202e"' and ast.literal_eval(name.code) == name.given


ROOMS = ("storage", "deployments", "flows", "tasks/stage", "tasks/training", "tasks/findings")


def _of_data(node: ast.AST) -> bool:
    """Whether a value is taken from a dictionary by a constant name, as JSON's are, or is text made of one."""
    if isinstance(node, ast.JoinedStr):
        return any(_of_data(part.value) for part in node.values if isinstance(part, ast.FormattedValue))
    if isinstance(node, ast.Subscript):
        return isinstance(node.slice, ast.Constant) and isinstance(node.slice.value, str)
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "get"
        and bool(node.args)
    )


def _used_as_they_stand(tree: ast.AST) -> list[str]:
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div) and _of_data(node.right):
            found += (
                [] if _of_data(node.left) or isinstance(node.left, ast.BinOp | ast.Constant) else [ast.unparse(node)]
            )
        elif isinstance(node, ast.Call):
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            given = node.args[1:2] if called == "getattr" else node.args
            if called in ("joinpath", "glob", "rglob", "getattr", "import_module", "Path", "open", "eval", "exec"):
                found += [ast.unparse(node)] if any(map(_of_data, given)) else []
    return found


def test_no_name_of_data_is_a_path_a_pattern_or_an_attribute_as_it_stands():
    found = {
        f"{file.relative_to(REPOSITORY)}: {what}"
        for room in ROOMS
        for file in sorted((REPOSITORY / room).rglob("*.py"))
        for what in _used_as_they_stand(ast.parse(file.read_text()))
    }
    assert not found - ALLOWED, "declare it in storage.inside.FIELDS, feed it here, and use `inside` or `Name`"


ALLOWED = {
    # a whole number, as storage.reading has it
    "deployments/here/study.py: handle.run.attempts / f\"{record['attempt']:04d}.log\"",
    # of a file below the root, which is required to be this user's
    "deployments/slurm/study/looks.py: Path(entry['file'])",
    "deployments/slurm/study/looks.py: Path(entry['root'])",
    # signed by this user
    "deployments/prefect/report_pages.py: Path('/', request.path_params['file'])",
}
