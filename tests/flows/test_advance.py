"""`advance`, the backstop: it reads each started study, and what one of them meets stops no other."""

from __future__ import annotations

import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from prefect.exceptions import ObjectNotFound

from flows import advance
from storage.errors import BadInput
from tests.slurm.harness import kept_study, toy_study


@pytest.mark.parametrize(
    "error", [BadInput("bad"), OSError(5, "disk"), httpx.ConnectError("away"), ObjectNotFound("x")]
)
def test_one_study_that_cannot_be_read_stops_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    files = {kept_study(tmp_path, toy_study(name)).file for name in ("first", "second")}
    read: list[Path] = []

    def advance_kept(file: Path, *_: Any) -> Any:
        read.append(file)
        if len(read) == 1:
            raise error
        return SimpleNamespace(handles=[])

    def away(root: Path) -> None:
        raise httpx.ConnectError("away")

    monkeypatch.setattr(advance.follow, "advance_kept", advance_kept)
    monkeypatch.setattr(advance.cancel, "finish_cancels", away)
    monkeypatch.setattr(advance, "read_site", lambda: SimpleNamespace(root=str(tmp_path)))
    monkeypatch.setattr(advance, "get_run_logger", lambda: logging.getLogger("ratchet.advance"))
    advance.advance.fn(str(tmp_path))
    assert set(read) == files and read[0].stem in caplog.text
