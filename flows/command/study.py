"""`ratchet run`, `sweep` and `status`: a study in a terminal. The page is walked first, without Prefect and torch."""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from deployments.dag.page import Page, load_page
from deployments.dag.sweep import stopped_cells
from deployments.dag.walk import Handle, Walk
from deployments.prefect.presence import may_stand
from deployments.views.estimate import estimate
from deployments.views.listing import first_values, shown_first, standing
from deployments.views.notes import changed_work, notes
from deployments.waits import Terminated, terminated_by_sigterm
from flows.command import settings
from flows.command.display import Display
from flows.command.terminal import OUT, refuse, show, show_json, show_markdown
from storage import attempts, generations, markers
from storage.checkpoints import furthest
from storage.errors import BadInput, Held, did_you_mean
from storage.reading import read_text
from tasks.stage import outcome
from tasks.stage.progress import duration
from tasks.training.unlearned import unlearned

if TYPE_CHECKING:
    from deployments.slurm.study.study import SlurmStudy

NOT_SHOWN = 130
"""Characters of what was not shown: an answer ends a terminal of 80 columns in at most 15 lines."""


def run_study(options: argparse.Namespace) -> int:
    """Does what the options ask of a study; returns the exit code."""
    page = load_page(options.study)
    if options.keys is not None:
        from flows.command.keys import show_keys

        return show_keys(page, options.keys)
    if (options.wait or options.detach) and options.dispatch != "slurm":
        way = "--wait" if options.wait else "--detach"
        raise BadInput(f"{way} goes with --dispatch slurm: a study that runs here is waited for anyway")
    study = settings.read_study(page, options.profile, options.changes, options.seed)
    page = replace(page, over=_over(options, study))
    if options.show_config:
        from flows.command.keys import show_configuration

        return show_configuration(study)
    if options.command not in ("status", "cancel") and options.fresh and (options.dry_run or options.status):
        raise BadInput("--fresh begins stages anew, and --dry-run and --status change nothing: leave one of both out")
    root = settings.root_of(options)
    slurm: SlurmStudy | None = None
    if options.dispatch == "slurm":
        from deployments.slurm.study import study as on_site

        slurm = on_site.SlurmStudy.at_site(page, study, root)
    if options.command == "cancel":
        from flows.command.on_slurm import cancel

        assert slurm
        return cancel(slurm)
    walk = slurm.walk if slurm else Walk(root, study.name, study.execution)
    if not slurm:
        page.walk(study, walk)
    if options.dry_run:
        return _dry_run(study, walk, slurm)
    if options.status:
        return _status(page, study, walk, slurm, options.json)
    return _run(page, study, walk, slurm, options)


def _over(options: argparse.Namespace, study: Any) -> dict[str, list[Any]]:
    """Keys that the command varies; empty where it runs one study. BadInput for a sweep of one seed."""
    over = settings.read_over(options.over)
    if not over and options.command == "sweep":
        if len(set(study.sweep_seeds)) < max(2, len(study.sweep_seeds)):
            raise BadInput(
                f"a sweep needs two or more different seeds, not {study.sweep_seeds}: give --over seed=42,1337,..."
            )
        over = {"seed": study.sweep_seeds}
    if "seed" in over and options.seed is not None:
        raise BadInput("--seed is one seed, and a sweep runs several: give --over seed=42,1337,...")
    return over


def _run(page: Page, study: Any, walk: Walk, slurm: SlurmStudy | None, options: argparse.Namespace) -> int:
    """Runs what is not finished, and `fresh` stages with nothing, then shows the result; returns the exit code."""
    for note in notes(walk.handles):
        show(note, style="yellow")
    _begin_anew(walk, options.fresh)
    if all(handle.finished for handle in walk.handles):
        return _show_result(walk)
    if slurm:
        from flows.command.on_slurm import detach, run_on_slurm

        code = detach(slurm) if options.detach else run_on_slurm(slurm, options.wait)
    else:
        code = _run_here(page, study, walk, options.prefect)
    if code and not page.over:
        return code
    walk.check_markers()
    if code:
        if (rest := page.sweep_without_stopped(study, walk)) and rest.finished:
            _show_answer(rest, f"the sweep ({rest.config.cell}) is finished")
        elif not slurm and len(stopped_cells(page.over, walk)) < len(walk.cells):
            show("the table of the sweep waits for cells that are not finished; the same command goes on")
        return code
    code = _show_result(walk)
    for note in changed_work(walk.handles):  # what was said of it before the first stage is far above
        show(note, style="yellow")
    return code


