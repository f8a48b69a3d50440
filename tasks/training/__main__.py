"""Goes on with a stage from its run directory alone, without Prefect: `python -m tasks.training --run-dir DIR`.

The first attempt wrote everything that the work needs into stage.json. Exit codes are those of the attempt: 0 finished,
75 unfinished, 1 failed, 2 bad input, 130 interrupted.
"""

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
    options = parser.parse_args(arguments)
    if options.own:
        sys.path.append(str(options.own.absolute()))
    log_visibly()
    outcome = continue_run(options.run_dir.absolute(), options.own)
    sys.stderr.write(visible(f"{outcome.end_state}: {outcome.message}\n"))
    return outcome.exit_code


def continue_run(path: Path, own: Path | None = None) -> Outcome:
    """Makes one more attempt at the stage whose run directory is `path`; see `reopen`."""
    try:
        stage = reopen(path, own)
    except BadInput as error:
        return Outcome("bad_input", str(error))
    digests = {role: source.outputs_digest for role, source in stage.inputs.items()}
    if markers.check(stage.run, digests).holds:
        return Outcome("finished", "was finished already")
    return attempt(stage.stage, stage.config, stage.run, stage.inputs)


if __name__ == "__main__":
    raise SystemExit(main())
