"""A study as a file beside its runs: what jobs and `advance` read, whoever started it and wherever from.

`<root>/<study>/studies/<page>-s<seed>-<fingerprint>.yaml` (of a sweep `<page>-sweep-<fingerprint>.yaml`) holds the
place of the page, the complete configuration, what a sweep varies and the copy of the source that jobs run, so a later
change of a profile or of the source changes no study that was started. The fingerprint is that of the page's last
stage: whoever starts the same study with other execution fields (another time limit) overwrites the file; and when a
stage, a package or a text has changed since, the file's name no longer fits, and nothing is started until a person says
so.
"""

from __future__ import annotations

import glob
import logging
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from deployments.dag.page import Page, imported_files, load_page
from deployments.dag.walk import Handle
from deployments.slurm.cluster.ownership import require_own
from deployments.slurm.cluster.site import Site
from deployments.slurm.study import snapshot
from storage import durable, reading
from storage.errors import BadInput
from tasks.stage.validation import validated

LOG = logging.getLogger("ratchet.slurm")
FOLDER = "studies"
STOPPED = ".stopped"
CHANGED = (
    "nothing more is started: a stage, a package or a text that the study reads has changed since it was started. "
    "Start it again to go on with what is there now"
)


def path(root: Path, page: Page, study: Any, handles: Sequence[Handle]) -> Path:
    """Where a walked study is kept."""
    which = "sweep" if page.over else f"s{study.seed}"
    name = f"{page.name}-{which}-{handles[-1].run.fingerprint[:12]}.yaml"
    return root / study.name / FOLDER / name


def tag(file: Path) -> str:
    """What tells the study's own flow runs from others."""
    return file.stem


def keep(file: Path, page: Page, study: Any, source: Path) -> Path:
    """Writes the study, and which copy of the source its jobs run; it is active from now on."""
    file.parent.mkdir(parents=True, exist_ok=True)
    values: dict[str, Any] = {"page": page.place, "study": study.model_dump(mode="json"), "source": source.name}
    if page.over:
        values["over"] = page.over
    durable.write_bytes(file, yaml.safe_dump(values, sort_keys=False).encode())
    stopped(file).unlink(missing_ok=True)
    return file


def read(file: Path, site: Site | None) -> tuple[Page, Any]:
    """The page, and the typed study. BadInput when the file is not one that `keep` wrote, or others may have written
    it, its page or what that imports; without a site, in a job, the page is that of the job's own copy."""
    group = site.trust_group if site else ""
    if site:
        require_own([file], group)
    try:
        values = reading.read_yaml(file)
        place, configuration, over = str(values["page"]), values["study"], values.get("over", {})
    except FileNotFoundError:
        raise BadInput(f"there is no study file {file}") from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadInput(f"{file} is not a study file ({error}): start the study again, which writes it") from None
    if site and place.endswith(".py"):
        require_own(imported_files(place), group)
    try:
        page = replace(load_page(place), over=over)
    except BadInput as error:
        raise BadInput(
            f"{file} names {place!r}, which is not the page of a study: {error}. Start the study again (`ratchet run`, "
            "or `ratchet sweep`), which writes it as it is now"
        ) from None
    return page, validated(page.model, configuration, str(file))


def source_of(file: Path) -> str:
    """Name of the copy of the source that its jobs run; empty when the file, perhaps an older one, names none."""
    try:
        name = str(reading.read_yaml(file).get("source", ""))
    except (OSError, ValueError, AttributeError):
        return ""
    return name if snapshot.NAME.fullmatch(name) else ""


def readable(root: Path, site: Site) -> Iterator[tuple[Path, Page, Any]]:
    """Every study below `root`, whether it goes on or not: its file, its page, and itself. Warns of the unreadable."""
    for file in sorted(root.glob(f"*/{FOLDER}/*.yaml")):
        try:
            yield file, *read(file, site)
        except BadInput as error:
            LOG.warning("a study is passed over: %s", error)


def active(root: Path, study: str = "") -> list[Path]:
    """The studies below `root`, of this name if one is given, that were started and neither stopped nor finished since,
    oldest first."""
    found = [file for file in root.glob(f"{glob.escape(study) or '*'}/{FOLDER}/*.yaml") if not stopped(file).exists()]
    return sorted(found, key=lambda file: file.lstat().st_mtime)  # of a link that leads nowhere, too


def stopped(file: Path) -> Path:
    """Where it stands that the study is finished, or was stopped by a person: nothing is started by itself then."""
    return file.with_suffix(STOPPED)
