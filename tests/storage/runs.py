"""Small finished runs, made with the storage functions alone, and what the tests of this folder do to them."""

import json
import os
import resource
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from storage import durable, locks, markers
from storage.rows import Rows
from storage.run_directory import RunDirectory, fingerprint

REPOSITORY = Path(__file__).parents[2]
OUTPUTS = ["stage.json", "result.json", "metrics.jsonl", "model"]
INPUTS = {"setup": "a" * 64}


def run_of(root: Path, stage: str = "train", seed: int = 1) -> RunDirectory:
    return RunDirectory(root, "study", stage, fingerprint(stage, 1, {"seed": seed}, {}, {}))


def fill(run: RunDirectory, seed: int = 1) -> None:
    """What a stage leaves behind before its marker."""
    (run.path / "model" / "tokenizer").mkdir(parents=True)
    described = {"stage": run.stage, "study": run.study, "fingerprint": run.fingerprint}
    durable.write_json(run.stage_file, described)
    durable.write_json(run.result_file, {"loss": 0.25, "seed": seed})
    durable.write_bytes(run.path / "model" / "weights.safetensors", bytes([seed]) * 1000)
    durable.write_bytes(run.path / "model" / "tokenizer" / "vocabulary.json", b"{}")
    Rows(run.metrics_file).append({"step": 1, "loss": 0.25})


def finish(run: RunDirectory, inputs: dict[str, str] | None = None) -> markers.Verdict:
    """Writes the marker under a lock of its own."""
    lock = locks.acquire(run.path / "locks")
    try:
        return markers.write(run, OUTPUTS, INPUTS if inputs is None else inputs, lock)
    finally:
        lock.release()


def finished(root: Path, stage: str = "train", seed: int = 1) -> RunDirectory:
    run = run_of(root, stage, seed)
    fill(run, seed)
    finish(run)
    return run


def marker_of(run: RunDirectory) -> dict[str, Any]:
    return json.loads(run.marker_file.read_bytes())


def rewrite_marker(run: RunDirectory, change: Callable[[dict[str, Any]], None], sign: bool) -> None:
    """Edits the marker; `sign` recomputes its digest, as someone would who has read our source."""
    marker = marker_of(run)
    change(marker)
    if sign:
        marker.pop("marker_digest")
        marker["marker_digest"] = durable.sha256_json(marker)
    run.marker_file.write_text(json.dumps(marker))


def edit_unnoticed(file: Path) -> None:
    """Other bytes, with the size, the time and the inode that the file had."""
    before, data = file.stat(), file.read_bytes()
    with file.open("r+b") as opened:
        opened.write(bytes([data[0] ^ 1]) + data[1:])
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    after = file.stat()
    assert [after.st_size, after.st_mtime_ns, after.st_ino] == [before.st_size, before.st_mtime_ns, before.st_ino]


def temporaries(directory: Path) -> list[Path]:
    return [path for path in directory.rglob(".tmp-*") if path.parent.name != "locks"]


def tree(directory: Path) -> dict[str, bytes]:
    """Every file below `directory` with its bytes."""
    files = (file for file in sorted(directory.rglob("*")) if file.is_file())
    return {file.relative_to(directory).as_posix(): file.read_bytes() for file in files}


@contextmanager
def files_no_larger_than(size: int) -> Iterator[None]:
    """Every write beyond `size` bytes of a file fails with EFBIG, as a quota would."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@contextmanager
def small_disk(folder: Path, options: str = "size=512k") -> Iterator[Path]:
    """A real file system of its own at `folder`, which is easily filled; skips where mounting is not allowed."""
    folder.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        pytest.skip(f"a small disk cannot be mounted here: {done.stderr.strip()}")
    try:
        yield folder
    finally:
        while os.path.ismount(folder):  # a test may have mounted something over it
            subprocess.run(["umount", "-l", str(folder)], check=True)


def remount(folder: Path, options: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{options}", str(folder)], check=True)
