"""What strangers made: names in their files lead to nothing outside the run directory, and through no link."""

from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterFlowRunId
from prefect.settings import PREFECT_API_URL, temporary_settings

from deployments.dag.walk import Walk
from deployments.prefect.artifacts import StageArtifacts, StudyArtifacts
from deployments.prefect.flow_run import best_effort
from deployments.slurm.cluster.site import Site
from deployments.slurm.study.engine import _keep_results
from flows import command
from storage import durable, locks, markers
from storage.errors import BadInput
from storage.generations import begin_anew
from storage.inside import inside
from storage.run_directory import RunDirectory
from tasks.stage.attempt import attempt
from tasks.stage.execution import Execution
from tasks.stage.run import Stage
from tests.deployments.toy import ToyConfig
from tests.storage import runs

SECRET = "root:x:0:0:a secret of who looks\n"
TOY = Stage("only", ToyConfig, "tests.deployments.toy:work")


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    """Of a stranger, whose folder has a file beside its root."""
    (tmp_path / "stranger").mkdir()
    (tmp_path / "stranger" / ".bashrc").write_text("the stranger's")
    found = runs.run_of(tmp_path / "stranger" / "runs")
    runs.fill(found)
    durable.write_json(found.stage_file, durable.read_json(found.stage_file) | {"inputs": {}, "configuration": {}})
    runs.finish(found, {})
    return found


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Of who looks at it."""
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / ".bashrc").write_text("mine")
    (tmp_path / "home" / "secret").write_text(SECRET)
    return tmp_path / "home"


def ratchet(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str]:
    """Exit code and all that is said."""
    capsys.readouterr()
    code = command.ratchet([str(word) for word in words])
    said = capsys.readouterr()
    return code, said.out + said.err


def lists(run: RunDirectory, name: str, file: Path) -> None:
    """The stranger's marker, whose digests all hold, lists `file` under this name too."""

    def change(marker: dict[str, Any]) -> None:
        marker["outputs"][name] = markers._describe(file)
        marker["outputs_digest"] = markers.outputs_digest(marker["outputs"])

    runs.rewrite_marker(run, change, sign=True)


# ------------------------------------------------------------------------------------- names, and what is refused


@pytest.mark.parametrize(
    "name", ["", ".", "..", "../b", "a/../b", "/etc/passwd", "//etc/passwd", "a\0b", None, 3, ["a"]]
)
def test_a_name_that_leads_elsewhere_is_refused(tmp_path, name):
    (tmp_path / "a").mkdir()
    (tmp_path / "b").touch()
    with pytest.raises(BadInput, match=r"names no"):
        inside(tmp_path, name)


def test_a_name_is_that_of_a_regular_file_or_of_a_folder_and_leads_through_no_link(tmp_path):
    (tmp_path / "disk" / "root" / "a").mkdir(parents=True)
    (tmp_path / "runs").symlink_to("disk/root")  # a root on a scratch disk
    root = tmp_path / "runs"
    (root / "a" / "file").touch()
    (root / "link").symlink_to("a/file")
    (root / "linked").symlink_to("a")
    assert inside(root, "a/file") == root / "a" / "file" and inside(root, "a", folder=True) == root / "a"
    for name, folder in (("a", False), ("a/file", True), ("a/file/b", False), ("link", False), ("linked/file", False)):
        with pytest.raises(BadInput, match=r"no folder|no regular file|symbolic link"):
            inside(root, name, folder)
    with pytest.raises(FileNotFoundError):
        inside(root, "a/other")


# ----------------------------------------------------------------------------------------------- verify and export


def outside(run: RunDirectory, home: Path) -> str:
    name = "figures/../../../../../.bashrc"
    (run.path / "figures").mkdir()
    lists(run, name, run.path / name)
    return name


def absolute(run: RunDirectory, home: Path) -> str:
    lists(run, str(home / "secret"), home / "secret")
    return str(home / "secret")


def linked_file(run: RunDirectory, home: Path) -> str:
    (run.path / "table.md").symlink_to(home / "secret")
    lists(run, "table.md", home / "secret")
    return "table.md"


def linked_folder(run: RunDirectory, home: Path) -> str:
    (run.path / "figures").symlink_to(home)
    lists(run, "figures/secret", home / "secret")
    return "figures/secret"


