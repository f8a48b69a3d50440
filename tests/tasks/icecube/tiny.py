"""The direction study in seconds: the real page with the real stages, without Prefect, finished once in a test run."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

from deployments.page import load_page
from deployments.walk import Handle, Walk
from flows import icecube, settings
from tasks.icecube.study import Study
from tests.tasks.tiny import FinishedStudy, Here

PAGE = load_page("icecube")


def smoke(*changes: str) -> Study:
    """The profile smoke with these changes, as `--set` takes them."""
    return settings.read_study(PAGE, "smoke", list(changes), None)


def run(root: Path, study: Study, runner: type[Walk] = Here) -> dict[str, Handle]:
    """Every stage of the page by its label, as far as it comes."""
    walk = runner(root, study.name, study.execution)
    icecube.page(study, walk)
    return {handle.label: handle for handle in walk.handles}


class Until(Here):
    """Runs the stages up to the one of a name, whose cells are run too."""

    last = ""

    def __call__(self, stage: Any, config: Any, **inputs: Handle) -> Handle:
        seen = [handle.stage.name for handle in self.handles]
        if self.last in seen and stage.name != self.last:
            return Walk.__call__(self, stage, config, **inputs)
        return super().__call__(stage, config, **inputs)


def run_until(last: str, root: Path, study: Study) -> dict[str, Handle]:
    """As `run`, but nothing behind the stage `last` is begun."""
    return run(root, study, type("UntilIt", (Until,), {"last": last}))


@cache
def finished() -> FinishedStudy:
    """The smoke study. Read only."""
    folder = Path(tempfile.mkdtemp(prefix="ratchet-icecube-smoke-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    study = smoke()
    handles = run(folder / "runs", study)
    unfinished = {name: handle.outcome for name, handle in handles.items() if not handle.finished}
    assert not unfinished, unfinished
    return FinishedStudy(folder / "runs", study, handles)
