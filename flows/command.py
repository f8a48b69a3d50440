"""The command line, and the only room that prints.

    ratchet run robustness [--profile quick | FILE.yaml] [--root runs] [--set key=value ...] [--seed N]
                           [--dispatch local|slurm] [--wait] [--fresh STAGE]
                           [--dry-run | --status | --show-config | --keys [GROUP]]
    ratchet sweep robustness --over seed=42,1337 [--over key=value,value ...] ...    as `run`, for each combination
    ratchet status robustness ...        as `run ... --status`, with --over of a sweep
    ratchet cancel robustness ...        ends a study on SLURM, its runs in Prefect and its jobs
    ratchet ui [STUDY]                   Prefect's UI on this machine, to start studies in and to watch them
    ratchet deploy [STUDY ...]           pools and deployments on a Prefect server that stays: for a cluster
    ratchet list [ROOT]                  the studies below a folder of run directories, and what came out
    ratchet show RUN                     all about one run: its folder, or the beginning of its fingerprint
    ratchet compare A B                  what differs between two runs of one stage
    ratchet compare FILE.csv             which differences between arms their seeds show
    ratchet audit RUN                    recorded numbers of a finished study computed again, by a plain path
    ratchet replay RUN                   the step again at which a training's numbers were not finite
    ratchet index [ROOT]                 the list as a page for a browser, with links to the reports
    ratchet tensorboard [ROOT]           what trainings measure, as files for TensorBoard
    ratchet verify|prune|export ROOT     what is kept below a folder of run directories
    ratchet reference STUDY              every key of a study, as docs/reference.md has it

`python -m flows.robustness` is `ratchet run robustness`. Exit codes: 0 finished, 1 failed, 2 bad input, 75 unfinished
(the same command goes on), 130 interrupted.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import shtab

from deployments.generate import Profile, description_of, prefect_yaml, shared_deployments, study_deployments
from deployments.index import write_index
from deployments.page import Page, load_page, page_names, require_flow
from flows import run, settings
from flows.compare import compared
from flows.listing import listing
from flows.reference import reference
from flows.show import shown
from flows.terminal import show_markdown
from storage import __main__ as kept
from storage.errors import BadInput, CheckFailed
from storage.run_directory import RunDirectory, find_run
from storage.visible import log_visibly
from tasks.stage import outcome

EXIT_CODES = "Exit codes: " + ", ".join(
    f"{code} {words}"
    for code, words in sorted({state.exit_code: state.words for state in reversed(outcome.PRECEDENCE)}.items())
)


def main(place: str, arguments: Sequence[str] | None = None) -> int:
    """`python -m flows.robustness`: runs the study of a page; returns the exit code.

    `python -m flows.sweep` is the robustness study over seeds.
    """
    page = "flows.robustness" if place == "flows.sweep" else place
    return _answer(lambda: _run_study(page, parser(place).parse_args(arguments)))


def ratchet(arguments: Sequence[str] | None = None) -> int:
    """The command `ratchet`; returns the exit code."""
    options = ratchet_parser().parse_args(arguments)
    return _answer(lambda: options.function(options))


def parser(place: str) -> argparse.ArgumentParser:
    """The options of one study, frozen by a test: people's scripts depend on them."""
    options = argparse.ArgumentParser(
        prog=f"python -m {place}",
        description="Runs the study here, goes on where it stopped, and says so when it is finished.",
        allow_abbrev=False,
        epilog=EXIT_CODES,
    )
    _add_study_options(options)
    if place == "flows.sweep":
        options.add_argument("--seeds", type=int, nargs="+", help="the seeds (default: the profile's sweep_seeds)")
        options.set_defaults(over=[])
    return options


