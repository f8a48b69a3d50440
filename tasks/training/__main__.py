"""Goes on with a stage from its run directory alone, without Prefect: `python -m tasks.training --run-dir DIR`.

Everything that the work needs stands in stage.json, which the first attempt wrote before any work. Exit codes are
those of the attempt: 0 finished, 75 unfinished, 1 failed, 2 bad input, 130 interrupted.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from pathlib import Path

from pydantic import ValidationError

from storage import durable, markers
from storage.run_directory import RunDirectory
from tasks.stage.attempt import attempt
from tasks.stage.outcome import Outcome
from tasks.stage.run import Stage, StageInput


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tasks.training", description=__doc__.splitlines()[0])
    parser.add_argument("--run-dir", type=Path, required=True, help="run directory of the stage")
    outcome = continue_run(parser.parse_args(arguments).run_dir.absolute())
    sys.stderr.write(f"{outcome.end_state}: {outcome.message}\n")
    return outcome.exit_code


def continue_run(path: Path) -> Outcome:
    """One more attempt at the stage whose run directory is `path`; its inputs must be finished."""
    try:
        described = durable.read_json(path / "stage.json")
    except (OSError, ValueError) as error:
        return Outcome("bad_input", f"{path} is not a run directory that was begun: {error}")
    root = path.parents[2]
    module, _, name = described["configuration_type"].partition(":")
    try:
        config = getattr(importlib.import_module(module), name)
        configuration = config.model_validate(described["configuration"])
    except (ImportError, AttributeError, ValidationError) as error:
        return Outcome(
            "bad_input",
            f"{path} was begun by another version of its source, whose {described['configuration_type']} cannot be "
            f"read here ({str(error).splitlines()[0]}): start the study with `ratchet run`, which goes on with it",
        )
    stage = Stage(described["stage"], config, described["work"], described["version"])
    run = RunDirectory(root, described["study"], described["stage"], described["fingerprint"])
    if run.path != path:
        return Outcome(
            "bad_input", f"{path} is a copy of {run.path}: give it that name and place, or continue that one"
        )
    inputs = {}
    for role, source in run.reads(described["inputs"]).items():
        verdict = markers.check_outputs(source)
        if not verdict.holds:
            return Outcome("bad_input", f"the input {role} in {source.path} is not finished: {verdict.reason}")
        inputs[role] = StageInput(source, verdict.outputs_digest)
    digests = {role: given.outputs_digest for role, given in inputs.items()}
    if markers.check(run, digests).holds:
        return Outcome("finished", "was finished already")
    return attempt(stage, configuration, run, inputs)


if __name__ == "__main__":
    raise SystemExit(main())
