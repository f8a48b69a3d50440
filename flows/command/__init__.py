"""The command line, and the only room that prints. What a command takes is imported when it runs.

    ratchet init [NAME] [--train-py FILE]    writes a file of a study of your own
    ratchet run robustness [--profile quick | FILE.yaml] [--root runs] [--set key=value ...] [--seed N]
                           [--dispatch local|slurm] [--wait] [--fresh STAGE]
                           [--dry-run | --status | --show-config | --keys [GROUP]]
    ratchet sweep robustness --over seed=42,1337 [--over key=value,value ...] ...    as `run`, for each combination
    ratchet status robustness ...        as `run ... --status`, with --over of a sweep
    ratchet rehearse FILE.py ...         kills each stage at its bad moments: does it go on exactly?
    ratchet cancel robustness ...        ends a study on SLURM, its flow run in Prefect and its jobs
    ratchet list [ROOT]                  the studies below a folder of run directories, and what came out
    ratchet show RUN                     all about one run: its folder, the beginning of its fingerprint, or its study
    ratchet compare A B                  what differs between two runs of one stage
    ratchet compare FILE.csv             which differences between arms their seeds show
    ratchet audit RUN                    recorded numbers of a finished study computed again, by a plain path
    ratchet card RUN FOLDER              a training's model, with a card of it for a model hub
    ratchet index [ROOT]                 the list as a page for a browser, with links to the reports
    ratchet tensorboard [ROOT]           what trainings measure, as TensorBoard's event files
    ratchet verify|prune|export ROOT     what is kept below a folder of run directories
    ratchet ui [STUDY]                   Prefect's UI on this machine, to start studies in and to watch them
    ratchet deploy [STUDY ...]           pool and deployments on a Prefect server that stays: for a cluster
    ratchet doctor [--site FILE]         whether a cluster has what studies need, or what to do
    ratchet schema STUDY                 the JSON schema of a profile, for an editor

`python -m flows.robustness` is `ratchet run robustness`. Exit codes: 0 finished, 1 failed, 2 bad input, 75 unfinished
(the same command goes on), 130 interrupted.
"""

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

from flows.command.options import ratchet_parser
from flows.command.terminal import refuse, show
from storage.errors import BadInput, did_you_mean
from storage.visible import log_visibly
from tasks.stage import outcome


def main(place: str, arguments: Sequence[str] | None = None) -> int:
    """`python -m flows.robustness`: runs the study of a page; returns the exit code."""
    return ratchet(["run", place, *(sys.argv[1:] if arguments is None else arguments)])


def ratchet(arguments: Sequence[str] | None = None) -> int:
    """The command `ratchet`; returns the exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    parser, commands = ratchet_parser()
    if words and not words[0].startswith("-") and words[0] not in commands:
        names = ", ".join(commands)
        return refuse(f"there is no command {words[0]!r}; {did_you_mean(words[0], commands)}the commands are {names}")
    try:
        options, unknown = parser.parse_known_args(words or ["--help"])
    except BadInput as error:
        return refuse(str(error))
    if unknown:
        command, taken = f"ratchet {options.command}", commands[options.command]._actions
        close = did_you_mean(unknown[0].partition("=")[0], [option for each in taken for option in each.option_strings])
        named = " ".join(str(each.metavar) for each in taken if not each.option_strings) or "nothing"
        what = f"no {unknown[0]!r}; {close}" if unknown[0].startswith("-") else f"{named}, and no {unknown[0]!r} too; "
        return refuse(f"{command} takes {what}{command} --help says what it takes")
    return _answer(options)


def _root_of_site() -> Path | None:
    """Where the runs of this cluster lie; None where this is set up for none."""
    from deployments.slurm.cluster.site import has_site, read_site

    return Path(read_site().root) if has_site() else None


def _answer(options: argparse.Namespace) -> int:
    """The exit code of the work that the options name; bad input is one clear line."""
    log_visibly()
    if not (3, 11) <= sys.version_info[:2] <= (3, 13):
        return refuse(f"Python {sys.version.split()[0]} is not supported: use Python 3.11, 3.12 or 3.13")
    module, _, name = options.work.partition(":")
    try:
        if vars(options).get("root") == Path("runs") and not Path("runs").is_dir():
            options.root = _root_of_site() or options.root
        return getattr(import_module(module), name)(options)
    except BadInput as error:
        return refuse(str(error))
    except KeyboardInterrupt:
        show("interrupted; the same command goes on where it stopped")
        return outcome.CANCELLED.exit_code
