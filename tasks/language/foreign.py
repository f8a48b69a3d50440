"""The one place where transformers and datasets load what others made: never with code that came along with it.

A folder or a repository of the hub may name classes in .py files of its own (`auto_map`), and transformers then asks
on the terminal whether to run them. Nobody is asked here, and nothing of it is run. A model of an architecture that
transformers has is loaded by its own class, which must take every weight. Anything else is refused, and so is every
tokenizer with code of its own: one of the library's would load, and might cut text otherwise.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from storage.errors import BadInput

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

log = logging.getLogger("ratchet.model")


def model(
    place: str | Path, what: str, *, encoder_decoder: bool = False, **options: Any
) -> tuple[PreTrainedModel, dict[str, Any]]:
    """A language model and what was missing of it; BadInput when `what` needs code of its own."""
    from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM

    kind = AutoModelForSeq2SeqLM if encoder_decoder else AutoModelForCausalLM
    with _without_its_code(what):
        loaded, report = kind.from_pretrained(place, trust_remote_code=False, output_loading_info=True, **options)
    if code := getattr(loaded.config, "auto_map", None):
        if report["unexpected_keys"]:
            raise _needs_code(what, code)
        log.warning("%s names code of its own (%s), which is not run: %s is used", what, code, type(loaded).__name__)
        del loaded.config.auto_map  # anything saved from here on has no such code beside it
    return loaded, report


def tokenizer(place: str | Path, what: str = "", **options: Any) -> PreTrainedTokenizerBase:
    """A tokenizer; BadInput when it, or the architecture of the model beside it, needs code of its own."""
    from transformers import AutoConfig, AutoTokenizer

    what = what or str(place)
    with _without_its_code(what):
        loaded = AutoTokenizer.from_pretrained(place, trust_remote_code=False, **options)
        if "gguf_file" not in options:  # AutoTokenizer passes over whatever the model's configuration says
            with suppress(OSError, ValueError), _without_its_code(what):
                AutoConfig.from_pretrained(place, trust_remote_code=False, **options)
    if code := loaded.init_kwargs.get("auto_map"):
        raise _needs_code(what, code)
    return loaded


def kept_tokenizer(folder: Path) -> PreTrainedTokenizerBase:
    """The tokenizer that a stage has written; of this class no code can be asked, and it needs no torch."""
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast.from_pretrained(folder, local_files_only=True, trust_remote_code=False)


def rows(dataset: str, **options: Any) -> Any:
    """The rows of a data set as a stream; `datasets` runs no script that comes with one, and cannot be made to."""
    from datasets import load_dataset

    return load_dataset(dataset, streaming=True, **options)


@contextmanager
def _without_its_code(what: str) -> Iterator[None]:
    try:
        yield
    except ValueError as error:
        if "trust_remote_code" not in str(error):  # which is how transformers says that it would have to run code
            raise
        raise _needs_code(what, "auto_map") from error
    except Exception as error:
        if type(error).__name__ != "UnpicklingError":  # torch's reader of pickled weights stops at what would run
            raise
        raise BadInput(
            f"{what} needs code of its own (pytorch_model*.bin is no pickle of tensors alone), which is not run here: "
            "load it where you trust that code, and save it with save_pretrained, which writes safetensors"
        ) from error


def _needs_code(what: str, code: Any) -> BadInput:
    return BadInput(
        f"{what} needs code of its own ({code}), which is not run here: take a model and a tokenizer of classes that "
        "transformers has, or load it where you trust that code, and save it as such a class"
    )
