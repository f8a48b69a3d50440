"""Runs a study, or shows how it stands, in a terminal. The page is walked first: that starts no server and no torch."""

from __future__ import annotations

import os
import shlex
import signal
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from deployments.estimate import estimate
from deployments.notes import finished_neighbours, notes
from deployments.page import Page
from deployments.sweep import waiting_cells
from deployments.walk import Handle, Walk
from flows.display import Display, running, standing
from flows.terminal import Terminal, show_markdown
from storage import attempts, generations, markers
from storage.checkpoints import furthest
from storage.errors import BadInput, Held
from storage.visible import line
from tasks.stage import outcome
from tasks.stage.keys import keys_of
from tasks.training.unlearned import unlearned

if TYPE_CHECKING:  # imported late: what runs here needs no SLURM
    from deployments.generate import Profile
    from deployments.slurm.study.study import SlurmStudy

OUT = Terminal()
FOLLOW_SECONDS = 5.0


@dataclass(frozen=True)
class Where:
    """Where the study runs, and where it is kept."""

    given_root: str | None
    dispatch: str

    @property
    def on_slurm(self) -> bool:
        return self.dispatch == "slurm"

    @property
    def root(self) -> str:
        """The folder of the run directories. BadInput when it is a file."""
        root = self.given_root or "runs"
        if self.on_slurm and not self.given_root:
            from deployments.slurm.cluster.site import read_site

            root = read_site().root
        if Path(root).expanduser().is_file():
            raise BadInput(f"--root {root} is a file: name the folder of the run directories, which may be a new one")
        return root


def run(page: Page, study: Any, where: Where, wait: bool, fresh: Sequence[str] = ()) -> int:
    """Runs what is not finished, and `fresh` stages with nothing, then shows the result; returns the exit code."""
    slurm = at_site(page, study, where) if where.on_slurm else None
    walk = slurm.walk if slurm else _walked(page, study, where)
    for note in notes(walk.handles):
        show(note, style="yellow")
    _begin_anew(walk, fresh)
    if not all(handle.finished for handle in walk.handles):
        code = _run_on_slurm(slurm, wait) if slurm else _run_here(page, study, walk)
        if code and not page.over:
            return code
        walk.check_markers()
        if code:
            if (rest := page.sweep_without_stopped(study, walk)) and rest.finished:
                _show_tables(rest, f"the sweep ({rest.config.cell}) is finished")
            elif not slurm and (waiting := waiting_cells(page.over, walk)):
                show(f"the table of the sweep waits for {waiting}; the same command goes on")
            return code
    return _show_result(walk)


def _begin_anew(walk: Walk, named: Sequence[str]) -> None:
    """Has the named stages begin with nothing. BadInput for a name that the page does not have, or work under way."""
    for name in named:
        of_name = [handle for handle in walk.handles if handle.stage.name == name]
        found = of_name or [handle for handle in walk.handles if handle.run.fingerprint.startswith(name)]
        if not found or (len(found) > 1 and not of_name):
            known = ", ".join(dict.fromkeys(handle.stage.name for handle in walk.handles))
            raise BadInput(f"--fresh {name} names no stage of this study: they are {known}; or give a fingerprint")
        for handle in found:
            try:
                aside = generations.begin_anew(handle.run)
            except Held as error:
                raise BadInput(f"--fresh {name}: {error}") from None
            if aside:
                show(f"{handle.label} begins anew; what it had made is in {aside}. To go on later, leave --fresh out")
    if named:
        walk.check_markers()


