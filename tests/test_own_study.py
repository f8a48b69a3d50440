"""docs/your-own-study.md and docs/digits.py are executed as they stand, in an empty folder, and killed."""

import ast
import dataclasses
import inspect
import re
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import ratchet
from deployments.dag.page import load_page, own_files
from deployments.dag.sources import digest_of, sources
from deployments.slurm.study.snapshot import stage_source
from flows import command
from storage import durable
from tests.conftest import REPOSITORY
from tests.tasks.tiny import Here

DOCUMENT = (REPOSITORY / "docs" / "your-own-study.md").read_text()
DIGITS = REPOSITORY / "docs" / "digits.py"
(DICE,) = re.findall(r"^```python\n# dice\.py\n(.*?)^```", DOCUMENT, re.MULTILINE | re.DOTALL)
QUOTED = re.findall(r"^```python\n(?!# )(.*?)^```", DOCUMENT, re.MULTILINE | re.DOTALL)
COMMANDS = re.findall(r"^```console\n(.*?)^```", DOCUMENT, re.MULTILINE | re.DOTALL)
LONGHAND = REPOSITORY / "tests" / "longhand"


def written(folder: Path) -> Path:
    """A study in the long form, in a folder; the page."""
    return Path(shutil.copytree(LONGHAND, folder, ignore=shutil.ignore_patterns("__pycache__")), "letters.py")


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """The page."""
    return written(tmp_path / "own")


SLOW = """
import time
from tasks.stage.progress import Progress
update = Progress.update
Progress.update = lambda *given, **named: update(*given, **named) or "fits" in given and time.sleep(0.2)  # to kill
"""


def outputs(root: Path) -> dict[str, bytes]:
    """What the markers list, but for stage.json, which names folders."""
    return {
        f"{marker.parent.name}/{name}": (marker.parent / name).read_bytes()
        for marker in root.glob("digits/*/*/COMPLETE.json")
        for name in durable.read_json(marker)["outputs"]
        if name != "stage.json"
    }


@pytest.mark.drawn
def test_its_commands_run_and_a_killed_study_ends_with_the_same_bytes(tmp_path, forks, monkeypatch, capsys):
    (tmp_path / "dice.py").write_text(DICE)
    page = Path(shutil.copy(DIGITS, tmp_path))
    monkeypatch.chdir(tmp_path)
    for line in "".join(COMMANDS).splitlines():
        if line == "ratchet run digits.py --root runs":  # where torch trains, its threads wait as in a new process
            code, printed = forks.run(tmp_path, *line.split()[1:])
            assert code == 0, printed
            continue
        assert command.ratchet(shlex.split(line)[1:]) == 0, line
        if line == "ratchet run dice.py":
            (shown,) = re.findall(r"^```text\n(.*?)^```", DOCUMENT, re.MULTILINE | re.DOTALL)
            ends = re.sub(r"/[0-9a-f]{12}/", "/<run>/", capsys.readouterr().out).replace(f"{tmp_path}/", "")
            assert ends.splitlines()[-3:] == shown.splitlines()
    whole, again = outputs(tmp_path / "runs"), tmp_path / "again"
    assert len([*tmp_path.glob("runs/digits/*/*/COMPLETE.json")]) == 13 + 2, "the other penalties, and their report"

    words = ("run", "digits.py", "--root", again)
    for made in (
        "digits-pretrain/*/checkpoints/??",
        "digits-finetune/*/checkpoints/1?",
        "digits-ridge/*/records/01-00002-*.json",
    ):
        code, _ = forks.run(tmp_path, *words, first=SLOW, strike=lambda made=made: any(again.glob(f"digits/{made}")))
        assert code == -signal.SIGKILL
    code, printed = forks.run(tmp_path, *words)
    assert code == 0, printed
    assert len([*again.glob("digits/*/*/attempts/0002.json")]) == 3, "each was killed at its work"
    found = outputs(again)
    assert len(found) > 40 and [name for name, data in found.items() if data != whole[name]] == []

    page.write_text(page.read_text().replace("16, 3", "12, 3"))
    capsys.readouterr()
    assert command.ratchet(["run", "digits.py"]) == 0
    shown = capsys.readouterr().out
    (note,) = [line for line in shown.splitlines() if line.startswith("old results of ")]
    assert "though digits.py, or what it imports, changed since" in note and "digits-finetune" in note
    assert "Full is better than scratch." in shown


