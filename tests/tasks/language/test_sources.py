"""Text is extracted once, read from every kind of file, and never silently missing."""

import ast
import json
import logging
from functools import partial
from pathlib import Path

import datasets
import httpx2
import huggingface_hub.constants
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datasets import packaged_modules

from storage.errors import BadInput
from tasks.language import hub, sources
from tasks.language.configuration import HubDataset, HubStream, LocalFiles, PackageDocs, PairDataset
from tasks.stage.outcome import outcome_of
from tests.tasks.language.hub_errors import FINAL, LOST, raising

SMALL_PACKAGE = "PyYAML"  # a dependency of ours with a handful of docstrings
REVISION = "0" * 40
HUB = HubDataset(dataset="some/data", revision=REVISION, max_documents=10_000)


@pytest.fixture
def small_stdlib(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three modules instead of all: extracting the whole standard library takes seconds."""
    files = [(f"python/{name}.py", Path(module.__file__)) for name, module in (("ast", ast), ("logging", logging))]
    monkeypatch.setattr(sources, "_stdlib_files", lambda: iter(files))


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
    assert all(len(document.text.split()) >= sources.MIN_WORDS for document in found)
    assert any("The `ast` module helps Python applications" in document.text for document in found)


def test_test_folders_and_bundled_tools_are_not_text():
    skipped = {"test", "tests", "idlelib", "lib2to3", "ensurepip", "site-packages"}
    names = [source for source, _ in sources._stdlib_files()]
    assert "python/json/decoder.py" in names
    assert not [name for name in names if skipped & set(name.split("/"))]


def test_extraction_happens_once(tmp_path, small_stdlib, monkeypatch):
    first = read(PackageDocs(packages=[SMALL_PACKAGE]), tmp_path)
    monkeypatch.setattr(sources, "_extract", lambda files, what: pytest.fail(f"{what} extracted again"))
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
    found = sources._extract(files, "example")
    assert [document.source for document in found] == ["good.py"]
    assert "1 module files" in caplog.text and "broken.py" in caplog.text


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


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ('{"body": "x", "id": 1}', r" has no column 'text'; its columns are body, id"),
        ('{"text": 5}', r", row 1: column 'text' holds int \(5\).*set text\.text_column"),
    ],
)
def test_a_column_that_is_not_there_or_no_text_is_named_with_its_file(tmp_path, row, said):
    (tmp_path / "rows.jsonl").write_text(f"{row}\n")
    with pytest.raises(BadInput, match=rf"rows\.jsonl{said}"):
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
def test_files_without_usable_text_are_named_once(tmp_path, capfd, name, content):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(BadInput, match=name.replace(".", r"\.")) as caught:
        read(local(tmp_path / name), tmp_path / "cache")
    assert ".." not in str(caught.value) and name not in capfd.readouterr().err, "datasets prints it too"


def test_text_that_utf8_cannot_spell_is_made_spellable():
    assert sources.document("x", "a\ud800b").text == "a?b"


# --------------------------------------------------------------------------------------------------- hub


def test_unreachable_hub_data_set_says_how_to_get_it(tmp_path, monkeypatch):
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


@pytest.mark.parametrize("name", ["text", "csv", "json", "parquet", "buckets/a", "hf://datasets/a/b", "a/b/c", "../x"])
def test_a_reader_of_files_is_never_taken_for_a_hub_data_set(tmp_path, monkeypatch, name):
    """Seen: `text.dataset: text` read the files of the present folder, of which the fingerprint knew nothing."""
    (tmp_path / "diary.txt").write_text("my private notes\n")
    (tmp_path / "b.csv").write_text("text,x\nprivate csv,1\n")
    (tmp_path / "c.json").write_text('{"text": "private json"}\n')
    monkeypatch.chdir(tmp_path)
    for text in (
        HubDataset(dataset=name, revision=REVISION, max_documents=5),
        PairDataset(dataset=name, revision=REVISION, max_documents=5),
    ):
        for refused in (partial(read, text, tmp_path / "cache"), text.external_inputs):  # the walk asks for these
            with pytest.raises(BadInput, match=f"dataset '{name}' is no data set of the hub at a commit"):
                refused()
    assert HUB.external_inputs() == {} and hub.local_readers() >= {*packaged_modules._PACKAGED_DATASETS_MODULES}
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize("out", [True, False], ids=["out of the folder", "within it"])
def test_a_link_in_a_folder_of_text_is_followed_within_it_alone(tmp_path, out):
    """Seen: texts/notes.txt -> ~/.ssh/id became a document."""
    (texts := tmp_path / "texts").mkdir()
    (tmp_path / "id").write_text("a private key, as words that would stand in samples of a report")
    (texts / "one.txt").write_text("words of the folder")
    (texts / "notes.txt").symlink_to(tmp_path / "id" if out else "one.txt")
    if out:
        for refused in (lambda: read(local(texts), tmp_path), local(texts).external_inputs):
            with pytest.raises(BadInput, match=rf"notes\.txt is a symbolic link to {tmp_path}/id, outside of"):
                refused()
    (link := tmp_path / "by its name").symlink_to(texts / "one.txt")
    (named := tmp_path / "named.txt").symlink_to(link)
    assert len(read(local(named), tmp_path)) == 1
    assert out or len(read(local(texts), tmp_path)) == 2


def test_texts_of_one_name_in_two_folders_are_two_documents(tmp_path):
    for run in ("run1", "run2"):
        (tmp_path / run).mkdir()
        (tmp_path / run / "a.txt").write_text(f"words of {run}")
    found = read(local(tmp_path / "run1", tmp_path / "run2" / "a.txt"), tmp_path)
    assert [(one.source, one.text) for one in found] == [
        (f"{run}/a.txt", f"words of {run}") for run in ("run1", "run2")
    ]


def test_hub_stream_is_cut_to_max_documents(tmp_path, monkeypatch):
    asked = {}

    def load_dataset(dataset, **options):
        asked.update(options, dataset=dataset)
        return datasets.IterableDataset.from_generator(lambda: ({"text": f"document {n}"} for n in range(1000)))

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    found = read(HubDataset(dataset="some/data", revision=REVISION, max_documents=7), tmp_path)
    assert [document.text for document in found] == [f"document {n}" for n in range(7)]
    assert (asked["dataset"], asked["revision"], asked["streaming"]) == ("some/data", REVISION, True)


@pytest.mark.parametrize(("name", "kind"), [(n, ConnectionError) for n in LOST] + [(n, BadInput) for n in FINAL])
def test_a_lost_connection_to_the_hub_differs_from_what_no_retry_mends(tmp_path, monkeypatch, name, kind):
    monkeypatch.setattr(datasets, "load_dataset", raising(name))
    with pytest.raises(kind) as caught:
        read(HUB, tmp_path)
    for part in ("some/data", REVISION, "HF_TOKEN", "source: files"):
        assert part in str(caught.value)


def test_a_lost_connection_is_a_crash_that_the_stage_asks_to_try_again(tmp_path, monkeypatch):
    for name, retryable in (("as transformers raises it", True), ("404", False)):
        monkeypatch.setattr(datasets, "load_dataset", raising(name))
        with pytest.raises((BadInput, ConnectionError)) as caught:
            read(HUB, tmp_path)
        assert outcome_of(caught.value).retryable is retryable


# --------------------------------------------------------------------------------------------- hub cache


@pytest.fixture
def streamed(monkeypatch) -> list[dict]:
    """The hub gives 1,200 documents, the sixth without text; holds what it was asked for, each time."""
    asked: list[dict] = []

    def load_dataset(dataset, **options):
        asked.append({"dataset": dataset, **options})
        return datasets.IterableDataset.from_generator(
            lambda: ({"text": None if n == 5 else f"document {n} of {dataset}"} for n in range(1200))
        )

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    return asked


def hub_files(cache: Path) -> list[Path]:
    return sorted((cache / "hub-text").iterdir())


def test_the_hub_is_asked_once_for_the_same_text(tmp_path, streamed):
    first = read(HUB, tmp_path)
    assert len(first) == 1199 and first[5].text == "document 6 of some/data"
    assert read(HUB, tmp_path) == first
    assert len(streamed) == 1
    (file,) = hub_files(tmp_path)
    assert file.name.startswith("some--data-")


@pytest.mark.parametrize(
    "change", [{"dataset": "some/other"}, {"revision": "1" * 40}, {"split": "test"}, {"max_documents": 3}]
)
def test_other_hub_text_is_other_text(tmp_path, streamed, change):
    read(HUB, tmp_path)
    read(HUB.model_copy(update=change), tmp_path)
    assert len(streamed) == len(hub_files(tmp_path)) == 2


def test_another_column_is_not_taken_from_the_cache(tmp_path, streamed):
    read(HUB, tmp_path)
    with pytest.raises(BadInput, match="has no column 'body'"):
        read(HUB.model_copy(update={"text_column": "body"}), tmp_path)


def test_held_out_text_is_another_stream_and_leaves_the_kept_text_as_it_is(tmp_path, streamed):
    first = read(HUB, tmp_path)
    assert sources.held_out_documents(HUB, tmp_path) is None
    other = HubStream(dataset="some/other", revision="1" * 40, split="test", max_documents=3)
    both = HubDataset(**HUB.model_dump(exclude={"held_out"}), held_out=other)
    assert read(both, tmp_path) == first and len(streamed) == 1
    held_out = [one.text for one in sources.held_out_documents(both, tmp_path)]
    assert held_out == [f"document {n} of some/other" for n in range(3)]
    assert (streamed[1]["dataset"], streamed[1]["revision"], streamed[1]["split"]) == ("some/other", "1" * 40, "test")


def test_a_hub_text_without_held_out_text_keeps_its_fingerprint_and_its_file(tmp_path, streamed):
    assert HUB.scientific().keys() == {"source", "dataset", "revision", "split", "text_column", "max_documents"}
    read(HUB, tmp_path)
    assert [file.name for file in hub_files(tmp_path)] == [
        "some--data-dcde724b147e82cf.parquet"
    ]  # as before there was held_out


def test_held_out_text_that_train_is_read_from_is_refused():
    same = {"dataset": HUB.dataset, "revision": REVISION, "max_documents": 5}
    with pytest.raises(ValueError, match="held_out is split train of some/data, which train is read from"):
        HubDataset(dataset=HUB.dataset, revision="1" * 40, max_documents=10, held_out=same)
    HubDataset(dataset=HUB.dataset, revision="1" * 40, max_documents=10, held_out={**same, "split": "test"})


@pytest.mark.parametrize("damage", ["truncated", "a bit", "fewer rows", "rubbish", "empty"])
def test_damaged_hub_text_is_named_and_read_from_the_hub_again(tmp_path, streamed, caplog, damage):
    first = read(HUB, tmp_path)
    (file,) = hub_files(tmp_path)
    good = file.read_bytes()
    if damage == "truncated":
        file.write_bytes(good[: len(good) // 2])
    elif damage == "a bit":
        file.write_bytes(good[:2000] + bytes([good[2000] ^ 1]) + good[2001:])
    elif damage == "fewer rows":
        with pq.ParquetFile(file) as whole:
            table, metadata = whole.read(), whole.metadata.metadata
        pq.write_table(table.slice(1).replace_schema_metadata(metadata), file)
    else:
        file.write_bytes(b"not parquet at all" if damage == "rubbish" else b"")
    assert read(HUB, tmp_path) == first
    assert len(streamed) == 2 and file.name in caplog.text
    assert file.read_bytes() == good


def test_a_stream_that_breaks_or_is_left_is_not_kept(tmp_path, monkeypatch):
    def broken():
        yield from ({"text": f"document {n}"} for n in range(700))
        raise httpx2.ReadError("connection reset")

    monkeypatch.setattr(datasets, "load_dataset", lambda *_, **__: datasets.IterableDataset.from_generator(broken))
    with pytest.raises(ConnectionError, match="some/data"):
        read(HUB, tmp_path)
    reader = sources.documents(HUB, tmp_path)
    assert next(reader).text == "document 0"
    reader.close()
    assert not (tmp_path / "hub-text").exists()