def dry_run(page: Page, study: Any, where: Where) -> int:
    """Prints each stage and whether it would run; on SLURM the exact text of each job that would be submitted now."""
    slurm = at_site(page, study, where) if where.on_slurm else None
    walk = slurm.walk if slurm else _walked(page, study, where)
    if slurm:
        from deployments.slurm.job.variables import own_resources

        own_resources(study)  # needs no server, and a profile may be another person's
    for handle in walk.handles:
        show(_dry_line(handle) + _of_cell(handle, walk))
    show(f"finished: {estimate(walk.handles).words}")
    for note in [*notes(walk.handles), *finished_neighbours(walk.handles)]:
        show(note, style="yellow")
    if slurm:
        from deployments.slurm.study.preflight import checked

        require_server()
        found = checked(slurm)
        if found.problems:
            refuse(found.refusal)
        for handle, text in found.scripts():
            waits = f" (waits for {', '.join(handle.waits_for)})" if handle.waits_for else ""
            show(f"\n--- {handle.label}{waits}\n{text}")
        if found.problems:
            return refuse("the jobs could not run: what stands against them is said above their scripts")
    return 0


def status(page: Page, study: Any, where: Where) -> int:
    """Prints how each stage stands; on SLURM also what its jobs used. 0 when all are finished, else 75."""
    slurm = at_site(page, study, where) if where.on_slurm else None
    walk = slurm.walk if slurm else _walked(page, study, where)
    on_slurm = _stands_on_slurm(slurm) if slurm else {}
    if not slurm:
        page.sweep_without_stopped(study, walk)
    if not walk.root.is_dir():
        show(f"there is no folder {walk.root} yet: nothing was started with this --root", style="yellow")
    for handle in walk.handles:
        show(_status_line(handle, on_slurm.get(handle.run.fingerprint)) + _of_cell(handle, walk))
    for note in finished_neighbours(walk.handles):
        show(note, style="yellow")
    if where.on_slurm:
        from deployments.slurm.cluster.client import SlurmCommands
        from deployments.slurm.study import efficiency

        if used := efficiency.table(walk.handles, SlurmCommands().used):
            show_markdown(OUT, f"\n{used}")
    return 0 if all(handle.finished for handle in walk.handles) else outcome.AWAITING_RETRY.exit_code


def ui(profiles: list[Profile], port: int | None) -> int:
    """Keeps Prefect's UI open until Ctrl-C or SIGTERM; 1 when its worker ends by itself."""
    from deployments.ui import WorkerEnded, keep_ui

    def ready(address: str) -> None:
        show(f"Prefect UI: {address}", style="bold")
        show("  who has this whole address can run commands as you: give it to nobody. It holds until this ends")
        show("  there: Deployments, then Run, starts a study; Runs shows it")
        show("  Ctrl-C ends this; a study that runs saves first, and goes on when it is started again")

    def end(*_: object) -> None:
        show("ending: a study that runs saves first ...")
        raise KeyboardInterrupt

    show("starting Prefect, its UI, and a worker that runs one study at a time ...")
    signal.signal(signal.SIGTERM, end)
    if signal.getsignal(signal.SIGINT) != signal.SIG_IGN:
        signal.signal(signal.SIGINT, end)
    try:
        keep_ui(profiles, port, ready)
    except KeyboardInterrupt:
        show("ended")
    except WorkerEnded as error:
        return refuse(str(error), outcome.FAILED.exit_code)
    return 0


def tensorboard(root: Path, target: Path | None, follow: bool) -> int:
    """Writes event files for TensorBoard; with `follow` again and again, until Ctrl-C."""
    from deployments.tensorboard import FOLDER, EventFiles

    target = target or root / FOLDER
    files = EventFiles(root, target)
    try:
        show(
            f"runs that measured something: {files.update()}; see them: tensorboard --logdir {shlex.quote(str(target))}"
        )
        for file, lines in files.damaged.items():
            show(f"left out, because it cannot be read: {lines} line{'s' * (lines != 1)} of {file}")
        while follow:
            time.sleep(FOLLOW_SECONDS)
            files.update()
    except KeyboardInterrupt:
        show("ended")
    finally:
        files.close()
    return 0


def show_configuration(study: Any) -> int:
    """Prints the whole study: given to `--profile` as a file, it is the same study."""
    return show(yaml.safe_dump(study.model_dump(mode="json"), sort_keys=False).rstrip())


