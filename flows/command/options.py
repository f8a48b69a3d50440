"""Arguments of each command. `work` of what is parsed names the function that does it, as `module:function`."""

import argparse
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NoReturn

from deployments.dag.sources import page_names
from storage.__main__ import add_commands, add_json, add_root
from storage.attempts import version_of
from storage.errors import BadInput, did_you_mean
from tasks.stage import outcome

EXIT_CODES = "Exit codes: " + ", ".join(
    f"{code} {words}"
    for code, words in sorted({state.exit_code: state.words for state in reversed(outcome.PRECEDENCE)}.items())
)
RUN = "a run directory, the beginning of its fingerprint as tables print it, or a study: its newest result"
SHELLS = ("bash", "zsh", "tcsh")
Add = Callable[..., argparse.ArgumentParser]


class _Parser(argparse.ArgumentParser):
    """Refuses as everything here does: in one line, with what was meant."""

    def error(self, message: str) -> NoReturn:
        raise BadInput(f"{self.prog}: {message}; {self.prog} --help says what it takes")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            valid = f"{did_you_mean(value, action.choices)}valid: {', '.join(action.choices)}"
            raise argparse.ArgumentError(action, f"{value!r} is none of its values; {valid}")


def ratchet_parser() -> tuple[argparse.ArgumentParser, Mapping[str, argparse.ArgumentParser]]:
    """All commands: the parser of all, and that of each by its name, which a test freezes."""
    ratchet = _Parser(
        prog="ratchet",
        description="Runs staged studies that can be killed at any instant and are called done only when verified.",
        allow_abbrev=False,
        epilog=EXIT_CODES,
    )
    ratchet.add_argument("--version", action="version", version=f"ratchet {version_of('ratchet')}")
    commands = ratchet.add_subparsers(required=True, metavar="COMMAND")

    def add(name: str, work: str, text: str, **options: Any) -> argparse.ArgumentParser:
        command = commands.add_parser(name, help=text, description=text, allow_abbrev=False, **options)
        command.set_defaults(work=f"flows.command.{work}", command=name)
        return command

    init = add("init", "init:init", "write a file of a study of your own, to run at once and to change")
    init.add_argument("name", metavar="NAME", nargs="?", default="", help="of the study (default: my_study)")
    init.add_argument("--train-py", metavar="FILE", type=Path, help="a script that you have: it becomes the one stage")
    _add_studies(add)
    _add_rehearse(add)
    _add_runs(add)
    add_commands(commands)
    verifies = commands.choices["verify"]
    verifies.set_defaults(work="flows.command.runs:verify")
    verifies.add_argument(
        "--audit", action="store_true", help="compute recorded numbers of each study again too, drawn anew"
    )
    _add_deployments(add)
    schema = add("schema", "keys:print_schema", "print the JSON schema of a study's profiles, for editors")
    schema.add_argument("study", metavar="STUDY", help="a study or a file of your own")
    completion = add("completion", "keys:print_completion", "print what makes the shell complete these commands")
    completion.add_argument("shell", choices=SHELLS)
    return ratchet, commands.choices


def _add_studies(add: Add) -> None:
    """`run`, `sweep`, `status` and `cancel`."""
    for name, text in (
        ("run", "run a study here or on SLURM; the same command goes on where it stopped"),
        ("sweep", "run a study for each combination of values, and lay the results side by side"),
        ("status", "how each stage of a study stands (75: not all are finished)"),
        ("cancel", "end a study on SLURM: its runs in Prefect and its jobs; starting it again continues"),
    ):
        command = add(name, "study:run_study", text, epilog=EXIT_CODES)
        studies = ", ".join(page_names())
        command.add_argument("study", metavar="STUDY", help=f"a study ({studies}) or a file of your own (my_study.py)")
        _add_study_options(command, with_views=name in ("run", "sweep"), with_dispatch=name != "cancel")
        if name != "run":
            command.add_argument(
                "--over",
                action="append",
                default=[],
                metavar="KEY=VALUE,VALUE",
                help="vary one key of the study, such as seed=42,1337; may be given again (sweep: default the "
                "profile's sweep_seeds)",
            )
        if name == "status":
            command.set_defaults(status=True)
            add_json(command)
        if name == "cancel":
            command.set_defaults(status=False, dispatch="slurm", wait=False, detach=False)


