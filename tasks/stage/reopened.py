"""Reopens a stage from its run directory alone, without its study."""

import importlib
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from storage import durable, locks, markers
from storage.errors import BadInput
from storage.run_directory import RunDirectory, read
from tasks.stage import numerics
from tasks.stage.run import Stage, StageInput, StageRun, cache_folder
from tasks.stage.study import StageConfiguration


@dataclass(frozen=True)
class Reopened:
    """The arguments of an attempt."""

    stage: Stage
    config: StageConfiguration
    run: RunDirectory
    inputs: dict[str, StageInput]

    @contextmanager
    def elsewhere(self, identity: dict[str, Any] | None = None) -> Iterator[tuple[StageRun, StageConfiguration]]:
        """Yields a run in a temporary folder, so that the run directory stays as it is, and the configuration; every
        generator is seeded for it."""
        source, config = self.run, self.config
        numerics.prepare(config.numerics, config.execution, config.own_seed or 0)
        with tempfile.TemporaryDirectory(prefix="ratchet-again-") as temporary:
            run = RunDirectory(Path(temporary), source.study, source.stage, source.fingerprint)
            run.path.mkdir(parents=True)
            lock = locks.acquire(run.path / "locks")
            work = StageRun(run, identity or {}, lock, cache_folder(source.root, config.execution), config.scientific())
            work.execution = config.execution
            try:
                yield work, config
            finally:
                lock.release()


def reopen(path: Path, own: Path | None = None) -> Reopened:
    """Reopens the stage whose run directory is `path`; BadInput where it was never begun, or an input is unfinished.

    Its code must be Ratchet's or in the folder `own`, which a person names: the run directory is data, perhaps a
    stranger's.
    """
    try:
        saved = durable.read_json(path / "stage.json")
    except (OSError, ValueError) as error:
        raise BadInput(f"{path} is not a run directory that was begun: {error}") from None
    for entry in (saved["configuration_type"], saved["work"]):
        _require_known(entry.partition(":")[0], own, path)
    module, _, name = saved["configuration_type"].partition(":")
    try:
        config = getattr(importlib.import_module(module), name)
        configuration = config.model_validate(saved["configuration"])
        stage = Stage(saved["stage"], config, saved["work"], saved["version"])
        stage.function()
    except (ImportError, AttributeError, ValidationError) as error:
        raise BadInput(
            f"{path} was begun by another version of its source, whose {saved['configuration_type']} cannot be "
            f"read here ({str(error).splitlines()[0]}): start the study again: what changed runs anew, beside it"
        ) from None
    run = RunDirectory(path.parents[2], saved["study"], saved["stage"], saved["fingerprint"])
    if run.path != path:
        raise BadInput(f"{path} is a copy of {run.path}: give it that name and place, or continue that one")
    inputs = {}
    for role, source in run.reads(saved["inputs"]).items():
        verdict = markers.check_outputs(source)
        if not verdict.holds:
            raise BadInput(f"the input {role} in {source.path} is not finished: {verdict.reason}")
        inputs[role] = StageInput(source, verdict.outputs_digest)
    return Reopened(stage, configuration, run, inputs)


def _require_known(module: str, own: Path | None, path: Path) -> None:
    """Raises BadInput for a module that is neither Ratchet's nor in the folder `own`, without an import of it."""
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
