"""A sweep over any key of any study: cells share what does not differ, and those that stopped are shown as missing."""

import os
import re
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from uuid import UUID

import pytest
from prefect.client.orchestration import get_client
from prefect.exceptions import FailedRun
from prefect.flow_engine import run_flow
from prefect.logging.loggers import flow_run_logger
from prefect.settings import PREFECT_API_URL, temporary_settings

from deployments.dag.page import load_page
from deployments.flow import flow_of
from flows import command
from storage import durable
from storage.run_directory import LATEST

ANGLES = '''
from deployments.study_flow import study_flow
from tasks.stage.configuration import execution, scientific
from tasks.stage.numerics import Numerics
from tasks.stage.run import Stage
from tasks.stage.study import StageConfiguration, StudyBase

class TextConfig(StageConfiguration):
    """angles-text"""
    numerics = Numerics(torch=False)

class FitConfig(StageConfiguration):
    """angles-fit"""
    numerics = Numerics(torch=False)
    width: int = scientific(description="Width.")
    seed: int = scientific(description="Seed.")
    fails_while: str = execution(description="A file.")

class Study(StudyBase):
    """A study of one's own."""
    width: int = scientific(4, ge=1, description="Width.")
    fails_while: str = execution("", description="A file; while it is there, a check of seed 7 fails.")

TEXT = Stage("angles-text", TextConfig, "angles_work:text", needs="cpu")
FIT = Stage("angles-fit", FitConfig, "angles_work:fit", needs="cpu")

def page(study: Study, stage):
    text = stage(TEXT, TextConfig(execution=study.execution))
    given = {name: getattr(study, name) for name in ("width", "seed", "fails_while", "execution")}
    return stage(FIT, FitConfig(**given), text=text)

angles = study_flow(page)
'''
ANGLES_WORK = """
from pathlib import Path
from storage.errors import CheckFailed

def text(run, config):
    return {"letters": 26}

def fit(run, config, text):
    if config.seed == 8 and Path(config.fails_while).exists():
        raise RuntimeError("no memory")
    if config.seed == 7 and Path(config.fails_while).exists():
        raise CheckFailed("the fit converges", 1, 0)
    return {"loss": 1 / config.width + config.seed / 100}
"""


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """The page of a study of one's own, whose seed 7 fails while there is a file `broken` beside it."""
    (tmp_path / "angles_work.py").write_text(ANGLES_WORK)
    (tmp_path / "angles.py").write_text(ANGLES)
    return tmp_path / "angles.py"


@pytest.fixture
def run_sweep(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str]]:
    """`ratchet sweep`; returns (exit code, all output)."""

    def run(*arguments: str | Path, command_: str = "sweep") -> tuple[int, str]:
        code = command.ratchet([command_, *map(str, arguments)])
        printed = capsys.readouterr()
        return code, printed.out + printed.err

    return run


def test_a_cell_that_stopped_is_missing_until_its_cause_is_gone(own, run_sweep):
    broken, root = own.with_name("broken"), own.with_name("runs")
    broken.touch()
    given = [own, "--root", root, "--set", f"fails_while={broken}", "--over", "seed=1,7,3", "--over", "width=2,4"]
    code, printed = run_sweep(*given)
    assert code == 1 and "measured 1, required 0" in printed
    assert "seed 7, width 2 (angles-fit: check failed); seed 7, width 4 (angles-fit: check failed)." in printed
    assert len(list(root.glob("angles/angles-text/*"))) == 1, "what the cells share is run once"
    tried = [durable.read_json(file)["end_state"] for file in root.glob("angles/angles-fit/*/attempts/*.json")]
    assert Counter(tried) == {"finished": 4, "check_failed": 2}, "what failed is not tried again by the same command"
    code, shown = run_sweep(*given, command_="status")
    assert code == 75 and re.search(r"finished in [\d.]+ s  \(without seed 7, width 2 and seed 7, width 4\)", shown)
    assert "check failed in attempt 1" in shown and "(seed 7, width 4)" in shown
    broken.unlink()
    code, printed = run_sweep(*given)
    (table,) = [file for file in root.glob("angles/sweep/*/table.md") if "6 of 6 cells" in file.read_text()]
    assert code == 0 and "issing" not in printed + table.read_text(), printed
    assert run_sweep(*given, command_="status")[0] == 0


