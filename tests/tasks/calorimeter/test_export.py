"""Exported regressors: raw readings in, cm and MeV out; and a study where the extra is not installed."""

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from deployments.dag.walk import Walk
from tasks.calorimeter.fit import export
from tasks.calorimeter.showers import TARGETS
from tasks.calorimeter.stages import ExportConfig, ExportResult
from tasks.sensors.xenon import FOREIGN, SENTINEL, Events
from tasks.training import onnx_files
from tasks.training.onnx_files import installed, runtime
from tests.docs.pages import blocks
from tests.tasks.calorimeter.test_stages import results
from tests.tasks.calorimeter.tiny import SMOKE, finished
from tests.tasks.resealed import Stages, asked_again
from tests.tasks.tiny import stage_run


@pytest.mark.parametrize("role", ["mae-init-1", "raw-0"])
def test_a_file_takes_what_sensors_show_and_says_what_the_records_say(role):
    arm, _, seed = role.rpartition("-")
    events = Events.open(finished().input("calorimeter-showers"), "validation")
    missed = pq.read_table(finished().path(f"calorimeter-regress ({arm}, seed {seed})") / "records.parquet")
    required = events.truth + np.stack([missed[name].to_numpy() for name in TARGETS], 1)
    file = runtime(finished().path("calorimeter-export") / "onnx" / f"{role}.onnx")
    light = np.array(events.light)
    assert np.allclose(file(light), required, rtol=1e-4, atol=1e-3)
    assert (light == SENTINEL).any()
    light[light == SENTINEL] = 3 * FOREIGN
    assert np.allclose(file(light[:1]), required[:1], rtol=1e-4, atol=1e-3)


def test_the_report_says_how_far_the_files_are_from_the_networks():
    files = results().exported
    assert len(files) == 8 == len({*finished().path("calorimeter-export").glob("onnx/*.onnx")})
    assert all(of.examples == 24 for of in files.values())
    largest = max(of.largest_difference[0] for of in files.values())
    table = (finished().path("calorimeter-report") / "table.md").read_text()
    assert "Exported: 8 models as ONNX files with their normaliser inside" in table
    assert f"no more than: u (cm) {largest:.1e}," in table and 0 < largest < 1e-3


def test_the_example_of_the_docs_runs(capsys, monkeypatch):
    monkeypatch.chdir(finished().path("calorimeter-export") / "onnx")
    (example,) = (block.text for block in blocks("python") if block.page == "docs/study-calorimeter.md")
    exec(example, {})
    answers = [*map(float, capsys.readouterr().out.replace("[", " ").replace("]", " ").split())]
    assert len(answers) == 2 * len(TARGETS) and answers[:4] == answers[4:]


def without_files(stages: Stages) -> None:
    stages["export"]["result"]["files"] = {}
    kinds = stages["audit"]["result"]["kinds"]
    stages["audit"]["result"]["kinds"] = [of for of in kinds if of["kind"] != "exports"]


def test_without_the_extra_a_study_ends_and_says_what_to_install(tmp_path, monkeypatch):
    handle = finished().handles["calorimeter-export"]
    given = {role: source.as_input() for role, source in handle.inputs.items()}
    before = _fingerprints(tmp_path)
    monkeypatch.setattr(onnx_files, "PACKAGES", ("onnx", "a-package-that-is-not-there"))
    assert not installed() and isinstance(handle.config, ExportConfig)
    run = stage_run(tmp_path / "export")
    assert export(run, handle.config, **given) == ExportResult(files={})
    assert not (run.directory / "onnx").exists()
    asked_again("audit", SMOKE, tmp_path / "audit", without_files)
    asked_again("report", SMOKE, tmp_path / "report", without_files)
    (table,) = (tmp_path / "report").rglob("report/**/table.md")
    assert "Not exported" in table.read_text() and onnx_files.INSTALL in table.read_text()
    after = _fingerprints(tmp_path)  # so that it is done once the extra is there, and nothing is trained again
    again = {label for label in before if before[label] != after[label]}
    assert again == {"calorimeter-export", "calorimeter-audit", "calorimeter-report"}


def _fingerprints(root: Path) -> dict[str, str]:
    study = SMOKE.study()
    return {label: handle.run.fingerprint for label, handle in SMOKE.run(root, study, Walk).items()}