@pytest.mark.parametrize("forged", [outside, absolute, linked_file, linked_folder])
def test_export_wrote_and_read_where_a_marker_said(run, home, capsys, forged):
    name = forged(run, home)
    code, said = ratchet(capsys, "verify", run.root)
    assert code == 1 and "REFUSED" in said and name in said
    code, said = ratchet(capsys, "export", run.root, home / "results")
    assert code == 1 and name in said and not (home / "results").exists()
    assert (home / ".bashrc").read_text() == "mine"
    assert "not finished" in ratchet(capsys, "list", run.root)[1]


@pytest.mark.parametrize("name", ["timing.jsonl", "attempts/0001.log", "attempts"])
def test_export_followed_links(run, home, capsys, name):
    if "/" in name:
        run.attempts.mkdir()
    (run.path / name).symlink_to(home / ("secret" if "." in name else "attempts"))
    (home / "attempts").mkdir()
    (home / "attempts" / "0001.log").write_text(SECRET)
    code, said = ratchet(capsys, "export", run.root, home / "results")
    assert code == 1 and f"{run.path / name}, which is a symbolic link" in said and not (home / "results").exists()


def test_export_took_files_that_no_marker_lists(run, home, capsys):
    for name in ("notes.txt", "more.json", "page.html"):
        (run.path / name).symlink_to(home / "secret")
    (run.path / "mine.md").write_text("a person's own")
    assert ratchet(capsys, "export", run.root, home / "results")[0] == 0
    place = run.path.relative_to(run.root).as_posix()
    left = {"stage.json", "result.json", "metrics.jsonl", "COMPLETE.json"}
    assert set(runs.tree(home / "results")) == {f"{place}/{name}" for name in left} | {"MANIFEST.json"}
    assert ratchet(capsys, "verify", home / "results")[0] == 0


@pytest.mark.parametrize("linked", ["study", "study/train"])
def test_export_and_prune_followed_a_linked_study(run, home, capsys, linked):
    """And they, and all others, do follow a linked root, as on scratch disks."""
    run.checkpoints.mkdir()
    (run.checkpoints / "model.safetensors").write_bytes(bytes(1000))
    root = home / "runs"
    (root / linked).parent.mkdir(parents=True)
    (root / linked).symlink_to(run.root / linked)
    code, said = ratchet(capsys, "prune", root, "--yes")
    assert code == 0 and "left alone" in said and "0 bytes freed" in said
    assert (run.checkpoints / "model.safetensors").exists(), "of another root"
    code, said = ratchet(capsys, "export", root, home / "results")
    assert code == 1 and f"{root / linked}, which is a symbolic link" in said and not (home / "results").exists()

    (home / "scratch").symlink_to(run.root)
    assert "study" in ratchet(capsys, "list", home / "scratch")[1]
    assert ratchet(capsys, "verify", home / "scratch")[0] == 0
    assert ratchet(capsys, "export", home / "scratch", home / "results")[0] == 0
    assert ratchet(capsys, "prune", home / "scratch", "--yes")[0] == 0 and not run.checkpoints.exists()


def test_prune_followed_a_linked_folder_of_checkpoints(run, home, capsys):
    (home / "checkpoints").mkdir()
    (home / "checkpoints" / "mine").touch()
    run.checkpoints.symlink_to(home / "checkpoints")
    (run.path / "records").mkdir()
    (run.path / "records" / "huge").symlink_to(home / "secret")
    code, said = ratchet(capsys, "prune", run.root, "--yes")
    assert code == 0 and f"left alone  {run.checkpoints.relative_to(run.root)}" in said
    assert (home / "checkpoints" / "mine").exists() and (home / "secret").exists()
    assert not (run.path / "records").exists()


def test_an_export_s_manifest_named_files_elsewhere(run, home, capsys):
    copy, place = home / "results", run.path.relative_to(run.root).as_posix()
    assert ratchet(capsys, "export", run.root, copy)[0] == 0
    (copy / place / "linked.md").symlink_to(home / "secret")
    kept = durable.read_json(copy / "MANIFEST.json")
    for name in (f"{place}/../../../../secret", f"{place}/linked.md"):
        digest = durable.sha256_file(home / "secret")
        durable.write_json(copy / "MANIFEST.json", kept | {name: digest})
        code, said = ratchet(capsys, "verify", copy)
        assert code == 1 and f"REFUSED     {place}" in said and name in said
    durable.write_json(copy / "MANIFEST.json", kept | {"../stranger/COMPLETE.json": "0"})
    assert ratchet(capsys, "verify", copy)[0] == 1


