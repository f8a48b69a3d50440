"""Cutting the text into splits that share nothing, so that no size moves an evaluation split.

Which split a document may be in depends on its source alone, and duplicates are settled before any size is applied.
The order within a split is that of a hash of source and text, or that of the stream for text of which only the
beginning is read: there a longer beginning appends to the evaluation splits and moves nothing in them. Sizes then only
say how much of each order is taken. Train alone gives way: to what the chosen evaluation documents have in common
with it, and to the room that they take of `max_characters`.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations

from storage.errors import BadInput, CheckFailed
from tasks.language.configuration import Splits
from tasks.language.document import Document
from tasks.language.result import SharedBySplits, SplitsProof, SplitSummary

SPLITS = ("validation", "test", "attack-search", "attack-evaluation", "train")
EVALUATION_SPLITS = SPLITS[:-1]

Watch = Callable[[str, Iterable[Document]], Iterable[Document]]
"""Given what is being done and the documents it is done to, gives the same documents, and may report or stop."""
Candidates = dict[str, list[Document]]
"""Split -> its documents, in their order."""


@dataclass(frozen=True)
class CutText:
    """The chosen documents of each split, in their order, and the proof that the splits share nothing."""

    documents: Candidates
    proof: SplitsProof


def cut(
    documents: Iterable[Document],
    splits: Splits,
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

    All of the text is held in memory. Raises BadInput when a split has fewer documents than asked for, and CheckFailed
    when the finished splits share anything.
    """
    if held_out is not None:
        held_out = watch("reading the held-out text", held_out)
    placed = _placed(watch("reading the text", documents), splits, held_out)
    candidates, duplicates = _candidates(placed, splits, in_stream_order, compared)
    _require_enough(candidates, splits, EVALUATION_SPLITS)
    chosen = {name: candidates[name][: _asked(splits, name)] for name in EVALUATION_SPLITS}
    evaluated = [document.text for name in EVALUATION_SPLITS for document in chosen[name]]

    reference = set[Shingle]().union(*map(shingles, evaluated))
    train = watch("comparing train with the evaluation splits", candidates["train"])
    shares = [
        (shared_shingles(document.text, reference), document)
        for document in _within(train, max_characters, sum(map(len, evaluated)))
    ]
    clean = [(share, document) for share, document in shares if share <= splits.max_shared_shingles]
    _require_enough(candidates | {"train": [document for _, document in clean]}, splits, ["train"])
    taken = clean[: splits.train_documents]
    chosen["train"] = [document for _, document in taken]

    proof = _proof(
        chosen | {"train": watch("proving that the splits share nothing", chosen["train"])},
        largest_shared_shingles=max(share for share, _ in taken),
        duplicates=duplicates,
        contaminated=len(shares) - len(clean),
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
    in_stream_order: bool = False,
    compared: Callable[[str], str] = str,
) -> tuple[Candidates, int]:
    """All documents by split, ordered and without duplicates, and how many duplicates were dropped.

    The one with the lowest precedence of documents with the same content stays. By hash that is the one in the
    earliest of SPLITS, and within it the first of its order, whatever the order in which they came. In a stream it is
    the first that came: a later duplicate in an earlier split would take it from where a shorter stream left it. In
    both, evaluation wins over train.
    """

    def precedence(entry: tuple[str, Document]) -> tuple[int, bytes]:
        name, document = entry
        if in_stream_order:
            return name == "train", b""  # the sort is stable
        return SPLITS.index(name), _digest(splits.split_seed, document.source, document.text)

    entries = sorted(placed, key=precedence)
    ordered: Candidates = {name: [] for name in SPLITS}
    contents = set[bytes]()
    for name, document in entries:
        if (content := _content(compared(document.text))) not in contents:
            contents.add(content)
            ordered[name].append(document)
    return ordered, len(entries) - len(contents)


def _content(compared: str) -> bytes:
    """Digest that duplicates share: that of what is compared of the text, whatever its white space."""
    return hashlib.sha256(" ".join(compared.split()).encode()).digest()


def _digest(*parts: int | str) -> bytes:
    return hashlib.sha256("\0".join(map(str, parts)).encode()).digest()


# ------------------------------------------------------------------------------------------------ sizes


def _require_enough(candidates: Candidates, splits: Splits, names: Iterable[str]) -> None:
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
        sources = {document.source for named in candidates.values() for document in named}
        raise BadInput(
            f"{documents:,} different documents of {len(sources):,} sources "
            "were read, and whole sources go to a split: give more text (a .txt file is one document and one source), "
            "or\n" + "\n".join(short)
        )


def _asked(splits: Splits, name: str) -> int | None:
    return getattr(splits, f"{name.replace('-', '_')}_documents")


def _within(train: Iterable[Document], max_characters: int | None, used: int) -> Iterator[Document]:
    """The first train documents that fit into what the evaluation splits have left of `max_characters`."""
    left = float("inf") if max_characters is None else max_characters - used
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
    chosen: Mapping[str, Iterable[Document]],
    largest_shared_shingles: float,
    duplicates: int,
    contaminated: int,
    compared: Callable[[str], str] = str,
) -> SplitsProof:
    """Proof of what the splits hold and share, computed again from the final documents; raises CheckFailed.

    The three numbers alone are taken as they were found when train was chosen.
    """
    held = {name: list(chosen[name]) for name in SPLITS}
    contents = {name: {_content(compared(document.text)) for document in held[name]} for name in SPLITS}
    sources = {name: {document.source for document in held[name]} for name in SPLITS}
    pairs = [
        SharedBySplits(
            splits=[first, other],
            shared_content=len(contents[first] & contents[other]),
            shared_sources=len(sources[first] & sources[other]),
        )
        for first, other in combinations(SPLITS, 2)
    ]
    for pair in pairs:
        for what, shared in (("shared_content", pair.shared_content), ("shared_sources", pair.shared_sources)):
            if shared:
                raise CheckFailed(f"{what} of {' and '.join(pair.splits)}", shared, 0)
    return SplitsProof(
        splits={name: summary_of(held[name]) for name in SPLITS},
        largest_shared_shingles=largest_shared_shingles,
        pairs=pairs,
        duplicates_dropped_documents=duplicates,
        contaminated_dropped_documents=contaminated,
    )


def summary_of(documents: Collection[Document]) -> SplitSummary:
    ids = sorted(document.example_id for document in documents)
    return SplitSummary(
        documents=len(ids),
        characters=sum(len(document.text) for document in documents),
        sources=len({document.source for document in documents}),
        digest=hashlib.sha256("\n".join(ids).encode()).hexdigest(),
    )


# ------------------------------------------------------------------------------------------ shingles

WORDS = 13
"""The window of GPT-3's contamination check (Brown et al. 2020, appendix C)."""
Shingle = tuple[str, ...]


def shingles(text: str) -> set[Shingle]:
    """Windows of 13 lower-cased words; a text of fewer has one, of all its words."""
    words = re.findall(r"\w+", text.lower())
    width = min(WORDS, len(words))
    return set(zip(*(words[offset:] for offset in range(width)), strict=False))


def shared_shingles(text: str, reference: set[Shingle]) -> float:
    """Share of the distinct shingles of `text` that stand in `reference`, 0 to 1; 0 for a text without words."""
    own = shingles(text)
    return len(own & reference) / len(own) if own else 0.0