def ratchet_parser() -> argparse.ArgumentParser:
    """All commands; a test freezes their names."""
    ratchet = argparse.ArgumentParser(
        prog="ratchet",
        description="Runs staged studies that can be killed at any instant and are called done only when verified.",
        allow_abbrev=False,
        epilog=EXIT_CODES,
    )
    commands = ratchet.add_subparsers(required=True, metavar="COMMAND")
    for name, help_ in (
        ("run", "run a study here or on SLURM; the same command goes on where it stopped"),
        ("sweep", "run a study for each combination of values, and lay the results side by side"),
        ("status", "how each stage of a study stands (75: not all are finished)"),
        ("cancel", "end a study on SLURM: its runs in Prefect and its jobs; a start of it goes on where it stands"),
    ):
        command = commands.add_parser(name, help=help_, description=help_, allow_abbrev=False, epilog=EXIT_CODES)
        command.add_argument(
            "study", metavar="STUDY", help=f"a study ({', '.join(page_names())}) or a file of your own (my_study.py)"
        )
        _add_study_options(command, with_views=name in ("run", "sweep"), with_dispatch=name != "cancel")
        if name != "run":
            _add_over(command)
        command.set_defaults(function=lambda options: _run_study(options.study, options))
        if name == "status":
            command.set_defaults(status=True)
        if name == "cancel":
            command.set_defaults(cancel=True, status=False, dispatch="slurm", wait=False)
        if name == "sweep":
            command.set_defaults(seeds=None)
    help_ = "the studies below a folder of run directories: what came out of each, and what is not finished"
    listed = commands.add_parser("list", help=help_, description=help_, allow_abbrev=False)
    kept.add_root(listed)
    listed.set_defaults(function=lambda options: run.show_lines(listing(options.root)))
    _add_views_of_runs(commands)
    kept.add_commands(commands)
    _add_deployments(commands)
    help_ = "print docs/reference.md: every key of a study, as Markdown"
    keys = commands.add_parser("reference", help=help_, description=help_, allow_abbrev=False)
    keys.add_argument("study", metavar="STUDY", help="a study or a file of your own")
    keys.set_defaults(function=lambda options: run.show(reference(load_page(options.study))))
    completion = commands.add_parser("completion", help="print what makes the shell complete these commands")
    completion.add_argument("shell", choices=shtab.SUPPORTED_SHELLS)
    completion.set_defaults(function=lambda options: run.show(shtab.complete(ratchet, options.shell)))
    return ratchet


def _add_deployments(commands: Any) -> None:
    """What makes deployments: on a server of this command, on a running one, and as a file."""
    help_ = "open Prefect's UI on this machine: a server, a worker, and a deployment for each profile (Ctrl-C ends it)"
    ui = commands.add_parser("ui", help=help_, description=help_, allow_abbrev=False)
    _add_profiles(ui)
    ui.add_argument("--port", type=int, help="of 127.0.0.1 (default: 4200, or the next one that is free)")
    ui.set_defaults(function=lambda options: run.ui(_profiles(options.study, options.profile), options.port))
    help_ = "make pools and deployments on the Prefect server: a deployment for each profile, local and on SLURM"
    deploys = commands.add_parser("deploy", help=help_, description=help_, allow_abbrev=False)
    deploys.add_argument(
        "names",
        metavar="STUDY",
        nargs="*",
        help="a study, one of its deployments (robustness/quick), or a file of your own (default: all studies)",
    )
    _add_profile_files(deploys)
    deploys.set_defaults(function=lambda options: _deploy(options.names, options.profile))
    help_ = "print prefect.yaml: a deployment for each profile, local and on SLURM"
    deployments = commands.add_parser("deployments", help=help_, description=help_, allow_abbrev=False)
    _add_profiles(deployments)
    deployments.set_defaults(function=lambda options: run.show(_deployments(options.study, options.profile)))


def _add_profiles(options: argparse.ArgumentParser) -> None:
    options.add_argument(
        "study", metavar="STUDY", nargs="?", help="a study or a file of your own (default: all studies of Ratchet)"
    )
    _add_profile_files(options)


def _add_profile_files(options: argparse.ArgumentParser) -> None:
    options.add_argument("--profile", action="append", default=[], help="of your own: a .yaml file")