def test_the_site_s_folder_for_results_got_what_a_marker_said(tmp_path, home, caplog):
    last = Walk(tmp_path / "runs", "toy")(TOY, ToyConfig(ends="finished"))
    attempt(last.stage, last.config, last.run, {})
    last.check_marker()
    (last.run.path / "done.txt").unlink()
    (last.run.path / "done.txt").symlink_to(home / "secret")
    _keep_results(last, Site(root=str(tmp_path), results=str(tmp_path / "results")))
    assert "symbolic link" in caplog.text and not list((tmp_path / "results").iterdir())
    lists(last.run, "figures/../../../../../.bashrc", home / ".bashrc")
    _keep_results(last, Site(root=str(tmp_path), results=str(tmp_path / "results")))
    assert not list((tmp_path / "results").iterdir())


def test_a_marker_was_written_for_a_link(run, home):
    (run.path / "model" / "more").symlink_to(home / "secret")
    (run.path / "table.md").symlink_to(home / "secret")
    before = run.marker_file.read_bytes()
    lock = locks.acquire(run.path / "locks")
    for outputs in (["model"], ["table.md"], ["../../../../.bashrc"]):
        with pytest.raises(BadInput, match=r"symbolic link|has no \.\."):
            markers.write(run, outputs, {}, lock)
    lock.release()
    assert run.marker_file.read_bytes() == before
    (run.path / "table.md").unlink()
    assert "model/more was added after the stage finished" in markers.check_outputs(run).reason


def test_a_linked_marker_was_believed(run, tmp_path):
    run.marker_file.rename(tmp_path / "COMPLETE.json")
    run.marker_file.symlink_to(tmp_path / "COMPLETE.json")
    assert "symbolic link" in markers.check_outputs(run).reason


# ------------------------------------------------------------------------------------------------- stage inputs


@pytest.mark.parametrize(
    "reads",
    [
        {"setup": {"stage": "../../elsewhere/setup", "fingerprint": "a" * 64}},
        {"setup": {"stage": "setup", "fingerprint": "../../etc"}},
        {"setup": {"stage": "..", "fingerprint": "a" * 64}},
        {"setup": {"stage": ["setup"], "fingerprint": "a" * 64}},
        {"setup": "setup"},
        ["setup"],
    ],
)
def test_stage_inputs_led_out_of_the_root(run, capsys, tmp_path, reads):
    other = runs.finished(run.root, "base")
    durable.write_json(run.stage_file, durable.read_json(run.stage_file) | {"inputs": reads})
    lists(run, "stage.json", run.stage_file)
    code, said = ratchet(capsys, "verify", run.root)
    assert (
        code == 1 and f"REFUSED     {run.path.relative_to(run.root)}: stage.json names inputs that are no runs" in said
    )
    assert f"verified    {other.path.relative_to(run.root)}" in said
    listed = ratchet(capsys, "list", run.root)[1]
    assert "1 of 2 begun stages are finished" in listed and f"unreadable   {run.stage} {run.path.name}" in listed
    code, said = ratchet(capsys, "show", run.path)
    assert code == 2 and "names inputs that are no runs" in said and "Traceback" not in said


# ------------------------------------------------------------------------------------------- what is shown of a result


def shows(run: RunDirectory, **result: Any) -> None:
    """The stranger's stage returned this, and finished."""
    durable.write_json(run.result_file, result)
    lists(run, "result.json", run.result_file)


def test_a_result_published_any_file(run, home, prefect_server):
    (run.path / "linked.md").symlink_to(home / "secret")
    (run.path / "unlisted.md").write_text(SECRET)
    (run.path / "table.md").write_text("the table")
    lists(run, "table.md", run.path / "table.md")
    shown: dict[str, list[str]] = {}
    with temporary_settings({PREFECT_API_URL: prefect_server}), get_client(sync_client=True) as client:
        for name in ("table.md", str(home / "secret"), "../../../../../home/secret", "linked.md", "unlisted.md"):
            shows(run, tables=[name], report=name)
            page = uuid4()
            best_effort(StageArtifacts(client, run, page).results)
            best_effort(partial(StudyArtifacts(client, "study", page).results, run))
            of_page = ArtifactFilter(flow_run_id=ArtifactFilterFlowRunId(any_=[page]))
            found = client.read_artifacts(artifact_filter=of_page)
            shown[name] = [str(artifact.data) for artifact in found if artifact.type == "markdown"]
    report, *tables = sorted(shown.pop("table.md"))
    assert report.endswith(f"It is the file `{run.path / 'table.md'}`") and tables == ["the table", "the table"]
    assert list(shown.values()) == [[], [], [], []]


