"""Work of a stage call on a study's page: the part that all ways of running share.

A walk computes handles and checks markers, and starts neither a server nor torch. What is done with the handles, in
page order, is another room's: shown, run here (`local`), or as SLURM jobs (`slurm`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from storage import markers
from storage.errors import BadInput, NoSuchFile
from storage.inside import refuse_links
from storage.permissions import close_to_others
from storage.run_directory import RunDirectory, fingerprint
from tasks.stage.configuration import key_of
from tasks.stage.execution import Execution
from tasks.stage.outcome import Outcome
from tasks.stage.run import Stage, StageInput
from tasks.stage.study import StageConfiguration

Cell = tuple[str, ...]
"""Parts that tell a cell of a sweep from the others, for people: ("seed 1337", "variant mlp_in")."""


@dataclass
class Handle:
    """A stage call: what it is (fingerprint, run directory) and how it stands.

    The fingerprint is made of configuration and the inputs' fingerprints, so it is known before anything ran.
    """

    stage: Stage
    config: StageConfiguration
    run: RunDirectory
    inputs: dict[str, Handle]
    verdict: markers.Verdict
    outcome: Outcome | None = None
    cells: list[Cell] = field(default_factory=list)
    origin: dict[str, Any] = field(default_factory=dict)
    """Content of study.json in its run directory: `page`, `study` (every value), `over` (a sweep's): set by a page."""
    own_source: dict[str, str | None] = field(default_factory=dict)
    """Source of its work, where that is a person's own (`AttemptRecord`): set by the page."""

    @property
    def finished(self) -> bool:
        return self.verdict.holds

    @property
    def waits_for(self) -> list[str]:
        """Labels of the stages that must finish first."""
        return list(dict.fromkeys(parent.label for parent in self.inputs.values() if not parent.finished))

    @property
    def refusal(self) -> str:
        """Why a stage that waits cannot use what is finished of what it reads; empty where it can."""
        try:
            for role, parent in self.inputs.items() if self.waits_for else ():
                if parent.finished:
                    self.config.require_input(role, parent.as_input())
        except BadInput as error:
            return str(error)
        return ""

    @property
    def cell(self) -> Cell:
        """Difference from other calls of its stage: its configuration's `cell`, and what all its cells share."""
        first, *others = self.cells or [()]
        own = self.config.cell.split(", ")  # a stage that is a function may say there what a sweep varies
        shared = (part for part in first if part not in own and all(part in other for other in others))
        return tuple(part for part in (self.config.cell, *shared) if part)

    @property
    def label(self) -> str:
        """The stage and its cell, for people: "train-baseline (seed 1337)"."""
        return _named(self.cell, self.stage.name)

    @property
    def seeds(self) -> set[int]:
        """The seeds on which the stage depends, by itself or by what it reads."""
        own = self.config.own_seed
        return {own} if own is not None else {seed for parent in self.inputs.values() for seed in parent.seeds}

    def as_input(self) -> StageInput:
        return StageInput(self.run, self.verdict.outputs_digest)

    def check_marker(self, full: bool = False) -> None:
        """Reads the marker again; `full` hashes every output."""
        if self.waits_for:
            self.verdict = markers.Verdict(False, f"waits for {', '.join(self.waits_for)}", present=False)
            return
        digests = {role: parent.verdict.outputs_digest for role, parent in self.inputs.items()}
        self.verdict = markers.check(self.run, digests, full)


class Dispatcher(Protocol):
    """Interface that a page is called with."""

    def __call__(self, stage: Stage, config: StageConfiguration, **inputs: Handle) -> Handle: ...


class Walk:
    """Walks a page without running anything; `handles` are the stage calls in page order."""

    def __init__(self, root: str | Path, study: str, execution: Execution | None = None) -> None:
        """`execution` is the study's: that of each stage whose configuration gives none."""
        self.root, self.study = Path(root).expanduser().absolute(), study
        self.handles: list[Handle] = []
        self._execution = execution
        self._cell: Cell = ()
        self._calls: dict[Cell, list[Handle]] = {(): []}
        self._of_work: dict[str, Handle] = {}

    @property
    def cells(self) -> dict[Cell, list[Handle]]:
        """The stage calls of each cell of a sweep, in the order of its page."""
        return {cell: calls for cell, calls in self._calls.items() if cell}

    def check_markers(self) -> None:
        """Reads the marker of each handle again, in page order, also where this host had seen the folder before."""
        for handle in self.handles:
            handle.run.refresh()
            handle.check_marker()

    def close_to_others(self) -> None:
        """Closes the study's folder, and what this process writes from now on, as the study's `permissions` say.

        BadInput where the folder is a link: what is written would go elsewhere.
        """
        if (self.root / self.study).is_symlink():
            refuse_links(self.root / self.study, self.root)
        if self._execution is not None:
            close_to_others(self._execution.permissions, self.root / self.study)

    @contextmanager
    def cell(self, *parts: str) -> Iterator[None]:
        """One cell of a sweep: a call in the block that equals one of another cell returns the same handle.

        `parts` name the cell for people, such as "seed 1337". Raises BadInput for a cell whose stages are all those of
        another cell: what is varied changes nothing.
        """
        outer, self._cell = self._cell, (*self._cell, *parts)
        if self._cell in self._calls:
            raise BadInput(f"the sweep has the cell {_named(self._cell)} twice: give each value once")
        self._calls[self._cell] = []
        try:
            yield
            self._refuse_equal_cell()
        finally:
            self._cell = outer

    def __call__(self, stage: Stage, config: StageConfiguration, **inputs: Handle) -> Handle:
        """The handle of the call. Raises BadInput for external inputs that are not there, and for equal calls."""
        if type(config) is not stage.config:
            raise BadInput(f"stage {stage.name} takes a {stage.config.__name__}, not a {type(config).__name__}")
        for role, parent in inputs.items():
            if not isinstance(parent, Handle):
                raise BadInput(f"stage {stage.name}: {role} is {parent!r}, and not what a stage call returned")
        if self._execution is not None and "execution" not in config.model_fields_set:
            _require_execution(stage, self._execution)
            config = config.model_copy(update={"execution": self._execution})
        self._refuse_other_stage(stage)
        prints = {role: parent.run.fingerprint for role, parent in inputs.items()}
        described = (config.scientific(), _external_inputs(config), prints)
        print_ = fingerprint(stage.name, stage.version, *described)
        work = fingerprint(f"{stage.config.__module__}:{stage.config.__qualname__}", 0, *described)
        run, unread = RunDirectory(self.root, self.study, stage.name, print_), markers.Verdict(False, present=False)
        handle = Handle(stage, config, run, inputs, unread, cells=[self._cell])
        known = self._of_work.get(print_) or self._of_work.get(work)
        if known is not None:
            self._refuse_equal(known, handle)
            handle = known
            handle.cells += [self._cell] if self._cell not in handle.cells else []
        else:
            handle.check_marker()
            self.handles.append(handle)
            self._of_work |= {print_: handle, work: handle}
        self._calls[self._cell].append(handle)
        return handle

    def _refuse_other_stage(self, stage: Stage) -> None:
        """Two stages of one name would share a folder and a line in every table. One over cells depends on them."""
        other = next((handle.stage for handle in self.handles if handle.stage.name == stage.name), stage)
        if other != stage and (self._cell or not self.cells):
            differing = [
                f"{name} {value!r} and {getattr(stage, name)!r}"
                for name, value in vars(other).items()
                if value != getattr(stage, name)
            ]
            raise BadInput(f"two stages are called {stage.name}, with {', '.join(differing)}: rename one of them")

    def _refuse_equal(self, known: Handle, handle: Handle) -> None:
        """Two calls that would do the same work are one experiment, whatever they are called.

        Two cells of a sweep share a stage on purpose: the same page is called for each. Names and execution fields
        make no difference, and by its configuration's type a stage says what it does.
        """
        if known.stage == handle.stage and not any(known is called for called in self._calls[self._cell]):
            return
        first, other = known.label, handle.label
        raise BadInput(
            (f"the stage {first} is called twice" if first == other else f"{first} and {other} are called")
            + " with equal scientific fields and inputs: they would be one experiment under two names. Change a "
            "scientific field or an input of one of them, or call the stage once and give its handle to both"
        )

    def _refuse_equal_cell(self) -> None:
        """Two cells with the same stages throughout are one: their values would be shown as two."""
        own = {handle.run.fingerprint for handle in self._calls[self._cell]}
        for cell, calls in self._calls.items():
            if own and cell and cell != self._cell and own == {handle.run.fingerprint for handle in calls}:
                raise BadInput(
                    f"the cells {_named(cell)} and {_named(self._cell)} of the sweep are equal in every stage: what "
                    "differs between them changes no scientific field. Vary a key that a stage reads, or leave one out"
                )


def _require_execution(stage: Stage, own: Execution) -> None:
    """BadInput when the study's execution lacks fields that the stage's has."""
    wanted: Any = stage.config.model_fields["execution"].annotation
    if not isinstance(own, wanted):
        raise BadInput(
            f"stage {stage.name} works as an {wanted.__name__} says, and the study has a {type(own).__name__}: give "
            f"the study `execution: {wanted.__name__}`, or the stage's configuration its own"
        )


def _external_inputs(config: StageConfiguration) -> dict[str, Any]:
    """Its inputs from outside. NoSuchFile names the key too."""
    try:
        return config.external_inputs()
    except NoSuchFile as error:
        key = key_of(config, error.path)
        raise NoSuchFile(error.path, f"{key}: {error}" if key else str(error)) from None


def _named(cell: Iterable[str], name: str = "") -> str:
    """A name with its cell, for people: "train-baseline (seed 1337)"."""
    parts = ", ".join(part for part in cell if part)
    return f"{name} ({parts})".strip() if parts else name