def _add_views_of_runs(commands: Any) -> None:
    """`show`, `compare`, `audit`, `replay`, `index` and `tensorboard`."""
    run_help = "a run directory, or the beginning of its fingerprint as tables print it"
    root_help = "folder of the run directories (default: runs)"
    help_ = "all about one run: what came out, the command that makes it again, its attempts, logs and sizes"
    shows = commands.add_parser("show", help=help_, description=help_, allow_abbrev=False)
    shows.add_argument("run", metavar="RUN", help=run_help)
    shows.set_defaults(function=lambda options: _show_of(shown(find_run(options.root, options.run), options.page)))
    help_ = "what differs between two runs of one stage, or between the arms of a table FILE.csv"
    compares = commands.add_parser("compare", help=help_, description=help_, allow_abbrev=False)
    compares.add_argument("a", metavar="A", help=f"{run_help}; or a table, FILE.csv, with a line for each arm and seed")
    compares.add_argument("b", metavar="B", nargs="?", help=run_help)
    compares.add_argument("--all", action="store_true", help="everything that differs, however long it is")
    _add_table_options(compares)
    compares.set_defaults(function=_compare)
    help_ = "compute recorded numbers of a finished study again, by a plain path; 1 and a name where one does not agree"
    audits = commands.add_parser("audit", help=help_, description=help_, allow_abbrev=False)
    audits.add_argument("run", metavar="RUN", help=f"of a study's report, such as runs/quick/latest: {run_help}")
    audits.add_argument("--seed", type=int, help="draws other examples (default: those of the study's audit)")
    audits.set_defaults(function=_audit)
    help_ = "make the step again at which a training's numbers were not finite: which examples, which module"
    replays = commands.add_parser("replay", help=help_, description=help_, allow_abbrev=False)
    replays.add_argument("run", metavar="RUN", help=run_help)
    replays.set_defaults(function=_replay)
    for command in (shows, compares, audits, replays):
        command.add_argument("--root", type=Path, default=Path("runs"), help=root_help)
        if command is not compares:
            command.add_argument(
                "--page",
                metavar="FILE.py",
                default="",
                help="the study, where it is one of your own: its code runs only when you name it here",
            )
    help_ = "write index.html: all studies below a folder of run directories, with links to their reports"
    index = commands.add_parser("index", help=help_, description=help_, allow_abbrev=False)
    kept.add_root(index)
    index.set_defaults(function=lambda options: run.show(str(write_index(options.root))))
    help_ = "write what trainings measure as event files for TensorBoard, a run of it for each run directory"
    events = commands.add_parser("tensorboard", help=help_, description=help_, allow_abbrev=False)
    kept.add_root(events)
    events.add_argument("--to", metavar="FOLDER", type=Path, help="where they are written (default: ROOT/.tensorboard)")
    events.add_argument("--follow", action="store_true", help="go on while trainings run, until Ctrl-C")
    events.set_defaults(function=lambda options: run.tensorboard(options.root, options.to, options.follow))


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
    table.add_argument("--format", choices=["table", "csv", "json"], default="table", help="of what is printed")


def _level(text: str) -> float:
    if not 0.5 < float(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} is not between 0.5 and 1")
    return float(text)


def _seeds(text: str) -> int:
    if int(text) < 2:
        raise argparse.ArgumentTypeError(f"{text} is below 2: one seed shows no difference")
    return int(text)


def _compare(options: argparse.Namespace) -> int:
    if options.a.endswith(".csv"):
        if options.b is not None:
            raise BadInput(f"{options.a} is a table, and is compared with nothing else: leave out {options.b}")
        from flows import compare_table  # takes scipy

        asked = [field.name for field in fields(compare_table.Asked)]
        found = compare_table.compared_table(
            Path(options.a), compare_table.Asked(**{name: getattr(options, name) for name in asked})
        )
        if options.format != "table":
            return run.show({"csv": compare_table.as_csv, "json": compare_table.as_json}[options.format](found))
        show_markdown(run.OUT, compare_table.as_markdown(found))
        return 0
    if options.b is None:
        raise BadInput("compare wants two runs, or one table FILE.csv")
    one, other = (find_run(options.root, named) for named in (options.a, options.b))
    return _show_of(compared(one, other, options.all))


def _show_of(lines: Iterable[str]) -> int:
    """Prints what stands in run directories. BadInput where anybody wrote there what cannot be read."""
    try:
        return run.show_lines(lines)
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise BadInput(f"this directory is not readable, because {error!r}") from error


def _audit(options: argparse.Namespace) -> int:
    from pyarrow import ArrowException

    from tasks.report.audit import audited_again  # takes torch

    try:
        found, own = _work_of(options)
        return run.show(audited_again(found, options.seed, own).in_words)
    except CheckFailed as error:
        run.show(str(error))
        return outcome.FAILED.exit_code
    except ArrowException as error:
        raise BadInput(f"what {options.run} read, or its records, are no Parquet files: {error}") from error


def _replay(options: argparse.Namespace) -> int:
    from tasks.training.replay import replay  # takes torch

    found, own = _work_of(options)
    for one in replay(found.path, own):  # each when it is known
        run.show_lines([one])
    return 0


def _work_of(options: argparse.Namespace) -> tuple[RunDirectory, Path | None]:
    """The run that is named, and the folder of the study's page where that is named too: its work lies there."""
    own = load_page(options.page).file.parent if options.page else None
    return find_run(options.root, options.run), own


def _add_over(options: argparse.ArgumentParser) -> None:
    options.add_argument(
        "--over",
        action="append",
        default=[],
        metavar="KEY=VALUE,VALUE",
        help="vary one key of the study, such as seed=42,1337; may be given again (sweep: default the profile's "
        "sweep_seeds)",
    )


