"""Text is extracted once, read from every kind of file, and never silently missing."""

from __future__ import annotations

import ast
import json
import logging
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from storage.errors import BadInput
from tasks.language import package_docs, sources
from tasks.study import HubDataset, LocalFiles, PackageDocs

SMALL_PACKAGE = "PyYAML"  # a dependency of ours with a handful of docstrings
REVISION = "0" * 40


@pytest.fixture
def small_stdlib(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three modules instead of all: extracting the whole standard library takes seconds."""
    files = [(f"python/{name}.py", Path(module.__file__)) for name, module in (("ast", ast), ("logging", logging))]
    monkeypatch.setattr(package_docs, "_stdlib_files", lambda: iter(files))


def read(text, cache: Path) -> list[sources.Document]:
    return list(sources.documents(text, cache))


def local(*paths: Path, column: str = "text") -> LocalFiles:
    return LocalFiles(paths=[str(path) for path in paths], text_column=column)


# ------------------------------------------------------------------------------------------ package docs


def test_docstrings_of_an_installed_package(tmp_path, small_stdlib):
    found = read(PackageDocs(packages=[SMALL_PACKAGE]), tmp_path)
    by_source = {document.source for document in found}
    assert "python/ast.py" in by_source
    assert any(source.startswith("yaml/") and source.endswith(".py") for source in by_source)
    assert all(len(document.text.split()) >= package_docs.MIN_WORDS for document in found)
    assert any("The `ast` module helps Python applications" in document.text for document in found)


def test_test_folders_and_bundled_tools_are_not_text():
    skipped = {"test", "tests", "idlelib", "lib2to3", "ensurepip", "site-packages"}
    names = [source for source, _ in package_docs._stdlib_files()]
    assert "python/json/decoder.py" in names
    assert not [name for name in names if skipped & set(name.split("/"))]


def test_extraction_happens_once(tmp_path, small_stdlib, monkeypatch):
    first = read(PackageDocs(packages=[SMALL_PACKAGE]), tmp_path)
    monkeypatch.setattr(package_docs, "_extract", lambda files, what: pytest.fail(f"{what} extracted again"))
    assert read(PackageDocs(packages=[SMALL_PACKAGE]), tmp_path) == first


@pytest.mark.parametrize("damage", ["truncated", "altered", "rubbish"])
def test_damaged_cache_is_named_and_extracted_again(tmp_path, small_stdlib, caplog, damage):
    first = read(PackageDocs(packages=[SMALL_PACKAGE]), tmp_path)
    cached = next((tmp_path / "package-docs").glob("pyyaml-*.parquet"))
    good = cached.read_bytes()
    if damage == "truncated":
        cached.write_bytes(good[: len(good) // 2])
    elif damage == "rubbish":
        cached.write_bytes(b"not parquet at all")
    else:
        table = pq.ParquetFile(cached).read()
        altered = table.set_column(1, "text", pa.array(["x"] * len(table)))
        pq.write_table(altered.replace_schema_metadata(table.schema.metadata), cached)
    assert read(PackageDocs(packages=[SMALL_PACKAGE]), tmp_path) == first
    assert cached.name in caplog.text
    assert cached.read_bytes() == good


def test_unusable_modules_are_skipped_and_counted(tmp_path, caplog):
    (tmp_path / "broken.py").write_text("def (:\n")
    (tmp_path / "good.py").write_text('"""' + "word " * 30 + '"""\nx = "\\d"\n')
    files = [("broken.py", tmp_path / "broken.py"), ("good.py", tmp_path / "good.py")]
    found = package_docs._extract(files, "example")
    assert [document.source for document in found] == ["good.py"]
    assert "1 module files" in caplog.text and "broken.py" in caplog.text


def test_missing_package_is_bad_input(tmp_path, small_stdlib):
    with pytest.raises(BadInput, match="no-such-package"):
        read(PackageDocs(packages=["no-such-package"]), tmp_path)


# ------------------------------------------------------------------------------------------- local files


def test_text_files_have_their_relative_name_as_source(tmp_path):
    folder = tmp_path / "texts"
    (folder / "inner").mkdir(parents=True)
    (folder / "a.txt").write_text("first text")
    (folder / "inner" / "b.md").write_text("second text")
    (folder / "picture.png").write_bytes(b"\x89PNG")
    assert [(d.source, d.text) for d in read(local(folder), tmp_path / "cache")] == [
        ("a.txt", "first text"),
        ("inner/b.md", "second text"),
    ]


def test_tables_give_a_document_a_row_which_is_its_own_source(tmp_path):
    rows = [{"body": "first text"}, {"body": None}, {"body": "second text"}]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "rows.parquet")
    for name in ("rows.jsonl", "rows.parquet"):
        found = read(local(tmp_path / name, column="body"), tmp_path / "cache")
        assert [document.text for document in found] == ["first text", "second text"]
        assert [document.source for document in found] == [document.example_id for document in found]


def test_missing_column_names_the_file_the_column_and_what_is_there(tmp_path):
    (tmp_path / "rows.jsonl").write_text('{"body": "x", "id": 1}\n')
    with pytest.raises(BadInput, match=r"rows\.jsonl has no column 'text'; its columns are body, id"):
        read(local(tmp_path / "rows.jsonl"), tmp_path / "cache")


def test_column_of_numbers_is_bad_input(tmp_path):
    (tmp_path / "rows.jsonl").write_text('{"text": 5}\n')
    with pytest.raises(BadInput, match=r"rows\.jsonl: column 'text' holds int"):
        read(local(tmp_path / "rows.jsonl"), tmp_path / "cache")


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("empty.txt", b""),
        ("blank.md", b" \n"),
        ("empty.jsonl", b""),
        ("nulls.jsonl", b'{"text": null}\n'),
        ("latin.txt", b"caf\xe9"),
        ("broken.jsonl", b'{"text": "a"}\n{nonsense\n'),
        ("broken.parquet", b"not parquet"),
        ("picture.png", b"\x89PNG"),
    ],
)
def test_files_without_usable_text_are_named(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(BadInput, match=name.replace(".", r"\.")):
        read(local(tmp_path / name), tmp_path / "cache")


def test_text_that_utf8_cannot_spell_is_made_spellable():
    assert sources.document("x", "a\ud800b").text == "a?b"


# --------------------------------------------------------------------------------------------------- hub


def test_unreachable_hub_data_set_says_how_to_get_it(tmp_path, monkeypatch):
    import datasets
    import huggingface_hub.constants

    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    text = HubDataset(dataset="nobody/nothing", revision=REVISION, max_documents=10)
    with pytest.raises(BadInput) as caught:
        read(text, tmp_path)
    for part in ("nobody/nothing", REVISION, "HF_TOKEN", "source: files"):
        assert part in str(caught.value)


def test_a_local_folder_is_never_taken_for_a_hub_data_set(tmp_path, monkeypatch):
    (tmp_path / "nobody" / "nothing").mkdir(parents=True)
    (tmp_path / "nobody" / "nothing" / "rows.jsonl").write_text('{"text": "not from the hub"}\n')
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BadInput, match="also a local path"):
        read(HubDataset(dataset="nobody/nothing", revision=REVISION, max_documents=10), tmp_path / "cache")


def test_hub_stream_is_cut_to_max_documents(tmp_path, monkeypatch):
    import datasets

    asked = {}

    def load_dataset(name, **options):
        asked.update(options, name=name)
        return datasets.IterableDataset.from_generator(lambda: ({"text": f"document {n}"} for n in range(1000)))

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    found = read(HubDataset(dataset="some/data", revision=REVISION, max_documents=7), tmp_path)
    assert [document.text for document in found] == [f"document {n}" for n in range(7)]
    assert (asked["name"], asked["revision"], asked["streaming"]) == ("some/data", REVISION, True)
