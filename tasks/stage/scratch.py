"""The folder that code of others writes to, and its checkpoints: one is gone on from only if every byte is as it was.

Whoever writes a checkpoint may be killed within it, and nothing in the folder says so. So one is known by a list of
the digests of its files, which is made when it is whole, and kept as a checkpoint of the run.
"""

from __future__ import annotations

import fnmatch
import hashlib
import os
import re
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import xxhash

from storage import reading
from storage.checkpoints import Checkpoint, Checkpoints
from storage.errors import require_equal

if TYPE_CHECKING:
    from tasks.stage.run import StageRun

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

    def newest(self) -> Path | None:
        """The newest that verifies; what is on no list and may be torn is removed.

        CheckFailed when all are damaged.
        """
        saved = self._checkpoints.newest_verified(self._require_whole)
        self.state = saved.state if saved else {}
        self.step = saved.step if saved else 0
        newest, done = (self._folder / saved.state["scratch"], saved.step) if saved else (None, -1)
        for path in self._present() - {newest}:
            if (step := self._step(path)) is None or step >= done:
                _remove(path)
        kept = self._checkpoints.steps()
        for torn in [copy for step, copies in self._copies().items() if step not in kept for copy in copies]:
            _remove(torn)  # else it would count among the newest
        if newest is not None:
            self._copied, copy = done, newest
            newest = self._folder.joinpath(*copy.relative_to(self._folder).parts[2:])
            _copy(copy, newest, shutil.copyfile)
        self._listed = {path: _stamps(path) for path in self._present()}
        return newest

    def look(self, ended: bool = False) -> None:
        """Lists those in which nothing has changed for a while; all, where their writer `ended` by itself."""
        now, present = time.monotonic(), self._present()
        latest = max((self._step(path) or 0 for path in present), default=0)
        for path in sorted(present, key=lambda path: (self._step(path) or 0, _written_at(path), path)):
            stamps = _stamps(path)
            if self._listed.get(path) == stamps:
                continue
            if self._changed.get(path, (None, 0.0))[0] != stamps:
                self._changed[path] = (stamps, now)
            whole = ended or 0 < (self._step(path) or 0) < latest or now - self._changed[path][1] >= QUIET_SECONDS
            if whole:
                self.add(path)

    def add(self, path: Path, **state: Any) -> None:
        """Makes a checkpoint that is whole durable, and the list of its digests; of one that changes meanwhile none."""
        stamps, step = _stamps(path), self._step(path)
        linked = step is not None and path not in self._listed and bool(self._copies().keys() - {step})
        place, number = path.relative_to(self._folder), step or 0
        later = [copy for of, copies in self._copies().items() if of >= number for copy in copies]
        if step is None or not all((copy / place).exists() for copy in later):  # the number says no order
            self._copied = step = max(self._copied + 1, self._done(), *(kept + 1 for kept in self._copies()))
        before = self._copies().get(step, [])
        copy = self._folder / COPIES / f"{step}.{time.time_ns()}"
        listed = copy / place
        try:
            _copy(path, listed, _link if linked else shutil.copyfile)
            digests = {name: _digest(file) for name, file in _files(listed).items()}
        except OSError:
            if _stamps(path) == stamps:
                raise
        if _stamps(path) != stamps:
            _remove(copy)
            return
        name = listed.relative_to(self._folder).as_posix()
        self._checkpoints.save(step, {}, state | {"scratch": name, "files": digests})
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
        path = self._folder / checkpoint.state["scratch"]
        present = {name: _digest(file) for name, file in _files(path).items()}
        if present != checkpoint.state["files"]:
            raise ValueError(f"{path} is not what it was when it was whole")

    def _present(self) -> set[Path]:
        found = {path for path in self._folder.glob(self._pattern) if not path.is_symlink()}
        return {path for path in found if not path.relative_to(self._folder).parts[0].startswith(COPIES)}

    def _copies(self) -> dict[int, list[Path]]:
        """The folders of copies by step."""
        copies: dict[int, list[Path]] = {}
        for folder in (self._folder / COPIES).glob("*"):
            copies.setdefault(int(folder.name.partition(".")[0]), []).append(folder)
        return copies

    def _step(self, path: Path) -> int | None:
        """None where there is none; the parts of `0.14` are no whole numbers, nor is what stands beside the `*`."""
        head, star, rest = self._pattern.partition("*")
        pattern = f"{fnmatch.translate(head)[:-2]}(.*){fnmatch.translate(rest.rpartition('*')[2])}"
        found = re.match(pattern, path.relative_to(self._folder).as_posix()) if star else None
        numbers = re.findall(r"\d+(?:\.\d+)*", found[1]) if found else []
        return next((int(number) for number in reversed(numbers) if number.isdigit()), None)


class TrainerCheckpoints(ScratchCheckpoints):
    """Those of a Trainer in this process, with which `metrics.jsonl` goes back to where they were made."""

    def __init__(self, run: StageRun, setting: str, folder: str, pattern: str) -> None:
        """`begin` is the one to go on from, or None. CheckFailed unless the `folder`, a `setting`, is `run.scratch`."""
        check = f"the {setting} of the Trainer is run.scratch"
        require_equal(check, str(Path(folder).absolute()), str(run.scratch.absolute()))
        run.begin_training()
        super().__init__(run.scratch, pattern, run.checkpoints)
        self._rows, self.begin = run.metrics, self.newest()
        self._rows.cut_back(self.state.get("metrics"))

    def add(self, path: Path, **state: Any) -> None:
        self._rows.sync()
        super().add(path, metrics=self._rows.position(), **state)


def _copy(path: Path, to: Path, each: Callable[[str | Path, str | Path], object]) -> None:
    """Copies a checkpoint, `each` of its files so."""
    to.parent.mkdir(parents=True, exist_ok=True)
    if to.exists():
        _remove(to)
    shutil.copytree(path, to, copy_function=each) if path.is_dir() else each(path, to)


def _written_at(path: Path) -> int:
    return max((changed for _, _, changed in _stamps(path)), default=0)


def _link(path: str | Path, to: str | Path) -> None:
    """A second name for a file; a copy, where the disk knows none."""
    try:
        os.link(path, to)
    except OSError:
        shutil.copyfile(path, to)


def _files(path: Path) -> dict[str, Path]:
    """The files of a checkpoint by name; of one that is a file, that."""
    if not path.is_dir():
        return {path.name: path}
    return {file.relative_to(path).as_posix(): file for file in sorted(path.rglob("*")) if file.is_file()}


def _stamps(path: Path) -> list[tuple[str, int, int]]:
    try:
        stamps = {name: file.stat() for name, file in _files(path).items()}
    except FileNotFoundError:
        return []  # it is being written, or removed
    return [(name, stamp.st_size, stamp.st_mtime_ns) for name, stamp in stamps.items()]


def _digest(file: Path) -> dict[str, Any]:
    """Size and digest of a file, which is durable afterwards."""
    with reading.opened(file) as opened:
        os.fsync(opened.fileno())
        digest = hashlib.file_digest(opened, xxhash.xxh3_128).hexdigest()
    return {"size": file.stat().st_size, "xxh3_128": digest}


def _remove(path: Path) -> None:
    shutil.rmtree(path) if path.is_dir() else path.unlink()
