"""The tokenizer of a study: a byte-level BPE trained on its train split, or a pretrained one.

Text is always encoded by `encode`: no special token is added, and a text that spells one out does not get it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from storage.errors import BadInput
from tasks.language import foreign
from tasks.language.configuration import PretrainedDirectory, PretrainedHub, TrainedTokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

END_OF_TEXT = "<|endoftext|>"
BATCH_DOCUMENTS = 256
# Places that loading leaves in a tokenizer and `save_pretrained` would write: where it came from on this machine.
PLACES = ("name_or_path", "is_local", "local_files_only", "cache_dir", "_commit_hash", "revision")


def load_tokenizer(
    config: TrainedTokenizer | PretrainedDirectory | PretrainedHub, train_texts: Iterable[str], cache: Path
) -> PreTrainedTokenizerBase:
    """The configured tokenizer; `train_texts` are read only to train one, downloads go below `cache`.

    Raises BadInput when it cannot be had, has no end-of-text token, or the text is too small to train it, and
    ConnectionError when the connection to the hub is lost.
    """
    if isinstance(config, TrainedTokenizer):
        return train_tokenizer(train_texts, config.vocabulary_size)
    tokenizer = foreign.tokenizer(config, cache)
    if tokenizer.eos_token_id is None:
        name = config.path if isinstance(config, PretrainedDirectory) else config.model
        raise BadInput(
            f"the tokenizer of {name} has no end-of-text token (eos_token), which must stand "
            "between documents: choose another model, or set eos_token in its tokenizer_config.json"
        )
    return tokenizer


def train_tokenizer(texts: Iterable[str], vocabulary_size: int) -> PreTrainedTokenizerFast:
    """A byte-level BPE of exactly `vocabulary_size` tokens, `<|endoftext|>` being token 0.

    The same texts in the same order give the same tokenizer. Raises BadInput when they hold too few pairs.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary_size,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    bpe.train_from_iterator(texts, trainer)
    if bpe.get_vocab_size() != vocabulary_size:
        raise BadInput(
            f"model.vocabulary_size is {vocabulary_size}, but the train split gives only "
            f"{bpe.get_vocab_size()} tokens: give more text or lower it"
        )
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        eos_token=END_OF_TEXT,
        bos_token=END_OF_TEXT,
        unk_token=END_OF_TEXT,
        pad_token=END_OF_TEXT,
        clean_up_tokenization_spaces=False,
    )


def save_tokenizer(tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
    """Writes the tokenizer as `save_pretrained` does, without the place it was loaded from."""
    for key in PLACES:
        tokenizer.init_kwargs.pop(key, None)
    tokenizer.save_pretrained(str(folder))


def encode(tokenizer: PreTrainedTokenizerBase, texts: Iterable[str]) -> Iterator[list[int]]:
    """Token ids of each text, in order, in bounded memory; no special token, even if a text spells one."""
    remaining = iter(texts)
    while batch := list(islice(remaining, BATCH_DOCUMENTS)):
        yield from tokenizer(
            batch,
            add_special_tokens=False,
            split_special_tokens=True,
            return_attention_mask=False,
            return_token_type_ids=False,
            verbose=False,  # a document may be longer than the model's window: it is cut in blocks
        )["input_ids"]


def encode_pairs(
    tokenizer: PreTrainedTokenizerBase, pairs: Iterable[tuple[str, str]]
) -> Iterator[tuple[list[int], list[int]]]:
    """Token ids of the article and of the summary of each pair, without special ones.

    A sentencepiece tokenizer gives a text that spells one out its id, and a pair would end there.
    """
    special = set(tokenizer.all_special_ids)
    encoded = encode(tokenizer, (part for pair in pairs for part in pair))
    ids = ([id_ for id_ in part if id_ not in special] for part in encoded)
    return zip(ids, ids, strict=True)


def text_of(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int]) -> str:
    """The text of `ids`, exactly as they decode."""
    return tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False)


def round_trips(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int]) -> bool:
    """True where encoding the text of `ids` gives the same ids: the attack could be sent as text."""
    return next(encode(tokenizer, [text_of(tokenizer, ids)])) == list(ids)
