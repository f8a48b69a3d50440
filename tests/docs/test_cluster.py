"""What docs/cluster.md says of the server's password and database is what a real server does."""

from __future__ import annotations

import os
import re
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from prefect.settings import PREFECT_API_AUTH_STRING, temporary_settings

from deployments.embedded import require_answer
from tests.conftest import REPOSITORY, Command
from tests.docs.pages import PAGES, blocks
from tests.slurm.harness import PREFECT, Server

BASH = [block.text for block in blocks("bash") if block.page == "docs/cluster.md"]
(WRITE,) = [text for text in BASH if "secrets.token_urlsafe" in text]
(READ,) = [text for text in BASH if "set -a" in text]


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The variables that its two blocks set, with a home of their own."""
    home = tmp_path_factory.mktemp("home")
    environment = {"HOME": str(home), "PATH": os.environ["PATH"], "USER": "somebody", "LOGNAME": "other"}
    write = WRITE.replace("/var/tmp/$USER", f"{home}/disk")
    subprocess.run(["bash", "-euc", write], env=environment, check=True, timeout=300)
    assert stat.S_IMODE((home / ".config" / "ratchet.env").stat().st_mode) == 0o600
    assert stat.S_IMODE((home / "disk" / "prefect").stat().st_mode) == 0o700
    shown = subprocess.run(
        ["bash", "-euc", f"{READ}\nenv"], env=environment, check=True, capture_output=True, text=True, timeout=300
    ).stdout
    return {name: value for name, value in re.findall(r"^(PREFECT_\w+)=(.*)$", shown, re.MULTILINE)}


def test_the_file_of_settings_holds_what_its_table_describes(settings: dict[str, str]) -> None:
    table = PAGES["docs/cluster.md"].partition("| variable | whose | what |")[2].partition("\n\n")[0]
    assert set(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)) == set(settings)
    assert settings["PREFECT_API_URL"] == f"http://127.0.0.1:{settings['PREFECT_SERVER_API_PORT']}/api"
    assert settings["PREFECT_HOME"] == "/var/tmp/somebody/prefect", "the folder that the next line makes"
    name, _, password = settings["PREFECT_API_AUTH_STRING"].partition(":")
    assert settings["PREFECT_SERVER_API_AUTH_STRING"] == f"{name}:{password}" and len(password) >= 32 and name


@pytest.fixture
def guarded(own_prefect_home: Path, settings: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """A server that asks for the password, with its database where a setting says."""
    database = own_prefect_home / "elsewhere.db"
    (own_prefect_home / "prefect.db").rename(database)
    monkeypatch.setenv("PREFECT_SERVER_API_AUTH_STRING", settings["PREFECT_SERVER_API_AUTH_STRING"])
    monkeypatch.setenv("PREFECT_SERVER_DATABASE_CONNECTION_URL", f"sqlite+aiosqlite:///{database}")
    server = Server(own_prefect_home)
    server.start()
    yield server
    server.kill()
    assert not (own_prefect_home / "prefect.db").exists()


def test_without_the_password_a_client_reads_and_starts_nothing(
    guarded: Server, settings: dict[str, str], run_study: Command, tmp_path: Path
) -> None:
    auth = tuple(settings["PREFECT_API_AUTH_STRING"].split(":"))
    for method, path in (("POST", "/deployments/filter"), ("POST", "/work_pools/filter"), ("GET", "/version")):
        without = httpx.request(method, guarded.address + path, json={} if method == "POST" else None, timeout=300)
        assert (without.status_code, without.json()) == (401, {"exception_message": "Unauthorized"})
        wrong = httpx.request(method, guarded.address + path, auth=(auth[0], "guess"), timeout=300)
        assert wrong.status_code == 401
    assert httpx.post(f"{guarded.address}/deployments/filter", json={}, auth=auth, timeout=300).status_code == 200

    create, password = ["work-pool", "create", "ratchet", "--type", "process"], settings["PREFECT_API_AUTH_STRING"]
    code, said = prefect(create, guarded)
    assert code == 1 and "401 Unauthorized" in said
    assert prefect(create, guarded, PREFECT_API_AUTH_STRING=password)[0] == 0

    with temporary_settings({PREFECT_API_AUTH_STRING: password}):
        require_answer(guarded.address)
    study = ["--profile", "smoke", "--root", tmp_path / "runs"]
    done = run_study(*study, PREFECT_API_URL=guarded.address)
    assert done.returncode == 2 and "asks for a password and was given none: set PREFECT_API_AUTH_STRING" in done.stderr
    done = run_study(*study, PREFECT_API_URL=guarded.address, PREFECT_API_AUTH_STRING="somebody:guess")
    assert done.returncode == 2 and "asks for a password and was given another one" in done.stderr
    assert not (tmp_path / "runs").exists()


def prefect(arguments: list[str], server: Server, **environment: str) -> tuple[int, str]:
    """The command `prefect ...` against the server; its exit code and all that it prints."""
    done = subprocess.run(
        [*PREFECT, *arguments],
        cwd=REPOSITORY,
        env=os.environ | {"PREFECT_API_URL": server.address, "NO_COLOR": "1", "COLUMNS": "200"} | environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr
