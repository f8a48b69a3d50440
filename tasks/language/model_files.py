"""The files of a pretrained model: a folder written by `save_pretrained`, or one GGUF file."""

from pathlib import Path

from storage import durable, reading
from storage.errors import BadInput
from storage.external import file_manifest
from storage.inside import parts

TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "spiece.model", "vocab.json", "vocab.txt")
WEIGHT_FILES = ("*.safetensors", "pytorch_model*.bin")
GGUF_SUFFIX = ".gguf"
GGUF_MAGIC = b"GGUF"


def model_manifest(name: str) -> dict[str, str]:
    """The manifest of a folder written by `save_pretrained`, or of one GGUF file.

    BadInput when it is neither, or when configuration, weights or tokenizer are missing.
    """
    path = Path(name).expanduser()
    if path.suffix == GGUF_SUFFIX:
        require_gguf(path)
        return file_manifest([name])
    if not path.is_dir():
        raise BadInput(
            f"model.path {path} is not a folder: give the folder that save_pretrained wrote, or a {GGUF_SUFFIX} file"
        )
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


def require_gguf(path: Path) -> None:
    """Raises BadInput unless `path` is a file that begins as GGUF files do."""
    if not path.is_file():
        raise BadInput(f"model.path {path} is not a file: give the GGUF file (`make assets` fetches one into assets/)")
    with reading.opened(path) as file:
        if file.read(len(GGUF_MAGIC)) != GGUF_MAGIC:
            raise BadInput(
                f"model.path {path} is not a GGUF file, in spite of its name: its first four bytes must be "
                f"{GGUF_MAGIC.decode()}. Copy the file again"
            )
