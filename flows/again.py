"""The command that makes a run again: made from what is kept of its study, and believed only after a walk.

No run directory names its page, but for the file of one's own that its newest attempt came from, and only few keep the
whole configuration. So what is there (profiles, a study that is kept for SLURM, a configuration that a later stage kept
with its results, the keys of the stage itself) is walked, and counts when the run's fingerprint is among those of the
walk.
"""

from __future__ import annotations

import json
import shlex
import shutil
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from deployments.page import Page, load_page, page_names
from deployments.slurm.study import file as study_file
from deployments.walk import Walk
from flows import settings
from storage import attempts
from storage.differences import ABSENT, leaves
from storage.errors import BadInput
from storage.lineage import Lineages
from storage.run_directory import RunDirectory, find_runs, read, run_in

NOWHERE = "/nonexistent"
"""A root without runs: a walk there computes fingerprints and has no markers to check."""
Over = dict[str, list[Any]]


def command_for(run: RunDirectory) -> str | None:
    """The command whose walk has the run's fingerprint; None where nothing that is kept leads to one."""
    over = _over(run)
    proposed: list[tuple[Page, str | None, list[str]]] = []
    for page, kept in _kept(run):
        profiles: list[str | None] = [*settings.profile_names(page)]
        for profile in profiles or [None]:
            try:
                changes = _changes(settings.read_study(page, profile, [], None), kept | {"name": run.study}, over)
            except BadInput:
                continue
            proposed.append((page, profile, changes))
    for page, profile, changes in sorted(proposed, key=lambda one: len(one[2])):
        if run.fingerprint in _fingerprints(replace(page, over=over), profile, changes):
            return _command(page, profile, changes, over, run.root)
    return None


def _kept(run: RunDirectory) -> Iterator[tuple[Page, dict[str, Any]]]:
    """Pages, and what is kept of the configuration that one of them was run with."""
    for _, page, study in study_file.readable(run.root):
        if study.name == run.study:
            yield replace(page, over={}), study.scientific()
    lineages = Lineages()
    seeds = lineages.values(lineages.of(run)).get("seed", set())
    found = [*_configurations(run, lineages), {}, *({"seed": int(seed)} for seed in seeds if seed.isdigit())]
    own = read(run.stage_file).get("scientific", {})
    for page in [*_own_page(run), *map(load_page, page_names())]:
        for kept in [*found, {key: own[key] for key in own if key in page.model.model_fields}]:
            yield page, kept


def _own_page(run: RunDirectory) -> Iterator[Page]:
    """The page of one's own that the newest attempt came from, where it is still there and can be read."""
    place = (attempts.newest(run.attempts) or {}).get("source", {}).get("own_page", "")
    with suppress(BadInput):
        if place:
            yield load_page(place)


def _configurations(run: RunDirectory, lineages: Lineages) -> Iterator[dict[str, Any]]:
    """Whole configurations that stages kept: the run itself, one that reads it, or one that it reads."""
    for path in find_runs(run.root):
        kept = read(path / "stage.json").get("configuration", {}).get("configuration")
        if path.parts[-3] == run.study and isinstance(kept, dict):
            other = run_in(path)
            if run in lineages.of(other).runs() or other in lineages.of(run).runs():
                yield kept


def _over(run: RunDirectory) -> Over:
    """What a sweep varied; nothing for any other stage."""
    configuration = read(run.stage_file).get("configuration", {})
    keys, cells = configuration.get("keys"), configuration.get("cells")
    if not (isinstance(keys, list) and isinstance(cells, dict)):
        return {}
    values = [
        list({json.dumps(value): value for value in column}.values()) for column in zip(*cells.values(), strict=True)
    ]
    return dict(zip(keys, values, strict=True))


def _changes(base: Any, kept: dict[str, Any], over: Over) -> list[str]:
    """What `--set` says of the fields that are kept and differ from the profile's."""
    ours = dict(leaves({"name": base.name, **base.scientific()}))
    return [
        f"{key}={_value(value)}" for key, value in leaves(kept) if key not in over and ours.get(key, ABSENT) != value
    ]


def _fingerprints(page: Page, profile: str | None, changes: list[str]) -> set[str]:
    """Of every stage that the command would run; none where it would be refused."""
    try:
        study = settings.read_study(page, profile, changes, None)
        walk = Walk(NOWHERE, study.name, study.execution)
        page.walk(study, walk)
    except BadInput:
        return set()
    return {handle.run.fingerprint for handle in walk.handles}


def _command(page: Page, profile: str | None, changes: list[str], over: Over, root: Path) -> str:
    words = [_ratchet(), "sweep" if over else "run", page.place.removeprefix("flows.")]
    words += ["--profile", profile] if profile else []
    for key, values in over.items():
        words += ["--over", f"{key}={','.join(map(_value, values))}"]
    for change in changes:
        words += ["--set", change]
    return shlex.join([*words, *(["--root", str(root)] if root.resolve() != Path("runs").resolve() else [])])


def _ratchet() -> str:
    """The command as a person types it here: with its path, where the shell does not find it alone."""
    beside = Path(sys.executable).with_name("ratchet")
    if shutil.which("ratchet") or not beside.is_file():
        return "ratchet"
    return str(beside.relative_to(Path.cwd()) if beside.is_relative_to(Path.cwd()) else beside)


def _value(value: Any) -> str:
    """A value as YAML in one line; a word as it is."""
    return value if isinstance(value, str) and value.isidentifier() else json.dumps(value)