def _begin_anew(walk: Walk, named: Sequence[str]) -> None:
    """Has the named stages begin with nothing. BadInput for a name that the page does not have, or work under way."""
    for name in named:
        of_name = [handle for handle in walk.handles if handle.stage.name == name]
        chosen = of_name or [handle for handle in walk.handles if handle.run.fingerprint.startswith(name)]
        if not chosen or (len(chosen) > 1 and not of_name):
            known = ", ".join(dict.fromkeys(handle.stage.name for handle in walk.handles))
            close = did_you_mean(name, {handle.stage.name for handle in walk.handles})
            raise BadInput(
                f"--fresh {name} names no stage of this study; {close}they are {known}; or give a fingerprint"
            )
        for handle in chosen:
            try:
                aside = generations.begin_anew(handle.run)
            except Held as error:
                raise BadInput(f"--fresh {name}: {error}") from None
            if aside:
                show(f"{handle.label} begins anew; what it had made is in {aside}. To go on later, leave --fresh out")
    if named:
        walk.check_markers()


def _dry_run(study: Any, walk: Walk, slurm: SlurmStudy | None) -> int:
    """Prints each stage and whether it would run; on SLURM the exact text of each job that would be submitted now."""
    if slurm:
        from deployments.slurm.job.resources import own_resources

        own_resources(study)  # needs no server, and a profile may be another person's
    for handle in walk.handles:
        show(_line(_row(handle, walk, "", _would_run(handle))))
    show(f"finished: {estimate(walk.handles).words}")
    for note in notes(walk.handles):
        show(note, style="yellow")
    if slurm:
        from flows.command.on_slurm import show_jobs

        return show_jobs(slurm)
    return 0


def _status(page: Page, study: Any, walk: Walk, slurm: SlurmStudy | None, as_json: bool) -> int:
    """Prints how each stage stands; on SLURM also what its jobs used. 0 when all are finished, else 75."""
    stands, first = dict[str, Any](), list[str]()
    if slurm:
        from flows.command import on_slurm

        stands, first = on_slurm.stands(slurm)
    else:
        page.sweep_without_stopped(study, walk)
    if not walk.root.is_dir():
        first.append(f"there is no folder {walk.root} yet: nothing was started with this --root")
    rows = [_row(handle, walk, *stand_of(handle, stands.get(handle.run.fingerprint))) for handle in walk.handles]
    finished = all(handle.finished for handle in walk.handles)
    if as_json:
        show_json({"study": study.name, "finished": finished, "stages": rows, "notes": first})
    else:
        for note in first:
            show(note, style="yellow")
        for row in rows:
            show(_line(row))
        if slurm:
            on_slurm.show_used(slurm)
    return 0 if finished else outcome.AWAITING_RETRY.exit_code


def _row(handle: Handle, walk: Walk, state: str, stands: str) -> dict[str, Any]:
    """A stage, how it stands, and which cell it belongs to."""
    return {
        "stage": handle.stage.name,
        "fingerprint": handle.run.fingerprint,
        "folder": handle.run.path,
        "state": state,
        "stands": stands,
        "cell": ", ".join(handle.cell) or ("all cells" if walk.cells else ""),
    }


def _line(row: dict[str, Any]) -> str:
    cell = f"  ({row['cell']})" if row["cell"] else ""
    return f"{row['stage']:<16} {row['fingerprint'][:12]}  {row['stands']}{cell}"


def _would_run(handle: Handle) -> str:
    if handle.finished:
        return "finished"
    saved = furthest(handle.run.checkpoints)
    refused = f" ({handle.verdict.reason})" if handle.verdict.present else ""
    return (f"would go on (step {saved:,} is saved)" if saved else "would run") + refused


