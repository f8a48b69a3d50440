"""No size moves another split, and the splits share nothing."""

from __future__ import annotations

import random

import pytest

from storage.errors import BadInput, CheckFailed
from tasks.language import splits as module
from tasks.language.documents import Document
from tasks.language.shingles import Overlap
from tasks.language.splits import EVALUATION_SPLITS, SPLITS, cut, split_of
from tasks.study import Splits

SMALL = {
    "evaluation_share": 0.1,
    "validation_documents": 5,
    "test_documents": 6,
    "attack_search_documents": 4,
    "attack_evaluation_documents": 5,
}
WORDS = [f"word{n}" for n in range(2000)]


def settings(**changes) -> Splits:
    return Splits(**{**SMALL, **changes})


def corpus(sources: int = 120, each: int = 3) -> list[Document]:
    chance = random.Random(7)
    return [
        Document(f"module{s}.py", " ".join(chance.choices(WORDS, k=chance.randint(5, 60))))
        for s in range(sources)
        for _ in range(each)
    ]


def source_in(split: str) -> str:
    return next(f"extra{n}" for n in range(1000) if split_of(f"extra{n}", settings()) == split)


# --------------------------------------------------------------------------------------------- stability


@pytest.mark.parametrize(
    ("changed", "change"),
    [(name, {f"{name.replace('-', '_')}_documents": 2}) for name in EVALUATION_SPLITS]
    + [("train", {"train_documents": 11})],
)
def test_no_size_moves_another_split(changed, change):
    before, after = cut(corpus(), settings()).documents, cut(corpus(), settings(**change)).documents
    for name in SPLITS:
        if name != changed:
            assert after[name] == before[name]
    assert len(after[changed]) < len(before[changed])
    assert after[changed] == before[changed][: len(after[changed])]


def test_duplicates_across_splits_do_not_make_sizes_move_anything():
    """A duplicate that a small evaluation split no longer holds still does not appear elsewhere."""
    documents = corpus()
    held = cut(documents, settings()).documents["test"]
    train_source = source_in("train")
    documents += [Document(train_source, document.text) for document in held]
    large, small = cut(documents, settings()), cut(documents, settings(test_documents=1))
    assert small.documents["train"] == large.documents["train"]
    assert train_source not in {document.source for document in small.documents["train"]}


def test_max_characters_limits_train_alone():
    everything, limited = cut(corpus(), settings()), cut(corpus(), settings(), max_characters=30_000)
    for name in EVALUATION_SPLITS:
        assert limited.documents[name] == everything.documents[name]
    train = limited.documents["train"]
    assert train == everything.documents["train"][: len(train)]
    used = sum(summary["characters"] for summary in limited.proof["splits"].values())
    assert 29_000 < used <= 30_000


def test_membership_hangs_on_the_source_alone_and_order_on_nothing_outside():
    documents = corpus()
    shuffled = documents[:]
    random.Random(1).shuffle(shuffled)
    first, second = cut(documents, settings()), cut(shuffled, settings())
    assert first == second
    for name in SPLITS:
        assert {split_of(document.source, settings()) for document in first.documents[name]} == {name}
    assert cut(documents, settings(split_seed=1)).documents["test"] != first.documents["test"]


def test_shares_are_what_was_asked():
    names = [split_of(f"source{n}", settings()) for n in range(20_000)]
    for name in EVALUATION_SPLITS:
        assert 0.09 < names.count(name) / len(names) < 0.11


# -------------------------------------------------------------------------------------------- duplicates


@pytest.mark.parametrize(
    ("winner", "loser"),
    [("validation", "test"), ("test", "attack-search"), ("attack-evaluation", "train"), ("test", "train")],
)
@pytest.mark.parametrize("winner_first", [True, False])
def test_of_duplicates_the_earlier_split_keeps_its_own(winner, loser, winner_first):
    text = "planted text of some words " * 3
    pair = [Document(source_in(winner), text), Document(source_in(loser), "  " + text.replace(" ", "\n "))]
    candidates, dropped = module._candidates(corpus() + (pair if winner_first else pair[::-1]), settings())
    assert pair[0] in candidates[winner] and pair[1] not in candidates[loser]
    assert dropped == 1


