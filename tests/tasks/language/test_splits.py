"""No size moves an evaluation split, nor does a longer stream, and the splits share nothing."""

import random
from collections.abc import Iterable

import pytest

from storage.errors import BadInput, CheckFailed
from tasks.language import setup as stage
from tasks.language import splits as module
from tasks.language.configuration import HubDataset, LocalFiles, PackageDocs, Splits, TrainedTokenizer
from tasks.language.document import Document, document
from tasks.language.splits import EVALUATION_SPLITS, SPLITS, cut, shared_shingles, shingles, split_of
from tasks.language.stages import SetupConfig
from tasks.stage.execution import Execution
from tests.tasks.language.test_setup import fake_run

SMALL = {
    "evaluation_share": 0.1,
    "validation_documents": 5,
    "test_documents": 6,
    "attack_search_documents": 4,
    "attack_evaluation_documents": 5,
}
WORDS = [f"word{n}" for n in range(2000)]


def candidates_of(found: Iterable[Document], **options) -> tuple[dict[str, list[Document]], int]:
    placed = [(split_of(document.source, settings()), document) for document in found]
    return module._candidates(placed, settings(), **options)


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
def test_no_size_moves_another_split_that_shares_nothing_with_it(changed, change):
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
    large, small = cut(documents, settings()), cut(documents, settings(test_documents=2))
    assert small.documents["train"] == large.documents["train"]
    assert train_source not in {document.source for document in small.documents["train"]}


def test_max_characters_limits_train_alone():
    everything, limited = cut(corpus(), settings()), cut(corpus(), settings(), max_characters=30_000)
    for name in EVALUATION_SPLITS:
        assert limited.documents[name] == everything.documents[name]
    train = limited.documents["train"]
    assert train == everything.documents["train"][: len(train)]
    used = sum(summary.characters for summary in limited.proof.splits.values())
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


def stream(count: int) -> list[Document]:
    """The first `count` documents of a stream in which one in five repeats an earlier one, half with other spaces."""
    chance = random.Random(11)
    texts: list[str] = []
    for _ in range(count):
        if texts and chance.random() < 0.2:
            again = chance.choice(texts)
            texts.append(again if chance.random() < 0.5 else again.replace(" ", "\n" * chance.randint(1, 9)))
        else:
            texts.append(" ".join(chance.choices(WORDS, k=chance.randint(5, 60))))
    return [document(None, text) for text in texts]


def test_a_longer_stream_moves_no_evaluation_split():
    short, long = stream(2000), stream(4000)
    assert long[:2000] == short
    sizes = {"validation_documents": 100, "test_documents": 120, "attack_search_documents": 80}
    before, after = (cut(found, settings(**sizes), in_stream_order=True).documents for found in (short, long))
    for name in EVALUATION_SPLITS:
        assert after[name] == before[name]
    assert len(after["train"]) > len(before["train"])


def test_a_longer_stream_only_appends_to_what_evaluation_may_choose_from():
    short, long = (candidates_of(stream(count), in_stream_order=True)[0] for count in (2000, 4000))
    for name in EVALUATION_SPLITS:
        assert long[name][: len(short[name])] == short[name]
        assert len(long[name]) > len(short[name])


@pytest.mark.parametrize(
    ("text", "in_order"),
    [
        (HubDataset(dataset="some/data", revision="0" * 40, max_documents=10), True),
        (LocalFiles(paths=["somewhere"]), False),
        (PackageDocs(), False),
    ],
)
def test_setup_keeps_the_order_of_a_hub_stream_and_of_nothing_else(tmp_path, monkeypatch, text, in_order):
    asked = []

    def cut_short(*_, in_stream_order, **__):
        asked.append(in_stream_order)
        raise BadInput("enough")

    monkeypatch.setattr(stage, "cut", cut_short)
    config = SetupConfig(
        text=text,
        splits=settings(),
        sequence_length=16,
        tokenizer=TrainedTokenizer(vocabulary_size=300),
        execution=Execution(),
    )
    with pytest.raises(BadInput, match="enough"):
        stage.setup(fake_run(tmp_path / "run"), config)
    assert asked == [in_order]


@pytest.mark.parametrize(
    ("first", "second", "winner"),
    [
        ("attack-evaluation", "validation", "attack-evaluation"),
        ("validation", "attack-evaluation", "validation"),
        ("train", "test", "test"),
        ("test", "train", "test"),
    ],
)
def test_of_duplicates_in_a_stream_the_first_stays_unless_it_is_in_train(first, second, winner):
    text = "planted text of some words " * 3
    pair = [Document(source_in(first), text), Document(source_in(second), text.replace(" ", "\n "))]
    candidates, dropped = candidates_of(pair, in_stream_order=True)
    assert {name: found for name, found in candidates.items() if found} == {winner: [pair[winner == second]]}
    assert dropped == 1


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
    candidates, dropped = candidates_of(corpus() + (pair if winner_first else pair[::-1]))
    assert pair[0] in candidates[winner] and pair[1] not in candidates[loser]
    assert dropped == 1


