"""A person's own code: an exception without file and line, and an edit after which old numbers were shown as new."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from flows import command
from storage import generations, locks, markers
from tests.conftest import REPOSITORY
from tests.tasks.tiny import ToyConfig, files_of, toy_attempt, toy_directory, toy_to_the_end

PAGE = """
from deployments.study_flow import study_flow
from tasks.stage.configuration import scientific
from tasks.stage.numerics import Numerics
from tasks.stage.run import Stage
from tasks.stage.study import StageConfiguration, StudyBase


class ThrowConfig(StageConfiguration):
    numerics = Numerics(torch=False)
    die: int = scientific(description="Which die.")


class SumConfig(StageConfiguration):
    numerics = Numerics(torch=False)


class Study(StudyBase):
    pass


THROW = Stage("throw", ThrowConfig, "own_dice_work:throw", needs="cpu")
SUM = Stage("sum", SumConfig, "own_dice_work:total", needs="cpu")


def page(study: Study, stage):
    thrown = {f"die_{die}": stage(THROW, ThrowConfig(die=die, cell=f"die {die}")) for die in (1, 2)}
    return stage(SUM, SumConfig(), **thrown)


own_dice = study_flow(page)
"""
WORK = """
def throw(run, config):
    eyes = config.die
    return {"eyes": eyes}


def total(run, config, **thrown):
    return {"sum": sum(one.result["eyes"] for one in thrown.values())}
