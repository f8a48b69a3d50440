"""A study on SLURM as who started it follows it: what is kept of it, and what an edit meanwhile changes."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from prefect.settings import PREFECT_API_URL, temporary_settings

from deployments.dag.page import load_page
from deployments.flow import flow_of
from deployments.slurm.cluster.client import SlurmCommands
from deployments.slurm.study import follow
from deployments.slurm.study import study as study_file
from deployments.slurm.study.follow import Follower, Host, advance_kept
from deployments.slurm.study.records import Records
from deployments.slurm.study.standings import Look
from deployments.slurm.study.study import SlurmStudy
from storage.errors import BadInput
from tests.slurm.harness import kept_study, toy_study
from tests.tasks.tiny import Here

TOY = load_page("tests.slurm.toy")


class Noting(Host):
    """Notes with which site's root, which source and whose wish stages were started; no job is made."""

    def __init__(self) -> None:
        self.started: list[tuple[Any, ...]] = []
        self.refusal = ""

    @contextmanager
    def looking(self, slurm: SlurmStudy, starts: bool, **how: Any) -> Iterator[Any]:
        if not starts:
            yield Look(Records(), SlurmCommands(), **how)
            return
        self.started.append((slurm.site.root, slurm.kept_source(), how["person"]))
        yield SimpleNamespace(at=lambda handles: SimpleNamespace(handles=handles, under_way=True))

    def require_runnable(self, slurm: SlurmStudy) -> None:
        if self.refusal:
            raise BadInput(self.refusal)

    def withdraw(self, slurm: SlurmStudy, why: str) -> None:
        raise AssertionError("nothing is refused here")

    cancel = require_runnable


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Noting:
    monkeypatch.setenv("RATCHET_SITE", str(tmp_path / "site.yaml"))
    (tmp_path / "site.yaml").write_text(f"root: {tmp_path / 'runs'}\n")
    return Noting()


def test_a_finished_study_is_no_longer_active(tmp_path, host):
    """Else a stage that gets a new version, or a folder that is removed, would have it all done again, unasked."""
    root, study = tmp_path / "runs", toy_study("finishes")
    kept = kept_study(root, study)
    advance_kept(host, kept.file, kept.site, root)
    assert study_file.active(root) == [kept.file]
    TOY.function(study, Here(root, study.name))
    advance_kept(host, kept.file, kept.site, root)
    assert study_file.active(root) == []
    Follower(host, SlurmStudy.at_site(TOY, study)).start()
    assert study_file.active(root) == [], "started again it was checked once more, and found finished"


def test_a_start_that_is_refused_changes_nothing_of_a_study_under_way(tmp_path, host):
    """The kept file is what the next job of a training under way is made of."""
    file = kept_study(tmp_path / "runs", toy_study("under-way")).file
    study_file.stopped(file).touch()
    before = file.read_bytes()
    host.refusal = "memory_gb: 9000 GB asked for"
    with pytest.raises(BadInput, match="9000"):
        Follower(host, SlurmStudy.at_site(TOY, toy_study("under-way", {"memory_gb": 9000}))).start()
    assert file.read_bytes() == before and study_file.stopped(file).exists() and not host.started


def test_an_edit_of_the_site_file_or_of_the_source_ends_nothing_that_is_followed(tmp_path, host):
    page = tmp_path / "edited.py"
    page.write_text("from tests.slurm.toy import Study, page\n")
    follower = Follower(host, SlurmStudy.at_site(load_page(str(page)), toy_study("followed")))
    follower.start()
    (tmp_path / "site.yaml").write_text("")
    page.write_text("half an edit (")
    follower.advance()
    (root, source, person), second = host.started
    assert (root, person) == (str(tmp_path / "runs"), True) and second == (root, source, False)
    assert (source / "edited.py").read_text().startswith("from"), "its jobs run what was started"


def test_whoever_starts_a_job_gives_it_the_source_of_the_last_start(tmp_path, host):
    """A corrected stage would run as it was before, where the one who had followed the study first was faster."""
    page = tmp_path / "corrected.py"
    page.write_text("from tests.slurm.toy import Study, page\n")
    first = Follower(host, SlurmStudy.at_site(load_page(str(page)), toy_study("corrected")))
    first.start()
    page.write_text("from tests.slurm.toy import Study, page  # corrected\n")
    slurm = SlurmStudy.at_site(load_page(str(page)), toy_study("corrected"))
    Follower(host, slurm).start()
    first.advance()
    page.write_text("from tests.slurm.toy import Study, page  # and edited again\n")
    advance_kept(host, slurm.file, slurm.site, slurm.root)
    shutil.rmtree(tmp_path / "runs" / ".sources")
    first.advance()
    before, *sources, again = [source for _, source, _ in host.started]
    assert before != sources[0] and len(set(sources)) == 1 and len(sources) == 3
    assert (again / "corrected.py").read_text().endswith("edited again\n"), "what is gone is made of what is there"


