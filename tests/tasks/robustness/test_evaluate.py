"""Evaluation: a document's loss depends on the document and the model alone, and every model is given the same."""

import shutil
from functools import cache

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from transformers import AutoTokenizer

from storage import durable
from tasks.language.model import load, token_losses
from tasks.robustness import evaluate as evaluation
from tasks.robustness.evaluate import document_losses, rolling_windows
from tests.tasks.tiny import Here, finished_study, handles_of, tiny_model

LENGTH = 16
MODELS = [
    "unigram",
    "untrained",
    "base",
    "baseline",
    "monotonic",
    "random-signs",
    "constrained-untrained",
    "base@0.5",
]


def documents(count: int = 12) -> list[list[int]]:
    chance = np.random.default_rng(2)
    return [chance.integers(1, 61, size=size).tolist() for size in [0, 1, 16, 17, *chance.integers(2, 70, count)]]


def losses(model, texts: list[list[int]], batch_size: int) -> np.ndarray:
    return document_losses(model, [rolling_windows(ids, 0, LENGTH) for ids in texts], batch_size)


@cache
def each_alone() -> list[float]:
    return [alone(tiny_model(), ids) for ids in documents()]


def alone(model, ids: list[int]) -> float:
    """One document, one window after another, no padding, double precision sum."""
    total = 0.0
    for window in rolling_windows(ids, 0, LENGTH):
        with torch.no_grad():
            total += token_losses(model, torch.tensor([window.tokens]))[0, -window.scored :].double().sum().item()
    return total


@pytest.mark.parametrize("batch_size", [1, 3, 16, 1000])
def test_a_document_s_loss_does_not_depend_on_its_batch(batch_size):
    model, texts = tiny_model(), documents()
    expected = each_alone()
    assert losses(model, texts, batch_size) == pytest.approx(expected, rel=1e-5)
    assert expected[0] == 0.0 and min(expected[1:]) > 0


def test_a_document_s_loss_does_not_depend_on_its_neighbours_or_their_order():
    model, texts = tiny_model(), documents()
    together = losses(model, texts, 7)
    backwards = losses(model, texts[::-1], 7)[::-1]
    assert backwards == pytest.approx(together, rel=1e-5)
    among_long_ones = losses(model, [texts[1], *[[5] * 60] * 6], 7)[0]
    assert among_long_ones == pytest.approx(together[1], rel=1e-5)


def test_a_device_that_runs_out_of_memory_drops_nothing():
    model = tiny_model()

    def full(*_, **__):
        raise torch.OutOfMemoryError("no room")

    model.forward = full
    with pytest.raises(torch.OutOfMemoryError):
        losses(model, documents(), 4)


# ----------------------------------------------------------------------------------------------- stage


@pytest.fixture(scope="module")
def study():
    return finished_study()


def rows_of(study) -> list[dict]:
    return pq.read_table(study.path("evaluate") / "records.parquet").to_pylist()


def test_every_model_is_scored_on_every_token_of_every_test_document(study):
    documents = pq.read_table(study.path("setup") / "text" / "test.parquet").to_pylist()
    tokenizer = AutoTokenizer.from_pretrained(study.path("setup") / "text" / "tokenizer")
    tokens = {row["example_id"]: len(tokenizer(row["text"])["input_ids"]) for row in documents}
    rows = rows_of(study)
    for model in MODELS:
        assert {row["example_id"]: row["tokens_scored"] for row in rows if row["model"] == model} == tokens
    assert len(rows) == len(MODELS) * len(tokens)


def test_perplexities_are_those_of_the_models_on_disk(study):
    documents = pq.read_table(study.path("setup") / "text" / "test.parquet").to_pylist()
    tokenizer = AutoTokenizer.from_pretrained(study.path("setup") / "text" / "tokenizer")
    ids = [tokenizer(row["text"])["input_ids"] for row in documents]
    folders = {
        "untrained": study.path("base") / "initial",
        "base": study.path("base") / "model",
        "constrained-untrained": study.path("constrain-non-negative-positive-part") / "model",
        "baseline": study.path("train-baseline") / "model",
        "monotonic": study.path("train-monotonic") / "model",
        "random-signs": study.path("train-placebo-random-signs") / "model",
        "base@0.5": study.path("base") / "snapshots" / "0.5",
    }
    found = durable.read_json(study.path("aggregate") / "final_results.json")["models"]
    assert list(found) == MODELS
    for name, folder in folders.items():
        model = load(folder).eval()
        expected = sum(alone(model, document) for document in ids) / sum(map(len, ids))
        assert found[name]["loss_nats_per_token"] == pytest.approx(expected, rel=1e-5)
        assert found[name]["perplexity"] == pytest.approx(np.exp(expected), rel=1e-4)
        assert found[name]["documents"] == len(ids)


