"""The tokenizer of a study: a byte-level BPE trained on its train split, or a pretrained one.

Text is always encoded by `encode`: no special token is added, and a text that spells one out does not get it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from storage.errors import BadInput
from tasks.language import foreign, model_files
from tasks.language.configuration import PretrainedDirectory, PretrainedHub, TrainedTokenizer
from tasks.language.hub import reachable

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
    if isinstance(config, PretrainedDirectory):
        tokenizer = _from_directory(config)
    else:
        tokenizer = _from_hub(config, cache)
    if tokenizer.eos_token_id is None:
        raise BadInput(
            f"the tokenizer of {_name(config)} has no end-of-text token (eos_token), which must stand "
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


def _from_directory(config: PretrainedDirectory) -> PreTrainedTokenizerBase:
    path = Path(config.path).expanduser()
    if path.suffix == model_files.GGUF_SUFFIX:
        return _from_gguf(path)
    if not path.is_dir():
        raise BadInput(f"model.path {path} is not a folder: give the folder that save_pretrained wrote")
    try:
        return foreign.tokenizer(path, f"the model folder {path}", local_files_only=True)
    except BadInput:
        raise
    except Exception as error:  # a damaged tokenizer fails in many ways, all of them the folder's
        raise BadInput(
            f"model.path {path} holds no tokenizer that can be loaded: {error}. "
            "Save the tokenizer into it with save_pretrained"
        ) from error


def _from_gguf(path: Path) -> PreTrainedTokenizerBase:
    with model_files.gguf_alone(path) as folder:
        try:
            return foreign.tokenizer(folder, f"the GGUF file {path}", gguf_file=path.name, local_files_only=True)
        except Exception as error:  # a damaged file fails in many ways, all of them the file's
            raise BadInput(
                f"the GGUF file {path} holds no tokenizer that can be loaded: {type(error).__name__}: {error}. "
                "Copy the whole file, or convert the model with its tokenizer"
            ) from error


def _from_hub(config: PretrainedHub, cache: Path) -> PreTrainedTokenizerBase:
    if Path(config.model).exists():
        # from_pretrained would load the folder and call it the hub's model.
        raise BadInput(
            f"model.model {config.model!r} is also a local path here: use `source: directory` for that, "
            "or work in another folder"
        )
    advice = (
        "Check the name and the revision on huggingface.co; for a gated model accept its terms there and set "
        "HF_TOKEN in the environment; on a machine without internet download it elsewhere, copy the folder here "
        "and use `source: directory`"
    )
    with reachable(f"the tokenizer of {_name(config)} cannot be loaded", advice):
        return foreign.tokenizer(
            config.model, f"the hub model {_name(config)}", revision=config.revision, cache_dir=str(cache / "hub")
        )


def _name(config: PretrainedDirectory | PretrainedHub) -> str:
    if isinstance(config, PretrainedDirectory):
        return config.path
    return f"{config.model} at revision {config.revision}"


def text_of(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int]) -> str:
    """The text of `ids`, exactly as they decode."""
    return tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False)


def round_trips(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int]) -> bool:
    """True where encoding the text of `ids` gives the same ids: the attack could be sent as text."""
    return next(encode(tokenizer, [text_of(tokenizer, ids)])) == list(ids)
