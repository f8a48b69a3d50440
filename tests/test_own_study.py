"""docs/your-own-study.md is executed as it stands: its files are written to an empty folder, its commands are run."""

from __future__ import annotations

import ast
import dataclasses
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from prefect.settings import PREFECT_API_URL, temporary_settings

from deployments.dag.page import load_page, own_files
from deployments.dag.sources import digest_of, sources
from deployments.slurm.study.snapshot import stage_source
from flows import command
from storage import durable
from tasks.stage.study import StudyBase
from tasks.training.budget import Budget
from tests.conftest import REPOSITORY

DOCUMENT = (REPOSITORY / "docs" / "your-own-study.md").read_text()
FILES = dict(re.findall(r"^```python\n# (\w+\.py)\n(.*?)^```", DOCUMENT, re.MULTILINE | re.DOTALL))
COMMANDS = re.findall(r"^```console\n(.*?)^```", DOCUMENT, re.MULTILINE | re.DOTALL)


def written(folder: Path) -> Path:
    """The files of the document, in a folder; the page."""
    folder.mkdir(exist_ok=True)
    for name, text in FILES.items():
        (folder / name).write_text(text)
    return folder / "letters.py"


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """The page."""
    return written(tmp_path / "own")


IN_A_SHELL = ("ratchet run letters.py --dry-run", "ratchet run letters.py --root again")
"""The first command, and the one that goes on from another process's checkpoint; the others share this process."""


def answer(line: str, folder: Path, prefect_server: str) -> None:
    """Runs a line of the document in `folder` and requires the exit code that it names, or 0."""
    if line in IN_A_SHELL:
        environment = os.environ | {
            "PREFECT_API_URL": prefect_server,
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        }
        done = subprocess.run(
            ["bash", "-ec", line], cwd=folder, env=environment, capture_output=True, text=True, timeout=300
        )
        assert done.returncode == 0, line + done.stdout + done.stderr
        return
    text, _, code = line.partition(" || test $? = ")
    program, *arguments = shlex.split(text)
    with temporary_settings({PREFECT_API_URL: prefect_server}):
        assert (program, command.ratchet(arguments)) == ("ratchet", int(code or 0)), line


