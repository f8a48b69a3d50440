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
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from storage import durable
from storage.errors import BadInput
from tasks.language.configuration import PretrainedDirectory, PretrainedHub
from tasks.language.hub import reachable

if TYPE_CHECKING:
    from datasets import IterableDataset
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

log = logging.getLogger("ratchet.model")
HUB_ADVICE = (
    "Check the name and the revision on huggingface.co; for a gated model accept its terms there and set HF_TOKEN in "
    "the environment; on a machine without internet download it elsewhere, copy the folder here and set "
    "model.source=directory and model.path"
)


@dataclass(frozen=True)
class Place:
    """Where a model and its tokenizer lie: what transformers is given, that in words, and options."""

    given: str | Path
    what: str
    options: dict[str, Any] = field(default_factory=dict)


@contextmanager
def place_of(config: Path | PretrainedDirectory | PretrainedHub, cache: Path = Path()) -> Iterator[Place]:
    """A folder, or a model of the hub, which is kept below `cache`.

    Whatever goes wrong while it is loaded is BadInput that names it; a lost connection is a ConnectionError.
    """
    if isinstance(config, PretrainedHub):
        what = f"the hub model {config.model} at revision {config.revision}"
        if Path(config.model).exists():
            # from_pretrained would load the folder and call it the hub's model.
            raise BadInput(
                f"model.model {config.model!r} is also a local path here: use `source: directory` for that, "
                "or work in another folder"
            )
        with reachable(f"{what} cannot be loaded", HUB_ADVICE), _without_its_code(what):
            yield Place(config.model, what, {"revision": config.revision, "cache_dir": str(cache / "hub")})
        return
    path = config if isinstance(config, Path) else Path(config.path).expanduser()
    what = f"the model folder {path}"
    if not path.is_dir():
        raise BadInput(f"{what} is not there: give as model.path the folder that save_pretrained wrote")
    try:
        with _without_its_code(what):
            yield Place(path, what, {"local_files_only": True})
    except (BadInput, MemoryError):
        raise
    except Exception as error:  # what is damaged, and what is none, fails in many ways, all of them its own
        raise BadInput(
            f"{what} cannot be loaded: {type(error).__name__}: {error}. Copy all of it again, or save the model "
            "and its tokenizer with save_pretrained, which writes safetensors (a pickle under that name is none)"
        ) from error


def model(
    config: Path | PretrainedDirectory | PretrainedHub, cache: Path = Path(), *, encoder_decoder: bool = False
) -> PreTrainedModel:
    """A language model in fp32; a folder says itself whether it is an `encoder_decoder`.

    BadInput where weights are missing, which transformers would fill with random numbers, or where it needs code of its
    own.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM

    with place_of(config, cache) as place:
        if isinstance(place.given, Path) and (described := place.given / "config.json").is_file():
            encoder_decoder = bool(durable.read_json(described).get("is_encoder_decoder"))
        loaded, report = (AutoModelForSeq2SeqLM if encoder_decoder else AutoModelForCausalLM).from_pretrained(
            place.given, trust_remote_code=False, output_loading_info=True, dtype=torch.float32, **place.options
        )
    if code := getattr(loaded.config, "auto_map", None):
        if report["unexpected_keys"]:
            raise _needs_code(place.what, code)
        kind = type(loaded).__name__
        log.warning("%s names code of its own (%s), which is not run: %s is used", place.what, code, kind)
        del loaded.config.auto_map  # anything saved from here on has no such code beside it
    if missing := sorted(report["missing_keys"]) + sorted(report["mismatched_keys"], key=str):
        raise BadInput(f"{place.what} lacks weights ({len(missing)}, such as {missing[0]}): copy the whole model")
    return loaded


def tokenizer(config: PretrainedDirectory | PretrainedHub, cache: Path) -> PreTrainedTokenizerBase:
    """A tokenizer; BadInput when it, or the architecture of the model beside it, needs code of its own."""
    from transformers import AutoConfig, AutoTokenizer

    with place_of(config, cache) as place:
        loaded = AutoTokenizer.from_pretrained(place.given, trust_remote_code=False, **place.options)
        with suppress(OSError, ValueError), _without_its_code(place.what):  # which AutoTokenizer passes over
            AutoConfig.from_pretrained(place.given, trust_remote_code=False, **place.options)
    if code := loaded.init_kwargs.get("auto_map"):
        raise _needs_code(place.what, code)
    return loaded


def kept_tokenizer(folder: Path) -> PreTrainedTokenizerBase:
    """The tokenizer that a stage has written; of this class no code can be asked, and it needs no torch."""
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast.from_pretrained(folder, local_files_only=True, trust_remote_code=False)


def rows(dataset: str, **options: str | None) -> IterableDataset:
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


def _needs_code(what: str, code: object) -> BadInput:
    return BadInput(
        f"{what} needs code of its own ({code}), which is not run here: take a model and a tokenizer of classes that "
        "transformers has, or load it where you trust that code, and save it as such a class"
    )
