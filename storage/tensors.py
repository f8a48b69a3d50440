"""Writes tensors as a safetensors file, with its digest from the same pass over memory.

A write takes processor time from the training that goes on meanwhile: benchmarks/README.md says how much the
library's own writer, a second pass for the digest, and the page cache took. The library reads. Format:
https://github.com/huggingface/safetensors (8 bytes length of the header, JSON header, data).
"""

from __future__ import annotations

import errno
import fcntl
import json
import mmap
import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import xxhash

from storage.errors import BadInput

if TYPE_CHECKING:
    import torch

BUFFER_BYTES = 1 << 22
BLOCK_BYTES = 4096
"""The unit of O_DIRECT writes; no disk has larger blocks."""
CACHED_BYTES = 1 << 26
DTYPES = {
    "float64": "F64",
    "float32": "F32",
    "float16": "F16",
    "bfloat16": "BF16",
    "int64": "I64",
    "int32": "I32",
    "int16": "I16",
    "int8": "I8",
    "uint64": "U64",
    "uint32": "U32",
    "uint16": "U16",
    "uint8": "U8",
    "bool": "BOOL",
}


def read_tensors(file: Path) -> dict[str, torch.Tensor]:
    """The tensors of a safetensors file by name, on the CPU. BadInput where it is none, such as a pickle."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return load_file(file)
    except SafetensorError as error:
        raise BadInput(
            f"{file} is no safetensors file ({error}), and nothing else is read as weights: a pickle under this name "
            "could run code. Copy it again from where it was made"
        ) from None


def write_tensors(path: Path, tensors: dict[str, torch.Tensor]) -> dict[str, Any]:
    """Writes `tensors` (on the CPU, contiguous) to `path`; returns size and xxh3_128 of the bytes in memory.

    Equal tensors give equal bytes. The file is not made durable here.
    """
    # widest elements first, as the library does: every tensor then begins at a multiple of its element's size
    names = sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))
    header, end = {}, 0
    for name in names:
        tensor = tensors[name]
        begin, end = end, end + tensor.nbytes
        kind = DTYPES[str(tensor.dtype).removeprefix("torch.")]
        header[name] = {"dtype": kind, "shape": list(tensor.shape), "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with _Uncached(path) as file:
        file.write(memoryview(len(text).to_bytes(8, "little") + text))
        for name in names:
            file.write(_bytes_of(tensors[name]))
    return {"size": file.size, "xxh3_128": file.digest.hexdigest()}


class _Uncached:
    """A new file that is written past the kernel's cache, where its file system can do so (O_DIRECT, see open(2)).

    Nobody will read it soon, and the first use of a page of the cache costs several times as much as hashing it; one
    small buffer is used again and again instead. Elsewhere the cache is dropped on the way.
    """

    def __init__(self, path: Path) -> None:
        self.size, self.digest = 0, xxhash.xxh3_128()
        self._file, self._direct, self._filled, self._cached = path.open("wb", buffering=0), False, 0, 0
        self._buffer = memoryview(mmap.mmap(-1, BUFFER_BYTES))  # begins at a page, as O_DIRECT demands
        with suppress(OSError):
            self._set_direct(True)

    def __enter__(self) -> _Uncached:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        with self._file:
            if kind is None:
                self._flush()
                self._file.truncate(self.size)  # the last block was filled up

    def write(self, data: memoryview) -> None:
        while data:
            size = min(len(data), BUFFER_BYTES - self._filled)
            self._buffer[self._filled : self._filled + size] = data[:size]
            self._filled, data = self._filled + size, data[size:]
            if self._filled == BUFFER_BYTES:
                self._flush()

    def _flush(self) -> None:
        self.digest.update(self._buffer[: self._filled])
        begin, written, end = self.size, 0, self._filled
        while written < end:
            whole = min(-(-end // BLOCK_BYTES) * BLOCK_BYTES, BUFFER_BYTES) if self._direct else end
            try:
                count = os.pwrite(self._file.fileno(), self._buffer[written:whole], begin + written)
            except OSError as error:
                if error.errno != errno.EINVAL or not self._direct:
                    raise
                self._set_direct(False)  # a file system that takes the flag and not the write
                continue
            # after a short write the rest must begin at a block again
            written += count if not self._direct or written + count == whole else count // BLOCK_BYTES * BLOCK_BYTES
        self.size, self._filled = begin + end, 0
        if not self._direct and self.size - self._cached >= CACHED_BYTES:
            self._cached = self.size
            os.fdatasync(self._file.fileno())
            os.posix_fadvise(self._file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)

    def _set_direct(self, direct: bool) -> None:
        flags = fcntl.fcntl(self._file, fcntl.F_GETFL)
        fcntl.fcntl(self._file, fcntl.F_SETFL, flags | os.O_DIRECT if direct else flags & ~os.O_DIRECT)
        self._direct = direct


def _bytes_of(tensor: torch.Tensor) -> memoryview:
    """The tensor's memory, without a copy."""
    import torch

    return tensor.reshape(-1).view(torch.uint8).numpy().data
