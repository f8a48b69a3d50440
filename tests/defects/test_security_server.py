"""The server that a plain `ratchet run` starts, and that of `ratchet ui`, work for their user alone.

It asked for no password, let every page of the web read and write, and answered to any name. Who stores a deployment
there has the worker of `ratchet ui` run its steps.
"""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import prefect
import psutil
import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

from deployments.prefect import embedded
from flows import command
from tests.conftest import make_prefect_home
from tests.deployments.prefect.test_embedded import database_in
from tests.flows.answers import SMALL

EVIL = "http://evil.example"
AS_NOBODY = """
import encodings.idna, glob, json, os, re, socket, sys, urllib.error, urllib.request
if os.getuid() == 0:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
"""
"""A program begins so: what it needs of Python may stand where only root can read."""


@pytest.fixture(scope="module")
def home(prefect_server: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A PREFECT_HOME where no server is configured; what the user once set for another one stands in no way."""
    home = make_prefect_home(tmp_path_factory.mktemp("server") / "home")
    with pytest.MonkeyPatch.context() as patch, database_in(home):
        patch.setenv("PREFECT_HOME", str(home))
        patch.setenv(embedded.PASSWORD, "me:known")
        yield home


@pytest.fixture(scope="module")
def server(home: Path) -> Iterator[embedded.Server]:
    """The server as a plain `ratchet run` has it, which uses it here."""
    with embedded.prefect_server():
        yield embedded.configured()


def asked(server: embedded.Server, path: str, password: bool = False, method: str = "GET", **headers: str):
    given = tuple((server.password or "a:b").split(":")) if password else None
    address = server.address.removesuffix("/api") + path
    return httpx.request(method, address, headers=headers, auth=given, content=b"{}" if method == "POST" else None)


@pytest.mark.parametrize("headers", [{}, {"Origin": EVIL}, {"Authorization": "Basic cmF0Y2hldDp4"}])
def test_a_request_without_the_password_is_refused(server, headers):
    for method, path in [("POST", "/api/flow_runs/filter"), ("POST", "/api/deployments/"), ("GET", "/api/hello")]:
        assert asked(server, path, method=method, **headers).status_code == 401
    assert asked(server, "/api/flow_runs/filter", True, "POST").status_code == 200


def test_a_page_of_another_origin_is_told_nothing_and_given_no_leave_to_write(server):
    asks = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization"}
    for leave in (
        asked(server, "/api/hello", True, Origin=EVIL),
        asked(server, "/api/deployments/", method="OPTIONS", Origin=EVIL, **asks),
        asked(server, "/api/deployments/", method="OPTIONS", Origin="null", **asks),
    ):
        assert "access-control-allow-origin" not in leave.headers


@pytest.mark.parametrize("path", ["/api/hello", "/api/health", "/enter", "/"])
def test_a_name_of_the_web_that_was_made_to_mean_this_machine_is_refused(server, path):
    assert asked(server, path, True, Host="evil.example").status_code == 400
    assert asked(server, path, True, Host="localhost:8080").status_code in (200, 404), "by a tunnel"


@pytest.mark.parametrize("path", ["/", "/enter", "/api/hello", "/api/none", "/ratchet-report/0/x"])
def test_no_page_is_shown_within_another_one(server, path):
    """A page on another port of this machine is of the same site: it could have a person click in the signed-in UI."""
    headers = asked(server, path, True).headers
    assert headers["x-frame-options"] == "DENY" and "frame-ancestors 'none'" in headers["content-security-policy"]


SOCKETS = (
    "/task_runs/subscriptions/scheduled",
    "/logs/out",
    "/work_pools/ratchet/workers/connect",
    "/events/in",
    "/events/out",
)


def test_every_websocket_of_prefect_stands_here():
    sources = Path(prefect.__file__).parent.glob("server/api/*.py")
    assert sum(file.read_text().count("@router.websocket(") for file in sources) == len(SOCKETS)


@pytest.mark.parametrize("path", SOCKETS)
def test_a_websocket_without_the_password_is_refused(server, path):
    address = f"ws{server.address.removeprefix('http')}{path}"

    def answer(token: str | None, **options: object) -> dict[str, str]:
        with connect(address, subprotocols=["prefect"], origin=EVIL, **options) as socket:
            socket.send(json.dumps({"type": "auth", "token": token}))
            return json.loads(socket.recv(timeout=60))

    for token in (None, "ratchet:other"):
        with pytest.raises(ConnectionClosed):
            answer(token)
    with pytest.raises(InvalidStatus):
        answer(server.password, additional_headers={"Host": "evil.example"})
    with pytest.raises((InvalidStatus, ConnectionClosed)), connect(address) as old_client:
        old_client.recv(timeout=60)
    assert answer(server.password)["type"] == "auth_success"


STORES = """
def asked(path, **body):
    asks = urllib.request.Request(sys.argv[1] + path, json.dumps(body).encode(), {"Content-Type": "application/json"})
    try:
        return json.load(urllib.request.urlopen(asks))["id"]
    except urllib.error.HTTPError as error:
        return error.code
def has_password(file):
    try:
        return re.search(rb"ratchet:[0-9a-f]{32}", open(file, "rb").read())
    except OSError:
        return False
flow = asked("/flows/", name="evil")
step = {"prefect.deployments.steps.run_shell_script": {"script": "id"}}
stored = asked("/deployments/", name="evil", flow_id=flow, pull_steps=[step])
files = glob.glob("/proc/[0-9]*/environ") + glob.glob("/proc/[0-9]*/cmdline")
print(json.dumps([flow, stored, [file for file in files if has_password(file)]]))
"""


def test_another_user_stores_no_deployment_and_finds_no_password(server):
    """Where the tests are not root's it is this user, who may find the password and does not use it."""
    program = [sys.executable, "-I", "-c", AS_NOBODY + STORES, server.address]
    done = subprocess.run(program, capture_output=True, text=True, check=True, timeout=60)
    *answers, found = json.loads(done.stdout)
    assert answers == [401, 401] and not (found and os.getuid() == 0)


def test_the_password_stands_in_the_environment_of_the_server_and_nowhere_else(server, home, tmp_path):
    """A study that ran leaves it in no record, log, artifact or database."""
    (own := tmp_path / "small.py").write_text(SMALL)
    assert command.ratchet(["run", str(own), "--set", "words=7", "--root", str(tmp_path / "runs")]) == 0
    embedded.send_what_waits()
    assert re.fullmatch("ratchet:[0-9a-f]{32}", server.password or "") and server.password not in repr(server)
    with_it = [
        one.pid for one in psutil.process_iter(["cmdline"]) if server.password in " ".join(one.info["cmdline"] or [])
    ]
    files = [file for folder in (home, tmp_path) for file in folder.rglob("*") if file.is_file()]
    assert any(file.name == "0001.json" for file in files) and home / "prefect.db" in files
    with_it += [file for file in files if server.password.encode() in file.read_bytes()]
    assert not with_it
    for name in ("embedded-server.log", "prefect.db"):
        assert (home / name).stat().st_mode & 0o777 == 0o600, "parameters and logs of studies are nobody else's"


LISTENS = "s = socket.create_server(('127.0.0.1', 0)); print(flush=True); s.accept()"


@pytest.mark.skipif(os.getuid() != 0, reason="only root sees what another user has open")
def test_a_server_of_another_user_is_not_taken_for_ours(home, tmp_path):
    """The database can be read by all: root sent its studies to whoever had it open and listened."""
    program = [sys.executable, "-I", "-c", AS_NOBODY + LISTENS]
    with database_in(tmp_path), (tmp_path / "prefect.db").open("w+") as database:
        theirs = subprocess.Popen(program, stdin=database, stdout=subprocess.PIPE)
        try:
            assert theirs.stdout and theirs.stdout.readline() == b"\n"
            assert embedded.server_here() is None
        finally:
            theirs.kill()
            theirs.communicate()
