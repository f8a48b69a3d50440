"""Goes on with a stage from its run directory alone, without Prefect: `python -m tasks.training --run-dir DIR`.

Everything that the work needs stands in stage.json, which the first attempt wrote before any work. Exit codes are
those of the attempt: 0 finished, 75 unfinished, 1 failed, 2 bad input, 130 interrupted.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from storage import markers
from storage.errors import BadInput
from storage.visible import log_visibly, visible
from tasks.stage.attempt import attempt
from tasks.stage.outcome import Outcome
from tasks.stage.reopened import reopen


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tasks.training", description=__doc__.splitlines()[0])
    parser.add_argument("--run-dir", type=Path, required=True, help="run directory of the stage")
    parser.add_argument("--own", type=Path, help="folder with the code of a study of your own: it runs")
    given = parser.parse_args(arguments)
    if given.own:
        sys.path.append(str(given.own.absolute()))
    log_visibly()
    outcome = continue_run(given.run_dir.absolute(), given.own)
    sys.stderr.write(visible(f"{outcome.end_state}: {outcome.message}\n"))
    return outcome.exit_code


def continue_run(path: Path, own: Path | None = None) -> Outcome:
    """One more attempt at the stage whose run directory is `path`; its inputs must be finished. `own`: `reopen`."""
    try:
        found = reopen(path, own)
    except BadInput as error:
        return Outcome("bad_input", str(error))
    digests = {role: given.outputs_digest for role, given in found.inputs.items()}
    if markers.check(found.run, digests).holds:
        return Outcome("finished", "was finished already")
    return attempt(found.stage, found.config, found.run, found.inputs)


if __name__ == "__main__":
    raise SystemExit(main())
