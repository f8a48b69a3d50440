"""Labelled texts of one's own: bad rows are named by file and row, and none is lost in silence."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from storage.errors import BadInput
from storage.records import read_records
from tasks.language.bag import Bag, numbered
from tasks.language.configuration import LabelledFiles, Sentences
from tasks.language.labelled import labelled, sentences
from tasks.language.stages import LabelledConfig
from tests.tasks.tiny import stage_run

GOOD = [{"text": f"a text {number}", "label": number % 2} for number in range(6)]


def made(tmp_path: Path, lines: list[Any], **more: Any) -> tuple[Any, list[dict[str, Any]]]:
    """Result and records of the stage on a file of these lines; objects become JSON."""
    tmp_path.mkdir(exist_ok=True)
    file = tmp_path / "rows.jsonl"
    file.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
    run = stage_run(tmp_path / "run")
    found = labelled(run, LabelledConfig(text=LabelledFiles(paths=[str(file)], **more), seed=0))
    return found, list(read_records(run.directory / "records.parquet"))


def test_whole_numbers_and_words_are_labels_and_of_equal_texts_the_first_counts(tmp_path):
    told, rows = made(tmp_path, [*GOOD, {"text": "a text 0", "label": 1}, {"text": "seven", "label": "spam"}])
    assert told.rows == len(rows) == 7 and told.repeated == 1 and told.labels == {"0": 3, "1": 3, "spam": 1}
    assert rows[0]["label"] == "0" and rows[0]["row_id"].startswith("0000000-") and rows[-1]["row_id"][:7] == "0000007"


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        ("{not JSON", "is no JSON"),
        ({"text": "no label"}, "no column 'label'"),
        ({"text": "", "label": 1}, "has no text"),
        ({"text": "half a label", "label": 0.5}, "column 'label' holds float"),
        ({"text": "a truth", "label": True}, "column 'label' holds bool"),
        ({"text": 7, "label": 1}, "column 'text' holds int"),
        ({"text": "empty", "label": " "}, "has no label"),
        ("[1, 2]", "is list"),
    ],
)
def test_a_bad_row_is_named_by_file_and_row_or_left_out_and_counted(tmp_path, bad, said):
    with pytest.raises(BadInput) as told:
        made(tmp_path, [*GOOD, bad, *GOOD[:1]])
    assert "rows.jsonl, row 7" in str(told.value) and said in str(told.value)
    assert "text.skip_bad_rows=true" in str(told.value)
    found, rows = made(tmp_path / "again", [*GOOD, bad], skip_bad_rows=True)
    assert found.skipped["rows.jsonl"] >= 1 and len(rows) == len(GOOD)


def test_another_column_is_asked_for_by_its_key_and_parquet_is_read_too(tmp_path):
    with pytest.raises(BadInput, match=r"no column 'label'.*set text\.label_column to the one that holds the label"):
        pq.write_table(pa.table({"text": ["a"], "sentiment": [1]}), tmp_path / "rows.parquet")
        config = LabelledConfig(text=LabelledFiles(paths=[str(tmp_path / "rows.parquet")]), seed=0)
        labelled(stage_run(tmp_path / "run"), config)
    pq.write_table(pa.table({"text": ["a", "b"], "label": [1, 0]}), tmp_path / "rows.parquet")
    found = labelled(stage_run(tmp_path / "other"), config)
    assert found.labels == {"1": 1, "0": 1}


@pytest.mark.parametrize("kind", [pa.float64(), pa.decimal128(20, 0), pa.uint8()])
def test_whole_numbers_are_labels_however_a_table_holds_them(kind, tmp_path):
    """Seen: "column 'label' holds float (0.0)": a null makes floats of whole numbers. All rows were to be left out."""
    values = pa.array([0, 1, None, 1, 0]).cast(kind)
    pq.write_table(pa.table({"text": [*"abcde"], "label": values}), tmp_path / "rows.parquet")
    config = LabelledConfig(text=LabelledFiles(paths=[str(tmp_path / "rows.parquet")]), seed=0)
    with pytest.raises(BadInput, match=r"row 3: has no label\. Repair it, or leave all like it out"):
        labelled(stage_run(tmp_path / "run"), config)
    text = config.text.model_copy(update={"skip_bad_rows": True})
    found = labelled(stage_run(tmp_path / "other"), config.model_copy(update={"text": text}))
    assert found.labels == {"0": 2, "1": 2} and found.skipped == {"rows.parquet": 1}
    assert text.external_inputs().keys() - config.text.external_inputs().keys() == {"labels"}  # another study by it


@pytest.mark.parametrize(
    ("key", "value"), [("label", [1, 2]), ("label", True), ("label", 0.5), ("text", 7.0), ("label", None)]
)
def test_a_column_of_another_kind_is_named_and_not_all_rows_are_to_be_left_out(key, value, tmp_path):
    rows = [row | {key: value} if value is not None else {"text": row["text"], "y": 1} for row in GOOD]
    with pytest.raises(BadInput) as told:
        made(tmp_path, rows)
    assert f"set text.{key}_column to the" in str(told.value) and "skip_bad" not in str(told.value)
    assert f"row 1: column '{key}' holds {type(value).__name__}" in str(told.value) or value is None


def test_one_label_is_no_study(tmp_path):
    with pytest.raises(BadInput, match="all 3 rows have the label 0"):
        made(tmp_path, GOOD[::2])


def test_sentences_are_different_and_their_labels_as_noisy_as_asked():
    rows = list(sentences(Sentences(rows=2000, label_noise=0.0), 3))
    assert len({text for text, _ in rows}) == 2000 and rows == list(sentences(Sentences(rows=2000, label_noise=0.0), 3))
    assert 0.45 < Counter(label for _, label in rows)["positive"] / 2000 < 0.55
    noisy = list(sentences(Sentences(rows=2000, label_noise=0.3), 3))
    wrong = np.mean(["great" in text.split() and label == "negative" for text, label in noisy])
    assert wrong > np.mean(["great" in text.split() and label == "negative" for text, label in rows])


def test_a_word_without_a_number_is_refused():
    with pytest.raises(BadInput, match="knows no 'zebra'"):
        Bag(numbered(["a film ends"]), ["a", "b"], 5, 7).encoded(["a zebra ends"])


@pytest.mark.parametrize("numbers", [[1, 2, 4], [1, 2, 2], [0, 1, 2]], ids=["beyond", "twice", "padding"])
def test_words_that_have_not_each_a_number_are_refused(tmp_path, numbers):
    model = Bag(numbered(["a film ends"]), ["a", "b"], 5, 7)
    model.described["words"] = dict(zip("abc", numbers, strict=True))
    model.save(tmp_path)
    with pytest.raises(BadInput, match="numbers of the words are not 1 to 3, each once"):
        Bag.load(tmp_path)
