"""The command line of every study, and the only room that prints.

    python -m flows.robustness [--profile quick | FILE.yaml] [--root runs] [--set key=value ...] [--seed N]
                               [--dispatch local|slurm] [--wait] [--dry-run] [--status]

The page is walked first, without a Prefect server and without torch: bad configuration, `--dry-run`, `--status` and
a finished study answer within seconds. Exit codes: 0 finished, 1 failed, 2 bad input, 75 unfinished (the same
command goes on), 130 interrupted.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markdown import Markdown

from deployments.walk import Handle, Walk
from flows import settings
from flows.display import Display, standing
from storage import attempts
from storage.checkpoints import furthest
from storage.errors import BadInput

OUT = Console(highlight=False, soft_wrap=True)


def parser(module: str) -> argparse.ArgumentParser:
    """The options, frozen by a test: people's scripts depend on them."""
    options = argparse.ArgumentParser(
        prog=f"python -m {module}",
        description="Runs the study here, goes on where it stopped, and says so when it is finished.",
        allow_abbrev=False,
        epilog="Exit codes: 0 finished, 1 failed, 2 bad input, 75 unfinished, 130 interrupted.",
    )
    options.add_argument(
        "--profile",
        default="quick",
        help=f"profile ({', '.join(settings.profile_names())}) or a .yaml file (default: quick)",
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
    options.add_argument("--seed", type=int, help="seed of the training order in both arms")
    if module == "flows.sweep":
        options.add_argument("--seeds", type=int, nargs="+", help="the seeds (default: the profile's sweep_seeds)")
    options.add_argument(
        "--dispatch",
        choices=["local", "slurm"],
        default="local",
        help="where stages run: in this process, or as SLURM jobs (starts what is ready and returns with 75)",
    )
    options.add_argument("--wait", action="store_true", help="with --dispatch slurm: stay until the study has ended")
    look = options.add_mutually_exclusive_group()
    look.add_argument("--dry-run", action="store_true", help="print the stages and what would run, and stop")
    look.add_argument(
        "--status", action="store_true", help="print how each stage stands, and stop (75: not all are finished)"
    )
    return options


def main(module: str, arguments: list[str] | None = None) -> int:
    """Runs the study of `module` (its `page`, and the flow of the module's last name); returns the exit code."""
    if not (3, 11) <= sys.version_info[:2] <= (3, 13):
        return _refuse(f"Python {sys.version.split()[0]} is not supported: use Python 3.11, 3.12 or 3.13")
    options = parser(module).parse_args(arguments)
    try:
        return _run(importlib.import_module(module), module.rpartition(".")[2], options)
    except BadInput as error:
        return _refuse(str(error))
    except KeyboardInterrupt:
        OUT.print("interrupted; the same command goes on where it stopped")
        return 130


def _run(study_module: Any, flow_name: str, options: argparse.Namespace) -> int:
    if flow_name == "sweep" and options.seed is not None:
        raise BadInput("--seed is one seed, and a sweep runs several: give --seeds")
    changes = options.changes + ([f"sweep_seeds={options.seeds}"] if getattr(options, "seeds", None) else [])
    if options.wait and options.dispatch != "slurm":
        raise BadInput("--wait goes with --dispatch slurm: a study that runs here is waited for anyway")
    study = settings.read_study(study_module.Study, options.profile, changes, options.seed)
    root = _root(options)
    if Path(root).expanduser().is_file():
        raise BadInput(f"--root {root} is a file: name the folder of the run directories, which may be a new one")
    walk = Walk(root, study.name)
    study_module.page(study, walk)
    if options.dry_run or options.status:
        stands = {}
        if options.status and options.dispatch == "slurm":
            stands = _stands_on_slurm(study_module.__name__, study, root)
        for handle in walk.handles:
            line = _dry_line(handle) if options.dry_run else _status_line(handle, stands.get(handle.run.fingerprint))
            OUT.print(line + _of_seed(handle, walk), markup=False)
        if options.dispatch == "slurm":
            _tell_of_jobs(study_module.__name__, study, root, walk, options.dry_run)
        return 0 if options.dry_run or all(handle.finished for handle in walk.handles) else 75
    if not all(handle.finished for handle in walk.handles):
        if options.dispatch == "slurm":
            code = _run_on_slurm(study_module.__name__, study, root, options.wait)
        else:
            code = _run_here(getattr(study_module, flow_name), study, walk)
        if code:
            return code
        walk = Walk(root, study.name)
        study_module.page(study, walk)
    return _show_result(walk)


def _root(options: argparse.Namespace) -> str:
    if options.root or options.dispatch == "local":
        return options.root or "runs"
    from deployments.slurm.cluster.site import read_site

    return read_site().root


def _run_on_slurm(module: str, study: Any, root: str, wait: bool) -> int:
    """Starts what is ready, and with `wait` stays until nothing is under way; returns the exit code."""
    from deployments.local import EXIT_CODES
    from deployments.slurm.study import follow as dispatched
    from deployments.slurm.study import look as slurm_study

    _require_server()

    def told(handle: Handle, standing: Any) -> None:
        OUT.print(f"{handle.stage.name:<16} {handle.run.fingerprint[:12]}  {standing.line}", markup=False)

    state = slurm_study.follow(dispatched.looks(module, study, root), told, once=not wait)
    code = EXIT_CODES.get(state.name or "", 75)
    if code == 75:
        OUT.print(
            "unfinished: the jobs go on by themselves; with --status the same command shows how they stand", style="dim"
        )
    elif code:
        OUT.print(f"{state.name}: {state.message}", style="bold red", markup=False)
    return code


def _stands_on_slurm(module: str, study: Any, root: str) -> dict[str, Any]:
    """How each stage stands by its jobs and flow runs, by fingerprint; nothing when Prefect does not answer."""
    import httpx
    from prefect.exceptions import PrefectException

    from deployments.slurm.study import follow as dispatched

    try:
        _require_server()
        return dispatched.standings(module, study, root).standings
    except (BadInput, PrefectException, httpx.HTTPError) as error:
        OUT.print(f"Prefect is not asked ({error}); what the run directories say:", style="yellow", markup=False)
        return {}


def _require_server() -> None:
    """Jobs outlive this command, so the server that shows them must too."""
    from prefect.settings import PREFECT_API_URL

    from deployments.embedded import require_answer

    if not (address := PREFECT_API_URL.value()):
        raise BadInput(
            "--dispatch slurm needs a Prefect server that stays: start `prefect server start` on the login node and "
            "set PREFECT_API_URL=http://127.0.0.1:4200/api"
        )
    require_answer(address)


def _tell_of_jobs(module: str, study: Any, root: str, walk: Walk, dry_run: bool) -> None:
    """What the jobs used so far; in a dry run the exact text of each one that would be submitted now."""
    from deployments.slurm.cluster.client import SlurmCommands
    from deployments.slurm.study import efficiency
    from deployments.slurm.study import follow as dispatched

    if not dry_run:
        if used := efficiency.table(walk.handles, SlurmCommands().used):
            OUT.print(Markdown(used) if OUT.is_terminal else f"\n{used}", markup=False)
        return
    _require_server()
    for handle, text in dispatched.scripts(module, study, root):
        waits = f" (waits for {', '.join(handle.waits_for)})" if handle.waits_for else ""
        OUT.print(f"\n--- {handle.stage.name}{waits}\n{text}", markup=False)


def _run_here(flow: Any, study: Any, walk: Walk) -> int:
    """Runs the flow in this process, on the configured Prefect server or on one for the length of this command."""
    from prefect.exceptions import TerminationSignal
    from prefect.logging.configuration import setup_logging

    from deployments.embedded import prefect_server
    from deployments.local import EXIT_CODES

    # log lines go to the attempt's log and to Prefect: in the terminal they would break the bars, and say it twice
    os.environ.setdefault("PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL", "CRITICAL")
    os.environ.setdefault("DO_NOT_TRACK", "1")  # Prefect's usage statistics; clusters forbid such traffic
    setup_logging(incremental=False)
    seeds = sorted({seed for handle in walk.handles for seed in handle.seeds})
    told = f"seed{'s' if seeds[1:] else ''} {', '.join(map(str, seeds))}"
    OUT.print(f"study {study.name}, {told}, in {walk.root / study.name}")
    OUT.print(
        f"starting Prefect ({sum(handle.finished for handle in walk.handles)} of {len(walk.handles)} stages "
        "are finished) ..."
    )
    for handle in walk.handles:
        if handle.verdict.present and not handle.finished:
            OUT.print(f"{handle.stage.name} runs again: {handle.verdict.reason}", style="yellow", markup=False)
    try:
        with prefect_server() as address, Display(walk.handles, OUT):
            OUT.print(f"Prefect API: {address}")
            state = flow(study, str(walk.root), return_state=True)
    except TerminationSignal:  # SIGTERM between two stages, where Prefect listens and not the stage
        OUT.print("stopped by SIGTERM; the same command goes on where it stopped")
        return 75
    code = EXIT_CODES.get(state.name or "", 1)
    if code:
        ended = {"BadInput": "bad input", "AwaitingRetry": "unfinished", "Cancelled": "interrupted"}
        OUT.print(
            f"{ended.get(state.name or '', 'failed')}: {state.message}",
            style="bold red" if code in (1, 2) else "yellow",
            markup=False,
        )
        kept = "the same command goes on" if code in (75, 130) else "after the correction the same command goes on"
        OUT.print(f"exit code {code}; what is finished is kept, and {kept}", style="dim")
    return code


def _show_result(walk: Walk) -> int:
    """The tables of the last stage, every byte of it verified, and where they are."""
    last = walk.handles[-1]
    last.look(full=True)
    for handle in walk.handles:
        if not handle.finished:
            return _refuse(
                f"{handle.stage.name} does not hold: {handle.verdict.reason}. Start the same command again", 75
            )
    result = last.as_input().result
    for name in result.get("tables", []):
        file = last.run.path / name
        text = file.read_text()
        OUT.print(Markdown(text) if OUT.is_terminal else text, markup=False)
        OUT.print(f"the study is finished: {file}", markup=False)
    if report := result.get("report"):
        OUT.print(f"the report, for a browser: {last.run.path / report}", markup=False)
    return 0


def _dry_line(handle: Handle) -> str:
    saved = furthest(handle.run.checkpoints)
    state = "finished" if handle.finished else f"would go on (step {saved:,} is saved)" if saved else "would run"
    refused = f" ({handle.verdict.reason})" if handle.verdict.present and not handle.finished else ""
    return f"{handle.stage.name:<16} {handle.run.fingerprint}  {state}{refused}"


def _status_line(handle: Handle, on_slurm: Any = None) -> str:
    """By the run directory; on SLURM first by its jobs and its flow run."""
    stands = standing(handle, attempts.newest(handle.run.attempts))
    if on_slurm is not None and not handle.finished and not handle.waits_for:
        own_words = stands.startswith("running") or (on_slurm.stand == "ready" and stands != "not started")
        stands = f"{on_slurm.line}; {stands}" if own_words else on_slurm.line
    return f"{handle.stage.name:<16} {handle.run.fingerprint[:12]}  {stands}"


def _of_seed(handle: Handle, walk: Walk) -> str:
    """Where stages recur, which seed this one belongs to; empty where there is one seed."""
    seeds, of = {seed for other in walk.handles for seed in other.seeds}, handle.seeds
    if len(seeds) < 2:
        return ""
    return f"  (seed {of.pop()})" if len(of) == 1 else "  (all seeds)"


def _refuse(message: str, code: int = 2) -> int:
    Console(stderr=True, highlight=False, soft_wrap=True).print(f"error: {message}", markup=False, style="bold red")
    return code
