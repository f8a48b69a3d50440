"""When the Hugging Face hub does not give what was asked: a lost connection is tried again, all else is an input."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from storage.errors import BadInput

# The errors of a lost connection, by library: the hub's client has moved from one to the next.
LOST = {
    "builtins": ("ConnectionError", "TimeoutError"),
    "requests": ("ConnectionError", "Timeout"),
    "httpx": ("NetworkError", "TimeoutException", "RemoteProtocolError"),
    "httpx2": ("NetworkError", "TimeoutException", "RemoteProtocolError"),
}
OFFLINE = "OfflineModeIsEnabled"  # a ConnectionError by class, but a setting: trying again would change nothing


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