def show_keys(page: Page, group: str) -> int:
    """Prints every key of a study, or of one group of them. BadInput for a group that does not exist."""
    found = keys_of(page.model, group)
    if not found:
        groups = sorted({key.path.split(".")[0] for key in keys_of(page.model)})
        raise BadInput(f"--keys {group}: {page.name} has no such key or group; it has {', '.join(groups)}")
    only_with = ""
    for key in found:
        if key.only_with != only_with and key.only_with:
            show(f"\nwith {key.only_with}:", style="bold")
        only_with = key.only_with
        default = f"default {key.default}" if key.default else "required"
        facts = [key.type + (f" ({key.unit})" if key.unit else ""), default, *filter(None, [key.limits])]
        facts += ["names no run: not in the fingerprint"] if key.field_class == "execution" else []
        show(key.path, style="bold")
        show(f"    {', '.join(facts)}\n    {key.description}")
    return 0


def show(text: str, style: str | None = None) -> int:
    """Prints text as it stands."""
    OUT.print(text, style=style)
    return 0


def show_lines(lines: Iterable[str]) -> int:
    """Prints lines, of which none ends early, whatever stood in a file that it tells of."""
    return show("\n".join(map(line, lines)))


def refuse(message: str, code: int = outcome.BAD_INPUT.exit_code) -> int:
    """Prints an error; returns `code`."""
    Terminal(stderr=True).print(f"error: {message}", style="bold red")
    return code


def _run_here(page: Page, study: Any, walk: Walk) -> int:
    """Runs the flow in this process, on the configured Prefect server or on one for the length of this command."""
    from prefect.exceptions import TerminationSignal
    from prefect.logging.configuration import setup_logging

    from deployments.embedded import prefect_server
    from deployments.study_flow import flow_of

    # log lines go to the attempt's log and to Prefect: in the terminal they would break the bars, and say it twice
    os.environ.setdefault("PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL", "CRITICAL")
    setup_logging(incremental=False)
    seeds = sorted({seed for handle in walk.handles for seed in handle.seeds})
    of_seeds = f", seed{'s' if seeds[1:] else ''} {', '.join(map(str, seeds))}" if seeds else ""
    show(f"study {study.name}{of_seeds}, in {walk.root / study.name}")
    show(
        f"starting Prefect ({sum(handle.finished for handle in walk.handles)} of {len(walk.handles)} stages "
        "are finished) ..."
    )
    for handle in walk.handles:
        if handle.verdict.present and not handle.finished:
            show(f"{handle.label} runs again: {handle.verdict.reason}", style="yellow")
    try:
        with prefect_server() as address, Display(walk.handles, OUT):
            show(f"Prefect API: {address}")
            state: Any = flow_of(page)(study, str(walk.root), over=page.over, return_state=True)
    except TerminationSignal:  # SIGTERM between two stages, where Prefect listens and not the stage
        show("stopped by SIGTERM; the same command goes on where it stopped")
        return outcome.AWAITING_RETRY.exit_code
    ended = outcome.state_named(state.name)
    if ended != outcome.COMPLETED:
        show(f"{ended.words}: {state.message}", style="bold red" if ended.condition else "yellow")
        goes_on = f"{ended.condition} the same command goes on".strip()
        show(f"exit code {ended.exit_code}; what is finished is kept, and {goes_on}", style="dim")
    return ended.exit_code


def _walked(page: Page, study: Any, where: Where) -> Walk:
    walk = Walk(where.root, study.name, study.execution)
    page.walk(study, walk)
    return walk


def at_site(page: Page, study: Any, where: Where) -> SlurmStudy:
    from deployments.slurm.study.study import SlurmStudy

    return SlurmStudy.at_site(page, study, where.root)