def test_the_unigram_reference_uses_the_frequencies_of_train(study):
    text = study.path("setup") / "text"
    counts = np.load(text / "unigram.npy")
    (first,) = (row for row in pq.read_table(text / "test.parquet").to_pylist()[:1])
    ids = AutoTokenizer.from_pretrained(text / "tokenizer")(first["text"])["input_ids"]
    expected = -np.log((counts[ids] + 1) / (counts + 1).sum()).sum()
    (row,) = (r for r in rows_of(study) if (r["model"], r["example_id"]) == ("unigram", first["example_id"]))
    assert row["loss_sum_nats"] == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("damage", ["part gone", "part torn", "part of another study"])
def test_evaluation_goes_on_from_its_parts_and_only_scores_what_does_not_verify(study, tmp_path, monkeypatch, damage):
    copied = study.copy(tmp_path / "runs")
    folder = copied.path("evaluate")
    before = (folder / "records.parquet").read_bytes()
    for name in ("records.parquet", "COMPLETE.json", "result.json"):
        (folder / name).unlink()
    part = folder / "records" / "baseline-00000"
    if damage == "part gone":
        part.with_suffix(".parquet").unlink()
    elif damage == "part torn":
        part.with_suffix(".parquet").write_bytes(b"torn")
    else:
        note = durable.read_json(part.with_suffix(".json"))
        durable.write_json(part.with_suffix(".json"), note | {"identity": note["identity"] | {"fingerprint": "x"}})
    loaded = []
    monkeypatch.setattr(evaluation.language, "load", lambda folder: loaded.append(folder) or load(folder))
    handles = handles_of(copied.root, study.study, Here)
    assert handles["evaluate"].outcome.end_state == "finished"
    assert loaded == [copied.path("train-baseline") / "model"]
    assert (folder / "records.parquet").read_bytes() == before


def test_evaluation_without_any_part_gives_the_same_result(study, tmp_path):
    copied = study.copy(tmp_path / "runs")
    folder = copied.path("evaluate")
    before = {name: (folder / name).read_bytes() for name in ("records.parquet", "result.json")}
    for name in ("records.parquet", "COMPLETE.json", "result.json"):
        (folder / name).unlink()
    shutil.rmtree(folder / "records")
    handles_of(copied.root, study.study, Here)
    assert {name: (folder / name).read_bytes() for name in before} == before


WINDOW = 7
END = 999


def harness_windows(tokens: list[int], prefix: int, max_seq_len: int) -> list[tuple[list[int], list[int]]]:
    """(context, predicted) as the harness documents `get_rolling_token_windows` with `context_len=1`, disjoint.

    The first window predicts up to max_seq_len tokens after the prefix token. Each further one predicts the next
    max_seq_len tokens, or the rest, and its input is the max_seq_len tokens that end before its last prediction.
    `make_disjoint_window` then cuts the predictions off the context.
    """
    pairs = []
    done = 0
    while done < len(tokens):
        take = min(max_seq_len, len(tokens) - done)
        end = done + take
        if done == 0:
            inputs = [prefix, *tokens[: end - 1]]
        else:
            inputs = tokens[end - max_seq_len - 1 : end - 1]
        predicted = tokens[done:end]
        pairs.append((inputs[: len(inputs) - (len(predicted) - 1)], predicted))
        done = end
    return pairs


@pytest.mark.parametrize("count", range(5 * WINDOW + 1))
def test_windows_are_those_of_the_harness(count):
    tokens = list(range(count))
    ours = [
        (window.tokens[: -window.scored], window.tokens[-window.scored :])
        for window in rolling_windows(tokens, END, WINDOW)
    ]
    assert ours == harness_windows(tokens, END, WINDOW)


@pytest.mark.parametrize("length", [1, 2, 7, 100])
@pytest.mark.parametrize("count", [0, 1, 2, 6, 7, 8, 13, 14, 15, 35])
def test_each_token_is_scored_once_and_no_window_is_longer_than_the_model_reads(count, length):
    tokens = list(range(count))
    windows = rolling_windows(tokens, END, length)
    assert [token for window in windows for token in window.tokens[-window.scored :]] == tokens
    for window in windows:
        assert 1 <= window.scored < len(window.tokens) <= length + 1


def test_the_last_window_is_filled_up_on_its_left_with_tokens_that_were_scored_before():
    windows = rolling_windows(list(range(10)), END, WINDOW)
    assert windows[0].tokens == [END, 0, 1, 2, 3, 4, 5, 6] and windows[0].scored == 7
    assert windows[1].tokens == [2, 3, 4, 5, 6, 7, 8, 9] and windows[1].scored == 3