def test_dropped_duplicates_are_counted():
    documents = corpus()
    assert cut(documents + documents[:9], settings()).proof.duplicates_dropped_documents == 9


# ----------------------------------------------------------------------------------------- contamination


def test_near_duplicate_of_an_evaluation_document_is_left_out_and_counted():
    clean = cut(corpus(), settings())
    held = max(clean.documents["attack-evaluation"], key=lambda document: len(document.text))
    near = Document(source_in("train"), "Another beginning. " + held.text.upper() + " And an end!")
    planted = cut([*corpus(), near], settings())
    assert clean.proof.contaminated_dropped_documents == 0
    assert planted.proof.contaminated_dropped_documents == 1
    assert planted.documents == clean.documents
    assert near in cut([*corpus(), near], settings(max_shared_shingles=1.0)).documents["train"]


# ------------------------------------------------------------------------------------------------- proof


def test_proof_counts_what_is_there():
    result = cut(corpus(), settings(train_documents=20))
    summary = result.proof.splits["test"]
    assert summary.documents == 6
    assert summary.characters == sum(len(document.text) for document in result.documents["test"])
    assert len(result.proof.pairs) == 10
    assert {pair.shared_content + pair.shared_sources for pair in result.proof.pairs} == {0}
    assert result.proof.largest_shared_shingles <= 0.2


@pytest.mark.parametrize("what", ["shared_content", "shared_sources"])
def test_proof_refuses_splits_that_share_anything(what):
    chosen = dict(cut(corpus(), settings()).documents)
    held = chosen["test"][0]
    leak = Document("elsewhere", held.text) if what == "shared_content" else Document(held.source, "another")
    chosen["train"] = [*chosen["train"], leak]
    with pytest.raises(CheckFailed, match=f"{what} of test and train"):
        module._proof(chosen, largest_shared_shingles=0.0, duplicates=0, contaminated=0)


# -------------------------------------------------------------------------------------------- bad input


def test_every_split_that_is_too_small_is_named_at_once():
    with pytest.raises(BadInput, match=r"\n  split validation: 4000 .*\n  split attack-search: 5000 .*$") as caught:
        cut(corpus(), settings(validation_documents=4000, attack_search_documents=5000))
    assert "split test" not in str(caught.value)


def test_too_little_text_says_first_how_much_was_read_and_what_a_source_is():
    few = [Document(f"{name}.txt", f"the text of {name}, and some words") for name in ("one", "two", "three")]
    with pytest.raises(BadInput) as caught:
        cut([*few, few[0]], Splits())
    first, *splits = str(caught.value).splitlines()
    assert first.startswith("3 different documents of 3 sources were read, and whole sources go to a split: ")
    assert "a .txt file is one document and one source" in first
    assert [line.split(":")[0] for line in splits] == [f"  split {name}" for name in SPLITS if name != "train"]


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


FEW_WORDS = [f"word{n}" for n in range(60)]


def test_share_of_shingles():
    words = FEW_WORDS[:40]
    reference = shingles(" ".join(words[:26])) | shingles("just three words")
    assert shared_shingles(" ".join(words[:26]), reference) == 1.0
    assert shared_shingles(" ".join(words), reference) == pytest.approx(14 / 28)
    assert shared_shingles(" ".join(reversed(words)), reference) == 0.0
    assert shared_shingles("Just, THREE words!", reference) == 1.0
    assert shared_shingles("words three just", reference) == 0.0
    assert shared_shingles("?!", reference) == 0.0


def test_a_shingle_that_comes_twice_counts_once():
    planted, others = " ".join(FEW_WORDS[:13]), " ".join(FEW_WORDS[20:40])
    once, twice = f"{planted} {others}", f"{planted} {others} {planted} {others}"
    assert shared_shingles(once, shingles(planted)) == 1 / 21
    assert (
        shared_shingles(twice, shingles(planted)) == 1 / 33
    )  # 20 more windows lead from the others back to the planted words


# -------------------------------------------------------------------------------------------- held-out text


def test_held_out_text_alone_is_evaluated_on_and_wins_over_train():
    found, held_out = stream(400), stream(800)[400:]
    before = cut(found, settings(), held_out=held_out, in_stream_order=True).documents
    leaked = before["test"][0]
    after = cut([leaked, *found], settings(), held_out=held_out, in_stream_order=True).documents
    assert after == before and leaked not in after["train"]
    inside = {one.example_id for one in held_out}
    assert all(one.example_id in inside for name in EVALUATION_SPLITS for one in before[name])
    assert sum(split_of(one.source, settings()) != "train" for one in before["train"]) > 10


def test_too_little_held_out_text_is_bad_input():
    with pytest.raises(BadInput, match="split test: 6 documents are asked for and 0 are there"):
        cut(stream(400), settings(), held_out=[], in_stream_order=True)