@pytest.mark.parametrize("name", ["/etc/passwd", "../../../../.bashrc", "linked.md", 3])
def test_a_result_led_readers_elsewhere(run, home, capsys, name):
    (run.path / "linked.md").symlink_to(home / "secret")
    runs.finished(run.root, "base")
    shows(run, report=name)
    listed = ratchet(capsys, "list", run.root)[1]
    unreadable = f"unreadable   {run.stage} {run.path.name}: this directory is not readable, because {name} "
    assert unreadable in listed.replace("'", "") and "2 begun" in listed
    code, said = ratchet(capsys, "show", run.path)
    assert code == 0 and "refused" in said and f"read     {run.result_file}" in said
    assert ratchet(capsys, "index", run.root)[0] == 0 and 'passwd"' not in (run.root / "index.html").read_text()


def test_show_printed_a_linked_log(run, home, capsys):
    run.marker_file.unlink()
    run.attempts.mkdir()
    durable.write_json(run.attempts / "0001.json", {"attempt": 1, "end_state": "crashed"})
    (run.attempts / "0001.log").symlink_to(home / "secret")
    code, said = ratchet(capsys, "show", run.path)
    assert code == 2 and "symbolic link" in said and SECRET.strip() not in said


# ---------------------------------------------------------------------------------------------- what is written


@pytest.mark.parametrize("name", ["metrics.jsonl", "attempts/0001.log", "checkpoints", "model/weights"])
def test_an_attempt_wrote_through_links(tmp_path, home, name):
    """Rows and logs are appended: to whatever a stranger linked there."""
    handle = Walk(tmp_path / "runs", "toy")(TOY, ToyConfig(ends="finished"))
    (handle.run.path / name).parent.mkdir(parents=True)
    (handle.run.path / name).symlink_to(home / ".bashrc")
    outcome = attempt(handle.stage, handle.config, handle.run, {})
    assert outcome.end_state == "bad_input" and f"{handle.run.path / name} is a symbolic link" in outcome.text
    assert (home / ".bashrc").read_text() == "mine" and not handle.run.marker_file.exists()
    (handle.run.path / name).unlink()
    assert attempt(handle.stage, handle.config, handle.run, {}).end_state == "finished"


@pytest.mark.parametrize("linked", ["toy", "toy/only"])
def test_a_study_s_or_stage_s_folder_that_is_a_link_sent_all_that_ran_elsewhere(tmp_path, home, linked):
    walk = Walk(tmp_path / "runs", "toy", Execution())
    handle = walk(TOY, ToyConfig(ends="finished"))
    (walk.root / linked).parent.mkdir(parents=True)
    (walk.root / linked).symlink_to(home)
    outcome = attempt(handle.stage, handle.config, handle.run, {})
    assert outcome.end_state == "bad_input" and f"{walk.root / linked} is a symbolic link" in outcome.text
    if linked == "toy":
        with pytest.raises(BadInput, match="symbolic link"):
            walk.close_to_others()
    assert sorted(file.name for file in home.iterdir()) == [".bashrc", "secret"]


def test_a_fresh_start_moved_what_was_there_through_a_link(run, home):
    (run.path / "earlier").symlink_to(home)
    with pytest.raises(BadInput, match="symbolic link"):
        begin_anew(run)
    assert run.result_file.exists() and sorted(file.name for file in home.iterdir()) == [".bashrc", "secret"]


@pytest.mark.parametrize("linked", [".tensorboard", ".tensorboard/study"])
def test_event_files_were_removed_and_written_through_a_link(run, home, capsys, linked):
    there = (home if "/" in linked else home / run.study) / run.stage / run.path.name
    there.mkdir(parents=True)
    (there / "events.out.tfevents.1").touch()
    (run.root / linked).parent.mkdir(exist_ok=True)
    (run.root / linked).symlink_to(home)
    code, said = ratchet(capsys, "tensorboard", run.root)
    assert code == 2 and "symbolic link" in said
    assert [file.name for file in there.iterdir()] == ["events.out.tfevents.1"]
