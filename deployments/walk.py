"""What a stage call on a study's page does: the part that all ways of running share.

`Walk` computes handles and looks at markers; it is the whole of `--dry-run` and `--status`, and starts neither a
server nor torch. Other dispatchers build on it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from storage import markers
from storage.errors import BadInput
from storage.run_directory import RunDirectory, fingerprint
from tasks.stage.configuration import Configuration
from tasks.stage.outcome import Outcome
from tasks.stage.run import Stage, StageInput


@dataclass
class Handle:
    """A stage call: what it is (fingerprint, run directory) and how it stands.

    The fingerprint is made of configuration and the inputs' fingerprints, so it is known before anything ran.
    """

    stage: Stage
    config: Configuration
    run: RunDirectory
    inputs: dict[str, Handle]
    verdict: markers.Verdict
    outcome: Outcome | None = field(default=None)

    @property
    def finished(self) -> bool:
        return self.verdict.holds

    @property
    def waits_for(self) -> list[str]:
        """Names of the stages that must finish first."""
        return [given.stage.name for given in self.inputs.values() if not given.finished]

    @property
    def seeds(self) -> set[int]:
        """The seeds on which the stage depends, by itself or by what it reads."""
        own = getattr(self.config, "seed", None)
        return {own} if own is not None else {seed for given in self.inputs.values() for seed in given.seeds}

    def as_input(self) -> StageInput:
        return StageInput(self.run, self.verdict.outputs_digest)

    def look(self, full: bool = False) -> None:
        """Looks at the marker again."""
        if self.waits_for:
            self.verdict = markers.Verdict(False, f"waits for {', '.join(self.waits_for)}", present=False)
            return
        digests = {role: given.verdict.outputs_digest for role, given in self.inputs.items()}
        self.verdict = markers.check(self.run, digests, full)


class Dispatcher(Protocol):
    """What a page is called with."""

    def __call__(self, stage: Stage, config: Configuration, **inputs: Handle) -> Handle: ...


class Walk:
    """Walks a page without running anything; `handles` are the stage calls in page order."""

    def __init__(self, root: str | Path, study: str) -> None:
        self.root, self.study = Path(root).expanduser().absolute(), study
        self.handles: list[Handle] = []

    def __call__(self, stage: Stage, config: Configuration, **inputs: Handle) -> Handle:
        """The handle of the call. Raises BadInput for external inputs that are not there, and for equal arms."""
        if type(config) is not stage.config:
            raise TypeError(f"stage {stage.name} takes a {stage.config.__name__}, not a {type(config).__name__}")
        prints = {role: given.run.fingerprint for role, given in inputs.items()}
        print_ = fingerprint(stage.name, stage.version, config.scientific(), config.external_inputs(), prints)
        if known := [old for old in self.handles if (old.stage.name, old.run.fingerprint) == (stage.name, print_)]:
            return known[0]  # several seeds share a setup
        handle = Handle(
            stage,
            config,
            RunDirectory(self.root, self.study, stage.name, print_),
            inputs,
            markers.Verdict(False, present=False),
        )
        self._refuse_equal(handle, prints)
        handle.look()
        self.handles.append(handle)
        return handle

    def _refuse_equal(self, handle: Handle, prints: dict[str, str]) -> None:
        """Two stages that would do the same work under two names are two arms that are really one."""
        for other in self.handles:
            same_inputs = {role: given.run.fingerprint for role, given in other.inputs.items()} == prints
            if same_inputs and other.config == handle.config and other.stage.name != handle.stage.name:
                raise BadInput(
                    f"{other.stage.name} and {handle.stage.name} have the same effective configuration and inputs: "
                    "they would be one experiment under two names"
                )
