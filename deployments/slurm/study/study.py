"""A study on SLURM: its page walked once, and where it is kept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from deployments.dag.page import Page, own_files
from deployments.dag.walk import Handle, Walk
from deployments.slurm.cluster.ownership import require_own
from deployments.slurm.cluster.site import Site, read_site
from deployments.slurm.study import file as study_file
from deployments.slurm.study.snapshot import require_as_staged, stage_source, staged
from storage.errors import BadInput
from storage.permissions import strictest

SOURCES = ".sources"
"""Folder below the root that holds the copies of the source that jobs run."""


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
        self.file = study_file.path(root, page, study, self.handles)
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
        found = cls(*study_file.read(file, site), site, root)
        if found.file != file:
            raise BadInput(study_file.CHANGED)
        found.require_own()
        return found

    def require_own(self) -> None:
        """BadInput when others may write where the study is kept, or what runs for it as this user."""
        own = own_files(self.page, self.handles).values()
        require_own([self.file, *own, *({self.page.file.parent} if own else ())], self.site.trust_group)

    def keep(self) -> Path:
        """Writes its file, and the copy of the present source that its jobs run; it is active from now on."""
        self.walk.close_to_others()
        return study_file.keep(self.file, self.page, self.study, self._stage_source())

    def kept_source(self) -> Path:
        """The folder of the source that its jobs run: as it was when a person last started the study."""
        name = study_file.source_of(self.file)
        kept = self.root / SOURCES / name
        return self._unchanged(kept) if name and kept.is_dir() else self._stage_source()

    @property
    def present_source(self) -> Path:
        """Where a copy of the present source would be; nothing is written."""
        return staged(self.root / SOURCES, own_files(self.page, self.handles))

    def table_without_stopped(self) -> Handle | None:
        """The stage over those cells of a sweep that can finish; None where all can, or none."""
        return self.page.sweep_without_stopped(self.study, self.walk)

    def _stage_source(self) -> Path:
        return self._unchanged(stage_source(self.root / SOURCES, own_files(self.page, self.handles)))

    def _unchanged(self, copy: Path) -> Path:
        """The copy. BadInput when it is not what was staged, or when others may write it."""
        if copy not in self._found_unchanged:  # a study that is followed asks again and again
            require_own([copy, *copy.rglob("*")], self.site.trust_group)
            require_as_staged(copy)
            self._found_unchanged.add(copy)
        return copy
