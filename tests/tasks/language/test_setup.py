"""The setup stage from text to blocks: complete, and the same bytes each time."""

import json
import logging
import random
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow.parquet as pq
import pytest

from storage import durable
from storage.errors import BadInput, Stop
from tasks.language import foreign
from tasks.language.blocks import Blocks
from tasks.language.configuration import HubDataset, HubStream, LocalFiles, Splits, TrainedTokenizer
from tasks.language.document import document
from tasks.language.result import SplitsProof
from tasks.language.setup import setup
from tasks.language.splits import EVALUATION_SPLITS, split_of
from tasks.language.stages import SetupConfig
from tasks.stage.execution import Execution
from tasks.stage.preflight import require_disk

SYLLABLES = ["ba", "cor", "di", "fen", "gul", "ha", "jin", "kel", "lo", "mar", "nes", "por", "qua", "rit", "sol"]


def fake_run(directory: Path, stop_at_check: int | None = None) -> SimpleNamespace:
    directory.mkdir()
    notes: list[str] = []

    @contextmanager
    def publish(name):
        with durable.new_directory(directory / name) as folder:
            yield folder

    def check():
        if stop_at_check is not None and len(notes) >= stop_at_check:
            raise Stop("sigterm", "asked to stop")

    return SimpleNamespace(
        directory=directory,
        cache=directory.parent / "cache",
        publish=publish,
        progress=SimpleNamespace(update=lambda step, total, unit, note: notes.append(note)),
        stop=SimpleNamespace(check=check),
        log=logging.getLogger("test"),
        notes=notes,
    )


@pytest.fixture
def config(tmp_path) -> SetupConfig:
    chance = random.Random(5)
    words = ["".join(chance.choices(SYLLABLES, k=chance.randint(1, 3))) for _ in range(400)]
    rows = [{"text": " ".join(chance.choices(words, k=chance.randint(20, 60)))} for _ in range(300)]
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    sizes = {f"{name.replace('-', '_')}_documents": 5 for name in EVALUATION_SPLITS}
    return SetupConfig(
        text=LocalFiles(paths=[str(file)]),
        splits=Splits(evaluation_share=0.1, **sizes),
        sequence_length=16,
        tokenizer=TrainedTokenizer(vocabulary_size=350),
        execution=Execution(),
    )


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def test_setup_twice_gives_the_same_bytes(tmp_path, config):
    first, second = fake_run(tmp_path / "first"), fake_run(tmp_path / "second")
    assert setup(first, config) == setup(second, config)
    assert contents(first.directory / "text") == contents(second.directory / "text")


def proof_of(run) -> SplitsProof:
    return SplitsProof.read_file(run.directory / "text" / "proof.json")


def test_what_setup_publishes(tmp_path, config):
    run = fake_run(tmp_path / "run")
    result = setup(run, config)
    text, proof = run.directory / "text", proof_of(run)
    evaluation = {f"{name}.parquet" for name in EVALUATION_SPLITS}
    packed = {"train.bin", "train.json", "validation.bin", "validation.json"}
    assert {p.name for p in text.iterdir()} == evaluation | packed | {"unigram.npy", "proof.json", "tokenizer"}

    for name in EVALUATION_SPLITS:
        table = pq.read_table(text / f"{name}.parquet")
        assert table.column_names == ["example_id", "source", "text"]
        assert len(table) == proof.splits[name].documents == 5

    train = Blocks(text, "train")
    counts = np.load(text / "unigram.npy")
    tokenizer = foreign.kept_tokenizer(text / "tokenizer")
    assert counts.dtype == np.int64 and counts.shape == (len(tokenizer),)
    assert counts.sum() == len(train) * 16
    assert 0 < counts[tokenizer.eos_token_id] <= proof.splits["train"].documents
    assert result.as_json() == {}