def stand_of(handle: Handle, on_slurm: Any = None) -> tuple[str, str]:
    """(finished, running or not finished; how it stands) of a stage by its run directory; on SLURM how it stands first
    by its jobs and its flow run."""
    if handle.finished:
        seconds = attempts.seconds_of(handle.run.attempts)
        return "finished", "finished" if seconds is None else f"finished in {duration(seconds)}"
    state, stands = standing(handle.run, handle.verdict)
    if state == "running":
        stands = f"{state}, {stands}"
    elif handle.waits_for:
        refusal = handle.refusal
        return state, f"{outcome.in_words('bad_input')}: {refusal}" if refusal else handle.verdict.reason
    if on_slurm is None:
        return state, stands
    begun = handle.verdict.present or attempts.newest(handle.run.attempts) is not None
    more = state == "running" or (on_slurm.stand == "ready" and begun)
    return state, f"{on_slurm.line}; {stands}" if more else str(on_slurm.line)


def _run_here(page: Page, study: Any, walk: Walk, as_flow: bool) -> int:
    """Runs the study in this process; where a Prefect server stands, or `as_flow`, as a flow run of Prefect."""
    seeds = sorted({seed for handle in walk.handles for seed in handle.seeds})
    of_seeds = f", seed{'s' if seeds[1:] else ''} {', '.join(map(str, seeds))}" if seeds else ""
    stages = f"{sum(handle.finished for handle in walk.handles)} of {len(walk.handles)} stages are finished"
    show(f"study {study.name}{of_seeds}, in {walk.root / study.name}: {stages}")
    for handle in walk.handles:
        if handle.verdict.present and not handle.finished:
            show(f"{handle.label} runs again: {handle.verdict.reason}", style="yellow")
    if not as_flow and may_stand():
        from deployments.prefect.embedded import server_here

        as_flow = server_here() is not None
    try:
        with terminated_by_sigterm(), Display(walk.handles, OUT):
            if as_flow:
                from deployments.prefect.local import run_as_flow

                ended, message = run_as_flow(page, study, walk)
            else:
                from deployments.here.study import run_in_this_process

                ended, message = run_in_this_process(page, study, walk)
    except Terminated:  # between two stages
        show("stopped by SIGTERM; the same command goes on where it stopped")
        return outcome.AWAITING_RETRY.exit_code
    if ended != outcome.COMPLETED:
        show(f"{ended.words}: {message}", style="bold red" if ended.condition else "yellow")
        goes_on = f"{ended.condition} the same command goes on".strip()
        kept = "what is finished is kept, and " * any((handle.run.path / "locks").exists() for handle in walk.handles)
        show(f"exit code {ended.exit_code}; {kept}{goes_on}", style="dim")
    return ended.exit_code


def _show_result(walk: Walk) -> int:
    """Shows what the last stage answered, every byte of it verified, and where the rest is."""
    last = walk.handles[-1]
    last.check_marker(full=True)
    for handle in walk.handles:
        if not handle.finished:
            return refuse(
                f"{handle.label} does not hold: {handle.verdict.reason}. Start the same command again",
                outcome.AWAITING_RETRY.exit_code,
            )
    _show_answer(last, "the study is finished")
    if nothing := unlearned(handle.run for handle in walk.handles):
        show(nothing, style="yellow")
    return 0


def _show_answer(handle: Handle, end: str) -> None:
    """Shows the stage's answer, and where the rest is; `end` says of what. A stage without an answer shows numbers."""
    result = handle.as_input().result
    verdict, *numbers = result.get("answer") or [""]
    if not verdict and not (tables := result.get("tables", [])):
        numbers = first_values(result)
    elif not verdict:
        for name in tables:
            show_markdown(OUT, read_text(markers.output(handle.run, name)))
    if verdict:
        show(verdict, style="bold")
    for number in numbers:
        show(f"  {number}")
    if not_shown := result.get("not_shown"):
        show(f"  not shown: {textwrap.shorten(not_shown[0], NOT_SHOWN, placeholder=' ...')}")
        more = f"{len(not_shown) - 1} more of these, and all tables" if not_shown[1:] else "all tables"
        show(f"  {more}: ratchet show {handle.run.path} --table", style="dim")
    where = markers.output(handle.run, shown_first(result)) if shown_first(result) else handle.run.result_file
    show(f"{end}: {where}")
