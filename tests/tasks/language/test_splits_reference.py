"""The splits are, document by document, those of the definition, which is written out here for text that is small."""

import hashlib
import random
import re
from itertools import accumulate

import pytest

from storage.errors import BadInput
from tasks.language.configuration import Splits
from tasks.language.document import Document, document
from tasks.language.splits import EVALUATION_SPLITS, SPLITS, cut

SIZES = {f"{name.replace('-', '_')}_documents": 3 for name in EVALUATION_SPLITS}


def sha(*parts: object) -> bytes:
    return hashlib.sha256("\0".join(map(str, parts)).encode()).digest()


def place(source: str, splits: Splits) -> str:
    at = int.from_bytes(sha(splits.split_seed, source)[:8], "big") / 2**64
    return next((name for n, name in enumerate(EVALUATION_SPLITS, 1) if at < n * splits.evaluation_share), "train")


def shingles(text: str) -> set[tuple[str, ...]]:
    words = re.findall(r"\w+", text.lower())
    width = min(13, len(words))
    return {tuple(words[at : at + width]) for at in range(len(words) - width + 1)} if words else set()


def share(text: str, reference: set[tuple[str, ...]]) -> float:
    own = shingles(text)
    return len(own & reference) / len(own) if own else 0.0


def defined(
    found: list[Document], splits: Splits, limit: int | None, in_stream_order: bool, held_out: list[Document] | None
) -> dict[str, object]:
    """What the splits hold and what was dropped, all at once and with everything in memory."""
    if held_out is None:
        placed = [(place(one.source, splits), one) for one in found]
    else:
        placed = [(place(one.source, splits), one) for one in held_out if place(one.source, splits) != "train"]
        placed += [("train", one) for one in found]

    def precedence(entry: tuple[int, tuple[str, Document]]) -> tuple:
        at, (name, one) = entry
        return (
            (name == "train", at)
            if in_stream_order
            else (SPLITS.index(name), sha(splits.split_seed, one.source, one.text))
        )

    different: dict[str, tuple[str, Document]] = {}
    for _, (name, one) in sorted(enumerate(placed), key=precedence):
        different.setdefault(" ".join(one.text.split()), (name, one))
    ordered = {split: [one for name, one in different.values() if name == split] for split in SPLITS}
    chosen = {name: ordered[name][:3] for name in EVALUATION_SPLITS}
    evaluation = [one for name in EVALUATION_SPLITS for one in chosen[name]]

    lengths = accumulate((len(one.text) for one in ordered["train"]), initial=sum(len(one.text) for one in evaluation))
    within = [
        one for one, used in zip(ordered["train"], list(lengths)[1:], strict=True) if limit is None or used <= limit
    ]
    reference = set().union(*(shingles(one.text) for one in evaluation))
    clean = [one for one in within if share(one.text, reference) <= splits.max_shared_shingles]
    chosen["train"] = clean[: splits.train_documents]
    return {
        "documents": chosen,
        "largest": max(share(one.text, reference) for one in chosen["train"]),
        "duplicates": len(placed) - len(different),
        "contaminated": len(within) - len(clean),
        "digests": {
            name: hashlib.sha256("\n".join(sorted(one.example_id for one in held)).encode()).hexdigest()
            for name, held in chosen.items()
        },
    }


def ours(
    found: list[Document],
    splits: Splits,
    limit: int | None,
    in_stream_order: bool,
    held_out: list[Document] | None,
) -> dict[str, object]:
    text = cut(iter(found), splits, held_out=held_out, max_characters=limit, in_stream_order=in_stream_order)
    return {
        "documents": text.documents,
        "largest": text.proof.largest_shared_shingles,
        "duplicates": text.proof.duplicates_dropped_documents,
        "contaminated": text.proof.contaminated_dropped_documents,
        "digests": {name: summary.digest for name, summary in text.proof.splits.items()},
    }


def corpus(seed: int, rows: bool) -> list[Document]:
    """Texts that repeat each other: whole, with other spaces, in part, in capitals; some short, some not English."""
    chance = random.Random(seed)
    words = [*(f"word{n}" for n in range(60)), "naïve", "Σίγμας", "İstanbul", "don't", "x_1", "日本", "-", "\x1c", "é"]
    passages = [chance.choices(words, k=60) for _ in range(8)]
    texts: list[str] = []
    for _ in range(300):
        text = " ".join(chance.choices(words, k=chance.choice((1, 5, 12, 13, 14, 30, 80))))
        if chance.random() < 0.5:
            begin = chance.randint(0, 40)
            part = " ".join(chance.choice(passages)[begin : begin + chance.randint(10, 40)])
            text = chance.choice((f"{part} {text}", f"{text} {part.upper()}"))
        if texts and chance.random() < 0.2:
            other = chance.choice(texts)
            text = chance.choice((other, other.replace(" ", "\n "), other.upper()))
        texts.append(text)
    return [document(None if rows else f"file{n // 2}.txt", text) for n, text in enumerate(texts)]


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("rows", [False, True])
def test_splits_are_those_of_the_definition(seed, rows):
    chance = random.Random(seed)
    splits = Splits(
        split_seed=seed,
        evaluation_share=0.15,
        max_shared_shingles=chance.choice((0.0, 0.1, 0.3)),
        train_documents=chance.choice((None, 12)),
        **SIZES,
    )
    found = corpus(seed, rows)
    held_out = None
    if rows and seed % 2:
        held_out, found = found[:150], found[100:]
    limit = None if rows else chance.choice((None, 12_000))
    asked = (found, splits, limit, rows, held_out)
    expected = defined(*asked)
    assert ours(*asked) == expected
    assert expected["duplicates"] and expected["contaminated"] and expected["documents"]["train"]


def test_the_random_texts_show_every_kind_of_share():
    """Without partly shared texts the comparison above would show little."""
    found = corpus(1, rows=True)
    reference = set().union(*(shingles(one.text) for one in found[:60]))
    shares = [share(one.text, reference) for one in found[60:]]
    assert sum(0 < one < 1 for one in shares) > 10 and 0.0 in shares and 1.0 in shares


def test_held_out_text_alone_is_evaluated_on_and_wins_over_train():
    found, held_out = corpus(1, rows=True), corpus(2, rows=True)
    splits = Splits(evaluation_share=0.15, **SIZES)
    before = ours(found, splits, None, True, held_out)["documents"]
    leaked = before["test"][0]
    after = ours([leaked, *found], splits, None, True, held_out)["documents"]
    assert after == before and leaked not in after["train"]
    inside = {one.example_id for one in held_out}
    assert all(one.example_id in inside for name in EVALUATION_SPLITS for one in before[name])
    assert sum(place(one.source, splits) != "train" for one in before["train"]) > 10


def test_too_little_held_out_text_is_bad_input():
    with pytest.raises(BadInput, match="split test: 3 documents are asked for and 0 are there"):
        ours(corpus(1, rows=True), Splits(evaluation_share=0.15, **SIZES), None, True, [])
