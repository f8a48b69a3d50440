"""What an attacker may write survives being text."""

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from storage.errors import BadInput
from tasks.attacks.texts import usable_tokens
from tasks.language.tokenizer import round_trips, text_of, train_tokenizer
from tests.tasks.language.tiny_t5 import unigram_tokenizer
from tests.tasks.tiny import sentences


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer(sentences(300), 350)


def test_usable_ids_are_exactly_those_that_come_back(tokenizer):
    usable = usable_tokens(tokenizer, len(tokenizer) + 7)
    assert len(usable) == len(tokenizer) + 7 and not usable[-7:].any(), "padding rows of a model are no tokens"
    assert not usable[tokenizer.eos_token_id]
    for id_ in range(len(tokenizer)):
        text = tokenizer.decode([id_], clean_up_tokenization_spaces=False)
        comes_back = tokenizer(text, add_special_tokens=False)["input_ids"] == [id_]
        assert bool(usable[id_]) == (comes_back and id_ not in tokenizer.all_special_ids), text
    assert 100 < usable.sum() < len(tokenizer) - 100, "bytes of halved characters do not come back"


def test_a_vocabulary_smaller_than_the_tokenizer_is_not_overrun(tokenizer):
    assert len(usable_tokens(tokenizer, 300)) == 300


def test_half_a_character_and_a_merge_do_not_round_trip():
    tokenizer = train_tokenizer(sentences(300), 350)
    whole = tokenizer("façade and the rest", add_special_tokens=False)["input_ids"]
    assert round_trips(tokenizer, whole) and text_of(tokenizer, whole) == "façade and the rest"
    half = next(i for i in range(len(whole)) if not round_trips(tokenizer, whole[: i + 1]))
    assert "\ufffd" in text_of(tokenizer, whole[: half + 1])
    merged = next(id_ for id_ in whole if len(text_of(tokenizer, [id_])) == 2)
    apart = [tokenizer.convert_tokens_to_ids(char) for char in tokenizer.convert_ids_to_tokens(merged)]
    assert not round_trips(tokenizer, apart)


def test_pieces_from_inside_a_word_may_be_written_too():
    """Sentencepiece puts a space in front of any text: half of a Unigram vocabulary was never written."""
    pieces = unigram_tokenizer()
    usable = usable_tokens(pieces, len(pieces))
    inside = [id_ for id_, piece in enumerate(pieces.convert_ids_to_tokens(range(len(pieces)))) if piece[0] not in "▁<"]
    assert len(inside) > len(pieces) / 2 and usable[inside].sum() > len(inside) / 2
    assert not usable[pieces.all_special_ids].any(), "T5's sentinels among them"
    word = pieces("kel", add_special_tokens=False)["input_ids"]
    assert all(round_trips(pieces, [*word, id_]) or round_trips(pieces, [id_]) for id_ in usable.nonzero().flatten())


def test_a_tokenizer_that_gives_nothing_back_is_bad_input():
    broken = Tokenizer(models.WordLevel({"a": 0, "b": 1, "<unk>": 2}, unk_token="<unk>"))
    broken.pre_tokenizer = pre_tokenizers.Whitespace()
    broken.decoder = decoders.Replace("a", "c")
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=broken, unk_token="<unk>")
    with pytest.raises(BadInput, match="gives back none of its tokens"):
        usable_tokens(tokenizer, 3)
