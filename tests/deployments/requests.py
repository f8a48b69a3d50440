"""Counts what Prefect's client asks of a server."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
from prefect.client.base import PrefectHttpxSyncClient


@contextmanager
def counted() -> Iterator[Counter[str]]:
    """The requests of all clients meanwhile, by path."""
    asked, send = Counter[str](), PrefectHttpxSyncClient.send

    def count(client: PrefectHttpxSyncClient, request: httpx.Request, *given: Any, **named: Any) -> httpx.Response:
        asked[request.url.path] += 1
        return send(client, request, *given, **named)

    PrefectHttpxSyncClient.send = count
    try:
        yield asked
    finally:
        PrefectHttpxSyncClient.send = send
