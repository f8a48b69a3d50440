"""The folder that code of others writes to, and its checkpoints: one is gone on from only if every byte is as it was.

Whoever writes a checkpoint may be killed within it, and nothing in the folder says so. So one is known by a list of
the digests of its files, which is made when it is whole, and kept as a checkpoint of the run.
"""

from __future__ import annotations

import fnmatch
import hashlib
import logging
import os
import re
import shutil
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import xxhash

from storage import durable, reading
from storage.checkpoints import Checkpoint, Checkpoints
from storage.errors import require_equal
from storage.inside import Outside, inside, parts
from tasks.stage.progress import FOR_THE_TERMINAL

if TYPE_CHECKING:
    from tasks.stage.run import StageRun

LOG = logging.getLogger("ratchet.scratch")
QUIET_SECONDS = 3.0
"""A checkpoint in which nothing changes for so long counts as whole; so does one of which there is a later one."""
LISTED = 2
"""The newest that are listed: two, since the newest may be damaged."""
COPIES = ".copies"


class ScratchCheckpoints:
    """The files or folders in `folder` that match `pattern`, such as `checkpoint-*` or `last.pt`.

    The last whole number in what the `*` stands for is its step. Whoever wrote one may remove or write over it,
    so it is copied; its files only get a second name where it has a step, nobody has written over it yet, and another
    is kept.
    """

    def __init__(
        self, folder: Path, pattern: str, checkpoints: Checkpoints, done: Callable[[], int] = lambda: 0
    ) -> None:
        """`done` says how many steps are done, where names do not."""
        self._folder, self._pattern, self._checkpoints, self._done = folder, pattern, checkpoints, done
        self._changed: dict[Path, tuple[object, float]] = {}
        self._listed: dict[Path, object] = {}
        self.step, self._copied, self.state = 0, 0, dict[str, Any]()
        """What `add` was told of the checkpoint that is gone on from."""
        self.added = False
        self.kept_with: dict[str, Any] = {}
        """What else stands in the list of each."""

    def newest(self) -> Path | None:
        """The newest that verifies; what is on no list and may be torn is removed.

        CheckFailed when all are damaged.
        """
        saved = self._checkpoints.newest_verified(self._require_whole)
        self.state = saved.state if saved else {}
        self.step = saved.step if saved else 0
        done = saved.step if saved else -1
        for path in self._present():
            if (step := self._step(path)) is None or step >= done:
                self._resolved(path.parent)
                if saved is None or (step or 0) > done:  # else it is put back as it was
                    LOG.warning("%s may be torn: it is passed over, and removed", path, extra=FOR_THE_TERMINAL)
                _remove(path)
        kept = self._checkpoints.steps()
        for torn in [copy for step, copies in self._copies().items() if step not in kept for copy in copies]:
            _remove(torn)  # else it would count among the newest
        newest = None
        if saved is not None:
            self._copied, copy = done, self._copy_of(self.state)
            newest = self._place(copy.relative_to(self._folder).as_posix().split("/", 2)[2])
            _copy(copy, newest, shutil.copyfile)
            if "link" in self.state:
                target, newest = newest, self._place(self.state["link"])
                _remove(newest)
                newest.symlink_to(os.path.relpath(target, newest.parent))
            name = newest.relative_to(self._folder)
            LOG.info("goes on from %s, kept when step %d was told", name, done, extra=FOR_THE_TERMINAL)
        self._listed = {path: _stamps(path) for path in self._present()}
        return newest

    def look(self, ended: bool = False) -> None:
        """Lists those in which nothing has changed for a while; all, where their writer `ended` by itself."""
        now, present = time.monotonic(), self._present()
        latest = max((self._step(path) or 0 for path in present), default=0)
        for path in sorted(present, key=lambda path: (self._step(path) or 0, _written_at(path), path)):
            stamps = _stamps(path)
            if not stamps or self._listed.get(path) == stamps:
                continue
            if self._changed.get(path, (None, 0.0))[0] != stamps:
                self._changed[path] = (stamps, now)
                durable.reached("changed", path)
            whole = ended or 0 < (self._step(path) or 0) < latest or now - self._changed[path][1] >= QUIET_SECONDS
            if whole:
                try:
                    self.add(path)
                except Outside as error:
                    if not self._checkpoints.steps():
                        raise  # at the first one: none would ever be kept
                    LOG.warning("no checkpoint is kept of it: %s", error, extra=FOR_THE_TERMINAL)
                    self._listed[path] = stamps

    def add(self, path: Path, **state: Any) -> None:
        """Makes a checkpoint that is whole durable, and the list of its digests; of one that changes meanwhile none.

        One that is a link is what that leads to, and the link. Outside for a link that leads elsewhere.
        """
        stamps, step, real = _stamps(path), self._step(path), self._resolved(path)
        if not stamps:
            return  # it is gone
        for file in filter(Path.is_symlink, _files(real).values()):
            if not (target := _real(file)).is_relative_to(real):
                raise Outside(f"{file} is a link to {target}, out of its checkpoint: copy there what it leads to")
        linked = step is not None and path not in self._listed and bool(self._copies().keys() - {step})
        place, number = real.relative_to(_real(self._folder)), step or 0
        later = [copy for least, copies in self._copies().items() if least >= number for copy in copies]
        if step is None or not all(os.path.lexists(copy / place) for copy in later):  # the number says no order
            self._copied = step = max(self._copied + 1, self._done(), *(kept + 1 for kept in self._copies()))
        before = self._copies().get(step, [])
        copy = self._folder / COPIES / f"{step}.{time.time_ns()}"
        listed = copy / place
        try:
            _copy(real, listed, _link if linked else shutil.copyfile)
            digests = {name: _digest(file) for name, file in _files(listed).items()}
        except OSError:
            if _stamps(path) == stamps:
                raise
        if _stamps(path) != stamps:
            _remove(copy)
            return
        state |= self.kept_with | {"scratch": listed.relative_to(self._folder).as_posix(), "files": digests}
        if path.is_symlink():
            state["link"] = path.relative_to(self._folder).as_posix()
        self._checkpoints.save(step, {}, state)
        self._checkpoints.prune(LISTED)
        self._listed[path], self.added = stamps, True
        copies = self._copies()
        for old in [*before, *(copy for step in sorted(copies)[:-LISTED] for copy in copies[step])]:
            _remove(old)

    @property
    def unlisted(self) -> str:
        """Why a next attempt would begin anew; empty where it would not."""
        if self._listed:
            return ""
        written = f"{self._pattern} changed again within {QUIET_SECONDS:g} s" if self._present() else "there is none"
        return f"no checkpoint {self._pattern} is kept: {written}"

    def _require_whole(self, checkpoint: Checkpoint) -> None:
        path = self._copy_of(checkpoint.state)
        present = {name: _digest(file) for name, file in _files(path).items()}
        if present != checkpoint.state.get("files"):
            raise ValueError(f"{path} is not what it was when it was whole")

    def _copy_of(self, state: Mapping[str, Any]) -> Path:
        """The copy of a checkpoint, by the list of it, which anybody may have written. Outside, FileNotFoundError."""
        name = state.get("scratch")
        if len(place := parts(name)) < 3 or place[0] != COPIES:
            raise Outside(f"{name!r} is no copy of a checkpoint")
        return inside(self._folder, name, folder=self._folder.joinpath(*place).is_dir())

    def _place(self, name: object) -> Path:
        """The place of a checkpoint in the folder; Outside where a link on the way leads out of it."""
        place = self._folder.joinpath(*parts(name))
        self._resolved(place.parent)
        return place

    def _resolved(self, path: Path) -> Path:
        """The file or folder that it leads to; Outside where that is not in the folder."""
        real, folder = _real(path), _real(self._folder)
        if not real.is_relative_to(folder) or real.is_relative_to(folder / COPIES):
            raise Outside(f"{path} leads to {real}, out of {folder}: name in `checkpoints` what lies in there")
        return real

    def _present(self) -> set[Path]:
        present = set(self._folder.glob(self._pattern))
        return {path for path in present if not path.relative_to(self._folder).parts[0].startswith(COPIES)}

    def _copies(self) -> dict[int, list[Path]]:
        """The folders of copies by step."""
        copies: dict[int, list[Path]] = {}
        if (own := self._folder / COPIES).is_symlink():
            raise Outside(f"{own} is a link, and what is written there is removed again: remove it")
        for folder in own.glob("*"):
            if re.fullmatch(r"\d+\.\d+", folder.name):
                copies.setdefault(int(folder.name.partition(".")[0]), []).append(folder)
        return copies

    def _step(self, path: Path) -> int | None:
        """None where there is none; the parts of `0.14` are no whole numbers, nor is what stands beside the `*`."""
        head, star, rest = self._pattern.partition("*")
        pattern = f"{fnmatch.translate(head)[:-2]}(.*){fnmatch.translate(rest.rpartition('*')[2])}"
        match = re.match(pattern, path.relative_to(self._folder).as_posix()) if star else None
        numbers = re.findall(r"\d+(?:\.\d+)*", match[1]) if match else []
        return next((int(number) for number in reversed(numbers) if number.isdigit()), None)


