"""Cutting the text into splits that share nothing, so that no size moves an evaluation split.

Which split a document may be in depends on its source alone, and duplicates are settled before any size is applied.
The order within a split is that of a hash of source and text, or that of the stream for text of which only the
beginning is read: there a longer beginning appends to the evaluation splits and moves nothing in them. Sizes then only
say how much of each order is taken. Train alone gives way: to what the chosen evaluation documents have in common
with it, and to the room that they take of `max_characters`.

The evaluation documents are held in memory, the others on the disk: of each of those, about 100 bytes are in memory
while duplicates are sought, and again while the proof is made.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, repeat

import numpy as np

from storage.errors import BadInput, CheckFailed
from tasks.language.configuration import Splits
from tasks.language.document_store import Document, DocumentStore, StoredDocuments
from tasks.language.result import SharedBySplits, SplitsProof, SplitSummary

SPLITS = ("validation", "test", "attack-search", "attack-evaluation", "train")
EVALUATION_SPLITS = SPLITS[:-1]
DIGEST = hashlib.sha256().digest_size

Watch = Callable[[str, Iterable[Document]], Iterable[Document]]
"""Given what is being done and the documents it is done to, gives the same documents, and may report or stop."""


@dataclass(frozen=True)
class CutText:
    """The chosen documents of each split, in their order, and the proof that the splits share nothing.

    Train is read from the disk whenever it is gone through, as long as the store that it was cut in is open.
    """

    documents: dict[str, Sequence[Document]]
    proof: SplitsProof


def cut(
    documents: Iterable[Document],
    splits: Splits,
    store: DocumentStore,
    *,
    held_out: Iterable[Document] | None = None,
    max_characters: int | None = None,
    in_stream_order: bool = False,
    compared: Callable[[str], str] = str,
    watch: Watch = lambda _, documents: documents,
) -> CutText:
    """Cuts `documents` into SPLITS; `in_stream_order` keeps the order in which they come, else it does not matter.

    The evaluation splits take the first documents of their order. Train is what is left: as long as the whole
    text stays within `max_characters`, without documents of which more than `max_shared_shingles` stands in
    an evaluation split, and then the first `train_documents`. With `held_out`, the evaluation splits are cut from
    these alone and `documents` are all for train; what of `held_out` has its place in train is not used. `compared`
    is the part of a text that no two documents may share.

    `store` is empty and takes all documents. Raises BadInput when a split has fewer documents than asked for, and
    CheckFailed when the finished splits share anything.
    """
    if held_out is not None:
        held_out = watch("reading the held-out text", held_out)
    placed = _placed(watch("reading the text", documents), splits, held_out)
    candidates, duplicates = _candidates(placed, splits, store, in_stream_order, compared)
    _require_enough(candidates, splits, EVALUATION_SPLITS)
    chosen: dict[str, Sequence[Document]] = {
        name: list(candidates[name][: _asked(splits, name)]) for name in EVALUATION_SPLITS
    }
    overlap = Overlap(document.text for name in EVALUATION_SPLITS for document in chosen[name])
    used = sum(len(document.text) for name in EVALUATION_SPLITS for document in chosen[name])

    train = watch("comparing train with the evaluation splits", candidates["train"])
    shares_D = np.fromiter((overlap.share(own.text) for own in _within(train, max_characters, used)), dtype=np.float64)
    clean = np.flatnonzero(shares_D <= splits.max_shared_shingles)
    _require_enough(candidates | {"train": candidates["train"][clean]}, splits, ["train"])
    taken = clean[: splits.train_documents]
    chosen["train"] = candidates["train"][taken]

    proof = _proof(
        chosen | {"train": watch("proving that the splits share nothing", chosen["train"])},
        largest_shared_shingles=float(shares_D[taken].max()),
        duplicates=duplicates,
        contaminated=len(shares_D) - len(clean),
        compared=compared,
    )
    return CutText(chosen, proof)


def split_of(source: str, splits: Splits) -> str:
    """The split that a source belongs to: a hash of (split_seed, source) placed on the unit interval."""
    place = int.from_bytes(_digest(splits.split_seed, source)[:8], "big") / 2**64
    index = int(place // splits.evaluation_share)
    return SPLITS[min(index, len(EVALUATION_SPLITS))]


# ------------------------------------------------------------------------------------- before any size


def _placed(
    documents: Iterable[Document], splits: Splits, held_out: Iterable[Document] | None
) -> Iterator[tuple[str, Document]]:
    """Each document with the split that it may be in."""
    for document in held_out or ():
        if (name := split_of(document.source, splits)) != "train":
            yield name, document
    for document in documents:
        yield ("train" if held_out is not None else split_of(document.source, splits)), document


def _candidates(
    placed: Iterable[tuple[str, Document]],
    splits: Splits,
    store: DocumentStore,
    in_stream_order: bool = False,
    compared: Callable[[str], str] = str,
) -> tuple[dict[str, StoredDocuments], int]:
    """All documents by split, ordered and without duplicates, and how many duplicates were dropped.

    The one with the lowest precedence of documents with the same content stays. By hash that is the one in the
    earliest of SPLITS, and within it the first of its order, whatever the order in which they came. In a stream it is
    the first that came: a later duplicate in an earlier split would take it from where a shorter stream left it. In
    both, evaluation wins over train.
    """
    names, precedences, contents = bytearray(), bytearray(), bytearray()
    for name, document in placed:
        names.append(SPLITS.index(name))
        if in_stream_order:
            precedences += bytes([name == "train"]) + len(store).to_bytes(DIGEST, "big")
        else:
            precedences += bytes([SPLITS.index(name)])
            precedences += _digest(splits.split_seed, document.source, document.text)
        contents += _content(compared(document.text))
        store.add(document)
    order = np.argsort(_keys(precedences, 1 + DIGEST), kind="stable")
    _, first = np.unique(_keys(contents, DIGEST)[order], return_index=True)
    kept = order[np.sort(first)]
    split = np.frombuffer(names, dtype=np.uint8)[kept]
    ordered = {name: StoredDocuments(store, kept[split == index]) for index, name in enumerate(SPLITS)}
    return ordered, len(store) - len(kept)


def _keys(data: bytes | bytearray, width: int) -> np.ndarray:
    """Keys of `width` bytes that stand end to end, as an array that sorts and compares them byte by byte."""
    return np.frombuffer(data, dtype=f"V{width}")


def _content(compared: str) -> bytes:
    """Digest that duplicates share: that of what is compared of the text, whatever its white space."""
    return hashlib.sha256(" ".join(compared.split()).encode()).digest()


def _digest(*parts: int | str) -> bytes:
    return hashlib.sha256("\0".join(map(str, parts)).encode()).digest()


# ------------------------------------------------------------------------------------------------ sizes


def _require_enough(candidates: dict[str, StoredDocuments], splits: Splits, names: Iterable[str]) -> None:
    """BadInput naming every split that has fewer documents than asked for, all at once."""
    short = []
    for name in names:
        count, asked = len(candidates[name]), _asked(splits, name)
        if count < (asked if asked is not None else 1):
            share = "smaller" if name == "train" else "larger"
            short.append(
                f"  split {name}: {asked or 1} documents are asked for and {count} are there: lower "
                f"splits.{name.replace('-', '_')}_documents, or set a {share} splits.evaluation_share"
            )
    if short:
        documents = sum(map(len, candidates.values()))
        sources = {_digest(document.source) for named in candidates.values() for document in named}
        raise BadInput(
            f"{documents:,} different documents of {len(sources):,} sources "
            "were read, and whole sources go to a split: give more text (a .txt file is one document and one source), "
            "or\n" + "\n".join(short)
        )


def _asked(splits: Splits, name: str) -> int | None:
    return getattr(splits, f"{name.replace('-', '_')}_documents")


def _within(train: Iterable[Document], max_characters: int | None, used: int) -> Iterator[Document]:
    """The first train documents that fit into what the evaluation splits have left of `max_characters`."""
    left = np.inf if max_characters is None else max_characters - used
    for count, document in enumerate(train):
        left -= len(document.text)
        if left < 0 and not count:
            raise BadInput(
                f"text.max_characters is {max_characters} and the evaluation splits alone have {used}, which "
                "leaves nothing to train on: raise it, or lower the sizes of the evaluation splits"
            )
        if left < 0:
            return
        yield document


# ------------------------------------------------------------------------------------------------ proof


def _proof(
    chosen: dict[str, Iterable[Document]],
    largest_shared_shingles: float,
    duplicates: int,
    contaminated: int,
    compared: Callable[[str], str] = str,
) -> SplitsProof:
    """Proof of what the splits hold and share, computed again from the final documents; raises CheckFailed.

    The three numbers alone are taken as they were found when train was chosen.
    """
    held = {name: _Held.of(chosen[name], compared) for name in SPLITS}
    pairs = [
        SharedBySplits(
            splits=[first, other],
            shared_content=len(np.intersect1d(held[first].contents, held[other].contents)),
            shared_sources=len(np.intersect1d(held[first].sources, held[other].sources)),
        )
        for first, other in combinations(SPLITS, 2)
    ]
    for pair in pairs:
        for what, shared in (("shared_content", pair.shared_content), ("shared_sources", pair.shared_sources)):
            if shared:
                raise CheckFailed(f"{what} of {' and '.join(pair.splits)}", shared, 0)
    return SplitsProof(
        splits={name: held[name].summary() for name in SPLITS},
        largest_shared_shingles=largest_shared_shingles,
        pairs=pairs,
        duplicates_dropped_documents=duplicates,
        contaminated_dropped_documents=contaminated,
    )


@dataclass(frozen=True)
class _Held:
    """Digests of one split: of contents, of sources (each once) and of texts, as 32-byte keys."""

    contents: np.ndarray
    sources: np.ndarray
    example_ids: np.ndarray
    characters: int

    @classmethod
    def of(cls, documents: Iterable[Document], compared: Callable[[str], str]) -> _Held:
        contents, sources, example_ids, characters = bytearray(), bytearray(), bytearray(), 0
        for document in documents:
            contents += _content(compared(document.text))
            sources += _digest(document.source)
            example_ids += bytes.fromhex(document.example_id)
            characters += len(document.text)
        return cls(
            contents=_keys(contents, DIGEST),
            sources=np.unique(_keys(sources, DIGEST)),
            example_ids=_keys(example_ids, DIGEST),
            characters=characters,
        )

    def summary(self) -> SplitSummary:
        digest = hashlib.sha256()
        for count, example_id in enumerate(np.sort(self.example_ids)):
            digest.update((b"\n" if count else b"") + example_id.tobytes().hex().encode())
        return SplitSummary(
            documents=len(self.example_ids),
            characters=self.characters,
            sources=len(self.sources),
            digest=digest.hexdigest(),
        )


# ------------------------------------------------------------------------------------------ shingles

WORDS = 13
"""The window of GPT-3's contamination check (Brown et al. 2020, appendix C)."""
SHIFTS = (1, 2, 4, 5)
"""How far apart two windows stand that make a longer one: of 1 word twice, 2, 4, and of 8 words (8 + 5 are 13)."""
UNKNOWN = -1
_WORD = re.compile(r"\w+")
_ASCII_GAPS = {code: " " for code in range(128) if not _WORD.match(chr(code))}


