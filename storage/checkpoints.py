"""Checkpoints: everything needed to continue, trusted only after every byte was verified.

A checkpoint is a folder `checkpoints/<step>/` that appears by one rename and holds groups of tensors (one
safetensors file each), a JSON state, and `manifest.json` with the size and xxh3_128 of every file. The hash need only
notice damage; sha256 would take a processor most of a second for each gigabyte while the training goes on. The
manifest also names what the checkpoint belongs to (fingerprint and input digests) and the lock under which it was
written.
"""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import xxhash

from storage import durable, reading
from storage.errors import CheckFailed
from storage.inside import inside
from storage.lineage import differences
from storage.locks import Lock
from storage.tensors import read_tensors, write_tensors

if TYPE_CHECKING:
    import torch

LOG = logging.getLogger("ratchet.checkpoints")
MANIFEST, STATE = "manifest.json", "state.json"


class OtherInputs(ValueError):
    """The checkpoint is intact, but belongs to inputs that have changed since."""


@dataclass(frozen=True)
class Checkpoint:
    """A verified checkpoint: the JSON state is in memory, tensors are read on demand."""

    path: Path
    step: int
    state: dict[str, Any]
    needs: list[int]

    def tensors(self, group: str) -> dict[str, torch.Tensor]:
        """The tensors of one group, on the CPU, by name."""
        return read_tensors(self.path / f"{group}.safetensors")


class Checkpoints:
    """The checkpoints of one attempt at one run.

    `identity` says which inputs they belong to: a checkpoint of other inputs is passed over, with a line in the log.
    `configuration` is written beside it, so that the line can name the difference.
    """

    def __init__(
        self, directory: Path, identity: dict[str, object], lock: Lock, configuration: dict[str, object] | None = None
    ) -> None:
        self._directory, self._identity, self._lock = directory, identity, lock
        self._configuration = configuration or {}
        self._passed_over: set[int] = set()
        self._unreadable: set[int] = set()
        self._read: int | None = None

    def save(
        self,
        step: int,
        groups: dict[str, dict[str, torch.Tensor]],
        state: dict[str, Any],
        needs: Collection[int] = (),
        progress: int | None = None,
    ) -> Path:
        """Durably writes a checkpoint of `step`, never over one of a later attempt; returns its folder.

        `groups` are named dictionaries of contiguous tensors; `state` is JSON. `needs` are the steps of other
        checkpoints that this one depends on, such as the best so far: they are kept, and verified, as long as it is.
        `progress` is how many steps were made so far, where some were undone and the step says less.
        """
        self._directory.mkdir(parents=True, exist_ok=True)
        final = self._directory / str(step)
        self._lock.check()
        with durable.new_directory(final) as folder:
            files = {}
            for group, tensors in groups.items():
                name = f"{group}.safetensors"
                files[name] = write_tensors(folder / name, tensors)
                durable.reached("tensors written", folder / name)
            data = durable.canonical_json(state)
            (folder / STATE).write_bytes(data)
            files[STATE] = {"size": len(data), "xxh3_128": xxhash.xxh3_128(data).hexdigest()}
            manifest = {
                "step": step,
                "lock": self._lock.number,
                "identity": self._identity,
                "configuration": self._configuration,
                "needs": sorted(set(needs) - {step}),
                "files": files,
            } | ({} if progress is None else {"progress": progress})
            manifest["digest"] = durable.sha256_json(manifest)
            (folder / MANIFEST).write_bytes(durable.canonical_json(manifest))
            self._lock.check()
        self._passed_over.discard(step)
        self._unreadable.discard(step)
        return final

    def newest_verified(self, accept: Callable[[Checkpoint], None] = lambda _: None) -> Checkpoint | None:
        """The newest checkpoint whose every byte verifies; None when there is none for these inputs.

        `accept` may raise ValueError for a checkpoint that cannot be continued from. Each one passed over is logged
        with the reason. CheckFailed when all are damaged: nobody asked to begin days of work anew.
        """
        damaged = []
        for step in sorted(self.steps(), reverse=True):
            try:
                checkpoint = self.verified(step)
                for needed in checkpoint.needs:
                    self.verified(needed)
                accept(checkpoint)
                self._read = step
                return checkpoint
            except OtherInputs as error:
                LOG.info("checkpoint %s is passed over: %s", step, error)
                self._passed_over.add(step)
            except (OSError, ValueError) as error:
                if durable.disk_full(error, self._directory):
                    raise  # a full disk is no damage
                LOG.warning("checkpoint %s is passed over: %s", step, error)
                damaged.append(str(error))
                readable = isinstance(error, ValueError | FileNotFoundError)
                (self._passed_over if readable else self._unreadable).add(step)
        if damaged:
            advice = f"Restore what is damaged, or remove {self._directory} to begin this stage anew"
            raise CheckFailed("a checkpoint can be continued from", "; ".join(damaged), "one that verifies", advice)
        return None

    def verified(self, step: int) -> Checkpoint:
        """Reads and verifies the checkpoint of `step`; raises ValueError naming what is wrong with it."""
        folder = inside(self._directory, str(step), folder=True)
        manifest = verify(folder)
        if manifest.get("identity") != self._identity:
            saved = {"configuration": manifest.get("configuration", {}), **manifest.get("identity", {})}
            changed = "; ".join(differences(saved, {"configuration": self._configuration, **self._identity}))
            raise OtherInputs(f"{folder} was made for another configuration or other inputs: {changed}")
        return Checkpoint(folder, step, durable.read_json(folder / STATE), manifest["needs"])

    def progress(self) -> int:
        """`progress` of the checkpoints for these inputs."""
        return progress(self._directory, self._identity)

    def remove_after(self, step: int) -> None:
        """Removes the checkpoints of later steps, the highest first: the training went back and left their way."""
        for later in sorted((other for other in self.steps() if other > step), reverse=True):
            self._lock.check()
            durable.remove_directory(self._directory / str(later))

    def prune(self, keep: int) -> None:
        """Removes all but the newest `keep`, those that they need, and the last result of `newest_verified`.

        Checkpoints that were passed over do not count: they may be newer than every usable one. One that the disk
        failed to read is left alone: it may be intact.
        """
        steps = [step for step in sorted(self.steps(), reverse=True) if step not in self._unreadable]
        good = [step for step in steps if step not in self._passed_over]
        keeping = {step for step in steps if step in good[: max(keep, 1)] or step == self._read}
        for step in sorted(keeping):
            try:
                keeping |= set(durable.read_json(self._directory / str(step) / MANIFEST)["needs"])
            except (OSError, ValueError, KeyError, TypeError):
                return  # its needs are unknown: remove nothing
        for step in steps:
            if good and step not in keeping:
                self._lock.check()
                durable.reached("pruned", self._directory / str(step))
                durable.remove_directory(self._directory / str(step))

    def steps(self) -> list[int]:
        return _steps(self._directory)