def test_rows_that_are_left_out_are_counted_in_the_result_and_change_no_other_byte(tmp_path, config):
    whole = fake_run(tmp_path / "whole")
    found = setup(whole, config)
    assert "skipped_rows" not in found.as_json()
    file = Path(config.text.paths[0])
    file.write_bytes(b'{"text": 7}\n' + file.read_bytes() + b"{broken")
    with pytest.raises(BadInput, match=r"rows\.jsonl, row 1: column 'text' holds int \(7\)"):
        setup(fake_run(tmp_path / "refused"), config)
    text = config.text.model_copy(update={"skip_bad_rows": True})
    second = fake_run(tmp_path / "second")
    left_out = setup(second, config.model_copy(update={"text": text}))
    assert left_out.as_json() == found.as_json() | {"skipped_rows": {"rows.jsonl": 2}}
    assert contents(second.directory / "text") == contents(whole.directory / "text")


def test_only_the_text_decides_not_where_it_lies(tmp_path, config):
    first = fake_run(tmp_path / "first")
    setup(first, config)
    moved = tmp_path / "elsewhere.jsonl"
    Path(config.text.paths[0]).rename(moved)
    second = fake_run(tmp_path / "second")
    setup(second, config.model_copy(update={"text": LocalFiles(paths=[str(moved)])}))
    assert contents(first.directory / "text") == contents(second.directory / "text")


def test_a_setup_that_is_stopped_anywhere_publishes_nothing_and_leaves_nothing(tmp_path, config):
    whole = fake_run(tmp_path / "whole")
    setup(whole, config)
    parts = [
        "reading the text",
        "comparing train with the evaluation splits",
        "proving that the splits share nothing",
        "tokenizer",
        "training the tokenizer",
        "packing train",
        "packing validation",
        "writing the evaluation splits",
        "text published",
    ]
    assert [note.split(":")[0] for note in whole.notes] == parts
    for at in range(len(parts) - 1):
        run = fake_run(tmp_path / f"stopped at {at}", stop_at_check=at)
        with pytest.raises(Stop):
            setup(run, config)
        assert not [*run.directory.iterdir()]


def test_hub_text_is_evaluated_on_text_that_was_held_out(tmp_path, config, monkeypatch):
    """The real loader on two folders in place of two data sets, one laid out as EleutherAI/pile_val_test is."""
    import datasets

    seen = [json.loads(row)["text"] for row in Path(config.text.paths[0]).read_text().splitlines()]
    evaluated_on = (text for text in seen if split_of(document(None, text).source, config.splits) != "train")
    again = next(evaluated_on)
    continued = next(
        text
        for text in (f"{seen[7]} and on, {n}" for n in range(99))
        if split_of(document(None, text).source, config.splits) != "train"
    )
    unseen = [again, continued, *(" ".join(reversed(text.split())) for text in seen)]
    for name, file, texts in (("seen", "train", seen), ("unseen", "val", seen), ("unseen", "test", unseen)):
        (tmp_path / name).mkdir(exist_ok=True)
        rows = ({"text": text, "meta": {"pile_set_name": "Pile-CC"}} for text in texts)
        (tmp_path / name / f"{file}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    load = datasets.load_dataset
    monkeypatch.setattr(
        datasets,
        "load_dataset",
        lambda dataset, revision, **options: load(str(tmp_path / dataset.split("/")[1]), **options),
    )

    held_out = HubStream(dataset="some/unseen", revision="1" * 40, split="test", max_documents=100)
    text = HubDataset(dataset="some/seen", revision="0" * 40, max_documents=250, held_out=held_out)
    run = fake_run(tmp_path / "run")
    setup(run, config.model_copy(update={"text": text}))
    result = proof_of(run)

    found = [
        pq.read_table(run.directory / "text" / f"{name}.parquet")["text"].to_pylist() for name in EVALUATION_SPLITS
    ]
    evaluation = {text for texts in found for text in texts}
    assert {again, continued} < evaluation <= set(unseen[:100]) and len(evaluation) == 20
    assert result.duplicates_dropped_documents == 1  # `again`, which train gives up
    assert result.contaminated_dropped_documents == 1  # the text that `continued` begins with
    assert result.splits["train"].documents == 250 - 2


# -------------------------------------------------------------------------------------------- preflight


def test_too_little_room_names_need_room_and_folder(tmp_path):
    with pytest.raises(BadInput, match=rf"1048576\.00 GiB below {tmp_path}, where \d+\.\d\d GiB are free"):
        require_disk(tmp_path, 1 << 50)
