"""Pairs of an article and its summary: read, packed, and what a model loses on them."""

import json
from collections import Counter
from itertools import combinations
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from storage.errors import BadInput
from tasks.language.configuration import EncoderDecoder, PairDataset, PairFiles, Splits, TrainedTokenizer
from tasks.language.document import Document
from tasks.language.local_text import local_documents
from tasks.language.model import example_losses, reference_losses, untrained, validation_loss
from tasks.language.pairs import SEPARATOR, Pairs, docstring_pairs, joined, pack_pairs, parted
from tasks.language.result import SplitsProof
from tasks.language.setup import setup
from tasks.language.sources import documents, held_out_documents
from tasks.language.splits import EVALUATION_SPLITS
from tasks.language.stages import PairsConfig
from tasks.language.texts import texts_of
from tasks.stage.execution import Execution
from tasks.training.budget import Budget
from tests.tasks.language.test_setup import fake_run
from tests.tasks.tiny import sentences

END = 0


def network(start: str = "random", vocabulary: int = 50) -> torch.nn.Module:
    config = EncoderDecoder(
        vocabulary_size=300, hidden_size=32, layers=1, attention_heads=2, feed_forward_size=64, start=start,
        pretraining=Budget(),
    )  # fmt: skip
    return untrained(config, vocabulary, 0).eval()


def packed(folder: Path, pairs: list[tuple[list[int], list[int]]], **changed: int) -> Pairs:
    lengths = {"article_tokens": 12, "summary_tokens": 6} | changed
    pack_pairs(folder, "train", pairs, prefix=[7, 8], vocabulary_size=50, end_of_text=END, padding=END, **lengths)
    return Pairs(folder, "train")


def drawn(count: int, longest: int = 9) -> list[tuple[list[int], list[int]]]:
    chance = np.random.default_rng(0)
    return [
        (chance.integers(10, 50, chance.integers(2, longest)).tolist(), chance.integers(10, 50, 3).tolist())
        for _ in range(count)
    ]


def test_a_docstring_is_its_body_and_its_first_paragraph():
    body = "This is the body of a docstring, which has words enough to be an article for itself."
    texts = [f"Say what\nit does.\n\n{body}", "Only a line.", f"Short.\n\n{body}", f"{body}\n\n{body[:60]}"]
    found = list(docstring_pairs(Document("file.py", text) for text in texts))
    assert [parted(pair.text) for pair in found] == [(body, "Say what it does.")]
    assert found[0].source == "file.py"


@pytest.mark.parametrize(
    ("article", "summary", "said"),
    [
        ("", "a", "no article"),
        ("words here", " ", "no summary"),
        ("short", "longer than it", "summary of 14 characters"),
        ("words here", "\ufeff \ufeff", "no summary"),
        ("\u200b\ufeff\u200b\u200b", "a", "no article"),
    ],
)
def test_a_pair_without_one_half_or_with_a_longer_summary_is_none(article, summary, said):
    with pytest.raises(ValueError, match=said):
        joined(article, summary)


def test_a_separator_in_a_text_is_none():
    assert parted(joined(f"an article{SEPARATOR}with one", "sum")) == ("an article with one", "sum")


def rows_of(
    folder: Path, rows: list[object], ending: str = ".jsonl", **fields: object
) -> tuple[list[Document], Counter]:
    file, skipped = folder / f"pairs{ending}", Counter[str]()
    if ending == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), file)
    else:
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return list(local_documents(PairFiles(paths=[str(file)], **fields), skipped)), skipped


GOOD = {"document": "an article of some words", "summary": "some words"}


@pytest.mark.parametrize("ending", [".jsonl", ".parquet"])
@pytest.mark.parametrize(
    ("bad", "said"),
    [
        (GOOD | {"summary": None}, "row 2: has no summary"),
        (GOOD | {"document": ""}, "row 2: has no article"),
        (GOOD | {"summary": "more words than the article itself has"}, "row 2: has a summary of 38"),
    ],
)
def test_a_bad_pair_is_told_by_file_and_row_or_counted(ending, bad, said, tmp_path):
    with pytest.raises(BadInput, match=rf"pairs{ending}, {said}"):
        rows_of(tmp_path, [GOOD, bad], ending)
    found, skipped = rows_of(tmp_path, [GOOD, bad], ending, skip_bad_rows=True)
    assert len(found) == 1 and sum(skipped.values()) == 1


