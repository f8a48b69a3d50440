"""A Prefect server for the length of one command, on a machine that has none.

Prefect's own temporary server outlives a parent that is killed. This one reads its standard input, which the parent
holds open, and ends when the kernel closes it: whatever ended the parent, SIGKILL included. It runs in a session
of its own, so that Ctrl-C reaches only the study, which then still has a server to tell. Other commands with the same
database use it too, by a pipe that they hold open: it ends with the last of them.

Who may write to a server may run commands as its user. So each start has a password of its own, in the environment of
the server, which the user alone can read: other commands of the user take it from there.
"""

import os
import secrets
import select
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import httpx
import psutil

from deployments.prefect.presence import with_open
from deployments.waits import END_SECONDS, end, wait_for
from storage.errors import BadInput

START_SECONDS, ANSWER_SECONDS = 900.0, 600.0
"""From a command's start of its server until that answers, and of that the server itself: on a login node whose disk is
slow it takes some minutes."""
STAYS_SECONDS = 60.0
HELLO_SECONDS, ASKED_AGAIN_AFTER_SECONDS = 20.0, (2.0, 5.0, 10.0)
BUSY = (httpx.codes.TOO_MANY_REQUESTS, httpx.codes.BAD_GATEWAY, httpx.codes.SERVICE_UNAVAILABLE)
EPHEMERAL = "PREFECT__SERVER_EPHEMERAL"
"""In the environment of a server that ends with its command."""
UI_SETTINGS = {"PREFECT_SERVER_UI_V2_ENABLED": "false", "PREFECT_SERVER_UI_SHOW_PROMOTIONAL_CONTENT": "false"}
"""Browsers begin in Prefect's first UI. Its second one calls a company that counts visits, with analytics off too, and
the one of 3.8.8 lacks the pictures of its timeline."""
PASSWORD = "PREFECT_SERVER_API_AUTH_STRING"
OWN_NAMES = ["127.0.0.1", "localhost"]
"""A page of the web whose name was made to mean this machine (DNS rebinding) is of another name."""
ENTER = "enter"
ENTER_PAGE = """<!doctype html><meta charset="utf-8"><title>Ratchet</title><script>
const given = btoa(location.hash.slice(1)), headers = {Authorization: `Basic ${given}`};
fetch("/api/hello", {headers}).then(answer => {
  if (answer.ok) localStorage.setItem("prefect-password", given);
}).finally(() => location.replace("/"));
</script>"""
"""Gives Prefect's UI the password that stands in its address after the #, which no browser sends, and goes there. One
that is wrong, as any page of the web may give, replaces none."""


@dataclass(frozen=True)
class Server:
    """A Prefect server: the address of its API, and the name:password that it asks for."""

    address: str
    password: str | None = field(repr=False)

    @property
    def settings(self) -> dict[Any, str | None]:
        """Settings that its clients need."""
        from prefect.settings import PREFECT_API_AUTH_STRING, PREFECT_API_URL

        return {PREFECT_API_URL: self.address, PREFECT_API_AUTH_STRING: self.password}

    @property
    def page(self) -> str:
        """Address of its UI, which lets a person in."""
        return self.address.removesuffix("api") + (f"{ENTER}#{self.password}" if self.password else "")


@contextmanager
def prefect_server() -> Iterator[str]:
    """The API address of the server that is there (`server_here`), of another command's, or of one for this block."""
    from prefect.settings import PREFECT_HOME, temporary_settings

    with ExitStack() as held:
        if there := server_here() or _joined(held):
            require_answer(there)
        server = there or held.enter_context(started_server(PREFECT_HOME.value() / "embedded-server.log"))
        held.enter_context(temporary_settings(server.settings))
        try:
            yield server.address
        finally:
            send_what_waits()


def configured() -> Server | None:
    """The server that PREFECT_API_URL names."""
    from prefect.settings import PREFECT_API_AUTH_STRING, PREFECT_API_URL

    address = PREFECT_API_URL.value()
    return Server(address, PREFECT_API_AUTH_STRING.value()) if address else None


