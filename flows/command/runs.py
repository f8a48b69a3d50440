"""The commands on runs that are there: what lies below a root, two of them side by side, and numbers asked again."""

import argparse
import secrets
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

from deployments.views.listing import ListedResult, ListedStudy, date, read_root
from flows.command.terminal import OUT, show, show_json, show_lines, show_markdown
from storage.__main__ import run as keep
from storage.errors import BadInput, CheckFailed
from storage.run_directory import find_run, find_runs
from tasks.stage import outcome

FOLLOW_SECONDS = 5.0
Facts = dict[str, Any]


def list_studies(options: argparse.Namespace) -> int:
    """`ratchet list`: each study below a root with its results, newest last, and what is not finished."""
    studies = read_root(options.root)
    return show_json(list(studies)) if options.json else show_lines(_listing(studies))


def show_run(options: argparse.Namespace) -> int:
    """`ratchet show`: all about one run, or all its tables."""
    from flows.command.show import facts_of, in_words, tables_of

    run = find_run(options.root, options.run)
    if options.table:
        show_markdown(OUT, tables_of(run))
        return 0
    return _show_of(lambda: facts_of(run), in_words, options.json)


def compare(options: argparse.Namespace) -> int:
    """`ratchet compare`: two runs, or the arms of a table."""
    if options.a.endswith(".csv"):
        if options.b is not None:
            raise BadInput(f"{options.a} is a table, and is compared with nothing else: leave out {options.b}")
        from flows.command import compare_table  # takes scipy

        asked = [field.name for field in fields(compare_table.Asked)]
        results = compare_table.compared_table(
            Path(options.a), compare_table.Asked(**{name: getattr(options, name) for name in asked})
        )
        if options.json:
            return show_json(compare_table.as_json(results))
        show_markdown(OUT, compare_table.as_markdown(results))
        return 0
    from flows.command.compare import compared, in_words

    if options.b is None:
        raise BadInput("compare wants two runs, or one table FILE.csv")
    first, other = (find_run(options.root, named) for named in (options.a, options.b))
    return _show_of(lambda: compared(first, other), lambda facts: in_words(facts, options.all), options.json)


def audit(options: argparse.Namespace) -> int:
    """`ratchet audit`: recorded numbers computed again."""
    from pyarrow import ArrowException

    from deployments.dag.page import load_page
    from tasks.findings.audit import repeat_audit  # takes torch

    entropy = secrets.randbits(32) if options.seed is None else options.seed
    try:
        own = load_page(options.page).file.parent if options.page else None
        run = find_run(options.root, options.run)
        return show(f"{repeat_audit(run, entropy, own).in_words} The same sample again: --seed {entropy}.")
    except CheckFailed as error:
        show(f"{error} (drawn by --seed {entropy})")
        return outcome.FAILED.exit_code
    except ArrowException as error:
        raise BadInput(f"what {options.run} read, or its records, are no Parquet files: {error}") from error


def verify(options: argparse.Namespace) -> int:
    """`ratchet verify`: every output of what is kept; with `--audit` recorded numbers of each finished study too."""
    if options.audit and options.json:
        raise BadInput("--audit prints lines for a person: leave out --json")
    code = keep(options)
    audits = [path for path in find_runs(options.root) if path.parent.name.endswith("audit") and options.audit]
    ours = [path for path in audits if (path / "COMPLETE.json").exists() and options.study in (None, path.parts[-3])]
    if options.audit and not ours:
        show("nothing was asked again: no study here has a finished audit (one of your own has none)")
    for path in ours:
        show(f"{path}:")
        try:
            code = max(code, audit(argparse.Namespace(**vars(options), seed=None, run=str(path), page=None)))
        except BadInput as error:
            show(str(error))
            code = max(code, outcome.BAD_INPUT.exit_code)
    return code


def make_index(options: argparse.Namespace) -> int:
    """`ratchet index`: the list as a page for a browser."""
    from deployments.views.index import write_index

    return show(str(write_index(options.root)))


def card(options: argparse.Namespace) -> int:
    """`ratchet card`: a training's model with a card, for a model hub."""
    from flows.command.card import write_card  # takes huggingface_hub

    return show(write_card(find_run(options.root, options.run), options.folder))


def write_events(options: argparse.Namespace) -> int:
    """`ratchet tensorboard`: what trainings measure, as event files; `--follow`: again, until Ctrl-C."""
    from deployments.views.tensorboard import TensorBoard  # takes torch

    board = TensorBoard(options.root, options.to)
    try:
        measured = board.update()
        show(f"runs that measured something: {measured}; see them: {board.command}")
        for file, lines in board.damaged.items():
            show(f"left out, because it cannot be read: {lines} line{'s' * (lines != 1)} of {file}")
        while options.follow:
            time.sleep(FOLLOW_SECONDS)
            board.update()
    except KeyboardInterrupt:
        show("ended")
    finally:
        board.close()
    return 0


def _listing(studies: Iterable[ListedStudy]) -> Iterator[str]:
    """The lines for a person."""
    for study in studies:
        yield f"{study.name} ({study.finished} of {study.begun} begun stages are finished)"
        for result in study.results:
            yield from _result(result)
        if study.unlearned:
            yield f"  {study.unlearned}"
        for work in study.work:
            yield f"  {work.state:<12} {work.line}"


def _result(result: ListedResult) -> Iterator[str]:
    yield f"  {date(result.ended_at)}  {', '.join([result.run.stage, *result.of])}"
    if result.headline:
        yield f"    {result.headline}"
    yield f"    {result.shown}"


def _show_of(facts: Callable[[], Facts], in_words: Callable[[Facts], Iterable[str]], as_json: bool) -> int:
    """Prints what stands in run directories. BadInput where anybody wrote there what cannot be read."""
    try:
        return show_json(facts()) if as_json else show_lines(in_words(facts()))
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise BadInput(f"this directory is not readable, because {error!r}") from error
