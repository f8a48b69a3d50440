"""The command that makes a run again: of the study that began it, which lies beside stage.json.

It is walked first where its page comes with Ratchet, or where a person names the page: data name no code to run.
"""

from __future__ import annotations

import json
import math
import shlex
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from deployments.dag.page import Page, load_page
from deployments.dag.sources import is_house_page
from deployments.dag.walk import Walk
from flows.command import settings
from storage.differences import ABSENT
from storage.errors import BadInput
from storage.lineage import Lineages
from storage.run_directory import RunDirectory, read
from tasks.findings.again import WHERE, listed
from tasks.stage.validation import validated

NOWHERE = "/nonexistent"
"""A root without runs: a walk there computes fingerprints and has no markers to check."""
MOST_CELLS = 1000
NOT_KEPT = "not known: an earlier version of Ratchet began this run, and kept no study.json with it"


def again(run: RunDirectory, named: str = "") -> Iterator[str]:
    """The command, and of which run the bytes would be others; or why there is none. `named` is the page that a person
    names."""
    kept = read(run.study_file)
    try:
        place, values = str(kept["page"]), dict(kept["study"])
        over = {key: [*varied] for key, varied in kept["over"].items()}
    except (KeyError, TypeError, ValueError, AttributeError):
        yield NOT_KEPT
        return
    to_try = f"to try it: {_ratchet()} show {shlex.quote(str(run.path))} --page {shlex.quote(place)}"
    if not named and not is_house_page(place):
        yield _words(place, None, over, _changes({}, values), run.root)
        yield "as it was written down: whether that gives this run was not tried, since it takes code of that file."
        yield to_try
        return
    try:
        page = replace(load_page(named or place), over=over)
        study = validated(page.model, values, str(run.study_file))
        if not named and (_names_files(study) or math.prod(map(len, over.values())) > MOST_CELLS):
            yield _command(page, study, run.root)
            yield "as it was written down: whether that gives this run was not tried, as it reads what the run names."
            yield to_try
            return
        walk = Walk(NOWHERE, study.name, study.execution)
        page.walk(study, walk)
    except BadInput as error:
        yield f"not possible as things are now: {error}. What began this run stands in {run.study_file}"
        return
    if run.fingerprint not in {handle.run.fingerprint for handle in walk.handles}:
        yield (
            "not possible as things are now: with the code, packages and text that are here, what began this run "
            f"({run.study_file}) gives other fingerprints"
        )
        return
    yield _command(page, study, run.root)
    yield from _made_otherwise(run, walk)


def _names_files(study: Any) -> bool:
    """Whether a walk would read local files: their places are absolute, once a configuration is valid."""
    return '"/' in json.dumps(study.model_dump(mode="json", exclude={"execution"}))


def _command(page: Page, study: Any, root: Path) -> str:
    """With the profile that needs the fewest changes."""
    proposed: list[tuple[list[str], str | None]] = []
    profiles: list[str | None] = [*settings.profile_names(page)]
    for profile in profiles or [None]:
        with suppress(BadInput):
            base = settings.read_study(page, profile, [], None).model_dump(mode="json")
            proposed.append((list(_changes(base, study.model_dump(mode="json"))), profile))
    changes, profile = min(proposed, key=lambda one: len(one[0]))
    return _words(page.place, profile, page.over, changes, root)


def _words(place: str, profile: str | None, over: Mapping[str, Any], changes: Iterable[str], root: Path) -> str:
    words = [_ratchet(), "sweep" if over else "run", place.removeprefix("flows.")]
    words += ["--profile", profile] if profile else []
    for key, values in over.items():
        words += ["--over", f"{key}={listed(values)}"]
    for change in changes:
        words += ["--set", change]
    return shlex.join([*words, *(["--root", str(root)] if root.resolve() != Path("runs").resolve() else [])])


def _changes(base: Mapping[str, Any], kept: Mapping[str, Any], above: str = "") -> Iterator[str]:
    """What `--set` says of the fields that differ; a group as a whole where some of its fields must go."""
    for key, value in kept.items():
        there = base.get(key, ABSENT)
        if isinstance(value, dict) and isinstance(there, dict) and there.keys() <= value.keys():
            yield from _changes(there, value, f"{above}{key}.")
        elif there != value:
            yield f"{above}{key}={listed([value])}"


def _made_otherwise(run: RunDirectory, walk: Walk) -> Iterator[str]:
    """Of the run and what it reads, those whose bytes the command does not make, since their numerics were others."""
    known = {one.fingerprint: read(one.stage_file) for one in Lineages().of(run).runs()}
    for handle in walk.handles:
        about, now = known.get(handle.run.fingerprint, {}), handle.config.execution.model_dump(mode="json")
        numerics = about.get("numerics", {}).items()
        differ = [
            f"execution.{key}={listed([was])}" for key, was in numerics if key != WHERE and now.get(key, was) != was
        ]
        if differ or about.get("numerics_changes"):
            how = " ".join(differ) if differ else "numerics that changed between its attempts"
            yield f"other bytes: {handle.label} {handle.run.path.name} was made with {how}"


def _ratchet() -> str:
    """The command as a person types it here: with its path, where the shell does not find it alone."""
    beside = Path(sys.executable).with_name("ratchet")
    if shutil.which("ratchet") or not beside.is_file():
        return "ratchet"
    return str(beside.relative_to(Path.cwd()) if beside.is_relative_to(Path.cwd()) else beside)
