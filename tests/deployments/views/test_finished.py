"""What a finished study leaves for people, here and on SLURM: the link to its newest result, and the index page."""

import os
import shutil
from pathlib import Path

from deployments.dag.walk import Handle
from deployments.slurm.study.engine import Engine
from deployments.views.index import INDEX, leave_for_people
from storage import durable
from storage.run_directory import LATEST
from tests.deployments.here.test_study import run
from tests.deployments.toy import call
from tests.flows.answers import Study, finished
from tests.slurm.harness import kept_study, toy_study
from tests.slurm.toy import page as toy_page
from tests.tasks.tiny import Here


def latest(last: Handle) -> Path:
    """Where the link leads, as it stands there."""
    return last.run.root / last.run.study / os.readlink(last.run.root / last.run.study / LATEST)


def test_a_study_that_finishes_here_leaves_the_link_and_the_page(tmp_path):
    walk, *_ = run(tmp_path, call("first"), call("last", "finished", "first"))
    last = walk.handles[-1]
    assert latest(last) == last.run.path and "toy" in (tmp_path / INDEX).read_text()


def test_a_study_that_does_not_finish_leaves_neither(tmp_path):
    run(tmp_path, call("first"), call("last", "check_failed", "first"))
    assert sorted(path.name for path in tmp_path.rglob("*") if path.name in (LATEST, INDEX)) == []


def test_a_study_that_finishes_on_slurm_leaves_the_link_and_the_page(tmp_path, monkeypatch):
    monkeypatch.setenv("RATCHET_SITE", str(tmp_path / "site.yaml"))
    root, study = tmp_path / "runs", toy_study("on-slurm")
    kept = kept_study(root, study)
    last = toy_page(study, Here(root, study.name))
    assert not (root / INDEX).exists() and not (root / study.name / LATEST).exists()
    Engine(kept.site).advance(kept)
    assert latest(last) == last.run.path and "on-slurm" in (root / INDEX).read_text()


def test_the_link_leads_to_the_result_that_was_finished_last_whichever_was_asked_for_last(tmp_path):
    older, newer = (finished(tmp_path, Study(name="one", words=words))[-1] for words in (1, 2))
    leave_for_people(older)
    assert latest(older) == older.run.path
    leave_for_people(newer)
    leave_for_people(older)
    assert latest(older) == newer.run.path
    shutil.rmtree(newer.run.path)
    leave_for_people(older)
    assert latest(older) == older.run.path, "what it led to was removed"


def test_a_disk_without_links_has_a_finished_study_and_its_page_all_the_same(tmp_path, monkeypatch):
    def refuses(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "symlink", refuses)
    last = finished(tmp_path, Study(name="one"))[-1]
    leave_for_people(last)
    assert (tmp_path / INDEX).exists() and not list(tmp_path.rglob(f"*{LATEST}*"))


def test_a_page_that_cannot_be_written_is_only_warned_of(tmp_path, caplog):
    last = finished(tmp_path, Study(name="one"))[-1]
    (tmp_path / INDEX).mkdir()
    leave_for_people(last)
    assert (
        f"there is no new index page: {tmp_path / INDEX} cannot be written" in caplog.text
        and latest(last) == last.run.path
    )
    assert not list(tmp_path.glob(f"{durable.TEMPORARY_PREFIX}*"))
