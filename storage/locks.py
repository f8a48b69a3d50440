"""Locks of run directories: one holder at a time, without flock, which NFS and Lustre do not keep.

Attempt N holds by `locks/N.json`, made by link() (which fails when the name is there), never rewritten or removed;
the highest N holds, and a process takes over by making N+1, which one process wins. The holder renews `locks/N.alive`
every 5 s and leaves `locks/N.released`. Every commit carries its holder's N, so that a holder which was taken for dead
and comes back cannot commit: `Lock.check()` runs before each commit, and readers reject an older N.
"""

import contextlib
import errno
import os
import re
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict

from storage import durable, reading
from storage.errors import BadInput, Held

HEARTBEAT_SECONDS = 5.0
DEAD_AFTER_SECONDS = 60.0
NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS)


class LockLost(Exception):
    """Another attempt took this run directory over; this one must not commit anything more."""


class DirectoryGone(LockLost):
    """The run directory was removed under the attempt that holds it, with all that was kept there."""


class Identity(TypedDict, total=False):
    """A process as others can find it again; as a lock and an attempt's record keep it."""

    host: str
    boot_id: str | None
    pid_namespace: str | None
    pid: int
    process_start: str | None
    slurm_job_id: str | None
    slurm_job_name: str | None


def process_identity() -> Identity:
    """The identity of this process, by which another one can see whether it still lives."""
    job_id, job_name = _slurm_job()
    return {
        "host": socket.gethostname(),
        "boot_id": _read("/proc/sys/kernel/random/boot_id"),
        "pid_namespace": _link("/proc/self/ns/pid"),
        "pid": os.getpid(),
        "process_start": _process_start(os.getpid()),
        "slurm_job_id": job_id,
        "slurm_job_name": job_name,
    }


def _slurm_job() -> tuple[str | None, str | None]:
    """Id and name of the SLURM job that this process runs in; a task of an array has its own of both."""
    variable = os.environ.get
    if task := variable("SLURM_ARRAY_TASK_ID"):
        return f"{variable('SLURM_ARRAY_JOB_ID')}_{task}", f"{variable('SLURM_JOB_NAME')}[{task}]"
    return variable("SLURM_JOB_ID"), variable("SLURM_JOB_NAME")


def highest(directory: Path) -> int:
    """The number of the present holder's lock in the folder `directory`, 0 when there never was one.

    Its heartbeat and its release count like the lock itself: a number whose lock someone deleted is not used again.
    """
    try:
        listed = reading.tried_twice(lambda: os.listdir(directory))
    except (FileNotFoundError, NotADirectoryError):
        return 0
    names = (name for name in map(Path, listed) if name.suffix in (".json", ".alive", ".released"))
    return max((int(name.stem) for name in names if name.stem.isdecimal()), default=0)


@dataclass
class Lock:
    """A held run directory. Made by `acquire`, ended by `release`."""

    directory: Path
    number: int
    beat: Callable[[], None] | None = None

    def __post_init__(self) -> None:
        self._ended = threading.Event()
        self._heartbeat()
        self._thread = threading.Thread(target=self._keep_alive, name=f"lock-{self.number}", daemon=True)
        self._thread.start()

    def check(self) -> None:
        """Raises LockLost unless this is still the highest lock; called before each commit."""
        if (present := highest(self.directory)) < self.number:
            raise DirectoryGone(
                f"{self.directory.parent} was removed, or its locks were, while this attempt worked in it"
            )
        if present > self.number:
            raise LockLost(f"{self.directory}: lock {self.number} was taken over by lock {present}")

    def remove_leftovers(self) -> None:
        """Removes half-written files of earlier locks; other processes may be writing this one and later ones."""
        for leftover in self.directory.glob(durable.TEMPORARY_PREFIX + "*"):
            number = re.match(r"\d+", leftover.name.removeprefix(durable.TEMPORARY_PREFIX))
            if number and int(number[0]) < self.number:
                leftover.unlink(missing_ok=True)

    def release(self) -> None:
        """Ends the heartbeat and leaves N.released, so that the next attempt need not wait."""
        self._ended.set()
        self._thread.join()
        with contextlib.suppress(OSError):  # on a full or read-only disk the end of this process shows the same
            (self.directory / f"{self.number}.released").touch()

    def _keep_alive(self) -> None:
        while not self._ended.wait(HEARTBEAT_SECONDS):
            self._heartbeat()
            if self.beat is not None:
                self.beat()

    def _heartbeat(self) -> None:
        try:
            durable.replace_quickly(self.directory / f"{self.number}.alive", {"at": time.time()})
        except OSError:
            pass  # a full disk must not stop the work; the commit will say what is wrong


