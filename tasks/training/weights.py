"""Weights that a stage kept, read into the network that is described beside them."""

from pathlib import Path

from torch import nn

from storage.errors import BadInput
from storage.tensors import read_tensors


def load_kept(network: nn.Module, file: Path) -> None:
    """Loads weights that a stage kept; BadInput where they do not fit the network that is described beside them."""
    try:
        network.load_state_dict(read_tensors(file))
    except RuntimeError as error:
        raise BadInput(
            f"{file} does not fit the network described beside it: {str(error).splitlines()[-1].strip()}"
        ) from None
