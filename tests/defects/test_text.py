"""The silent fallbacks of the text: which documents are trained on, and which are measured."""

import bz2
import codecs
import gzip
import json
import lzma
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from storage import external
from storage.errors import BadInput
from tasks.language.configuration import LocalFiles, Splits
from tasks.language.document import document
from tasks.language.sources import documents as documents_of
from tasks.language.splits import EVALUATION_SPLITS, cut, split_of
from tasks.language.stages import SetupConfig
from tests.tasks.tiny import sentences, tiny_study

CORPUS = [document(None, text) for text in sentences(300)]
SIZES = {f"{name.replace('-', '_')}_documents": 5 for name in EVALUATION_SPLITS}


def test_none_for_the_training_size_that_silently_meant_the_quick_one():
    """TRAINING_SAMPLES = None was documented as everything, and was 100 000."""
    settings = Splits(evaluation_share=0.1, **SIZES)
    train = {one.example_id for one in cut(CORPUS, settings).documents["train"]}
    assert train == {one.example_id for one in CORPUS if split_of(one.source, settings) == "train"}


def test_a_data_set_that_cannot_be_had_becomes_an_empty_list(tmp_path):
    absent = str(tmp_path / "nowhere")
    study = tiny_study(tmp_path, text={"source": "files", "paths": [absent]})
    with pytest.raises(BadInput, match=absent):
        list(documents_of(LocalFiles(paths=[absent]), tmp_path))
    with pytest.raises(BadInput, match="nowhere"):  # and before any work, when the page is walked
        SetupConfig.of(study, tokenizer=study.tokenizer).external_inputs()


# ------------------------------------------------------------------------------------------- local files


def lines(*texts: object) -> bytes:
    return "".join(json.dumps({"text": text}, ensure_ascii=False) + "\n" for text in texts).encode()


def read(*paths: Path, skipped: Counter[str] | None = None, **keys: object) -> list[str]:
    text = LocalFiles(paths=[str(path) for path in paths], **keys)
    return [one.text for one in documents_of(text, paths[0].parent / "cache", skipped)]


@pytest.mark.parametrize("name", ["corpus[1].jsonl", "corpus?.jsonl", "corpus*.jsonl", "{corpus1,x}.jsonl"])
def test_a_name_that_reads_as_a_pattern_took_the_text_of_another_file(tmp_path, name):
    (tmp_path / "corpus1.jsonl").write_bytes(lines("BETA"))
    (tmp_path / name).write_bytes(lines("ALPHA"))
    assert read(tmp_path / name) == ["ALPHA"]


@pytest.mark.parametrize("folder", ["[EN] corpus", "a*b", "what?"])
def test_a_folder_whose_name_reads_as_a_pattern(tmp_path, folder):
    (tmp_path / folder).mkdir()
    for name in ("a[12]", "a1", "a2"):
        (tmp_path / folder / f"{name}.jsonl").write_bytes(lines(name))
    assert sorted(read(tmp_path / folder)) == ["a1", "a2", "a[12]"]


def test_a_file_that_changes_while_others_are_read_is_not_read_under_the_old_digest(tmp_path):
    for name in ("a.jsonl", "b.jsonl"):
        (tmp_path / name).write_bytes(lines(name))
    reader = documents_of(LocalFiles(paths=[str(tmp_path)]), tmp_path / "cache")
    assert next(reader).text == "a.jsonl"
    (tmp_path / "b.jsonl").write_bytes(lines("c.jsonl"))
    with pytest.raises(BadInput, match=r"b\.jsonl is not the file any more whose sha256 is in the fingerprint"):
        list(reader)


def test_what_is_opened_is_what_was_hashed(tmp_path):
    file = tmp_path / "a.txt"
    file.write_text("one")
    digest = external.file_manifest([str(file)])["a.txt"]
    with external.opened(file, digest) as opened:
        file.rename(tmp_path / "b.txt")
        file.write_text("two")
        assert opened.read() == b"one"
    with pytest.raises(BadInput, match="is not the file any more"), external.opened(file, digest):
        pass


@pytest.mark.parametrize("column", ["note", "text"])
def test_a_column_that_is_null_in_the_first_10_mb(tmp_path, column):
    """Seen: exit 1, "Couldn't cast array of type string to null", no file named."""
    late = {"text": "a", "note": None, "pad": "x" * 600_000}
    rows = [{**late, column: None}] * 20 + [{**late, column: "late"}]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert read(tmp_path / "a.jsonl") == (["late"] if column == "text" else ["a"] * 21)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be"])