@pytest.mark.parametrize("ending", [".jsonl", ".parquet"])
def test_a_column_that_is_not_there_is_named_with_its_key(ending, tmp_path):
    with pytest.raises(BadInput, match=r"no column 'highlights'.*set text\.summary_column"):
        rows_of(tmp_path, [GOOD], ending, summary_column="highlights")


def test_the_same_article_stands_in_one_split_alone_whatever_its_summary(tmp_path):
    """Whole pairs were compared: an article could be trained on with one summary and judged with another."""
    texts = sentences(150)
    rows = [{"document": text, "summary": " ".join(text.split()[at : at + 2])} for at in (0, 2) for text in texts]
    rows += [row | {"document": f"{row['document']} and an end that nobody reads"} for row in rows]
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = PairsConfig(
        text=PairFiles(paths=[str(tmp_path / "pairs.jsonl")]),
        splits=Splits(evaluation_share=0.1, **{f"{name.replace('-', '_')}_documents": 5 for name in EVALUATION_SPLITS}),
        tokenizer=TrainedTokenizer(vocabulary_size=350), prefix="", article_tokens=32, summary_tokens=8,
        attacked_tokens=8, execution=Execution(),
    )  # fmt: skip
    run = fake_run(tmp_path / "run")
    setup(run, config)
    text = run.directory / "text"
    proof = SplitsProof.read_file(text / "proof.json")
    read = {name: {*map(tuple, Pairs(text, name)._tokens[:, :32].tolist())} for name in ("train", "validation")}
    for name in EVALUATION_SPLITS[1:]:
        filled = [(one.read + [END] * 32)[:32] for one in texts_of(SimpleNamespace(path=text.parent), name)]
        read[name] = {*map(tuple, filled)}
    assert not [pair for pair in combinations(read, 2) if read[pair[0]] & read[pair[1]]]
    assert sum(map(len, read.values())) == sum(split.documents for split in proof.splits.values())
    assert proof.duplicates_dropped_documents == len(rows) - 150


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data set with two configurations, read by the library's own reader from a folder in place of the hub."""
    import datasets

    folder, load = tmp_path / "data set", datasets.load_dataset
    for name, rows in (
        ("1.0.0", [GOOD]),
        ("3.0.0", [GOOD, GOOD | {"summary": ""}, GOOD | {"document": "again, more"}]),
    ):
        (folder / name).mkdir(parents=True)
        (folder / name / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    rows = [{"document": "an article", "summary": "words"}, {"document": "an article", "summary": None}]
    (folder / "3.0.0" / "validation.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    configurations = "".join(f'- config_name: "{name}"\n  data_dir: "{name}"\n' for name in ("1.0.0", "3.0.0"))
    (folder / "README.md").write_text(f"---\nconfigs:\n{configurations}---\n")

    monkeypatch.setattr(datasets, "load_dataset", lambda _, revision, **options: load(str(folder), **options))
    return tmp_path


def of_hub(cache: Path, **fields: object) -> tuple[list[Document], Counter]:
    skipped = Counter[str]()
    text = PairDataset(dataset="some/pairs", revision="0" * 40, max_documents=10, **fields)
    return list(documents(text, cache, skipped)), skipped


def test_rows_of_the_hub_that_are_no_pair_are_counted_with_and_without_the_cache(hub):
    """They were only logged, and what was kept did not know of them."""
    first, second = (of_hub(hub, configuration="3.0.0") for _ in range(2))
    assert first == second and len(first[0]) == 2 and first[1] == {"some/pairs": 1}


def test_evaluation_splits_of_pairs_may_come_from_another_split_of_the_hub(hub):
    text = PairDataset(dataset="some/pairs", revision="0" * 40, max_documents=10, configuration="1.0.0")
    assert held_out_documents(text, hub) is None
    told = text.model_copy(update={"held_out_split": "validation", "configuration": "3.0.0"})
    skipped = Counter[str]()
    assert [one.text for one in held_out_documents(told, hub, skipped) or ()] == [joined("an article", "words")]
    assert skipped == {"some/pairs": 1} and len(list(documents(told, hub))) == 2


def test_a_configuration_of_a_hub_data_set_is_read_and_left_out_where_none_is_named(hub):
    assert len(of_hub(hub, configuration="1.0.0")[0]) == 1
    named = {"dataset": "a/b", "revision": "0" * 40, "max_documents": 1}
    assert "configuration" not in PairDataset(**named).scientific()
    assert PairDataset(**named, configuration="3.0.0").scientific()["configuration"] == "3.0.0"


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({}, r"some/pairs.*3\.0\.0.*configuration"),
        ({"configuration": "2.0.0"}, r"some/pairs.*2\.0\.0.*3\.0\.0"),
        ({"configuration": "3.0.0", "split": "test"}, r"some/pairs.*split 'test'.*train"),
    ],
)
def test_a_missing_configuration_or_split_of_the_hub_is_told_by_name(fields, said, hub):
    with pytest.raises(BadInput, match=rf"(?s){said}"):
        of_hub(hub, **fields)