def _add_rehearse(add: Add) -> None:
    command = add(
        "rehearse",
        "rehearse:rehearse",
        "kill each stage of a study at its bad moments, and compare it with an undisturbed run: does it go on exactly?",
    )
    command.add_argument("study", metavar="STUDY", help="a study, or a file of your own (my_study.py)")
    _add_study_options(command, with_views=False, with_dispatch=False)
    command.set_defaults(dispatch="local")


def _add_study_options(options: argparse.ArgumentParser, with_views: bool = True, with_dispatch: bool = True) -> None:
    options.add_argument(
        "--profile",
        help="a profile of the study, a .yaml file, or a run's study.json (default: quick, where the study has it)",
    )
    options.add_argument("--root", help="folder of the run directories (default: runs; on SLURM the site's)")
    options.add_argument(
        "--set",
        dest="changes",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="change one value of the profile, such as budget.epochs=0.5; may be given again",
    )
    options.add_argument("--seed", type=int, help="seed of the study, where no sweep varies it")
    if with_dispatch:
        options.add_argument(
            "--dispatch",
            choices=["local", "slurm"],
            default="local",
            help="where stages run: in this process, or as SLURM jobs (starts what is ready and returns with 75)",
        )
        ways = options.add_mutually_exclusive_group()
        ways.add_argument(
            "--wait",
            action="store_true",
            help="with --dispatch slurm: stay until the study has ended",
        )
        ways.add_argument(
            "--detach",
            action="store_true",
            help="with --dispatch slurm: return, and let a small job on the cluster follow the study to its end",
        )
        ways.add_argument(
            "--prefect",
            action="store_true",
            help="run here as a flow run of Prefect, on a server for as long where none stands: `ratchet ui` shows it",
        )
    if with_views:
        _add_views(options)
    options.set_defaults(
        over=[], json=False, **({} if with_views else {"dry_run": False, "keys": None, "show_config": False})
    )


def _add_views(options: argparse.ArgumentParser) -> None:
    options.add_argument(
        "--fresh",
        action="append",
        default=[],
        metavar="STAGE",
        help="begin a stage with nothing, finished or not: its name, or the beginning of a fingerprint; what it made "
        "before is kept in earlier/, and what reads it runs again where bytes differ; may be given again",
    )
    view = options.add_mutually_exclusive_group()
    view.add_argument("--dry-run", action="store_true", help="print the stages and what would run, and stop")
    view.add_argument(
        "--status", action="store_true", help="print how each stage stands, and stop (75: not all are finished)"
    )
    view.add_argument("--show-config", action="store_true", help="print the whole study as YAML, and stop")
    view.add_argument(
        "--keys",
        nargs="?",
        const="",
        metavar="GROUP",
        help="print every key with type, unit, default, limits and description (of one group: budget; with a word in "
        "its name: flips), and stop",
    )


def _add_runs(add: Add) -> None:
    """Adds the commands that show runs that are there."""
    listed = add(
        "list",
        "runs:list_studies",
        "the studies below a folder of run directories: what came out of each, and what is not finished",
    )
    add_json(listed)
    shows = add(
        "show",
        "runs:show_run",
        "all about one run: what came out, the command that makes it again, its attempts, logs and sizes",
    )
    instead = shows.add_mutually_exclusive_group()
    instead.add_argument("--table", action="store_true", help="all its tables instead")
    add_json(instead)
    compares = add(
        "compare",
        "runs:compare",
        "what differs between two runs of one stage, or between the arms of a table FILE.csv",
    )
    compares.add_argument("a", metavar="A", help=f"{RUN}; or a table, FILE.csv, with a line for each arm and seed")
    compares.add_argument("b", metavar="B", nargs="?", help=RUN)
    compares.add_argument("--all", action="store_true", help="everything that differs, however long it is")
    add_json(compares)
    _add_table_options(compares)
    audits = add(
        "audit",
        "runs:audit",
        "compute recorded numbers of a finished study again, by a plain path; 1 and a name where one does not agree",
    )
    card = add("card", "runs:card", "copy a finished training's model to a folder, with a card of it for a model hub")
    for command in (shows, audits, card):
        of_report = "of a study's report, such as runs/quick/latest: " if command is audits else ""
        command.add_argument("run", metavar="RUN", help=of_report + RUN)
    audits.add_argument(
        "--page",
        metavar="FILE.py",
        default="",
        help="the study, where it is one of your own: its code runs only when you name it here",
    )
    audits.add_argument("--seed", type=int, help="draws the examples; another one draws others (default: drawn anew)")
    card.add_argument("folder", metavar="FOLDER", type=Path, help="new folder for the copy")
    for command in (shows, compares, audits, card):
        root_help = "folder of the run directories (default: runs; where there is none, the site's)"
        command.add_argument("--root", type=Path, default=Path("runs"), help=root_help)
    index = add(
        "index",
        "runs:make_index",
        "write index.html: all studies below a folder of run directories, with links to their reports",
    )
    events = add(
        "tensorboard",
        "runs:write_events",
        "write what trainings measure as TensorBoard's event files, a folder for each run directory",
    )
    for command in (listed, index, events):
        add_root(command)
    events.add_argument("--to", metavar="FOLDER", type=Path, help="where it is written (default: ROOT/.tensorboard)")
    events.add_argument("--follow", action="store_true", help="go on while trainings run, until Ctrl-C")


