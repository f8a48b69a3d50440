"""A study on SLURM as whoever serves its root follows it: what is kept of it, and what an edit meanwhile changes."""

import shutil
import time
from pathlib import Path
from typing import Any

import pytest
from prefect.settings import PREFECT_API_URL, temporary_settings

from deployments.dag.page import Page, load_page
from deployments.flow import flow_of
from deployments.slurm.cluster.site import read_site
from deployments.slurm.study import follow
from deployments.slurm.study import study as study_file
from deployments.slurm.study.engine import Engine
from deployments.slurm.study.follow import Studies, entrust, followed
from deployments.slurm.study.looks import Looks
from deployments.slurm.study.standings import Look
from deployments.slurm.study.study import SlurmStudy
from storage.errors import BadInput
from tests.slurm.harness import toy_study
from tests.tasks.tiny import Here

TOY = load_page("tests.slurm.toy")


class Noted:
    """With which source and whose wish stages were looked at; no job is made."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.looks: list[tuple[Path, bool]] = []
        self.refusal = ""
        noted = self
        advanced = Engine._advanced

        def note(engine: Engine, slurm: SlurmStudy, tell: Any, person: bool) -> Any:
            noted.looks.append((slurm.kept_source(), person))
            return advanced(engine, slurm, tell, person)

        def require(slurm: SlurmStudy) -> None:
            if noted.refusal:
                raise BadInput(noted.refusal)

        monkeypatch.setattr(Engine, "_advanced", note)
        monkeypatch.setattr(follow, "require_runnable", require)
        for silent in ("poll", "submit", "tell"):
            monkeypatch.setattr(f"deployments.slurm.pool.service.Service.{silent}", lambda *_: None)


@pytest.fixture
def noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Noted:
    monkeypatch.setenv("RATCHET_SITE", str(tmp_path / "site.yaml"))
    (tmp_path / "site.yaml").write_text(f"root: {tmp_path / 'runs'}\n")
    return Noted(monkeypatch)


def started(study: Any, page: Any = TOY) -> SlurmStudy:
    slurm = SlurmStudy.at_site(page, study)
    entrust(slurm, Looks(slurm.site))
    return slurm


def a_server() -> Studies:
    """Whoever serves the root."""
    site = read_site()
    return Studies(site, Looks(site), lambda *_: None)


def test_a_finished_study_is_no_longer_active(tmp_path, noted):
    """Else a stage that gets a new version, or a folder that is removed, would have it all done again, unasked."""
    root, study = tmp_path / "runs", toy_study("finishes")
    kept, server = started(study), a_server()
    assert server.look() and study_file.active(root) == [kept.file]
    TOY.function(study, Here(root, study.name))
    assert not server.look() and study_file.active(root) == []
    started(study)
    assert not server.look() and study_file.active(root) == [], "it was checked once more, and found finished"


def test_a_start_that_is_refused_changes_nothing_of_a_study_under_way(tmp_path, noted):
    """The kept file is what the next job of a training under way is made of."""
    file = started(toy_study("under-way")).file
    study_file.stopped(file).touch()
    before = file.read_bytes()
    noted.refusal = "memory_gb: 9000 GB asked for"
    with pytest.raises(BadInput, match="9000"):
        followed(SlurmStudy.at_site(TOY, toy_study("under-way", {"memory_gb": 9000})), lambda *_: None)
    assert file.read_bytes() == before and study_file.stopped(file).exists() and not noted.looks


def test_an_edit_of_the_site_file_or_of_the_source_ends_nothing_that_is_followed(tmp_path, noted):
    page = tmp_path / "edited.py"
    page.write_text("from tests.slurm.toy import Study, page\n")
    started(toy_study("followed"), load_page(str(page)))
    server = a_server()
    server.look()
    (tmp_path / "site.yaml").write_text("")
    page.write_text("half an edit (")
    server.look()
    (source, person), second = noted.looks
    assert person and second == (source, False)
    assert (source / "edited.py").read_text().startswith("from"), "its jobs run what was started"


def test_whoever_starts_a_job_gives_it_the_source_of_the_last_start(tmp_path, noted):
    """A corrected stage would run as it was before, where the one who had followed the study first was faster."""
    page = tmp_path / "corrected.py"
    page.write_text("from tests.slurm.toy import Study, page\n")
    started(toy_study("corrected"), load_page(str(page)))
    server = a_server()
    server.look()
    page.write_text("from tests.slurm.toy import Study, page  # corrected\n")
    started(toy_study("corrected"), load_page(str(page)))
    server.look()
    page.write_text("from tests.slurm.toy import Study, page  # and edited again\n")
    server.look()
    shutil.rmtree(tmp_path / "runs" / ".sources")
    server.look()
    before, *sources, again = [source for source, _ in noted.looks]
    assert before != sources[0] and len(set(sources)) == 1 and len(sources) == 2
    assert (again / "corrected.py").read_text().endswith("edited again\n"), "what is gone is made of what is there"


def test_a_study_that_was_cancelled_is_followed_to_its_end_without_starting_anything(tmp_path, noted):
    slurm, server = started(toy_study("cancelled")), a_server()
    server.look()
    study_file.stopped(slurm.file).touch()
    assert not server.look(), "it had no job"
    assert [person for _, person in noted.looks] == [True] and server.end_of(slurm)[0].name == "Cancelled"
    started(toy_study("cancelled"))
    assert server.look() and [person for _, person in noted.looks] == [True, True], "a person started it again"


def test_a_cancel_before_anybody_looked_is_not_undone_by_the_start_before_it(tmp_path, noted):
    slurm, server = started(toy_study("at-once")), a_server()
    study_file.stopped(slurm.file).touch()
    assert not server.look() and not noted.looks and server.end_of(slurm)[0].name == "Cancelled"


@pytest.mark.parametrize("gone", ["the root", "its file"])
def test_who_removes_what_is_followed_is_told_so(tmp_path, noted, gone):
    slurm, server = started(toy_study("removed")), a_server()
    server.look()
    shutil.rmtree(slurm.root / "removed") if gone == "the root" else slurm.file.unlink()
    assert not server.look() and len(noted.looks) == 1
    state, message = server.end_of(slurm)
    assert state.name == "BadInput" and f"{slurm.file} is gone" in message and "changed" not in message


def test_a_marker_that_stops_holding_is_noticed_while_the_study_is_followed(tmp_path, noted, monkeypatch):
    study = toy_study("edited")
    done = Here(tmp_path / "runs", study.name)
    TOY.function(study, done)
    slurm = SlurmStudy.at_site(TOY, study)
    slurm.keep()
    engine = Engine(slurm.site)
    engine.advance(slurm, person=True)
    study_file.stopped(slurm.file).unlink()
    assert [handle.finished for handle in slurm.handles] == [True, True]
    (done.handles[0].run.path / "model" / "model.safetensors").write_bytes(b"edited")
    engine.advance(slurm)
    assert [handle.finished for handle in slurm.handles] == [False, False]


def test_a_start_walks_the_page_once_and_a_look_does_not(tmp_path, noted, monkeypatch):
    """A page of hundreds of stages checks hundreds of markers on a shared disk each time."""
    started(toy_study("walked"))
    walked: list[str] = []
    walk = Page.walk
    monkeypatch.setattr(Page, "walk", lambda page, study, stage: walked.append(study.name) or walk(page, study, stage))
    server = a_server()
    for _ in range(3):
        server.look()
    assert walked == ["walked"] and len(noted.looks) == 3


def test_one_study_that_cannot_be_read_stops_no_other(tmp_path, noted, monkeypatch):
    broken, other = started(toy_study("broken")), started(toy_study("other"))
    server = a_server()
    server.look()
    monkeypatch.setattr(Look, "at", failing_once(OSError(5, "disk")))
    server.look()
    assert len(noted.looks) == 4 and len([*Looks(read_site()).entries()]) == 2, "the disk may come back"
    broken.file.write_text("[")
    broken.file.unlink()
    server.look()
    assert [entry.file for entry in Looks(read_site()).entries()] == [other.file]


def test_a_look_that_a_full_disk_breaks_off_is_made_again_and_a_listed_study_that_is_gone_is_passed_over(
    tmp_path, noted, monkeypatch, caplog
):
    slurm, server = started(toy_study("full")), a_server()
    (Looks(slurm.site).folder / "studies" / "gone.json").symlink_to("nowhere")

    def full(engine: Engine) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Engine, "submit_due", full)
    assert server.look() and "No space left on device" in caplog.text and server.serves


def test_who_shows_what_a_command_has_started_starts_nothing_again(tmp_path, noted):
    """The flow run of a study that a command started comes seconds later: a stage may have failed since."""
    slurm, server = started(toy_study("shown")), a_server()
    server.look()
    server.end()
    study_file.stopped(slurm.file).touch()
    for _ in range(2):  # also when it has ended already
        assert followed(slurm, lambda *_: None, is_entrusted=True)[0].name == "Cancelled"
    assert [person for _, person in noted.looks] == [True]


def failing_once(error: Exception) -> Any:
    left, at = [error], Look.at

    def fails(self: Look, handles: Any) -> Any:
        if left:
            raise left.pop()
        return at(self, handles)

    return fails


def test_a_study_whose_code_is_newer_than_the_process_that_serves_is_left_to_another_one(tmp_path, noted, monkeypatch):
    """It began before the edit, and would say of what was just started that it has changed since."""
    slurm, server = started(toy_study("newer")), a_server()
    kept = SlurmStudy.kept.__func__

    def changed(cls: type, *given: Any) -> Any:
        raise BadInput(study_file.CHANGED)

    monkeypatch.setattr(SlurmStudy, "kept", classmethod(changed))
    assert server.look() and not server.serves, "it is still to be followed"
    monkeypatch.setattr(SlurmStudy, "kept", classmethod(kept))
    newer = a_server()
    assert newer.look() and newer.serves and server.look() and not server.serves and len(noted.looks) == 1
    newer.end()

    monkeypatch.setattr(SlurmStudy, "kept", classmethod(changed))
    started(toy_study("newer"))
    now = time.monotonic()
    monkeypatch.setattr(follow.time, "monotonic", lambda: now + follow.LEFT_SECONDS + 1)
    assert not server.look() and "changed" in server.end_of(slurm)[1], "where nobody else takes it, it is told"


def test_bad_input_is_a_state_of_the_study_and_no_traceback(tmp_path, monkeypatch, prefect_server, caplog):
    def refuses(*_: Any) -> None:
        raise BadInput("memory_gb: 900 GB asked for")

    monkeypatch.setattr(SlurmStudy, "at_site", refuses)
    with temporary_settings({PREFECT_API_URL: prefect_server}):
        state = flow_of(TOY)(toy_study("wrong"), str(tmp_path), "slurm", return_state=True)
    assert (state.name, state.message) == ("BadInput", "memory_gb: 900 GB asked for")
    assert not [record for record in caplog.records if record.exc_info]