"""
OLD = "old results of throw x 2, sum are kept, though own_dice_work.py, or what it imports, changed since"


@pytest.fixture
def dice(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """Runs the study with this work and these options; gives exit code and output."""
    (tmp_path / "own_dice.py").write_text(PAGE)

    def run(work: str, *options: str) -> tuple[int, str]:
        (tmp_path / "own_dice_work.py").write_text(work)
        for name in ("own_dice", "own_dice_work"):
            sys.modules.pop(name, None)
        code = command.ratchet(["run", str(tmp_path / "own_dice.py"), "--root", str(tmp_path / "runs"), *options])
        printed = capsys.readouterr()
        return code, printed.out + printed.err

    yield run
    for name in ("own_dice", "own_dice_work"):
        sys.modules.pop(name, None)


def attempts_of(root: Path) -> dict[str, int]:
    return {
        file.parent.name[:4] + file.parts[-3]: len(list(file.glob("*.json"))) for file in root.glob("*/*/*/attempts")
    }


def test_an_exception_of_one_s_own_code_is_told_with_file_line_and_the_end_of_its_traceback(tmp_path, dice):
    code, printed = dice(
        WORK.replace("eyes = config.die", 'eyes = json.loads("{not json")').replace("\ndef", "import json\ndef", 1)
    )
    line = 1 + (tmp_path / "own_dice_work.py").read_text().splitlines().index('    eyes = json.loads("{not json")')
    assert code == 1
    assert (
        f"JSONDecodeError: Expecting property name enclosed in double quotes: line 1 column 2 (char 1) "
        f"(own_dice_work.py:{line})" in printed
    )
    assert f'File "{tmp_path}/own_dice_work.py", line {line}, in throw\n    eyes = json.loads("{{not json")' in printed
    assert "json/decoder.py" in printed, "where it came from"
    log = next(word for word in printed.split() if word.endswith("0001.log"))
    assert "Traceback (most recent call last)" in Path(log).read_text()


def test_an_edit_is_told_before_old_numbers_and_a_fresh_stage_is_run_with_what_its_bytes_change(tmp_path, dice):
    root = tmp_path / "runs"
    assert dice(WORK)[0] == 0
    edited = WORK.replace("config.die", "10 * config.die")
    code, printed = dice(edited)
    assert code == 0 and printed.startswith(OLD) and "`--fresh STAGE` runs one anew" in printed.splitlines()[0]
    code, printed = dice(edited, "--fresh", "throw")
    assert code == 0 and "throw (die 1) begins anew" in printed and "To go on later, leave --fresh out" in printed
    (result,) = (root / "own_dice" / "sum").glob("*/result.json")
    assert json.loads(result.read_text()) == {"sum": 30}
    assert sorted(path.name for path in root.glob("own_dice/throw/*/earlier/*")) == ["0", "0"]
    assert [
        json.loads(file.read_text())["eyes"] for file in sorted(root.glob("own_dice/throw/*/earlier/0/result.json"))
    ] != []
    code, printed = dice(edited)
    assert code == 0 and "old results" not in printed, "all that is kept was made by what is there now"

    finished = {path: path.stat().st_mtime_ns for path in root.glob("own_dice/*/*/COMPLETE.json")}
    die = next(root.glob("own_dice/throw/*")).name
    assert dice(edited, "--fresh", die)[0] == 0
    changed = {path.parent.name for path, before in finished.items() if path.stat().st_mtime_ns != before}
    assert changed == {die}, "equal bytes: what reads it stays as it is"
    code, printed = dice(edited, "--fresh", "trow")
    assert (
        code == 2 and "--fresh trow names no stage of this study; did you mean 'throw'? they are throw, sum" in printed
    )
    code, printed = dice(edited, "--fresh", "throw", "--dry-run")
    assert code == 2 and len(list(root.glob("own_dice/throw/*/earlier/*"))) == 3


def test_what_a_person_begins_anew_goes_on_from_nothing_and_ends_with_the_same_bytes(tmp_path):
    run, config = toy_directory(tmp_path, ToyConfig()), ToyConfig()
    assert toy_attempt(tmp_path, config, max_steps_per_run=5).exit_code == 75
    assert list(run.checkpoints.iterdir())
    aside = generations.begin_anew(run)
    assert aside is not None and list((aside / "checkpoints").iterdir()) and not run.checkpoints.exists()
    toy_to_the_end(tmp_path, config)
    model = files_of(run.path / "model")
    assert generations.begin_anew(run) == run.path / "earlier" / "1" and not markers.check(run, {}).present
    toy_to_the_end(tmp_path, config)
    assert files_of(run.path / "model") == model == files_of(run.path / "earlier" / "1" / "model")


def test_a_kill_while_a_stage_is_set_aside_leaves_nothing_that_is_called_finished(tmp_path, monkeypatch):
    run, moved = toy_directory(tmp_path, ToyConfig()), 0
    toy_to_the_end(tmp_path, ToyConfig())
    rename = Path.rename

    def one(path: Path, target: Path) -> Path:
        nonlocal moved
        if path.parent == run.path:
            if moved:
                raise KeyboardInterrupt
            moved += 1
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", one)
    while True:
        moved = 0
        try:
            generations.begin_anew(run)
            break
        except KeyboardInterrupt:
            assert not markers.check(run, {}, full=True).holds
    assert generations.begin_anew(run) is None and not run.marker_file.exists()


def test_a_stage_at_work_is_not_begun_anew(tmp_path):
    run = toy_directory(tmp_path, ToyConfig())
    toy_to_the_end(tmp_path, ToyConfig())
    lock = locks.acquire(run.path / "locks")
    with pytest.raises(Exception, match="held by a live process"):
        generations.begin_anew(run)
    lock.release()
    assert markers.check_outputs(run).present and not (run.path / "earlier").exists()


SPOKEN = '''
"""How often a die shows a six: Würfel."""
import ratchet as r


@r.stage(needs="cpu", torch=False)
def throw(run, seed: int):
    print("café")
    run.log.info("naïve")
    return {"eyes": 3}


@r.study
def spoken():
    return throw()
'''
ASCII = {"LC_ALL": "POSIX", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}


@pytest.mark.parametrize(
    ("beginning", "encoding", "more"),
    [("", "utf-8-sig", {}), ("# -*- coding: latin-1 -*-", "latin-1", {}), ("", "utf-8", ASCII), ("", "latin-1", None)],
    ids=["a byte-order mark", "a coding cookie", "an ASCII locale", "neither"],
)
def test_a_study_file_is_read_as_python_reads_it_and_what_it_says_ends_nothing(
    beginning, encoding, more, tmp_path, prefect_server
):
    """Seen: SyntaxError for U+FEFF, "codec can't decode byte 0xe9", and a stage that died of its own print."""
    (tmp_path / "spoken.py").write_bytes((beginning + SPOKEN).encode(encoding))
    environment = os.environ | {"PREFECT_API_URL": prefect_server, "PYTHONPATH": str(REPOSITORY)} | (more or {})
    words = [sys.executable, "-m", "flows", "run", "spoken.py"]
    done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, timeout=300)
    printed = (done.stdout + done.stderr).decode()
    if more is None:
        assert done.returncode == 2 and "spoken.py: it is no UTF-8, and no coding cookie says" in printed, printed
        return
    assert done.returncode == 0 and "Traceback" not in printed, printed
    (log,) = tmp_path.glob("runs/spoken/*/*/attempts/0001.log")
    assert "naïve" in log.read_text("utf-8")