def _add_table_options(compares: argparse.ArgumentParser) -> None:
    """How `compare` reads and judges a table."""
    table = compares.add_argument_group("of a table")
    table.add_argument("--by", default="arm", metavar="COLUMN", help="names the arm (default: arm)")
    table.add_argument("--pair", default="seed", metavar="COLUMN", help="names the seed (default: seed)")
    table.add_argument("--value", default="", metavar="COLUMN", help="is compared (default: the only other column)")
    table.add_argument("--reference", default="", metavar="ARM", help="compare with it only (default: every two arms)")
    table.add_argument(
        "--confidence",
        dest="confidence_level",
        type=_level,
        default=0.95,
        help="level of the intervals (default: 0.95)",
    )
    table.add_argument("--min-seeds", type=_seeds, default=3, help="of fewer nothing is called better (default: 3)")
    table.add_argument("--higher-is-better", action="store_true", help="of an accuracy, say (default: lower)")
    table.add_argument(
        "--allow-equal", action="store_true", help="two arms may have equal values: they are counts, say"
    )
    table.add_argument(
        "--test",
        choices=["paired", "unpaired"],
        default="",
        help="which test decides: paired where the same seed gave both arms the same start (default: paired where both "
        "tests agree, and else nothing)",
    )


def _level(text: str) -> float:
    if not 0.5 < float(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} is not between 0.5 and 1")
    return float(text)


def _seeds(text: str) -> int:
    if int(text) < 2:
        raise argparse.ArgumentTypeError(f"{text} is below 2: one seed shows no difference")
    return int(text)


def _add_deployments(add: Add) -> None:
    """Adds the commands that make deployments: on a server of this command, on a running one, and as a file."""
    ui = add(
        "ui",
        "servers:ui",
        "open Prefect's UI on this machine: a server, a worker, and a deployment for each profile (Ctrl-C ends it)",
    )
    ui.add_argument("--port", type=int, help="of 127.0.0.1 (default: 4200, or the next one that is free)")
    deploys = add(
        "deploy",
        "servers:deploy_studies",
        "make pools and deployments on the Prefect server: a deployment for each profile, local and on SLURM",
    )
    deploys.add_argument(
        "names",
        metavar="STUDY",
        nargs="*",
        help="a study, one of its deployments (robustness/quick), or a file of your own (default: all studies)",
    )
    doctors = add(
        "doctor",
        "on_slurm:doctor",
        "look whether a cluster has what studies need, by small jobs on its nodes too; 1 and what to do where not",
    )
    doctors.add_argument(
        "--site", metavar="FILE", help="a site file (default: as RATCHET_SITE says, else cluster.yaml)"
    )
    deployments = add(
        "deployments",
        "servers:print_deployments",
        "print prefect.yaml: a deployment for each profile, local and on SLURM",
    )
    for command in (ui, deployments):
        command.add_argument(
            "study", metavar="STUDY", nargs="?", help="a study or a file of your own (default: all studies of Ratchet)"
        )
    for command in (ui, deploys, deployments):
        command.add_argument("--profile", action="append", default=[], help="of your own: a .yaml file")
