"""Cutting the text into splits that share nothing, so that no size moves an evaluation split.

Which split a document may be in depends on its source alone, and duplicates are settled before any size is applied.
The order within a split is that of a hash of source and text, or that of the stream for text of which only the
beginning is read: there a longer beginning appends to the evaluation splits and moves nothing in them. Sizes then only
say how much of each order is taken. Train alone gives way: to what the chosen evaluation documents have in common
with it, and to the room that they take of `max_characters`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import combinations

from storage.errors import BadInput, CheckFailed
from tasks.language.configuration import Splits
from tasks.language.documents import Document
from tasks.language.result import SharedBySplits, SplitsProof, SplitSummary
from tasks.language.shingles import Overlap

SPLITS = ("validation", "test", "attack-search", "attack-evaluation", "train")
EVALUATION_SPLITS = SPLITS[:-1]


@dataclass(frozen=True)
class CutText:
    """The chosen documents of each split, in their order, and the proof that the splits share nothing."""

    documents: dict[str, list[Document]]
    proof: SplitsProof


def cut(
    documents: Iterable[Document],
    splits: Splits,
    max_characters: int | None = None,
    in_stream_order: bool = False,
) -> CutText:
    """Cuts `documents` into SPLITS; `in_stream_order` keeps the order in which they come, else it does not matter.

    The evaluation splits take the first documents of their order. Train is what is left: as long as the whole
    text stays within `max_characters`, without documents of which more than `max_shared_shingles` stands in
    an evaluation split, and then the first `train_documents`.

    All documents are held in memory, which is fine up to some 100 000 of them (a gigabyte). Raises BadInput
    when a split has fewer documents than asked for, and CheckFailed when the finished splits share anything.
    """
    candidates, duplicates = _candidates(documents, splits, in_stream_order)
    _require_enough(candidates, splits, EVALUATION_SPLITS)
    chosen = {name: candidates[name][: _asked(splits, name)] for name in EVALUATION_SPLITS}
    evaluation = [document for name in EVALUATION_SPLITS for document in chosen[name]]
    overlap = Overlap(document.text for document in evaluation)

    within = _within(candidates["train"], max_characters, _characters(evaluation))
    clean = [document for document in within if overlap.share(document.text) <= splits.max_shared_shingles]
    _require_enough(candidates | {"train": clean}, splits, ["train"])
    chosen["train"] = clean[: splits.train_documents]

    return CutText(chosen, _proof(chosen, splits, duplicates, contaminated=len(within) - len(clean)))


def split_of(source: str, splits: Splits) -> str:
    """The split that a source belongs to: a hash of (split_seed, source) placed on the unit interval."""
    place = int.from_bytes(_digest(splits.split_seed, source)[:8], "big") / 2**64
    index = int(place // splits.evaluation_share)
    return SPLITS[min(index, len(EVALUATION_SPLITS))]


# ------------------------------------------------------------------------------------- before any size


def _candidates(
    documents: Iterable[Document], splits: Splits, in_stream_order: bool = False
) -> tuple[dict[str, list[Document]], int]:
    """All documents by split, ordered and without duplicates, and how many duplicates were dropped.

    Of documents with the same content the one with the lowest precedence stays. By hash that is the one in the
    earliest of SPLITS, and within it the first of its order, whatever the order in which they came. In a stream it is
    the first that came: a later duplicate in an earlier split would take it from where a shorter stream left it. In
    both, evaluation wins over train.
    """
    kept: dict[bytes, tuple[tuple[int, int | bytes], str, Document]] = {}
    seen = 0
    for document in documents:
        seen += 1
        name = split_of(document.source, splits)
        precedence: tuple[int, int | bytes]
        if in_stream_order:
            precedence = (int(name == "train"), seen)
        else:
            precedence = (SPLITS.index(name), _digest(splits.split_seed, document.source, document.text))
        content = _content(document)
        if content not in kept or precedence < kept[content][0]:
            kept[content] = (precedence, name, document)
    ordered: dict[str, list[Document]] = {name: [] for name in SPLITS}
    for _, name, document in sorted(kept.values(), key=lambda entry: entry[0]):
        ordered[name].append(document)
    return ordered, seen - len(kept)


def _content(document: Document) -> bytes:
    """What makes two documents duplicates: the text, whatever its white space."""
    return hashlib.sha256(" ".join(document.text.split()).encode()).digest()


def _digest(*parts: int | str) -> bytes:
    return hashlib.sha256("\0".join(map(str, parts)).encode()).digest()


# ------------------------------------------------------------------------------------------------ sizes


def _require_enough(candidates: dict[str, list[Document]], splits: Splits, names: Iterable[str]) -> None:
    """BadInput naming every split that has fewer documents than asked for, all at once."""
    short = []
    for name in names:
        found, asked = len(candidates[name]), _asked(splits, name)
        if found < (asked if asked is not None else 1):
            share = "smaller" if name == "train" else "larger"
            short.append(
                f"  split {name}: {asked or 1} documents are asked for and {found} are there: lower "
                f"splits.{name.replace('-', '_')}_documents, or set a {share} splits.evaluation_share"
            )
    if short:
        documents = [document for named in candidates.values() for document in named]
        raise BadInput(
            f"{len(documents):,} different documents of {len({document.source for document in documents}):,} sources "
            "were read, and whole sources go to a split: give more text (a .txt file is one document and one source), "
            "or\n" + "\n".join(short)
        )


def _asked(splits: Splits, name: str) -> int | None:
    return getattr(splits, f"{name.replace('-', '_')}_documents")


def _within(train: list[Document], max_characters: int | None, used: int) -> list[Document]:
    """The first train documents that fit into what the evaluation splits have left of `max_characters`."""
    if max_characters is None:
        return train
    left = max_characters - used
    if train and len(train[0].text) > left:
        raise BadInput(
            f"text.max_characters is {max_characters} and the evaluation splits alone have {used}, which "
            "leaves nothing to train on: raise it, or lower the sizes of the evaluation splits"
        )
    for count, document in enumerate(train):
        left -= len(document.text)
        if left < 0:
            return train[:count]
    return train


def _characters(documents: list[Document]) -> int:
    return sum(len(document.text) for document in documents)


# ------------------------------------------------------------------------------------------------ proof


def _proof(chosen: dict[str, list[Document]], splits: Splits, duplicates: int, contaminated: int) -> SplitsProof:
    """What the splits hold and share, computed again from the final lists alone; raises CheckFailed."""
    contents = {name: {_content(document) for document in chosen[name]} for name in SPLITS}
    sources = {name: {document.source for document in chosen[name]} for name in SPLITS}
    pairs = [
        SharedBySplits(
            splits=[one, other],
            shared_content=len(contents[one] & contents[other]),
            shared_sources=len(sources[one] & sources[other]),
        )
        for one, other in combinations(SPLITS, 2)
    ]
    for pair in pairs:
        for what, shared in (("shared_content", pair.shared_content), ("shared_sources", pair.shared_sources)):
            if shared:
                raise CheckFailed(f"{what} of {' and '.join(pair.splits)}", shared, 0)
    overlap = Overlap(document.text for name in EVALUATION_SPLITS for document in chosen[name])
    largest = max(overlap.share(document.text) for document in chosen["train"])
    if largest > splits.max_shared_shingles:
        raise CheckFailed("shingles of a train document in evaluation", largest, splits.max_shared_shingles)
    return SplitsProof(
        splits={name: _summary(chosen[name]) for name in SPLITS},
        largest_shared_shingles=largest,
        pairs=pairs,
        duplicates_dropped_documents=duplicates,
        contaminated_dropped_documents=contaminated,
    )


def _summary(documents: list[Document]) -> SplitSummary:
    ids = "\n".join(sorted(document.example_id for document in documents))
    return SplitSummary(
        documents=len(documents),
        characters=_characters(documents),
        sources=len({document.source for document in documents}),
        digest=hashlib.sha256(ids.encode()).hexdigest(),
    )