def test_what_is_quoted_is_what_runs(tmp_path):
    *of_digits, told = QUOTED
    assert len(of_digits) == 2 and all(part in DIGITS.read_text() for part in of_digits)
    lines = len(DIGITS.read_text().splitlines())
    assert f"13 stages in {lines} lines" in DOCUMENT and lines <= 120
    text = DICE.replace("@r.study", f"{told}\n\n@r.study").replace("return throw()", "return told(throw())")
    (tmp_path / "dice.py").write_text(text)
    page = load_page(str(tmp_path / "dice.py"))
    *_, report = page.walk(page.model(name="dice"), Here(tmp_path / "runs", "dice"))
    assert "17.8% of the throws do." in (report.run.path / "report.html").read_text()


def test_its_tables_are_those_of_the_code():
    from tasks.training.on_tensors import train  # takes torch, whose threads an attempt sets up before it is loaded
    from tasks.training.problem import Problem

    parameters = [*inspect.signature(train).parameters.values()]
    known = {one.name: "required" if one.default is one.empty else repr(one.default or {}) for one in parameters}
    assert table("r.train") == known | {"higher": "()"}
    known = {}
    for field in dataclasses.fields(Problem):
        default = getattr(field.default, "__name__", repr(field.default))  # of a function its name
        of_dict = "{}" if field.default_factory is dict else "required"
        known[field.name] = of_dict if field.default is dataclasses.MISSING else default
    shared = {name: known.pop(name) for name in ("model", "decides", "higher", "trivial")}
    assert table("Problem") == known and shared.items() <= table("r.train").items()


def table(of: str) -> dict[str, str]:
    """Each name with its default."""
    rows = DOCUMENT.partition(f"| `{of}` |")[2].partition("\n\n")[0]
    found = re.findall(r"^\| (`.*?`) \| `?(.*?)`? \|", rows, re.MULTILINE)
    return {name: default for names, default in found for name in re.findall(r"`(\w+)`", names)}


@pytest.mark.parametrize("name", sorted({*re.findall(r"\br\.(\w+)", DOCUMENT)}))
def test_what_it_names_is_public(name):
    assert hasattr(ratchet, name)


def test_nothing_but_its_own_files_is_read_or_edited(own, tmp_path):
    """A job's copy of the source has the page beside the rooms, with what it imports and nothing else of its folder."""
    (own.parent / "notes.py").write_text("1 / 0")
    copy = stage_source(tmp_path / "sources", own_files(load_page(str(own))))
    ours = {file.name for file in copy.glob("*.py")}
    assert ours == {"letters.py", "letters_work.py"} and (copy / "flows" / "stage.py").exists()


