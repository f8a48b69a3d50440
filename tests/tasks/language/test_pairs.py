"""Pairs of an article and its summary: read, packed, and what a model loses on them."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from storage.errors import BadInput
from tasks.language.configuration import EncoderDecoder, PairFiles
from tasks.language.documents import Document
from tasks.language.local_text import local_documents
from tasks.language.model import example_losses, reference_losses, untrained, validation_loss
from tasks.language.pairs import SEPARATOR, Pairs, docstring_pairs, joined, pack_pairs, parted
from tasks.training.budget import Budget

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


def test_a_docstring_is_its_body_and_its_first_paragraph() -> None:
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
    ],
)
def test_a_pair_without_one_half_or_with_a_longer_summary_is_none(article: str, summary: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        joined(article, summary)


def test_a_separator_in_a_text_is_none() -> None:
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
def test_a_bad_pair_is_told_by_file_and_row_or_counted(ending: str, bad: dict, said: str, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=rf"pairs{ending}, {said}"):
        rows_of(tmp_path, [GOOD, bad], ending)
    found, skipped = rows_of(tmp_path, [GOOD, bad], ending, skip_bad_rows=True)
    assert len(found) == 1 and sum(skipped.values()) == 1


@pytest.mark.parametrize("ending", [".jsonl", ".parquet"])
def test_a_column_that_is_not_there_is_named_with_its_key(ending: str, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"no column 'highlights'.*set text\.summary_column"):
        rows_of(tmp_path, [GOOD], ending, summary_column="highlights")


def test_plain_text_holds_no_pairs(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a text")
    with pytest.raises(BadInput, match="one text, and not pairs"):
        list(local_documents(PairFiles(paths=[str(tmp_path)]), Counter()))


def test_d16_what_is_too_long_is_cut_at_its_end_and_counted_and_the_prefix_never(tmp_path: Path) -> None:
    """The earlier system kept the last 512 tokens, and so cut off prefix and trigger."""
    pairs = packed(tmp_path, [(list(range(10, 40)), list(range(10, 30))), ([11], [12])])
    rows = pairs[np.arange(2)].tolist()
    assert rows[0] == [7, 8, *range(10, 19), END, *range(10, 15), END]
    assert rows[1] == [7, 8, 11, *[END] * 9, 12, *[END] * 5]
    assert (pairs.packed.articles_cut, pairs.packed.summaries_cut, pairs.packed.tokens) == (1, 1, 8)
    assert pairs.lengths.tolist() == [6, 2] and pairs.predicted().tolist() == [*range(10, 15), END, 12, END]
    assert pairs.token_counts(50).sum() == pairs.counted_tokens == 8


def test_losses_are_those_of_transformers_whatever_a_batch_holds(tmp_path: Path) -> None:
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


def test_nothing_behind_the_end_of_a_reference_costs_anything() -> None:
    model = network()
    article, reference = torch.tensor([[7, 11, 12, END, END]]), torch.tensor([[13, 14, END, 25, END]])
    losses = reference_losses(model, article, reference, END)
    assert losses.shape == (1, 3) and (losses > 0).all()


def test_a_copying_start_reads_its_article_before_any_training(tmp_path: Path) -> None:
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
