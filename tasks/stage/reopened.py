"""A stage as its run directory describes it: everything that its work needs stands there, and no study is asked."""

from __future__ import annotations

import importlib
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from storage import durable, locks, markers
from storage.errors import BadInput
from storage.run_directory import RunDirectory, read
from tasks.stage.run import Stage, StageInput, StageRun, cache_folder
from tasks.stage.study import StageConfiguration


@dataclass(frozen=True)
class Reopened:
    """What an attempt is given."""

    stage: Stage
    config: StageConfiguration
    run: RunDirectory
    inputs: dict[str, StageInput]

    @contextmanager
    def elsewhere(self) -> Iterator[StageRun]:
        """What its work is given, in a temporary folder: the run directory stays as it is."""
        of = self.run
        with tempfile.TemporaryDirectory(prefix="ratchet-again-") as temporary:
            run = RunDirectory(Path(temporary), of.study, of.stage, of.fingerprint)
            run.path.mkdir(parents=True)
            lock = locks.acquire(run.path / "locks")
            cache = cache_folder(of.root, self.config.execution)
            try:
                yield StageRun(run, {}, lock, cache, self.config.scientific())
            finally:
                lock.release()


def reopened(path: Path, own: Path | None = None) -> Reopened:
    """The stage whose run directory is `path`. BadInput where it was never begun, or an input is not finished.

    Its code is Ratchet's own, or lies in the folder `own`, which a person names: the run directory is data, perhaps a
    stranger's.
    """
    try:
        described = durable.read_json(path / "stage.json")
    except (OSError, ValueError) as error:
        raise BadInput(f"{path} is not a run directory that was begun: {error}") from None
    root = path.parents[2]
    for given in (described["configuration_type"], described["work"]):
        _require_known(given.partition(":")[0], own, path)
    module, _, name = described["configuration_type"].partition(":")
    try:
        config = getattr(importlib.import_module(module), name)
        configuration = config.model_validate(described["configuration"])
    except (ImportError, AttributeError, ValidationError) as error:
        raise BadInput(
            f"{path} was begun by another version of its source, whose {described['configuration_type']} cannot be "
            f"read here ({str(error).splitlines()[0]}): start the study with `ratchet run`, which goes on with it"
        ) from None
    stage = Stage(described["stage"], config, described["work"], described["version"])
    run = RunDirectory(root, described["study"], described["stage"], described["fingerprint"])
    if run.path != path:
        raise BadInput(f"{path} is a copy of {run.path}: give it that name and place, or continue that one")
    inputs = {}
    for role, source in run.reads(described["inputs"]).items():
        verdict = markers.check_outputs(source)
        if not verdict.holds:
            raise BadInput(f"the input {role} in {source.path} is not finished: {verdict.reason}")
        inputs[role] = StageInput(source, verdict.outputs_digest)
    return Reopened(stage, configuration, run, inputs)


def _require_known(module: str, own: Path | None, path: Path) -> None:
    """BadInput for a module that is neither of this room nor in the folder `own`; nothing is imported for it."""
    parts = module.split(".")
    if all(part.isidentifier() for part in parts):
        place = own.joinpath(*parts) if own else None
        if place and (place.with_suffix(".py").is_file() or (place / "__init__.py").is_file()):
            return
        if parts[0] == __name__.partition(".")[0] and parts[1:]:
            return
    page = read(path / "study.json").get("page", "FILE.py")
    raise BadInput(
        f"{path} names the code {module!r}, which is not Ratchet's own: it runs only where you name the study, as "
        f"`--page {page}` (of `python -m tasks.training`: `--own FOLDER`)"
    )
