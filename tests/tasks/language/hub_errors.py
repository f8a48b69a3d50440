"""What the hub's clients raise, and how it reaches us: wrapped, and with the chain cut as `datasets` cuts it."""

from collections.abc import Callable
from typing import Any

import httpx
import httpx2
import requests
from datasets.exceptions import DatasetNotFoundError
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
)

REQUEST = httpx2.Request("GET", "https://huggingface.co/nobody/nothing")


def _answer(status: int, kind: type[HfHubHTTPError] = HfHubHTTPError) -> HfHubHTTPError:
    return kind(f"{status} Client Error", response=httpx2.Response(status, request=REQUEST))


def _led_to(cause: BaseException, *later: BaseException) -> BaseException:
    for error in later:
        error.__cause__, cause = cause, error
    return cause


def _while_handling(earlier: BaseException, error: BaseException) -> BaseException:
    error.__context__ = earlier
    return error


def _not_found_here() -> LocalEntryNotFoundError:
    return LocalEntryNotFoundError("cannot find the requested files in the local cache")


LOST: dict[str, Callable[[], BaseException]] = {
    "ConnectionError": lambda: ConnectionError("Server Disconnected"),
    "ConnectionResetError": lambda: ConnectionResetError(104, "Connection reset by peer"),
    "TimeoutError": lambda: TimeoutError("timed out"),
    "httpx.ConnectError": lambda: httpx.ConnectError("[Errno 111] Connection refused"),
    "httpx.ReadTimeout": lambda: httpx.ReadTimeout("timed out"),
    "httpx2.ConnectError": lambda: httpx2.ConnectError("[Errno 111] Connection refused"),
    "httpx2.ReadTimeout": lambda: httpx2.ReadTimeout("timed out"),
    "httpx2.ReadError": lambda: httpx2.ReadError("connection reset in the middle of a file"),
    "httpx2.RemoteProtocolError": lambda: httpx2.RemoteProtocolError("peer closed connection without complete body"),
    "requests.ConnectionError": lambda: requests.ConnectionError("connection refused"),
    "requests.ReadTimeout": lambda: requests.ReadTimeout("timed out"),
    "as transformers raises it": lambda: _led_to(
        httpx2.ConnectError("refused"), _not_found_here(), OSError("We couldn't connect to 'https://huggingface.co'")
    ),
    "as datasets raises it": lambda: _while_handling(
        FileNotFoundError("not cached"), ConnectionError("Couldn't reach 'nobody/nothing' (LocalEntryNotFoundError)")
    ),
    "only in the context": lambda: _while_handling(requests.Timeout("timed out"), ValueError("nothing was read")),
    "at the next file, after one that was not there": lambda: _while_handling(
        _answer(404), httpx2.ConnectError("refused")
    ),
}

FINAL: dict[str, Callable[[], BaseException]] = {
    "OfflineModeIsEnabled": lambda: OfflineModeIsEnabled("HF_HUB_OFFLINE=1 is set"),
    "offline, wrapped": lambda: _led_to(OfflineModeIsEnabled("HF_HUB_OFFLINE=1"), ConnectionError("Couldn't reach")),
    "offline, as datasets raises it": lambda: _while_handling(
        FileNotFoundError("not cached"), ConnectionError("Couldn't reach 'nobody/nothing' (OfflineModeIsEnabled)")
    ),
    "offline, as transformers raises it": lambda: _led_to(_not_found_here(), OSError("We couldn't connect")),
    "401": lambda: _answer(401),
    "403": lambda: _answer(403, GatedRepoError),
    "404": lambda: _led_to(_answer(404, RepositoryNotFoundError), OSError("not a valid model identifier")),
    "404 when asked again": lambda: _while_handling(httpx2.ConnectError("refused"), _answer(404)),
    "requests 404": lambda: requests.HTTPError("404 Client Error", response=requests.Response()),
    "missing name": lambda: _while_handling(ConnectionError("reset"), DatasetNotFoundError("doesn't exist on the Hub")),
    "missing split": lambda: ValueError('Unknown split "trian"'),
}


def raising(name: str) -> Callable[..., Any]:
    """A stand-in for `load_dataset` or `from_pretrained` that raises what is listed under `name`."""

    def stand_in(*given: Any, **options: Any) -> Any:
        raise (LOST | FINAL)[name]()

    return stand_in