def test_packages_relative_imports_and_what_stages_import_belong_to_a_page(tmp_path):
    """Seen: a package's relative imports were looked for in the page's folder, and its job found no module."""
    for name, text in {
        "own_page.py": "import json\nfrom own_room.study import Study\n",
        "own_room/__init__.py": "from . import other\n",
        "own_room/study.py": "from .shared.names import NAME\n",
        "own_room/other.py": "",
        "own_room/shared/__init__.py": "",
        "own_room/shared/names.py": "from ..third import x\n",
        "own_room/third.py": "",
        "own_work/__init__.py": "",
        "own_work/train.py": "def f():\n    from own_helper import g\n",
        "own_helper.py": "",
        "unused.py": "1 / 0",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    found = {str(file.relative_to(tmp_path)) for file in sources(["own_page", "own_work.train"], tmp_path)}
    everything = {str(file.relative_to(tmp_path)) for file in tmp_path.rglob("*.py")}
    assert found == everything - {"unused.py"}


def test_a_module_that_only_a_stage_imports_may_not_take_the_name_of_another(own, capsys):
    """Seen: in a job, where the folder comes first, it took the place of Python's own."""
    work = own.with_name("letters_work.py")
    work.write_text(work.read_text() + "\nimport statistics\n")
    own.with_name("statistics.py").write_text("")
    assert command.ratchet(["run", str(own), "--dry-run"]) == 2
    assert "statistics.py: the module name 'statistics' is taken by " in capsys.readouterr().err


def test_a_stage_that_the_page_takes_from_another_module_is_checked_too(own, capsys, monkeypatch):
    """The page's own module names no such stage: its walk does."""
    from flows import command

    monkeypatch.delitem(sys.modules, "letters_stages", raising=False)
    text = own.read_text()
    (stages,) = re.findall(r"^REPORT = .*\n", text, re.MULTILINE)
    own.write_text(
        text.replace(stages, "import letters_stages\n").replace(
            "stage(REPORT, ReportConfig()", ("stage(letters_stages.REPORT, letters_stages.ReportConfig()")
        )
    )
    own.with_name("letters_stages.py").write_text(
        "from tasks.stage.run import Stage\nfrom tasks.stage.study import StageConfiguration\n"
        "class ReportConfig(StageConfiguration):\n    pass\n"
        'REPORT = Stage("letters-report", ReportConfig, "letters_report:report", needs="cpu")\n'
    )
    own.with_name("letters_report.py").write_text("import not_here\ndef report(run, config, text, **networks): ...\n")
    assert command.ratchet(["run", str(own), "--dry-run"]) == 2
    assert "letters_report.py:1: there is no module 'not_here'" in capsys.readouterr().err


def test_a_deployment_without_a_profile_says_what_the_page_s_docstring_says(own, capsys):
    assert command.ratchet(["deployments", str(own)]) == 0
    made = yaml.safe_load(capsys.readouterr().out)["deployments"]
    (first, *_) = ast.get_docstring(ast.parse(own.read_text())).splitlines()
    assert len(made) == 2 and all(one["description"].startswith(first) for one in made)


def test_a_page_is_not_deployed_beside_a_file_that_would_shadow_a_module(own, capsys):
    """Its folder comes first where Prefect runs it: a `types.py` there that nobody imports breaks Python itself."""
    assert command.ratchet(["deployments", str(own)]) == 0
    file = own.with_name("types.py")
    file.write_text("")
    assert command.ratchet(["run", str(own), "--dry-run"]) == 0, "here the folder comes last"
    assert command.ratchet(["deployments", str(own)]) == 2
    assert f"{file}: the module name 'types' is taken by " in capsys.readouterr().err
    file.unlink()
    (own.parent / "json").mkdir()
    (own.parent / "json" / "__init__.py").write_text("")
    assert command.ratchet(["deployments", str(own)]) == 2
    assert "the module name 'json' is taken by " in capsys.readouterr().err


def test_an_import_that_may_fail_is_no_error(own, capsys):
    optional = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import not_here\n"
    own.write_text(own.read_text() + optional + "try:\n    import nor_here\nexcept ImportError:\n    pass\n")
    assert command.ratchet(["run", str(own), "--dry-run"]) == 0, capsys.readouterr().err


def test_a_job_reads_the_copy_of_the_page_that_it_was_given(own, tmp_path):
    """Editing the page changes no queued job."""
    copy = stage_source(tmp_path / "sources", own_files(load_page(str(own))))
    code = (
        "from deployments.dag.page import load_page; "
        "from deployments.dag.walk import Walk; walk = Walk('', 'letters'); "
        f"page = load_page({str(own)!r}); page.walk(page.model(name='letters'), walk); "
        "print(page.file, *(handle.own_source['own_digest'] for handle in walk.handles))"
    )
    digest = digest_of([own.with_name("letters_work.py")], own.parent)
    for file in own.parent.glob("*.py"):
        file.write_text("raise SystemExit('edited')")
    done = subprocess.run([sys.executable, "-c", code], cwd=copy, capture_output=True, text=True, timeout=300)
    assert done.stdout.split() == [str(copy / "letters.py"), *4 * [digest]], done.stderr


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("letters_work:train", "letters_work:trian"), r"letters\.py: stage letters-train: .* no function 'trian'; it"),
        (("letters_work:train", "letters_wrok:train"), r"letters\.py: .*there is no module 'letters_wrok'"),
        (("\"letters-train\"", "\"Letters Train\""), r"letters\.py:\d+: .*a stage is called 'Letters Train'"),
        (("\"letters-train\"", "\"latest\""), r"letters\.py:\d+: .*a stage is called 'latest', as the link"),
        (("needs=\"training\"", "needs=\"gpus\""), r"letters\.py:\d+: .*needs 'gpus' is none of training, gpu, cpu"),
        (("class ReportConfig(StageConfiguration)", "class ReportConfig"), r"letters\.py:\d+: .*ReportConfig.* is"),
        (("from ratchet import", "from ratchett import"), r"letters\.py:3: there is no module 'ratchett'$"),
        (("from ratchet import", "from tasks.report.publish import"), r"letters\.py:3: .*: .*from ratchet import"),
        (("def page(study", "def pages(study"), r"letters\.py:\d+: NameError: name 'page' is not defined"),
        (("def page(", "NUMBERS_OF_A_SWEEP = []\n\n\ndef page("), r"letters\.py: NUMBERS_OF_A_SWEEP .*give METRICS_OF"),
        (("study: Study, stage", "study, stage"), r"letters\.py:\d+: a page is `def page\(study: Study, stage"),
        (("study.dropouts)", "study.dropuots)"), r"letters\.py:\d+: AttributeError: .*dropuots"),
        (("dropout=dropout, budget", "dropout=0.1, budget"), r"letters\.py:\d+: .*letters-train.* equal scientific"),
        (("[0.0, 0.2]", "[0.0, 2.0]"), r"letters\.py:\d+: TrainConfig\.dropout: .* less than 1 \(it is 2\.0\)"),
        (("class TextConfig", "class 1TextConfig"), r"letters\.py:\d+: SyntaxError"),
        (("scientific(8,", "scientific(0,"), r"letters is not a valid Study:\n  context_letters: must be greater"),
        (("([0.0, 0.2],", "([0.0, '1'],"), r"letters is not a valid Study:\n  dropouts\.1: must be a number"),
        (("steps=200", "steps=0"), r"letters\.py:45: Budget\.steps: .* \(it is 0\)"),
        (
            ("\"letters-report\", Rep", "\"letters-text\", Rep"),
            r"letters\.py:\d+: two stages are called letters-text, with config .* work 'letters_work:text' and",
        ),
    ],
    ids=lambda value: value[1] if isinstance(value, tuple) else "",
)  # fmt: skip
def test_a_wrong_page_is_refused_with_file_and_line_before_anything_runs(change, message, own, tmp_path, capsys):
    text = own.read_text()
    assert text.count(change[0]) == 1
    own.write_text(text.replace(*change))
    assert command.ratchet(["run", str(own), "--root", str(tmp_path / "runs")]) == 2
    shown = capsys.readouterr().err
    assert re.search(message, shown), shown
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("definition", "message"),
    [
        ("def report(run, config, letters, **networks)", "letters-report run, config, text, network_0, network_1:"),
        ("def train(run, config)", "letters-train (dropout 0) run, config, text:"),
        ("def text(run)", "letters-text run, config:"),
    ],
    ids=["another name", "one too few", "no configuration"],
)  # fmt: skip
def test_a_function_that_does_not_take_what_the_page_gives_is_refused_before_anything_runs(
    definition, message, own, tmp_path, capsys
):
    work, name = own.with_name("letters_work.py"), definition.partition("(")[0]
    work.write_text(re.sub(rf"{name}\(.*\)", definition, work.read_text()))
    assert command.ratchet(["run", str(own), "--root", str(tmp_path / "runs")]) == 2
    shown = capsys.readouterr().err
    assert re.search(rf"letters_work\.py:\d+: \w+\(.*\): the page gives the stage {re.escape(message)}", shown), shown
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("name", ["random.py", "storage.py", "numpy.py"])
def test_a_page_whose_name_is_taken_is_refused(name, own, capsys):
    own.rename(own.with_name(name))
    assert command.ratchet(["run", str(own.with_name(name)), "--dry-run"]) == 2
    assert f"{name}: the module name {name.removesuffix('.py')!r} is taken by " in capsys.readouterr().err
