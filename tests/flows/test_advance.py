"""`advance`, the backstop: it reads each started study, and what one of them meets stops no other."""

import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from prefect.exceptions import ObjectNotFound

from deployments.slurm.pool import runs as pool_runs
from flows import advance
from storage.errors import BadInput
from tests.slurm.harness import kept_study, toy_study


@pytest.fixture
def answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Exception]:
    """What the first studies that are read meet, of a root whose server is asked at most three times; which were read
    stands in READ."""
    met: list[Exception] = []

    def advance_kept(host: Any, file: Path, *_: Any) -> Any:
        READ.append(file)
        if met:
            raise met.pop(0)
        return SimpleNamespace(handles=[])

    READ.clear()
    monkeypatch.setattr(advance.follow, "advance_kept", advance_kept)
    monkeypatch.setattr(advance.cancel, "finish_cancels", lambda root: None)
    monkeypatch.setattr(advance, "has_site", lambda: True)
    monkeypatch.setattr(advance, "read_site", lambda: SimpleNamespace(root=str(tmp_path)))
    monkeypatch.setattr(advance, "get_run_logger", lambda: logging.getLogger("ratchet.advance"))
    monkeypatch.setattr(pool_runs, "AGAIN_AFTER_SECONDS", ())
    return met


READ: list[Path] = []


@pytest.mark.parametrize(
    "error", [BadInput("bad"), OSError(5, "disk"), httpx.ConnectError("away"), ObjectNotFound("x")]
)
def test_one_study_that_cannot_be_read_stops_no_other(tmp_path, answers, monkeypatch, caplog, error):
    files = {kept_study(tmp_path, toy_study(name)).file for name in ("first", "second")}

    def away(root: Path) -> None:
        raise httpx.ConnectError("away")

    monkeypatch.setattr(advance.cancel, "finish_cancels", away)
    answers.append(error)
    ended = advance.advance.fn(str(tmp_path))
    assert set(READ) == files and READ[0].stem in caplog.text
    assert "what was ready is started, but not of first" in ended.message


def test_a_busy_server_is_asked_again_before_a_study_is_left(tmp_path, answers, monkeypatch):
    kept_study(tmp_path, toy_study("only"))
    answers += [httpx.ConnectError("away"), httpx.ReadTimeout("busy")]
    monkeypatch.setattr(pool_runs, "AGAIN_AFTER_SECONDS", (0.0, 0.0))
    assert advance.advance.fn(str(tmp_path)).message == "what was ready is started" and len(READ) == 3


@pytest.mark.parametrize(
    ("named", "state", "said"),
    [
        (None, "Completed", "no cluster here"),
        ("/nowhere/site.yaml", "BadInput", "there is no site file /nowhere/site.yaml: copy "),
    ],
)
def test_a_machine_without_a_site_file_has_nothing_to_start_and_one_that_is_named_is_asked_for(
    monkeypatch, tmp_path, named, state, said
):
    monkeypatch.setattr("deployments.slurm.cluster.site.SITES", tmp_path)
    monkeypatch.delenv("RATCHET_SITE", raising=False)
    if named:
        monkeypatch.setenv("RATCHET_SITE", named)
    ended = advance.advance.fn()
    assert ended.name == state and said in ended.message


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (None, 0),
        (httpx.ConnectError("away"), 75),
        (OSError(5, "disk"), 75),
        (BadInput("bad"), 0),
        (ObjectNotFound("x"), 0),
    ],
)
def test_the_worker_has_one_study_walked_and_learns_whether_time_may_help(tmp_path, answers, error, code):
    """Of what a person must correct the log tells; it would be told again every half minute."""
    file, _ = (kept_study(tmp_path, toy_study(name)).file for name in ("ended", "other"))
    answers += [error] if error else []
    assert advance.main([f"--root={tmp_path}", "--study=ended"]) == code and [file] == READ
