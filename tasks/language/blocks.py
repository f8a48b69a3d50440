"""The packed text: documents end to end, cut into blocks of equal length, as one memory-mapped file.

`<split>.bin` is nothing but the token ids, little-endian; `<split>.json` says how to read them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np

from storage import durable
from storage.errors import BadInput
from tasks.language.result import PackedSplit

if TYPE_CHECKING:
    import torch

DTYPES: dict[str, np.dtype[np.unsignedinteger]] = {"uint16": np.dtype("<u2"), "uint32": np.dtype("<u4")}
BUFFER_TOKENS = 1 << 20


def width_of(vocabulary_size: int) -> Literal["uint16", "uint32"]:
    """Type of a token id in the file."""
    return "uint16" if vocabulary_size <= 1 << 16 else "uint32"


def pack(
    folder: Path,
    split: str,
    documents: Iterable[Sequence[int]],
    *,
    sequence_length: int,
    vocabulary_size: int,
    end_of_text: int,
) -> PackedSplit:
    """Writes `<split>.bin` and `<split>.json` into `folder` in bounded memory; returns what the JSON holds.

    Each document's token ids are followed by `end_of_text`, all are concatenated and cut into blocks of
    `sequence_length` tokens; what is left over, shorter than a block, is dropped and counted. Raises BadInput
    when there is not one block.
    """
    dtype, digest = width_of(vocabulary_size), hashlib.sha256()
    tokens, waiting = 0, []
    with durable.new_file(folder / f"{split}.bin") as temporary, temporary.open("wb") as file:
        for chunk in _chunks(documents, end_of_text):
            waiting += chunk
            whole = len(waiting) - len(waiting) % sequence_length
            data = np.array(waiting[:whole], dtype=DTYPES[dtype]).tobytes()
            file.write(data)
            digest.update(data)
            tokens, waiting = tokens + whole, waiting[whole:]
        if not tokens:
            raise BadInput(
                f"split {split}: its {len(waiting)} tokens do not fill one block of sequence_length "
                f"{sequence_length}: raise splits.{split}_documents or lower sequence_length"
            )
    packed = PackedSplit(
        dtype=dtype,
        sequence_length=sequence_length,
        blocks=tokens // sequence_length,
        tokens=tokens,
        dropped_tokens=len(waiting),
        sha256=digest.hexdigest(),
    )
    durable.write_json(folder / f"{split}.json", packed.as_json())
    return packed


def _chunks(documents: Iterable[Sequence[int]], end_of_text: int) -> Iterator[list[int]]:
    chunk: list[int] = []
    for ids in documents:
        chunk += ids
        chunk.append(end_of_text)
        if len(chunk) >= BUFFER_TOKENS:
            yield chunk
            chunk = []
    yield chunk


class Blocks:
    """The packed blocks of one split, read only and memory-mapped.

    `sha256` identifies the token file, as written by `pack`; `sequence_length` is L. Raises BadInput when the
    files are missing or do not fit each other.
    """

    def __init__(self, folder: Path, split: str) -> None:
        file, advice = folder / f"{split}.bin", "run the setup stage again"
        try:
            description = durable.read_json(folder / f"{split}.json")
            self.sequence_length: int = description["sequence_length"]
            self.sha256: str = description["sha256"]
            dtype, blocks = DTYPES[description["dtype"]], description["blocks"]
            size = file.stat().st_size
        except (FileNotFoundError, ValueError, KeyError) as error:
            raise BadInput(f"the packed text {file} cannot be read: {error!r}: {advice}") from error
        expected = blocks * self.sequence_length * dtype.itemsize
        if size != expected:
            raise BadInput(f"the packed text {file} has {size} bytes instead of {expected}: {advice}")
        self._tokens = np.memmap(file, dtype=dtype, mode="r", shape=(blocks, self.sequence_length))

    def __len__(self) -> int:
        return len(self._tokens)

    def __getitem__(self, indices: np.ndarray) -> torch.LongTensor:
        """Token ids of the blocks at `indices` (integers [B], each below len): int64 [B, L]."""
        import torch

        return torch.from_numpy(self._tokens[np.asarray(indices)].astype(np.int64))

    @property
    def weight(self) -> int:
        """Sum of what the examples weigh in a mean loss: of blocks, whose losses are means, each weighs 1."""
        return len(self)

    @property
    def predicted_tokens(self) -> float:
        """Tokens that a model predicts of one block, on average."""
        return self.sequence_length - 1

    @property
    def counted_tokens(self) -> int:
        """Number of tokens that `token_counts` counts."""
        return len(self) * self.sequence_length

    def predicted(self) -> np.ndarray:
        """Every token that a model predicts: int64 [tokens]."""
        return self._tokens[:, 1:].astype(np.int64).ravel()

    def token_counts(self, vocabulary_size: int) -> np.ndarray:
        """How often each token occurs in all blocks, end-of-text included: int64 [vocabulary_size]."""
        counts = np.zeros(vocabulary_size, dtype=np.int64)
        rows = max(1, BUFFER_TOKENS // self.sequence_length)
        for start in range(0, len(self), rows):
            counts += np.bincount(self._tokens[start : start + rows].ravel(), minlength=vocabulary_size)
        return counts
