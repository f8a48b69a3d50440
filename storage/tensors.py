"""Writes tensors as a safetensors file, and takes its digest from the same pass over memory.

Processor time of a write is taken from the training that goes on meanwhile: tests/benchmarks/README.md says how much
the library's own writer, a second pass for the digest, and the page cache took. Reading is the library's. Format:
https://github.com/huggingface/safetensors (8 bytes length of the header, JSON header, data).
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import xxhash

if TYPE_CHECKING:
    import torch

CHUNK_BYTES = 1 << 20
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
    "uint8": "U8",
    "bool": "BOOL",
}


def write_tensors(path: Path, tensors: dict[str, torch.Tensor]) -> dict[str, Any]:
    """Writes `tensors` (on the CPU, contiguous) to `path`; returns size and xxh3_128 of what was to be written.

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
    digest, size, cached = xxhash.xxh3_128(), 0, 0
    with path.open("wb", buffering=0) as file:
        for part in (len(text).to_bytes(8, "little"), text, *(_bytes_of(tensors[name]) for name in names)):
            for start in range(0, len(part), CHUNK_BYTES):  # a chunk is hashed while it is in the processor's cache
                chunk = part[start : start + CHUNK_BYTES]
                written = 0
                while written < len(chunk):
                    written += file.write(chunk[written:])
                digest.update(chunk)
                size += len(chunk)
                if size - cached >= CACHED_BYTES:
                    cached = size
                    _give_up_cache(file.fileno())
    return {"size": size, "xxh3_128": digest.hexdigest()}


def _give_up_cache(descriptor: int) -> None:
    """Lets the kernel use the same few pages again for what comes next.

    Nobody will read this file soon, and where it was measured new pages for all of it cost five times what hashing it
    did.
    """
    os.fdatasync(descriptor)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)


def _bytes_of(tensor: torch.Tensor) -> memoryview:
    """The tensor's memory, without a copy."""
    import torch

    return memoryview(tensor.reshape(-1).view(torch.uint8).numpy())
