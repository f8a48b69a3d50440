"""A study on SLURM: its page walked once, and its file beside the runs.

Jobs and `advance` read the file, whoever started the study and wherever from:

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

from deployments.dag.page import Page, imported_files, load_page, own_files
from deployments.dag.sources import KEPT
from deployments.dag.walk import Handle, Walk
from deployments.slurm.cluster.ownership import require_own
from deployments.slurm.cluster.site import Site, read_site
from deployments.slurm.study import snapshot
from deployments.slurm.study.snapshot import require_as_staged, stage_source, staged
from storage import durable, reading
from storage.errors import BadInput
from storage.permissions import strictest
from tasks.stage.validation import validated

LOG = logging.getLogger("ratchet.slurm")
FOLDER = "studies"
STOPPED = ".stopped"
CHANGED = (
    "nothing more is started: a stage, a package or a file that the study reads has changed since it was started. With "
    "that put back as it was it goes on; started again as it is now, what reads it is another run"
)
GONE = (
    "nothing more is started: {} is gone, which a start of the study writes: the root, or this study in it, was removed"
)


def root_of(site: Site, root: str = "") -> Path:
    """The folder of the run directories: absolute, since jobs begin elsewhere."""
    return Path(root or site.root).expanduser().absolute()


class SlurmStudy:
    """A study of a page at a site. Making one walks the page, and starts and writes nothing."""

    def __init__(self, page: Page, study: Any, site: Site, root: Path) -> None:
        """BadInput says what is wrong with the study or its page."""
        self.page, self.study, self.site, self.root = page, study, site, root
        self.walk = Walk(root, study.name, study.execution)
        page.walk(study, self.walk)
        self.handles: list[Handle] = list(self.walk.handles)
        self.file = path_of(root, page, study, self.handles)
        self._found_unchanged: set[Path] = set()

    @classmethod
    def at_site(cls, page: Page, study: Any, root: str = "") -> SlurmStudy:
        """The study with what it leaves to the site: the root, and the folder for text and downloads."""
        site, execution = read_site(), study.execution
        at_site = {
            "cache_folder": execution.cache_folder or site.cache,
            "permissions": strictest(execution.permissions, site.permissions),
        }
        study = study.model_copy(update={"execution": execution.model_copy(update=at_site)})
        return cls(page, study, site, root_of(site, root))

    @classmethod
    def kept(cls, file: Path, site: Site, root: Path) -> SlurmStudy:
        """The study of a file. BadInput when it would not be the one that a person started."""
        study = cls(*read(file, site), site, root)
        if study.file != file:
            raise BadInput(CHANGED)
        study.require_own()
        return study

    def require_own(self) -> None:
        """BadInput when others may write where the study is kept, or what runs for it as this user."""
        own = own_files(self.page, self.handles).values()
        require_own([self.file, *own, *({self.page.file.parent} if own else ())], self.site.trust_group)

    def keep(self) -> Path:
        """Writes its file, and the copy of the present source that its jobs run; it is active from now on."""
        self.walk.close_to_others()
        self.page.keep_sources(self.walk)
        return keep(self.file, self.page, self.study, self._stage_source())

    def kept_source(self) -> Path:
        """The folder of the source that its jobs run: as it was when a person last started the study."""
        name = source_of(self.file)
        kept = self.root / KEPT / name
        return self._unchanged(kept) if name and kept.is_dir() else self._stage_source()

    @property
    def present_source(self) -> Path:
        """Place where a copy of the present source would be; nothing is written."""
        return staged(self.root / KEPT, own_files(self.page, self.handles))

    def _stage_source(self) -> Path:
        return self._unchanged(stage_source(self.root / KEPT, own_files(self.page, self.handles)))

    def _unchanged(self, copy: Path) -> Path:
        """The copy. BadInput when it is not what was staged, or when others may write it."""
        if copy not in self._found_unchanged:  # a study that is followed asks again and again
            require_own([copy, *copy.rglob("*")], self.site.trust_group)
            require_as_staged(copy)
            self._found_unchanged.add(copy)
        return copy


def path_of(root: Path, page: Page, study: Any, handles: Sequence[Handle]) -> Path:
    """File in which a walked study is kept."""
    which = "sweep" if page.over else f"s{study.seed}"
    name = f"{page.name}-{which}-{handles[-1].run.fingerprint[:12]}.yaml"
    return root / study.name / FOLDER / name


def tag(file: Path) -> str:
    """Tag that tells the study's own flow runs from others."""
    return file.stem


def keep(file: Path, page: Page, study: Any, source: Path) -> Path:
    """Writes the study, and which copy of the source its jobs run; it is active from now on."""
    file.parent.mkdir(parents=True, exist_ok=True)
    values: dict[str, Any] = {"page": page.place, "study": study.model_dump(mode="json"), "source": source.name}
    if page.over:
        values["over"] = {key: [*swept] for key, swept in page.over.items()}  # one list twice is an alias
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
    files = [file for file in root.glob(f"{glob.escape(study) or '*'}/{FOLDER}/*.yaml") if not stopped(file).exists()]
    return sorted(files, key=lambda file: file.lstat().st_mtime)  # a link may lead nowhere, so lstat


def stopped(file: Path) -> Path:
    """File that says that the study is finished, or was stopped by a person: nothing is started by itself then."""
    return file.with_suffix(STOPPED)