class TrainerCheckpoints(ScratchCheckpoints):
    """Checkpoints of a Trainer in this process, with which `metrics.jsonl` goes back to where they were made."""

    def __init__(self, run: StageRun, setting: str, folder: str, pattern: str) -> None:
        """`begin` is the one to go on from, or None. CheckFailed unless the `folder`, a `setting`, is `run.scratch`."""
        check = f"the {setting} of the Trainer is run.scratch"
        require_equal(check, str(Path(folder).absolute()), str(run.scratch.absolute()))
        run.begin_training()
        super().__init__(run.scratch, pattern, run.checkpoints)
        self._rows, self.begin = run.metrics, self.newest()
        run.cut_back_metrics(self.state.get("metrics"))

    def add(self, path: Path, **state: Any) -> None:
        self._rows.sync()
        super().add(path, metrics=self._rows.position(), **state)


def _copy(path: Path, to: Path, each: Callable[[str | Path, str | Path], object]) -> None:
    """Copies a checkpoint, `each` of its files so, and its links as links."""
    to.parent.mkdir(parents=True, exist_ok=True)
    _remove(to)
    shutil.copytree(path, to, symlinks=True, copy_function=each) if path.is_dir() else each(path, to)


def _real(path: Path, strict: bool = False) -> Path:
    """What links lead to; `Path.resolve` ends at those that go round in a circle."""
    return Path(os.path.realpath(path, strict=strict))