def test_a_sweep_says_that_its_table_waits_for_cells_that_go_on(own, run_sweep):
    """A cell that crashed or was killed is not missing: it goes on when the same command is started again."""
    broken, root = own.with_name("broken"), own.with_name("runs")
    broken.touch()
    given = [own, "--root", root, "--set", f"fails_while={broken}", "--over", "seed=1,7,8"]
    code, printed = run_sweep(*given)
    waits = "the table of the sweep waits for cells that are not finished; the same command goes on"
    assert code == 1 and waits in printed and "report" not in printed, printed
    (record,) = [file for file in root.glob("angles/angles-fit/*/attempts/*.json") if "crashed" in file.read_text()]
    durable.write_json(record, durable.read_json(record) | {"end_state": None})
    code, printed = run_sweep(*given)
    assert code == 1 and waits in printed
    broken.unlink()
    assert run_sweep(*given)[0] == 0


def test_a_sweep_of_which_nothing_is_left_has_no_table(own, run_sweep):
    broken, root = own.with_name("broken"), own.with_name("runs")
    broken.touch()
    given = ["--set", f"fails_while={broken}", "--seed", "7", "--over", "width=2,4"]
    code, printed = run_sweep(own, "--root", root, *given)
    assert code == 1 and "report" not in printed and not (root / "angles" / "sweep").exists()


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (["--over", "seed=1"], "a sweep needs two or more cells"),
        (["--over", "seed=1,2,1"], "seed has 1 twice"),
        (["--over", "width=2,4", "--over", "width=8"], "--over width is given twice"),
        (["--over", "widht=2,4"], "the cell (widht 2) of the sweep is not a valid Study:\n  widht: unknown key, which "
         "no stage reads; did you mean 'width'?"),
        (["--over", "width=2,0"], "the cell (width 0) of the sweep is not a valid Study:\n  width: must be"),
        (["--over", "seed.x=1,2"], "the sweep over seed.x: seed is a value, not a group of keys"),
        (["--over", "execution.cpu_threads=1,2"], "are equal in every stage: what differs between them changes no"),
        (["--over", "seed"], "--over 'seed' is not KEY=VALUE,VALUE"),
        (["--over", "width=[2"], "--over width: '[2' cannot be read as YAML"),
        ([], "two or more different seeds, not []"),
        (["--over", "seed=1,2", "--seed", "3"], "--seed is one seed"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)  # fmt: skip
def test_a_sweep_that_is_none_is_refused_before_anything_runs(given, told, own, capsys):
    assert command.ratchet(["sweep", str(own), "--root", str(own.with_name("runs")), *given]) == 2
    assert told in capsys.readouterr().err and not own.with_name("runs").exists()


def test_a_sweep_is_started_from_the_form_of_the_study(own, prefect_server, caplog):
    page = load_page(str(own))
    deployed = flow_of(page)
    described = deployed.parameters.properties["over"]
    assert described["default"] == {} and "the values of each key that it varies" in described["description"]
    study = page.model(name="angles")
    with temporary_settings({PREFECT_API_URL: prefect_server}), get_client(sync_client=True) as client:
        for over, name in (({"seed": [1, 2]}, "angles-sweep"), ({}, "angles-s42")):
            state = deployed(study, str(own.with_name("runs")), over=over, return_state=True)
            assert state.name == "Completed"
            assert client.read_flow_run(UUID(str(state.state_details.flow_run_id))).name == name
        caplog.clear()
        state = deployed(study, str(own.with_name("runs")), over={"widht": [1, 2]}, return_state=True)
        assert state.name == "BadInput" and "did you mean 'width'?" in str(state.message)
        assert not [record for record in caplog.records if record.exc_info], "a sentence, and no traceback"
    assert len(list(own.with_name("runs").glob("angles/angles-fit/*"))) == 3