def _run_on_slurm(slurm: SlurmStudy, wait: bool) -> int:
    """Starts what is ready, and with `wait` stays until nothing is under way; returns the exit code."""
    from deployments.slurm.study.follow import Follower, follow
    from deployments.slurm.study.own_run import address_of

    require_server()

    def kept(slurm: SlurmStudy) -> None:
        show(f"the study in Prefect: {address_of(slurm)}")

    def changed(handle: Handle, stand: Any) -> None:
        show(f"{handle.label:<16} {handle.run.fingerprint[:12]}  {stand.line}")

    state = follow(Follower(slurm, kept), changed, once=not wait)
    ended = outcome.state_named(state.name)
    if ended == outcome.AWAITING_RETRY and state.message != ended.words:
        show(f"unfinished: {state.message}. The same command goes on", style="yellow")
    elif ended == outcome.AWAITING_RETRY:
        show(
            "unfinished: the jobs go on by themselves while the worker of their pool runs; with --status the same "
            "command shows how they stand",
            style="dim",
        )
    elif ended != outcome.COMPLETED:
        show(f"{state.name}: {state.message}", style="bold red")
    return ended.exit_code


def _stands_on_slurm(slurm: SlurmStudy) -> dict[str, Any]:
    """How each stage stands by its jobs and flow runs, by fingerprint; nothing when Prefect does not answer."""
    import httpx
    from prefect.exceptions import PrefectException

    from deployments.slurm.study import follow

    try:
        require_server()
        return follow.standings(slurm).standings
    except (BadInput, PrefectException, httpx.HTTPError) as error:
        show(f"Prefect is not asked ({error}); what the run directories say:", style="yellow")
        return {}


def require_server(wanted_by: str = "--dispatch slurm") -> None:
    """Jobs outlive this command, so the server that shows them must too."""
    from deployments.embedded import configured, require_answer

    if not (server := configured()):
        raise BadInput(
            f"{wanted_by} needs a Prefect server that stays, and PREFECT_API_URL, which says where it is: "
            "docs/cluster.md has a port and a password made (The server: port, password, database), then start "
            "`.venv/bin/prefect server start` on the login node"
        )
    require_answer(server)


def _show_result(walk: Walk) -> int:
    """The tables of the last stage, every byte of it verified, and where they are."""
    last = walk.handles[-1]
    last.check_marker(full=True)
    for handle in walk.handles:
        if not handle.finished:
            return refuse(
                f"{handle.label} does not hold: {handle.verdict.reason}. Start the same command again",
                outcome.AWAITING_RETRY.exit_code,
            )
    _show_tables(last, "the study is finished")
    if nothing := unlearned(handle.run for handle in walk.handles):
        show(nothing, style="yellow")
    return 0


def _show_tables(handle: Handle, end: str) -> None:
    """The stage's tables, or where its result is; `end` says of what."""
    result = handle.as_input().result
    for name in result.get("tables", []):
        file = markers.output(handle.run, name)
        text = file.read_text()
        show_markdown(OUT, text)
        show(f"{end}: {file}")
    if not result.get("tables"):
        show(f"{end}: {handle.run.result_file}")
    if report := result.get("report"):
        show(f"the report, for a browser: {markers.output(handle.run, report)}")


def _dry_line(handle: Handle) -> str:
    saved = furthest(handle.run.checkpoints)
    state = "finished" if handle.finished else f"would go on (step {saved:,} is saved)" if saved else "would run"
    refused = f" ({handle.verdict.reason})" if handle.verdict.present and not handle.finished else ""
    return f"{handle.stage.name:<16} {handle.run.fingerprint[:12]}  {state}{refused}"


def _status_line(handle: Handle, on_slurm: Any = None) -> str:
    """By the run directory; on SLURM first by its jobs and its flow run."""
    attempt = attempts.newest(handle.run.attempts)
    stands = standing(handle, attempt)
    if on_slurm is not None and not handle.finished and not handle.waits_for:
        begun = attempt is not None or handle.verdict.present
        more = running(handle, attempt) or (on_slurm.stand == "ready" and begun)
        stands = f"{on_slurm.line}; {stands}" if more else on_slurm.line
    return f"{handle.stage.name:<16} {handle.run.fingerprint[:12]}  {stands}"


def _of_cell(handle: Handle, walk: Walk) -> str:
    """Which cell it belongs to, and in a sweep that it belongs to all; else empty."""
    cell = ", ".join(handle.cell) or ("all cells" if walk.cells else "")
    return f"  ({cell})" if cell else ""