def test_a_byte_order_mark_is_no_character_of_a_text(tmp_path, encoding):
    (tmp_path / "a.txt").write_bytes("\ufeffé one\r\ntwo".encode(encoding))
    assert read(tmp_path / "a.txt") == ["é one\ntwo"]
    (tmp_path / "a.jsonl").write_bytes(("\ufeff" + lines("é one\u2028", "two").decode()).encode(encoding))
    assert read(tmp_path / "a.jsonl") == ["é one\u2028", "two"]


def test_a_byte_order_mark_where_files_were_joined(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(2 * (codecs.BOM_UTF8 + lines("one", "\ufefftwo")))
    assert read(tmp_path / "a.jsonl") == ["one", "two"] * 2
    pq.write_table(pa.table({"text": ["\ufeffone", "two\ufeff"]}), tmp_path / "a.parquet")
    assert read(tmp_path / "a.parquet") == ["one", "two\ufeff"]


def parquet(*values: object, kind: pa.DataType | None = None) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"text": pa.array(values, kind)}), sink)
    return sink.getvalue().to_pybytes()


BAD = {
    "a.jsonl": [
        (lines("one", 12345, "two"), r"row 2: column 'text' holds int \(12345\), not text"),
        (lines("one", ["x"], "two"), r"row 2: column 'text' holds list \(\['x'\]\), not text"),
        (lines("one") + b'\n{"text": "tw' + b"\n" + lines("two"), "row 3: is no JSON: Unterminated string"),
        (
            lines("one") + b'{"text": "caf\xe9"}\n' + lines("two"),
            r"row 2: byte 14 of the row \(0xe9\) is no UTF-8 .*iconv -f",
        ),
        (
            lines("one") + b'{"text": "\0"}\n' + lines("two"),
            "row 2: holds a NUL character, so that it is no text, or UTF-16",
        ),
        (lines("one") + b"7\n" + lines("two"), r"row 2: is int \(7\), and no object with a key 'text'"),
        (lines("one") + b"[" * 100_000 + b"\n" + lines("two"), "row 2: is no JSON: maximum recursion"),
    ],
    "a.json": [(b'["one",\n {"text": 5},\n "two"]', r"row 2: column 'text' holds int \(5\)")],
    "a.parquet": [(parquet(b"one", b"caf\xe9", b"two"), "row 2: column 'text' is not UTF-8: .* 0xe9")],
}


@pytest.mark.parametrize(("name", "content", "said"), [(name, *one) for name, bad in BAD.items() for one in bad])
def test_a_bad_row_is_told_by_file_row_and_column_and_can_be_left_out(tmp_path, caplog, name, content, said):
    """Seen: one number among 1,500 texts was told without its row, with the advice to set text.text_column."""
    (tmp_path / name).write_bytes(content)
    with pytest.raises(BadInput, match=rf"a\.\w+, {said}.*text\.skip_bad_rows=true\.$"):
        read(tmp_path / name)
    skipped: Counter[str] = Counter()
    assert read(tmp_path / name, skipped=skipped, skip_bad_rows=True) == ["one", "two"]
    assert skipped == {name: 1} and "1 of 3 rows cannot be read and were left out" in caplog.text


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"one\ncaf\xe9", r"line 2, byte 8 of the file \(0xe9\) is no UTF-8 .*iconv -f latin1"),
        (codecs.BOM_UTF16_LE + "one".encode("utf-16le") + b"\0", r"line 1, byte 9 of the file \(0x00\) is no UTF-16"),
        ("one\ntwo".encode("utf-16le"), "line 1 holds a NUL character, so that it is no text, or UTF-16"),
        (b"\x89PNG\r\n\x1a\n\0\0", r"line 1, byte 1 of the file \(0x89\) is no UTF-8"),
        (b"\xef\xbb\xbf \r\n", "is empty"),
    ],
)
def test_what_is_no_text_is_told_by_file_and_place_and_can_be_left_out(tmp_path, content, said):
    (tmp_path / "a.txt").write_bytes(content)
    (tmp_path / "b.txt").write_text("text")
    with pytest.raises(BadInput, match=rf"a\.txt: {said}.*text\.skip_bad_rows=true\.$"):
        read(tmp_path)
    skipped: Counter[str] = Counter()
    assert read(tmp_path, skipped=skipped, skip_bad_rows=True) == ["text"] and skipped == {"a.txt": 1}


def test_a_key_of_another_name_is_told(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"body": "x"}\n' * 100)
    with pytest.raises(BadInput, match=r"a\.jsonl has no column 'text'; its columns are body: set text\.text_column"):
        read(tmp_path / "a.jsonl")
    two = pa.table([["x"], ["y"]], names=["text", "text"])
    pq.write_table(two, tmp_path / "a.parquet")
    with pytest.raises(BadInput, match=r"a\.parquet has two column 'text'"):
        read(tmp_path / "a.parquet")