def _written_at(path: Path) -> int:
    return max((changed for _, _, changed in _stamps(path)), default=0)


def _link(path: str | Path, to: str | Path) -> None:
    """A second name for a file; a copy, where the disk knows none. A disk may lose the answer, and know the name."""
    with suppress(OSError):
        os.link(path, to)
    if not (os.path.exists(to) and os.path.samefile(path, to)):
        shutil.copyfile(path, to)


def _files(path: Path) -> dict[str, Path]:
    """The files and links of a checkpoint by name; of one that is a file, that."""
    if not path.is_dir():
        return {path.name: path}
    names = [Path(folder, name) for folder, folders, files in os.walk(path) for name in [*folders, *files]]
    return {name.relative_to(path).as_posix(): name for name in sorted(names) if name.is_symlink() or name.is_file()}


def _stamps(path: Path) -> list[tuple[str, int, int]]:
    try:
        stamps = {name: file.lstat() for name, file in _files(_real(path, strict=True)).items()}
    except OSError:
        return []  # it is being written, or removed
    return [(name, stamp.st_size, stamp.st_mtime_ns) for name, stamp in stamps.items()]


def _digest(file: Path) -> dict[str, Any]:
    """Size and digest of a file, which is durable afterwards; of a link what it says."""
    if file.is_symlink():
        return {"link": os.readlink(file)}
    with reading.opened(file) as opened:
        os.fsync(opened.fileno())
        digest = hashlib.file_digest(opened, xxhash.xxh3_128).hexdigest()
    return {"size": file.stat().st_size, "xxh3_128": digest}


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
