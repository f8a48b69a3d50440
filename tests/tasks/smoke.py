"""The smoke profile of a study in seconds: the real page with the real stages, without Prefect."""

from functools import cache
from pathlib import Path
from typing import Any

from deployments.dag.page import load_page
from deployments.dag.walk import Handle, Walk
from flows.command import settings
from tests.once import made_once
from tests.tasks.tiny import FinishedStudy, Here, all_finished


class Until(Here):
    """Runs the stages up to the one of a name, whose cells are run too."""

    last = ""

    def __call__(self, stage: Any, config: Any, **inputs: Handle) -> Handle:
        seen = [handle.stage.name for handle in self.handles]
        if self.last in seen and stage.name != self.last:
            return Walk.__call__(self, stage, config, **inputs)
        return super().__call__(stage, config, **inputs)


class Smoke:
    """The smoke profile of one study."""

    def __init__(self, name: str) -> None:
        self.page = load_page(name)
        self.finished = cache(self._finished)

    def study(self, *changes: str) -> Any:
        """The profile with these changes, as `--set` takes them."""
        return settings.read_study(self.page, "smoke", list(changes), None)

    def run(self, root: Path, study: Any, runner: type[Walk] = Here) -> dict[str, Handle]:
        """Every stage of the page by its label, as far as it comes."""
        walk = runner(root, study.name, study.execution)
        self.page.walk(study, walk)
        return {handle.label: handle for handle in walk.handles}

    def run_until(self, last: str, root: Path, study: Any) -> dict[str, Handle]:
        """As `run`, but nothing behind the stage `last` is begun."""
        return self.run(root, study, type("UntilIt", (Until,), {"last": last}))

    def _finished(self) -> FinishedStudy:
        """The whole study, made once in a test run. Read only."""
        study = self.study()
        root = made_once(f"{self.page.name}-smoke", lambda root: all_finished(self.run(root, study)))
        return FinishedStudy(root, study, self.run(root, study, Walk))