def server_here() -> Server | None:
    """The configured server, else the one of this user on this machine that has our database open.

    Two servers on one SQLite file lock each other out. One that ends with its command is passed over; None when no
    other is there.
    """
    from prefect.settings import PREFECT_API_AUTH_STRING

    if there := configured():
        return there
    if not (database := _database_file()):
        return None
    for process, environment in with_open(database):
        with suppress(psutil.Error):
            if EPHEMERAL not in environment:
                for connection in process.net_connections("tcp"):
                    if connection.status == psutil.CONN_LISTEN:
                        here = "127.0.0.1" if connection.laddr.ip in ("0.0.0.0", "::") else connection.laddr.ip
                        address = f"http://{f'[{here}]' if ':' in here else here}:{connection.laddr.port}/api"
                        return Server(address, environment.get(PASSWORD, PREFECT_API_AUTH_STRING.value()))
    return None


def _database_file() -> Path | None:
    """The file of a database of SQLite; None where there is none."""
    from prefect.settings import PREFECT_API_DATABASE_CONNECTION_URL
    from sqlalchemy import make_url

    url = make_url(PREFECT_API_DATABASE_CONNECTION_URL.value())
    is_file = url.get_backend_name() == "sqlite" and url.database and Path(url.database).is_file()
    return Path(url.database) if is_file and url.database else None


def _users_of(database: Path, port: int | str) -> Path:
    """The pipe that all hold open who use the server at `port` of this network: it ends when the last one has."""
    return database.with_name(f"{database.name}.{Path('/proc/self/ns/net').stat().st_ino}-{port}.users")


def _joined(held: ExitStack) -> Server | None:
    """The server of another command, which stays until `held` ends; None when there is none."""
    database = _database_file()
    for pipe in database.parent.glob(_users_of(database, "*").name) if database else ():
        try:
            held.callback(os.close, os.open(pipe, os.O_WRONLY | os.O_NONBLOCK))
        except OSError:  # nobody reads it: that server was killed
            pipe.unlink(missing_ok=True)
            continue
        for _, environment in with_open(pipe):
            if EPHEMERAL in environment:
                address = f"http://127.0.0.1:{pipe.stem.rpartition('-')[2]}/api"
                return Server(address, environment.get(PASSWORD))
    return None


@contextmanager
def started_server(log: Path, port: int = 0) -> Iterator[Server]:
    """A server with the database of PREFECT_HOME and a password of its own; with a port it serves the UI there too."""
    password = f"ratchet:{secrets.token_hex(16)}"
    settings = {
        PASSWORD: password,
        "PREFECT_SERVER_CORS_ALLOWED_ORIGINS": "",  # no other page: its own needs no permission
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    }
    if port:
        settings |= {"PREFECT_UI_ENABLED": "1", "PREFECT_UI_API_URL": "/api"} | UI_SETTINGS
    else:
        settings |= {"PREFECT_UI_ENABLED": "0", EPHEMERAL: "1", "PREFECT__SERVER_FINAL": "1"}
    with private_log(log) as log_file:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "deployments.prefect.embedded", str(port)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log_file,
            env=os.environ | settings,
            start_new_session=True,
        )
    assert process.stdin and process.stdout
    output = process.stdout

    def line(seconds: float, otherwise: str) -> bytes:
        """The next line of the server; empty where it has ended."""
        wait_for(lambda: select.select([output], [], [], 0)[0], seconds, lambda: otherwise)
        return output.readline().strip()

    stays = b""
    try:
        late = f"the Prefect server does not answer after {START_SECONDS / 60:g} minutes"
        if not (served := line(START_SECONDS, f"{late}; its log is {log}. Start the same command again")):
            last = log.read_text(errors="replace").strip().rpartition("\n")[2]
            raise BadInput(f"the Prefect server did not start ({last}); its log is {log}")
        try:
            yield Server(f"http://127.0.0.1:{int(served)}/api", password)
        finally:
            process.stdin.close()
            with suppress(BadInput):
                stays = line(STAYS_SECONDS, "")
    finally:
        if not stays:  # else other commands use it, and it ends with the last of them
            process.stdin.close()
            end(process)
        output.close()