class Overlap:
    """Measures which share of a text's shingles stands anywhere in a set of reference texts.

    A shingle is a window of 13 lower-cased words; a text of fewer has one, of all its words. Windows are named by
    number, as Karp, Miller and Rosenberg (1972) do: a word by its place among the references' words, a longer window by
    the place of its two halves among the references' pairs of halves. Equal names are equal words: nothing is hashed.
    Memory grows with the references alone.
    """

    def __init__(self, references: Iterable[str]) -> None:
        self._words: dict[str, int] = {}
        self._short: set[tuple[str, ...]] = set()
        named: list[int] = []
        for text in references:
            words = _words(text)
            if len(words) < WORDS:
                self._short.add(tuple(words))
            else:
                named += (self._words.setdefault(word, len(self._words)) for word in words)
                named.append(UNKNOWN)  # no window goes on into the next text
        names_W = np.array(named, dtype=np.int64)
        self._pairs = []
        for shift in SHIFTS:
            keys = _pair_keys(names_W, shift)
            self._pairs.append(np.unique(keys[keys != UNKNOWN]))
            names_W = _places(self._pairs[-1], keys)

    def share(self, text: str) -> float:
        """Share of the distinct shingles of `text` in the references, 0 to 1; 0 for a text without words."""
        words = _words(text)
        if len(words) < WORDS:
            return float(bool(words) and tuple(words) in self._short)
        names_W = np.fromiter(map(self._words.get, words, repeat(UNKNOWN)), dtype=np.int64, count=len(words))
        for shift, pairs in zip(SHIFTS, self._pairs, strict=True):
            names_W = _places(pairs, _pair_keys(names_W, shift))
        shared = np.unique(names_W[names_W != UNKNOWN]).size
        if not shared:
            return 0.0
        return shared / len(set(zip(*(words[offset:] for offset in range(WORDS)), strict=False)))


def _words(text: str) -> list[str]:
    lowered = text.lower()
    if lowered.isascii():
        return lowered.translate(_ASCII_GAPS).split()  # the same words as below, in a third of the time
    return _WORD.findall(lowered)


def _pair_keys(names_W: np.ndarray, shift: int) -> np.ndarray:
    """One number for each window and the one `shift` words after it; UNKNOWN where either is: int64 [W - shift]."""
    left, right = names_W[:-shift], names_W[shift:]
    return np.where((left != UNKNOWN) & (right != UNKNOWN), left << 32 | right, UNKNOWN)


def _places(pairs: np.ndarray, keys: np.ndarray) -> np.ndarray:
    """The place of each key in the sorted `pairs`, UNKNOWN for one that is not there: int64, shaped as `keys`."""
    names = np.full(len(keys), UNKNOWN, dtype=np.int64)
    if len(pairs):
        asked = np.flatnonzero(keys != UNKNOWN)
        places = np.searchsorted(pairs, keys[asked])
        places[places == len(pairs)] = 0
        there = pairs[places] == keys[asked]
        names[asked[there]] = places[there]
    return names
