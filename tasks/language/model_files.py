"""The files of a pretrained model: a folder written by `save_pretrained`."""

from pathlib import Path

from storage import durable
from storage.errors import BadInput
from storage.external import file_manifest
from storage.inside import parts

TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "spiece.model", "vocab.json", "vocab.txt")
WEIGHT_FILES = ("*.safetensors", "pytorch_model*.bin")


def model_manifest(name: str) -> dict[str, str]:
    """The manifest of a folder written by `save_pretrained`.

    BadInput when it is none, or when configuration, weights or tokenizer are missing.
    """
    path = Path(name).expanduser()
    if not path.is_dir():
        raise BadInput(f"model.path {path} is not a folder: give the folder that save_pretrained wrote")
    if not (path / "config.json").is_file():
        raise BadInput(f"the model folder {path} has no config.json: give the folder that save_pretrained wrote")
    if not any(file for pattern in WEIGHT_FILES for file in path.glob(pattern)):
        raise BadInput(
            f"the model folder {path} has no weights (no *.safetensors or pytorch_model*.bin): copy them there, "
            "or give the folder that holds them"
        )
    for index in sorted(path.glob("*.index.json")):
        try:
            for shard in durable.read_json(index)["weight_map"].values():
                parts(shard)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise BadInput(f"{index} does not name weights of this folder ({error}): copy the model again") from None
    if not any((path / name).is_file() for name in TOKENIZER_FILES):
        raise BadInput(
            f"the model folder {path} has no tokenizer (none of {', '.join(TOKENIZER_FILES)}): save the model's "
            "tokenizer into it with save_pretrained"
        )
    return file_manifest([name])