def acquire(directory: Path, dead_after_seconds: float = DEAD_AFTER_SECONDS) -> Lock:
    """Takes the lock of the run whose `locks` folder is `directory`, or raises Held naming the live holder.

    A holder is dead at once when it released, or when it was a process of this boot and pid namespace that is gone.
    One on another host is dead when its heartbeat stood still for `dead_after_seconds` of our own monotonic clock,
    which this call waits for.
    """
    directory.mkdir(parents=True, exist_ok=True)
    while True:
        number = highest(directory)
        if number and (holder := _living_holder(directory, number, dead_after_seconds)):
            raise Held(
                f"{directory.parent} is held by a live process: pid {holder.get('pid')} on "
                f"{holder.get('host')}, job {holder.get('slurm_job_id') or 'none'}. Wait for it, or end it"
            )
        if _make(directory, number + 1):
            return Lock(directory, number + 1)


def holder(directory: Path, dead_after_seconds: float = 0.0) -> Identity | None:
    """The identity of the present holder; None when it is dead, which may take `dead_after_seconds` to see."""
    number = highest(directory)
    return _living_holder(directory, number, dead_after_seconds) if number else None


def _make(directory: Path, number: int) -> bool:
    """Creates lock `number` with its content in one step; False when another process was first."""
    final = directory / f"{number}.json"
    temporary = directory / f"{durable.TEMPORARY_PREFIX}{number}-{os.getpid()}-{threading.get_ident()}"
    try:
        temporary.write_bytes(durable.canonical_json(process_identity()))
        try:
            reading.tried_twice(lambda: os.link(temporary, final))
        except FileExistsError:  # perhaps our own: an NFS server that restarts may link and lose the answer
            with contextlib.suppress(FileNotFoundError):  # a later holder has removed ours
                return os.path.samefile(temporary, final)
            return False
        except OSError as error:
            if error.errno not in NO_LINKS:
                raise
            raise BadInput(
                f"the disk of {directory.parent} refuses link() ({error.strerror}), by which one process alone takes a "
                "run directory; SMB, exFAT and some FUSE disks have none. Give --root a folder on another disk: NFS, "
                "Lustre, ext4 and XFS have it"
            ) from None
        return True
    finally:
        temporary.unlink(missing_ok=True)


def _living_holder(directory: Path, number: int, dead_after_seconds: float) -> Identity | None:
    """The identity of lock `number`'s holder, or None when it is dead or has released."""
    if (directory / f"{number}.released").exists():
        return None
    try:
        identity: Identity = durable.read_json(directory / f"{number}.json")
        if not isinstance(identity, dict):
            raise ValueError("not an object")
    except (OSError, ValueError):
        identity = {"host": "unknown (the lock file cannot be read)"}
    observer = process_identity()
    same_machine = observer["boot_id"] is not None and all(
        identity.get(key) == observer.get(key) for key in ("boot_id", "pid_namespace")
    )
    if same_machine:
        start = identity.get("process_start")
        return identity if start is not None and start == _process_start(identity.get("pid")) else None
    return identity if _heartbeat_moves(directory / f"{number}.alive", dead_after_seconds) else None


def _heartbeat_moves(file: Path, dead_after_seconds: float) -> bool:
    """Watches a heartbeat on our own clock, since other machines' may be wrong; 0 s of watching counts as alive."""
    if dead_after_seconds <= 0:
        return True
    content, began = _stamp(file), time.monotonic()
    while time.monotonic() - began < dead_after_seconds:
        time.sleep(min(1.0, dead_after_seconds / 10))
        if _stamp(file) != content:
            return True
    return False


def _stamp(file: Path) -> bytes | None:
    try:
        return reading.read_bytes(file)
    except (OSError, ValueError):
        return None


def _process_start(pid: object) -> str | None:
    """The start of a process in the kernel's ticks, which differs where a pid was used again; None for a zombie."""
    text = _read(f"/proc/{pid}/stat") if isinstance(pid, int) else None
    if text is None:
        return None
    fields = text.rsplit(")", 1)[-1].split()
    return None if fields[0] == "Z" else fields[19]


def _read(path: str) -> str | None:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return None


def _link(path: str) -> str | None:
    try:
        return os.readlink(path)
    except OSError:
        return None