COMPRESS: dict[str, Callable[[bytes], bytes]] = {
    "gz": gzip.compress,
    "bz2": bz2.compress,
    "xz": lzma.compress,
    "zst": lambda data: pa.Codec("zstd").compress(data, asbytes=True),
}


@pytest.mark.parametrize("ending", COMPRESS)
def test_compressed_text_is_read_and_a_readme_beside_it_is_not_the_corpus(tmp_path, ending):
    """Seen: beside train.jsonl.gz the README.md was all that was read, told in a line of INFO."""
    (tmp_path / "README.md").write_text("# A corpus")
    (tmp_path / f"TRAIN.JSONL.{ending}").write_bytes(2 * COMPRESS[ending](lines("one", "two")))
    (tmp_path / f"z.txt.{ending}").write_bytes(COMPRESS[ending](codecs.BOM_UTF8 + b"three"))
    assert read(tmp_path) == ["# A corpus", "one", "two", "one", "two", "three"]
    file = tmp_path / f"TRAIN.JSONL.{ending}"
    file.write_bytes(COMPRESS[ending](b"".join(lines(str(i) * 99) for i in range(999)))[:-9])
    with pytest.raises(BadInput, match=rf"TRAIN.JSONL.{ending} is not valid .{ending}, or is cut off"):
        read(file)


def test_what_is_passed_over_is_named_as_a_warning_and_in_the_error(tmp_path, caplog):
    folder, elsewhere = tmp_path / "texts", tmp_path / "elsewhere"
    for one in (folder, elsewhere):
        one.mkdir()
    for name in ("a.docx", "b.parquet.gz", "c.tar.gz", "d"):
        (folder / name).write_bytes(b"x")
    (folder / "link").symlink_to(elsewhere)
    (folder / "gone.txt").symlink_to(tmp_path / "nowhere")
    (folder / ".part").mkdir()
    for name in (".part/f.jsonl", ".DS_Store"):
        (folder / name).write_bytes(b"x")
    with pytest.raises(
        BadInput, match=r"passed over: 7 files: \.part/f\.jsonl, gone\.txt, link, a\.docx, b\.parquet\.gz, \.\.\."
    ):
        read(folder)
    (folder / "e.txt").write_text("text")
    assert read(folder) == ["text"]
    assert [
        one.levelname for one in caplog.records if "passed over 7 files: .part/f.jsonl, gone.txt, link" in one.message
    ] == ["WARNING"]


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.parquet", parquet(kind=pa.string()), "has no rows"),
        ("a.jsonl", b"", "has no rows"),
        ("a.parquet", parquet(None, None, kind=pa.null()), "2 of 2 rows have no text in column 'text'"),
        ("a.jsonl", lines(None, " "), "2 of 2 rows have no text in column 'text'"),
    ],
)
def test_a_part_of_a_table_without_rows_or_without_text(tmp_path, caplog, name, content, said):
    """Seen: "is not valid .parquet: BatchSize must be greater than 0"."""
    (tmp_path / name).write_bytes(content)
    (tmp_path / "b.jsonl").write_bytes(lines("one"))
    assert read(tmp_path) == ["one"] and name in caplog.text and said in caplog.text
    with pytest.raises(BadInput, match=f"{name} holds no text that can be read"):
        read(tmp_path / name)


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.binary(), pa.dictionary(pa.int8(), pa.string())])
def test_text_of_parquet_whatever_its_type(tmp_path, kind):
    text = pa.array(["one", None, "é"]).cast(kind) if kind != pa.binary() else pa.array([b"one", None, "é".encode()])
    pq.write_table(pa.table({"other": [1, 2, 3], "text": text}), tmp_path / "a.parquet")
    assert read(tmp_path / "a.parquet") == ["one", "é"]


@pytest.mark.parametrize(
    "content",
    [
        b'{"text": "one"}\n\n\r\n{"text": "two"}\r\n{"n": 1}',
        b'\n [{"text": "one"},\n{"text": "two"}]',
        b'["one", "two"]',
        b'{"text": "one", "x": NaN}\n{"text": "two", "x": {"y": []}}\n{"text": null}\n{"text": " "}\n',
    ],
)
def test_json_in_every_form_that_was_read_before_is_read_still(tmp_path, content):
    (tmp_path / "a.json").write_bytes(content)
    assert read(tmp_path / "a.json") == ["one", "two"]


def test_leaving_bad_rows_out_is_part_of_the_fingerprint_and_nothing_changes_without_it():
    assert LocalFiles(paths=["/x"]).scientific() == {"source": "files", "text_column": "text"}
    assert LocalFiles(paths=["/x"], skip_bad_rows=True).scientific()["skip_bad_rows"]
