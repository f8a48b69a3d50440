"""The trained tokenizer is the same each time, loses nothing, and never smuggles in a special token."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from storage.errors import BadInput
from tasks.language.configuration import PretrainedDirectory, TrainedTokenizer
from tasks.language.tokenizer import encode, load_tokenizer, save_tokenizer, train_tokenizer

TEXTS = [f"{word} the number {n} of {n * n} things, naïve café 東京 🙂" for n in range(300) for word in ("say", "see")]
VOCABULARY = 400
REPOSITORY = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer(TEXTS, VOCABULARY)


def files(folder) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_training_twice_saves_the_same_bytes(tmp_path):
    """The second time in another process, with another hash seed and number of threads."""
    save_tokenizer(train_tokenizer(TEXTS, VOCABULARY), tmp_path / "one")
    script = (
        "from tests.tasks.language.test_tokenizer import *; from pathlib import Path; "
        f"save_tokenizer(train_tokenizer(TEXTS, VOCABULARY), Path({str(tmp_path / 'two')!r}))"
    )
    environment = {"PYTHONHASHSEED": "5", "RAYON_NUM_THREADS": "1", "PATH": ""}
    subprocess.run([sys.executable, "-c", script], check=True, env=environment, cwd=REPOSITORY)
    assert files(tmp_path / "one") == files(tmp_path / "two")


def test_saving_forgets_where_it_was_loaded_from(tokenizer, tmp_path):
    save_tokenizer(tokenizer, tmp_path / "one")
    loaded = load_tokenizer(PretrainedDirectory(path=str(tmp_path / "one")), [], tmp_path)
    save_tokenizer(loaded, tmp_path / "two")
    assert files(tmp_path / "one") == files(tmp_path / "two")
    assert str(tmp_path).encode() not in b"".join(files(tmp_path / "two").values())


def test_vocabulary_and_end_of_text(tokenizer):
    assert len(tokenizer) == VOCABULARY
    ids = (tokenizer.eos_token_id, tokenizer.bos_token_id, tokenizer.unk_token_id, tokenizer.pad_token_id)
    assert ids == (0, 0, 0, 0)


def test_round_trip_of_any_text(tokenizer):
    texts = [*TEXTS[:3], " leading and trailing ", "tab\t\r\nnull\0", "unseen: ẞ ﷽ 𝛑", "a <|endoftext|> b"]
    assert [tokenizer.decode(ids) for ids in encode(tokenizer, texts)] == texts


def test_a_spelled_out_special_token_is_ordinary_text(tokenizer):
    (ids,) = encode(tokenizer, ["a <|endoftext|> b"])
    assert tokenizer.eos_token_id not in ids


def test_encoding_in_batches_keeps_the_order(tokenizer):
    alone = [next(encode(tokenizer, [text])) for text in TEXTS]
    assert list(encode(tokenizer, iter(TEXTS))) == alone


def test_text_too_small_for_the_vocabulary_names_both_numbers(tmp_path):
    config = TrainedTokenizer(vocabulary_size=4096)
    with pytest.raises(BadInput, match=r"vocabulary_size is 4096, but the train split gives only \d+ tokens"):
        load_tokenizer(config, ["a few words only"], tmp_path)


@pytest.mark.parametrize("there", [True, False])
def test_folder_without_tokenizer_is_bad_input(tmp_path, there):
    path = tmp_path if there else tmp_path / "missing"
    with pytest.raises(BadInput, match=f"(?s)the model folder {path} .*save_pretrained"):
        load_tokenizer(PretrainedDirectory(path=str(path)), [], tmp_path)


def test_tokenizer_without_end_of_text_is_bad_input(tokenizer, tmp_path):
    save_tokenizer(tokenizer, tmp_path)
    settings = json.loads((tmp_path / "tokenizer_config.json").read_text())
    del settings["eos_token"]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    with pytest.raises(BadInput, match="no end-of-text token"):
        load_tokenizer(PretrainedDirectory(path=str(tmp_path)), [], tmp_path)