def furthest(directory: Path) -> int:
    """The highest step with a checkpoint that is complete by names and sizes; 0 if none. It reads no tensor."""
    return max((step for step in _steps(directory) if _progress(directory / str(step), None)), default=0)


def progress(directory: Path, identity: dict[str, object] | None = None) -> int:
    """The most steps that were made up to a checkpoint (of `identity`, if given) which is complete by names and sizes.

    That is its step, unless the training went back on the way. It reads no tensor, so that every attempt can ask how
    far the one before it came; only `verified` is trusted.
    """
    return max((_progress(directory / str(step), identity) for step in _steps(directory)), default=0)


def _progress(folder: Path, identity: dict[str, object] | None) -> int:
    """The steps made up to a checkpoint; 0 where it is not complete, or another's."""
    try:
        manifest = durable.read_json(folder / MANIFEST)
        sizes = {name: entry["size"] for name, entry in manifest["files"].items()}
        present = all(inside(folder, name).stat().st_size == size for name, size in sizes.items())
        made = int(manifest.get("progress", folder.name))
        return made if present and identity in (None, manifest["identity"]) else 0
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return 0


def _steps(directory: Path) -> list[int]:
    if not directory.is_dir():
        return []
    return [int(folder.name) for folder in directory.iterdir() if re.fullmatch("[0-9]+", folder.name)]


def verify(folder: Path) -> dict[str, Any]:
    """Reads every byte of a checkpoint folder; returns its manifest, raises ValueError naming what is wrong."""
    manifest = durable.read_json(folder / MANIFEST)
    if not isinstance(manifest, dict) or not isinstance(manifest.get("files"), dict) or not manifest["files"]:
        raise ValueError(f"{folder / MANIFEST} lists no files")
    digest = manifest.pop("digest", None)
    if digest != durable.sha256_json(manifest):
        raise ValueError(f"{folder / MANIFEST} was altered: it does not match its own digest")
    if str(manifest.get("step")) != folder.name:
        raise ValueError(f"{folder} holds the checkpoint of step {manifest.get('step')}")
    present = {file.name for file in folder.iterdir()} - {MANIFEST}
    if present != set(manifest["files"]):
        raise ValueError(f"{folder} holds {sorted(present)}, its manifest lists {sorted(manifest['files'])}")
    for name, entry in manifest["files"].items():
        file = inside(folder, name)
        with reading.opened(file) as read:
            file_digest = hashlib.file_digest(read, xxhash.xxh3_128).hexdigest()
        if entry != {"size": file.stat().st_size, "xxh3_128": file_digest}:
            raise ValueError(f"{file} is torn or altered: it does not match its manifest")
    return manifest
