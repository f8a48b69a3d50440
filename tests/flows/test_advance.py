"""`advance`, the backstop: it looks at each started study, and what one of them meets stops no other."""

from __future__ import annotations

import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from prefect.exceptions import ObjectNotFound

from deployments.page import load_page
from deployments.slurm.study import file as study_file
from flows import advance
from storage.errors import BadInput
from tests.slurm.harness import toy_study


@pytest.mark.parametrize(
    "error", [BadInput("bad"), OSError(5, "disk"), httpx.ConnectError("away"), ObjectNotFound("x")]
)
def test_one_study_that_cannot_be_looked_at_stops_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    files = {study_file.keep(tmp_path, load_page("tests.slurm.toy"), toy_study(name)) for name in ("first", "second")}
    looked: list[Path] = []

    def look_at(file: Path, *_: Any) -> Any:
        looked.append(file)
        if len(looked) == 1:
            raise error
        return SimpleNamespace(handles=[])

    def away(root: Path) -> None:
        raise httpx.ConnectError("away")

    monkeypatch.setattr(advance.dispatched, "look_at", look_at)
    monkeypatch.setattr(advance.dispatched, "finish_cancels", away)
    monkeypatch.setattr(advance, "read_site", lambda: SimpleNamespace(root=str(tmp_path)))
    monkeypatch.setattr(advance, "get_run_logger", lambda: logging.getLogger("ratchet.advance"))
    advance.advance.fn(str(tmp_path))
    assert set(looked) == files and looked[0].stem in caplog.text