def private_log(file: Path) -> BinaryIO:
    """A new log that its user alone can read."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.unlink(missing_ok=True)  # it may have another mode
    return open(file, "wb", opener=lambda path, flags: os.open(path, flags, 0o600))


def require_answer(asked: Server) -> None:
    """BadInput when the server does not answer, or not us: that is a mistake to correct, not one to work around."""
    from prefect.settings import PREFECT_API_URL

    server = f"the Prefect server at {'PREFECT_API_URL=' if PREFECT_API_URL.value() else ''}{asked.address}"
    name, _, password = (asked.password or "").partition(":")
    try:
        answer = _asked_patiently(f"{asked.address}/hello", (name, password) if name else None)
        if answer.status_code == httpx.codes.UNAUTHORIZED:
            which = "another one" if name else "none"
            raise BadInput(
                f"{server} asks for a password and was given {which}: set PREFECT_API_AUTH_STRING to its name:password"
            )
        answer.raise_for_status()
    except httpx.HTTPError as error:
        cause = str(error).partition("\n")[0]
        status = error.response.status_code if isinstance(error, httpx.HTTPStatusError) else None
        if isinstance(error, httpx.ReadTimeout) or status in BUSY:
            raise BadInput(
                f"{server} is busy ({cause}) and was asked for a minute; "
                "nothing was started, and what is under way goes on: start the same command again"
            ) from error
        raise BadInput(
            f"{server} does not answer ({cause}): start it with "
            "`prefect server start`, or unset PREFECT_API_URL to use an embedded one"
        ) from error


def _asked_patiently(url: str, auth: tuple[str, str] | None) -> httpx.Response:
    """The answer; a server that is busy is asked again, one where nothing listens is not there."""
    for wait in ASKED_AGAIN_AFTER_SECONDS:
        with suppress(httpx.ReadTimeout):
            answer = httpx.get(url, auth=auth, timeout=HELLO_SECONDS)
            if answer.status_code not in BUSY:
                return answer
        time.sleep(wait)
    return httpx.get(url, auth=auth, timeout=HELLO_SECONDS)


def send_what_waits() -> None:
    """Sends the events and logs that wait in background threads, while there is still a server to take them."""
    from prefect.events.worker import EventsWorker
    from prefect.logging.handlers import APILogWorker

    for worker in (APILogWorker, EventsWorker):
        worker.drain_all(timeout=END_SECONDS)


def _outlive(pipe: int, name: Path) -> None:
    """Returns when no command uses this server any more, and none can come."""
    try:
        os.read(pipe, 1)
    except BlockingIOError:
        with suppress(OSError):  # killed
            os.write(1, b"stays\n")
    os.set_blocking(pipe, True)
    os.read(pipe, 1)
    name.unlink()
    os.read(pipe, 1)  # ends with those who came between the two


def serve(port: int) -> None:
    """The server process: serves at `port` of 127.0.0.1 (0: a free one), says which, ends with its standard input."""
    import uvicorn
    from prefect.server.api.server import create_app
    from starlette.middleware.trustedhost import TrustedHostMiddleware
    from starlette.responses import HTMLResponse
    from starlette.routing import Route

    from deployments.prefect import report_pages

    os.umask(0o077)  # the database holds parameters and logs of studies, private ones too
    if there := _database_file():
        for file in there.parent.glob(f"{there.name}*"):
            with suppress(PermissionError, FileNotFoundError):  # another user's, who shares it; an ended server's
                file.chmod(0o600)
    app = create_app()
    app.router.routes[:0] = [Route(f"/{ENTER}", lambda _: HTMLResponse(ENTER_PAGE)), report_pages.route()]
    listener = socket.create_server(("127.0.0.1", port))
    server = uvicorn.Server(
        uvicorn.Config(report_pages.unframed(TrustedHostMiddleware(app, OWN_NAMES)), log_level="error", lifespan="on")
    )

    users: list[tuple[int, Path]] = []

    def end_with_parent() -> None:
        os.read(0, 1)
        for pipe, name in users:
            _outlive(pipe, name)
        server.should_exit = True
        threading.Event().wait(END_SECONDS / 2)
        os._exit(0)

    def announce() -> None:
        try:
            announced()
        except BaseException:  # the command that waits hears of the end of this process alone
            traceback.print_exc()
            os._exit(1)

    def announced() -> None:
        address = f"http://127.0.0.1:{listener.getsockname()[1]}/api/health"
        transport = httpx.HTTPTransport(retries=3)
        with httpx.Client(transport=transport, timeout=ANSWER_SECONDS) as client:
            client.get(address).raise_for_status()
        if not port and (database := _database_file()):
            name = _users_of(database, listener.getsockname()[1])
            os.mkfifo(name, 0o600)
            users.append((os.open(name, os.O_RDONLY | os.O_NONBLOCK), name))
        os.write(1, f"{listener.getsockname()[1]}\n".encode())

    for target in (end_with_parent, announce):
        threading.Thread(target=target, daemon=True).start()
    server.run(sockets=[listener])


if __name__ == "__main__":
    serve(int(sys.argv[1]) if sys.argv[1:] else 0)