def _add_study_options(options: argparse.ArgumentParser, with_views: bool = True, with_dispatch: bool = True) -> None:
    options.add_argument(
        "--profile", help="a profile of the study, or a .yaml file (default: quick, where the study has it)"
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
        options.add_argument(
            "--wait", action="store_true", help="with --dispatch slurm: stay until the study has ended"
        )
    options.set_defaults(cancel=False)
    if not with_views:
        options.set_defaults(dry_run=False, keys=None, show_config=False, fresh=[])
        return
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
        help="print every key with type, unit, default, limits and description (of one group: budget), and stop",
    )


def _answer(work: Any) -> int:
    """The exit code of `work`; bad input is one clear line."""
    log_visibly()
    if not (3, 11) <= sys.version_info[:2] <= (3, 13):
        return run.refuse(f"Python {sys.version.split()[0]} is not supported: use Python 3.11, 3.12 or 3.13")
    try:
        return work()
    except BadInput as error:
        return run.refuse(str(error))
    except KeyboardInterrupt:
        run.show("interrupted; the same command goes on where it stopped")
        return outcome.CANCELLED.exit_code


def _deployments(place: str | None, files: list[str]) -> str:
    """The text of `prefect.yaml`."""
    return prefect_yaml(_profiles(place, files), with_stages=place is None).rstrip()


def _deploy(names: list[str], files: list[str]) -> int:
    """Makes what every study needs, and the named deployments; without names those of all studies."""
    if files and len(names) != 1:
        raise BadInput("--profile is a profile of one study: name the study, and no other")
    wanted: dict[str, dict[str, Any]] = {}
    for name in names or page_names():
        place, _, profile = (name, "", "") if name.endswith(".py") else name.partition("/")
        made = {f"{place}/{one['name']}": one for one in study_deployments(_profiles(place, files))}
        if profile and name not in made:
            raise BadInput(f"{place} has no deployment {profile!r}. It has {', '.join(made)}")
        wanted |= {name: made[name]} if profile else made
    from flows.on_slurm import deployed  # takes Prefect's client

    return deployed([*shared_deployments(), *wanted.values()])


def _profiles(place: str | None, files: list[str]) -> list[Profile]:
    """Of all studies, or of one and of files that do not lie in its folder. BadInput for one that cannot be started."""
    if place is None and files:
        raise BadInput("--profile is a profile of one study: name the study too")
    found = []
    for page in [load_page(name) for name in ([place] if place else page_names())]:
        require_flow(page)
        for name in [*(settings.profile_names(page) if page.profiles.name == page.name else []), *files]:
            settings.read_study(page, name, [], None)
            file = settings.profile_file(page, name)
            values = settings.profile_values(page, name)
            found.append(Profile(page, file.stem, description_of(file), values))
        if not found:
            found.append(Profile(page, page.name, page.description, {"name": page.name}))
    return found


def _run_study(place: str, options: argparse.Namespace) -> int:
    page: Page = load_page(place)
    if options.keys is not None:
        return run.show_keys(page, options.keys)
    if options.wait and options.dispatch != "slurm":
        raise BadInput("--wait goes with --dispatch slurm: a study that runs here is waited for anyway")
    study = settings.read_study(page, options.profile, options.changes, options.seed)
    page = replace(page, over=_over(options, study))
    if options.show_config:
        return run.show_configuration(study)
    where = run.Where(options.root, options.dispatch)
    if options.fresh and (options.dry_run or options.status):
        raise BadInput("--fresh begins stages anew, and --dry-run and --status change nothing: leave one of both out")
    if options.dry_run:
        return run.dry_run(page, study, where)
    if options.cancel:
        from flows.on_slurm import cancel  # takes Prefect's client

        return cancel(page, study, where)
    if options.status:
        return run.status(page, study, where)
    return run.run(page, study, where, options.wait, options.fresh)


def _over(options: argparse.Namespace, study: Any) -> dict[str, list[Any]]:
    """What the command varies; nothing where it runs one study. BadInput for a sweep of one seed."""
    over = settings.read_over(getattr(options, "over", []))
    if not over and "seeds" in options:  # a sweep
        seeds = options.seeds or study.sweep_seeds
        if len(seeds) < 2 or len(set(seeds)) < len(seeds):
            raise BadInput(
                f"a sweep needs two or more different seeds, not {seeds}: give --over seed=42,1337,... (to `python -m "
                "flows.sweep`, --seeds 42 1337 ...)"
            )
        over = {"seed": seeds}
    if "seed" in over and options.seed is not None:
        raise BadInput("--seed is one seed, and a sweep runs several: give --seeds or --over seed=42,1337,...")
    return over