def test_a_study_that_was_cancelled_is_followed_on_without_starting_anything(tmp_path, host, monkeypatch):
    """Another process cancelled it, and a stage that another study wants went on and finished."""
    monkeypatch.setattr(follow, "standings", lambda host, slurm, told: "how it stands")
    slurm = SlurmStudy.at_site(TOY, toy_study("cancelled"))
    follower = Follower(host, slurm)
    follower.start()
    study_file.stopped(slurm.file).touch()
    assert follower.advance() == "how it stands" and len(host.started) == 1
    assert follower.start() == "how it stands", "a start that a busy server broke off does not undo a cancel"
    follower = Follower(host, slurm)
    follower.start()
    follower.advance()
    assert len(host.started) == 3, "a person started it again"


def test_who_removes_the_root_of_a_study_that_is_followed_is_told_so(tmp_path, host):
    slurm = SlurmStudy.at_site(TOY, toy_study("removed"))
    follower = Follower(host, slurm)
    follower.start()
    shutil.rmtree(slurm.root)
    with pytest.raises(BadInput, match=f"{slurm.file} is gone") as told:
        follower.advance()
    assert "changed" not in str(told.value)


def test_a_start_that_was_broken_off_tells_the_next_try_what_it_had_begun(tmp_path, host, monkeypatch):
    tries: list[frozenset[str]] = []

    @contextmanager
    def busy(*_: Any, told: Any, begun: Any, **__: Any) -> Iterator[Any]:
        def at(handles: Any) -> Any:
            tries.append(begun)
            told(handles[0], SimpleNamespace(stand="under way"))
            raise ConnectionError("busy")

        yield SimpleNamespace(at=at)

    monkeypatch.setattr(host, "looking", busy)
    slurm = SlurmStudy.at_site(TOY, toy_study("broken-off"))
    follower, told = Follower(host, slurm), list[Any]()
    for _ in range(2):
        with pytest.raises(ConnectionError):
            follower.start(lambda handle, standing: told.append(handle))
    first = slurm.handles[0]
    assert tries == [frozenset(), frozenset({first.run.fingerprint})] and told == [first, first]


def test_what_is_followed_ends_when_its_file_is_gone(tmp_path, host):
    follower = Follower(host, SlurmStudy.at_site(TOY, toy_study("removed")))
    follower.start()
    next((tmp_path / "runs").glob("removed/studies/*.yaml")).unlink()
    with pytest.raises(BadInput, match="nothing more is started"):
        follower.advance()
    assert len(host.started) == 1


def test_a_marker_that_stops_holding_is_noticed_while_the_study_is_followed(tmp_path, host):
    study = toy_study("edited")
    done = Here(tmp_path / "runs", study.name)
    TOY.function(study, done)
    slurm = SlurmStudy.at_site(TOY, study)
    follower = Follower(host, slurm)
    follower.start()
    assert [handle.finished for handle in slurm.handles] == [True, True]
    (done.handles[0].run.path / "model" / "model.safetensors").write_bytes(b"edited")
    follower.advance()
    assert [handle.finished for handle in slurm.handles] == [False, False]


def test_a_start_walks_the_page_once_and_a_poll_does_not(tmp_path, host):
    """A page of hundreds of stages checks hundreds of markers on a shared disk each time."""
    walked: list[str] = []

    def page(study: Any, stage: Any) -> Any:
        walked.append(study.name)
        return TOY.function(study, stage)

    counted = type(TOY)(TOY.place, page, TOY.model)
    follower = Follower(host, SlurmStudy.at_site(counted, toy_study("walked")))
    follower.start()
    follower.advance()
    assert walked == ["walked"] and len(host.started) == 2


def test_bad_input_is_a_state_of_the_study_and_no_traceback(tmp_path, monkeypatch, prefect_server, caplog):
    def refuses(*_: Any) -> None:
        raise BadInput("memory_gb: 900 GB asked for")

    monkeypatch.setattr(SlurmStudy, "at_site", refuses)
    with temporary_settings({PREFECT_API_URL: prefect_server}):
        state = flow_of(TOY)(toy_study("wrong"), str(tmp_path), "slurm", return_state=True)
    assert (state.name, state.message) == ("BadInput", "memory_gb: 900 GB asked for")
    assert not [record for record in caplog.records if record.exc_info]
