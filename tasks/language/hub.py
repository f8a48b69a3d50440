"""When the Hugging Face hub does not give what was asked: a lost connection is tried again, all else is an input."""

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pkgutil import iter_modules

from storage.errors import BadInput

# The errors of a lost connection, by library: the hub's client has moved from one to the next.
LOST = {
    "builtins": ("ConnectionError", "TimeoutError"),
    "requests": ("ConnectionError", "Timeout"),
    "httpx": ("NetworkError", "TimeoutException", "RemoteProtocolError"),
    "httpx2": ("NetworkError", "TimeoutException", "RemoteProtocolError"),
}
OFFLINE = "OfflineModeIsEnabled"  # a ConnectionError by class, but a setting: trying again would change nothing


HUB_NAME = re.compile(r"(?!buckets/|\.)[\w.-]+(/[\w.-]+)?")
"""Of a data set. Buckets have no commits."""


def require_hub_name(dataset: str) -> None:
    """BadInput for what `load_dataset` takes for a reader of files of the present folder, or for no name on the hub."""
    if not HUB_NAME.fullmatch(dataset) or dataset in local_readers():
        raise BadInput(
            f"dataset {dataset!r} is no data set of the hub at a commit: give its name there with its owner, such as "
            "monology/pile-uncopyrighted. A name such as csv or text would read files of the present folder: use "
            "`source: files` for these"
        )


def local_readers() -> set[str]:
    """Names of the readers that `datasets` has."""
    spec = find_spec("datasets")  # it takes a second to import
    folders = spec.submodule_search_locations if spec else None
    return {module.name for module in iter_modules([f"{folder}/packaged_modules" for folder in folders or ()])}


@contextmanager
def reachable(what: str, advice: str) -> Iterator[None]:
    """Turns whatever the hub's client raises into one line: what failed, why, and what to do.

    It is a ConnectionError, which a stage tries again, when the connection was lost, and BadInput otherwise.
    """
    try:
        yield
    except BadInput:
        raise
    except Exception as error:  # the client lets errors of five libraries through
        message = f"{what}: {type(error).__name__}: {error}. {advice}"
        raise (ConnectionError if connection_lost(error) else BadInput)(message) from error


def connection_lost(error: BaseException) -> bool:
    """True where `error` comes from a lost connection or a time-out, and not from offline mode or an answer of the hub.

    The last of the errors that led to it that shows either decides: a client that is refused one file may lose the
    connection at the next, and one that lost it may be refused when it asks again.
    """
    from datasets.exceptions import DatasetNotFoundError
    from huggingface_hub import constants

    chain = list(_chain(error))
    # `datasets` cuts the chain and leaves the name of the error in its message.
    if constants.HF_HUB_OFFLINE or any(OFFLINE in f"{type(link).__name__}: {link}" for link in chain):
        return False
    raising = LOST.keys() & sys.modules.keys()  # a library that was never imported raised nothing
    lost = tuple(getattr(sys.modules[library], name) for library in raising for name in LOST[library])
    for link in chain:
        answered = getattr(link, "response", None) is not None
        if answered or isinstance(link, DatasetNotFoundError):
            return False
        if isinstance(link, lost):
            return True
    return False


def _chain(error: BaseException) -> Iterator[BaseException]:
    """The error and those that led to it, last first, whether or not a traceback would show them."""
    open_, seen = [error], set()
    while open_:
        link = open_.pop()
        if id(link) not in seen:
            seen.add(id(link))
            yield link
            open_ += [earlier for earlier in (link.__context__, link.__cause__) if earlier is not None]