def test_a_form_that_is_wrong_ends_with_a_sentence_and_a_right_one_is_the_study(own, prefect_server, caplog):
    """What a form gives is a dictionary; what Prefect finds wrong with it comes as a traceback."""
    deployed, root = flow_of(load_page(str(own))), str(own.with_name("runs"))
    with temporary_settings({PREFECT_API_URL: prefect_server}), get_client(sync_client=True) as client:
        for form, name, ended in (
            ({"name": "angles", "seed": 5, "width": 0}, "angles-s5", "BadInput"),
            ({"name": "angles", "widht": 3}, "angles-s42", "BadInput"),
            ({"name": "angles", "seed": 5}, "angles-s5", "Completed"),
        ):
            state = deployed(form, root, return_state=True)
            assert state.name == ended, state.message
            assert client.read_flow_run(UUID(str(state.state_details.flow_run_id))).name == name
            if ended == "BadInput":
                assert "the form is not a valid Study:\n  wid" in str(state.message)
        right = {"name": "angles", "seed": 5}
        for form, wrong in (
            ((right, root, "slrm"), "the form's dispatch is 'slrm': must be 'local' or 'slurm'"),
            ((right, root, "local", {"seed": 42}), "the form's over is {'seed': 42}: must be a list"),
            ((right, 5), "the form's root is 5: must be text"),
            (([], root), "the form is not a valid Study"),
        ):
            state = deployed(*form, return_state=True)
            assert state.name == "BadInput" and wrong in str(state.message)
    assert not [record for record in caplog.records if record.exc_info], "a sentence, and no traceback"


def test_the_log_of_a_deployed_run_ends_with_its_cause_and_no_traceback(own, prefect_server, caplog):
    """As Prefect's worker runs a flow: what the flow returned is raised there, and was logged as unexpected."""
    deployed = flow_of(load_page(str(own)))
    given = {"study": {"name": "angles", "width": 0}, "root": str(own.with_name("runs"))}
    with temporary_settings({PREFECT_API_URL: prefect_server}), get_client(sync_client=True) as client:
        flow_run = client.create_flow_run(deployed, parameters=given)
        with pytest.raises(FailedRun):
            run_flow(deployed, flow_run=flow_run, error_logger=flow_run_logger(flow_run))
    of_run = [record for record in caplog.records if record.name == "prefect.flow_runs"]
    assert "Finished in state BadInput" in of_run[-1].getMessage() and not of_run[-1].exc_info


def test_a_sweep_runs_only_what_depends_on_the_seed_and_gives_an_interval(run_sweep, smoke_root, tmp_path):
    root = Path(shutil.copytree(smoke_root, tmp_path / "runs", symlinks=True))
    code, printed = run_sweep("robustness", "--profile", "smoke", "--root", root, "--over", "seed=42,7")
    assert code == 0, printed
    assert "study smoke, seeds 7, 42, in " in printed
    stages = [stage for stage in os.listdir(root / "smoke") if stage != LATEST]
    runs = {stage: len(list((root / "smoke" / stage).iterdir())) for stage in stages}
    assert runs == {
        "setup": 1, "base": 1, "constrain": 1, "train-baseline": 2, "train-monotonic": 2, "evaluate": 2, "order": 2,
        "uat": 6, "hotflip": 6, "transfer": 2, "audit": 2, "aggregate": 2, "sweep": 1,
    }  # fmt: skip
    (sweep,) = root.glob("smoke/sweep/*")
    assert (root / "smoke" / LATEST).resolve() == sweep.resolve()
    results = durable.read_json(sweep / "final_results.json")
    rows = {(row["arm"], row["reference"]): row for row in results["comparisons"]["test loss"]}
    difference = rows["monotonic", "baseline"]
    assert [*results["cells"]] == ["seed 42", "seed 7"] and difference["seeds"] == 2
    assert difference["interval"][0] < difference["mean"] < difference["interval"][1]
    result = durable.read_json(sweep / "result.json")
    assert result["answer"][0] in printed and f"the study is finished: {sweep}/report.html" in printed
    assert (sweep / "report.html").read_text().count("<svg") == len(result["figures"]) >= 1


def test_a_dry_run_says_which_seed_each_stage_belongs_to(run_sweep, tmp_path):
    given = ["robustness", "--profile", "smoke", "--root", tmp_path, "--dry-run"]
    code, printed = run_sweep(*given, "--over", "seed=42,7")
    *lines, total = printed.splitlines()
    told = [line.rpartition("  ")[2].rpartition(", ")[2].strip("()") for line in lines]
    assert code == 0 and total == "finished: 0 of 30 stages"
    made_once = {"all cells": 3, "non-negative-positive-part": 1}
    assert Counter(told) == {"seed 42": 13, "seed 7": 13, **made_once}, printed
    assert run_sweep(*given, "--set", "sweep_seeds=[42, 7]") == (0, printed), "the profile's own seeds"
