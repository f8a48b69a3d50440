"""Reports as pages of our own servers, so that a link in Prefect's UI opens them.

The address of a report is signed: only a folder that a study of this user has shown can be asked for. A report may be a
stranger's, and the UI beside it holds the password of the server: pages are served in a sandbox, and run nothing.
"""

import hashlib
import hmac
import os
import secrets
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx

from storage.inside import inside

PREFIX, KEY_FILE = "ratchet-report", "ratchet-report.key"
SANDBOX = (
    "sandbox allow-scripts allow-popups; default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
    "img-src data:"
)
"""No origin, no request, no form."""
NO_FRAME = [(b"x-frame-options", b"DENY"), (b"content-security-policy", b"frame-ancestors 'none'")]
ANSWER_SECONDS = 5.0


def link_of(report: Path, api: str) -> str:
    """Path of the report's page on the server of this API; empty where that is not one of ours, as on a cluster."""
    with suppress(httpx.HTTPError, OSError):
        link = f"/{PREFIX}/{_signed(report.parent)}{quote(str(report))}"
        if httpx.get(api.removesuffix("/api") + link, timeout=ANSWER_SECONDS).status_code == httpx.codes.OK:
            return link
    return ""


def route() -> Any:
    """The route of these pages, for an application of Starlette."""
    from starlette.requests import Request
    from starlette.responses import FileResponse, Response
    from starlette.routing import Route

    def page(request: Request) -> Response:
        file = Path("/", request.path_params["file"])
        if hmac.compare_digest(request.path_params["signed"], _signed(file.parent)):
            with suppress(OSError, ValueError):
                headers = {"Content-Security-Policy": SANDBOX, "Referrer-Policy": "no-referrer"}
                return FileResponse(inside(file.parent, file.name), headers=headers)
        return Response("there is no such report", status_code=404)

    return Route(f"/{PREFIX}/{{signed}}/{{file:path}}", page)


def unframed(app: Any) -> Any:
    """The application of Starlette, none of whose pages may be shown within another page: ports of one machine are one
    site, so a page of another user's would show the signed-in UI, and have a person click in it."""

    async def answer(scope: Any, receive: Any, send: Any) -> None:
        async def sent(message: Any) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], *NO_FRAME]
            await send(message)

        await app(scope, receive, sent)

    return answer


def _signed(folder: Path) -> str:
    return hmac.digest(_key(), str(folder).encode(), hashlib.sha256).hex()


def _key() -> bytes:
    """This user's key, in PREFECT_HOME; it stays the same, so that links stay good."""
    from prefect.settings import PREFECT_HOME

    file = PREFECT_HOME.value() / KEY_FILE
    with suppress(FileExistsError):
        file.parent.mkdir(parents=True, exist_ok=True)
        made = file.with_suffix(f".{os.getpid()}")
        made.touch(0o600)
        made.write_bytes(secrets.token_bytes(32))
        try:
            os.link(made, file)
        finally:
            made.unlink()
    return file.read_bytes()