def test_dropped_duplicates_are_counted():
    documents = corpus()
    assert cut(documents + documents[:9], settings()).proof["duplicates_dropped_documents"] == 9


# ----------------------------------------------------------------------------------------- contamination


def test_near_duplicate_of_an_evaluation_document_is_left_out_and_counted():
    clean = cut(corpus(), settings())
    held = max(clean.documents["attack-evaluation"], key=lambda document: len(document.text))
    near = Document(source_in("train"), "Another beginning. " + held.text.upper() + " And an end!")
    planted = cut([*corpus(), near], settings())
    assert clean.proof["contaminated_dropped_documents"] == 0
    assert planted.proof["contaminated_dropped_documents"] == 1
    assert planted.documents == clean.documents
    assert near in cut([*corpus(), near], settings(max_shared_shingles=1.0)).documents["train"]


def test_share_of_shingles():
    words = WORDS[:40]
    overlap = Overlap([" ".join(words[:26]), "just three words"])
    assert overlap.share(" ".join(words[:26])) == 1.0
    assert overlap.share(" ".join(words)) == pytest.approx(14 / 28)
    assert overlap.share(" ".join(reversed(words))) == 0.0
    assert overlap.share("Just, THREE words!") == 1.0
    assert overlap.share("words three just") == 0.0
    assert overlap.share("?!") == 0.0


# ------------------------------------------------------------------------------------------------- proof


def test_proof_counts_what_is_there():
    result = cut(corpus(), settings(train_documents=20))
    summary = result.proof["splits"]["test"]
    assert summary["documents"] == 6
    assert summary["characters"] == sum(len(document.text) for document in result.documents["test"])
    assert len(result.proof["pairs"]) == 10
    assert {pair["shared_content"] + pair["shared_sources"] for pair in result.proof["pairs"]} == {0}
    assert result.proof["largest_shared_shingles"] <= 0.2


@pytest.mark.parametrize("what", ["shared_content", "shared_sources"])
def test_proof_refuses_splits_that_share_anything(what):
    chosen = dict(cut(corpus(), settings()).documents)
    held = chosen["test"][0]
    leak = Document("elsewhere", held.text) if what == "shared_content" else Document(held.source, "another")
    chosen["train"] = [*chosen["train"], leak]
    with pytest.raises(CheckFailed, match=f"{what} of test and train"):
        module._proof(chosen, settings())


def test_proof_refuses_contaminated_train_documents():
    chosen = dict(cut(corpus(), settings()).documents)
    held = max(chosen["test"], key=lambda document: len(document.text))
    chosen["train"] = [*chosen["train"], Document("elsewhere", held.text + " more")]
    with pytest.raises(CheckFailed, match="shingles"):
        module._proof(chosen, settings())


# -------------------------------------------------------------------------------------------- bad input


@pytest.mark.parametrize("name", SPLITS)
def test_too_few_documents_names_the_split_and_both_numbers(name):
    field = f"{name.replace('-', '_')}_documents"
    with pytest.raises(BadInput, match=rf"split {name}: 5000 documents are asked for and \d+ are there.*{field}"):
        cut(corpus(), settings(**{field: 5000}))


def test_max_characters_below_the_evaluation_splits_is_bad_input():
    with pytest.raises(BadInput, match="max_characters is 100"):
        cut(corpus(), settings(), max_characters=100)


def test_text_without_train_sources_is_bad_input():
    documents = [document for document in corpus() if split_of(document.source, settings()) != "train"]
    with pytest.raises(BadInput, match="split train"):
        cut(documents, settings(), max_characters=10**9)