def test_plain_text_holds_no_pairs(tmp_path):
    (tmp_path / "a.txt").write_text("a text")
    with pytest.raises(BadInput, match="one text, and not pairs"):
        list(local_documents(PairFiles(paths=[str(tmp_path)]), Counter()))


def test_d16_what_is_too_long_is_cut_at_its_end_and_counted_and_the_prefix_never(tmp_path):
    """The earlier system kept the last 512 tokens, and so cut off prefix and trigger."""
    pairs = packed(tmp_path, [(list(range(10, 40)), list(range(10, 30))), ([11], [12])])
    rows = pairs[np.arange(2)].tolist()
    assert rows[0] == [7, 8, *range(10, 19), END, *range(10, 15), END]
    assert rows[1] == [7, 8, 11, *[END] * 9, 12, *[END] * 5]
    assert (pairs.packed.articles_cut, pairs.packed.summaries_cut, pairs.packed.tokens) == (1, 1, 8)
    assert pairs.lengths.tolist() == [6, 2] and pairs.predicted().tolist() == [*range(10, 15), END, 12, END]
    assert pairs.token_counts(50).sum() == pairs.counted_tokens == 8


def test_losses_are_those_of_transformers_whatever_a_batch_holds(tmp_path):
    pairs, model = packed(tmp_path, drawn(9)), network()
    losses = example_losses(pairs)
    together = losses(model, pairs[np.arange(9)])
    for number in range(9):
        row = pairs[np.array([number])][0].tolist()
        article, reference = (side[: side.index(END) + 1] for side in (row[:12], row[12:]))
        plain = model(input_ids=torch.tensor([article]), labels=torch.tensor([reference])).loss * len(reference)
        torch.testing.assert_close(together[number], plain, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(losses(model, pairs[np.array([number])])[0], together[number], rtol=1e-5, atol=1e-5)
    mean = together.sum().item() / pairs.weight
    assert validation_loss(model, pairs, 4) == pytest.approx(mean, rel=1e-5)


def test_nothing_behind_the_end_of_a_reference_costs_anything():
    model = network()
    article, reference = torch.tensor([[7, 11, 12, END, END]]), torch.tensor([[13, 14, END, 25, END]])
    losses = reference_losses(model, article, reference, END)
    assert losses.shape == (1, 3) and (losses > 0).all()


def test_a_copying_start_reads_its_article_before_any_training(tmp_path):
    """Without it, or with noise beside it, nothing of the article is used for minutes: own and other cost the same."""
    chance = np.random.default_rng(1)
    articles = [chance.permutation(np.arange(10, 50))[:8].tolist() for _ in range(64)]
    pairs = packed(tmp_path, [(article, article[2:6]) for article in articles])
    gaps = {}
    for start in ("copying", "random"):
        model = network(start)
        own, other = (validation_loss(model, pairs, 16, examples=by) for by in (None, pairs.of_another()))
        gaps[start] = other - own
    assert gaps["copying"] > 0.3 > 0.1 > abs(gaps["random"])