def test_its_commands_run_in_an_empty_folder(
    own: Path, prefect_server: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = own.parent
    monkeypatch.chdir(folder)
    lines = "".join(COMMANDS).splitlines()
    assert set(IN_A_SHELL) < set(lines)
    for line in lines:
        answer(line, folder, prefect_server)
        if line == "ratchet run dice.py":
            (shown,) = re.findall(r"^```text\n(.*?)^```", DOCUMENT, re.MULTILINE | re.DOTALL)
            ends = re.sub(r"/[0-9a-f]{12}/", "/<run>/", capsys.readouterr().out).replace(f"{folder}/", "").splitlines()
            assert ends[-3:] == shown.splitlines()
    roots = [folder / "runs", folder / "again"]
    stopped = durable.read_json(next(roots[1].glob("letters/letters-train/*/attempts/0001.json")))
    assert stopped["end_state"] == "out_of_time", "the second root was reached in pieces"
    digest = digest_of([folder / "letters_work.py"], folder)
    assert stopped["source"]["own_digest"] == digest, "which code made a number"
    digests = [
        {marker.parent.relative_to(root): _outputs(marker) for marker in root.glob("letters/*/*/COMPLETE.json")}
        for root in roots
    ]
    assert len(digests[1]) == 4
    for run, outputs in digests[1].items():
        assert outputs == digests[0][run], f"{run} has other bytes than in one piece"
    assert len(digests[0]) == 6, "the third network, and another report; the others were there"
    for train in roots[0].glob("letters/letters-train/*/result.json"):
        best = durable.read_json(train)["training"]
        assert best["ratio_to_trivial"] < 0.9 and best["trivial"].keys() == {"letter frequencies"}
    own.with_name("letters_work.py").write_text(FILES["letters_work.py"].replace("128", "64"))
    capsys.readouterr()
    answer("ratchet run letters.py --root runs --set 'dropouts=[0.0, 0.1, 0.2]'", folder, prefect_server)
    assert "Not shown: with this one seed dropout 0" in capsys.readouterr().out
    answer("ratchet run letters.py", folder, prefect_server)
    shown = capsys.readouterr().out
    (note,) = [line for line in shown.splitlines() if line.startswith("old results of ")]
    assert "though letters_work.py, or what it imports, changed since" in note
    for stage in ("letters-text", "letters-train", "letters-report"):
        assert stage in note


def _outputs(marker: Path) -> dict[str, str]:
    outputs = durable.read_json(marker)["outputs"]
    return {name: output["sha256"] for name, output in outputs.items() if name != "stage.json"}  # it tells the limits


@pytest.mark.parametrize("name", ["StudyBase", "Budget", "Problem"])
def test_its_tables_are_those_of_the_classes(name: str) -> None:
    from tasks.training.problem import Problem  # takes torch, whose threads an attempt sets up before it is loaded

    described: type[Any] = {"StudyBase": StudyBase, "Budget": Budget, "Problem": Problem}[name]
    table = DOCUMENT.partition(f"| `{described.__name__}` |")[2].partition("\n\n")[0]
    shown = dict(re.findall(r"^\| `(\w+)` \| `?(.*?)`? \|", table, re.MULTILINE))
    known = {name: repr(field.default) for name, field in getattr(described, "model_fields", {}).items()}
    if described is StudyBase:
        known |= {"name": shown["name"], "execution": "Execution()"}
    for field in dataclasses.fields(described) if described is Problem else []:
        of_dict = "{}" if field.default_factory is dict else "required"
        default = getattr(field.default, "__name__", repr(field.default))  # of a function its name
        known[field.name] = of_dict if field.default is dataclasses.MISSING else default
    assert shown == known


def test_nothing_but_its_own_files_is_read_or_edited(own: Path, tmp_path: Path) -> None:
    """A job's copy of the source has the page beside the rooms, with what it imports and nothing else of its folder."""
    (own.parent / "notes.py").write_text("1 / 0")
    copy = stage_source(tmp_path / "sources", own_files(load_page(str(own))))
    ours = {file.name for file in copy.glob("*.py")}
    assert ours == {"letters.py", "letters_work.py"} and (copy / "flows" / "stage.py").exists()


def test_packages_relative_imports_and_what_stages_import_belong_to_a_page(tmp_path: Path) -> None:
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


def test_a_module_that_only_a_stage_imports_may_not_take_the_name_of_another(
    own: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Seen: in a job, where the folder comes first, it took the place of Python's own."""
    work = own.with_name("letters_work.py")
    work.write_text(work.read_text() + "\nimport statistics\n")
    own.with_name("statistics.py").write_text("")
    assert command.ratchet(["run", str(own), "--dry-run"]) == 2
    assert "statistics.py: the module name 'statistics' is taken by " in capsys.readouterr().err


def test_a_stage_that_the_page_takes_from_another_module_is_checked_too(
    own: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_a_deployment_without_a_profile_says_what_the_page_s_docstring_says(
    own: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.ratchet(["deployments", str(own)]) == 0
    made = yaml.safe_load(capsys.readouterr().out)["deployments"]
    (first, *_) = ast.get_docstring(ast.parse(own.read_text())).splitlines()  # type: ignore[union-attr]
    assert len(made) == 2 and all(one["description"].startswith(first) for one in made)


def test_a_page_is_not_deployed_beside_a_file_that_would_shadow_a_module(
    own: Path, capsys: pytest.CaptureFixture[str]
) -> None:
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


def test_an_import_that_may_fail_is_no_error(own: Path, capsys: pytest.CaptureFixture[str]) -> None:
    optional = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import not_here\n"
    own.write_text(own.read_text() + optional + "try:\n    import nor_here\nexcept ImportError:\n    pass\n")
    assert command.ratchet(["run", str(own), "--dry-run"]) == 0, capsys.readouterr().err


def test_a_job_reads_the_copy_of_the_page_that_it_was_given(own: Path, tmp_path: Path) -> None:
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
        (("study: Study, stage", "study, stage"), r"letters\.py:\d+: a page is `def page\(study: Study, stage"),
        (("study.dropouts)", "study.dropuots)"), r"letters\.py:\d+: AttributeError: .*dropuots"),
        (("dropout=dropout, budget", "dropout=0.1, budget"), r"letters\.py:\d+: .*letters-train.* equal scientific"),
        (("[0.0, 0.2]", "[0.0, 2.0]"), r"letters\.py:\d+: TrainConfig\.dropout: .* less than 1 \(it is 2\.0\)"),
        (("class TextConfig", "class 1TextConfig"), r"letters\.py:\d+: SyntaxError"),
        (("scientific(8,", "scientific(0,"), r"error: \S+letters\.py:42: Study\.context_letters refuses its default"),
        (("([0.0, 0.2],", "([0.0, '1'],"), r"letters\.py:43: Study\.dropouts\.1 refuses its default: .*is '1'\)"),
        (("steps=200", "steps=0"), r"letters\.py:45: Budget\.steps: .* \(it is 0\)"),
        (
            ("\"letters-report\", Rep", "\"letters-text\", Rep"),
            r"letters\.py:\d+: two stages are called letters-text, with config .* work 'letters_work:text' and",
        ),
    ],
    ids=lambda value: value[1] if isinstance(value, tuple) else "",
)  # fmt: skip
def test_a_wrong_page_is_refused_with_file_and_line_before_anything_runs(
    change: tuple[str, str], message: str, own: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
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
    definition: str, message: str, own: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    work, name = own.with_name("letters_work.py"), definition.partition("(")[0]
    work.write_text(re.sub(rf"{name}\(.*\)", definition, work.read_text()))
    assert command.ratchet(["run", str(own), "--root", str(tmp_path / "runs")]) == 2
    shown = capsys.readouterr().err
    assert re.search(rf"letters_work\.py:\d+: \w+\(.*\): the page gives the stage {re.escape(message)}", shown), shown
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("name", ["random.py", "storage.py", "numpy.py"])
def test_a_page_whose_name_is_taken_is_refused(name: str, own: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own.rename(own.with_name(name))
    assert command.ratchet(["run", str(own.with_name(name)), "--dry-run"]) == 2
    assert f"{name}: the module name {name.removesuffix('.py')!r} is taken by " in capsys.readouterr().err
