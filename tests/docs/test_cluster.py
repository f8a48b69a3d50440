"""What docs/cluster.md says of the server's password and database is what a real server does."""

import os
import re
import shutil
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from deployments.prefect import embedded
from tests.conftest import REPOSITORY
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
    (home / "disk").mkdir()
    write = WRITE.replace("/var/tmp", f"{home}/disk")
    subprocess.run(["bash", "-euc", write], env=environment, check=True, timeout=300)
    assert stat.S_IMODE((home / ".config" / "ratchet.env").stat().st_mode) == 0o600
    shown = subprocess.run(
        ["bash", "-euc", f"{READ}\nenv"], env=environment, check=True, capture_output=True, text=True, timeout=300
    ).stdout
    return {name: value for name, value in re.findall(r"^(PREFECT_\w+|TMPDIR)=(.*)$", shown, re.MULTILINE)}


def test_the_file_of_settings_holds_what_its_table_describes(settings):
    table = PAGES["docs/cluster.md"].partition("| variable | whose | what |")[2].partition("\n\n")[0]
    assert set(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)) == set(settings)
    assert settings["PREFECT_API_URL"] == f"http://127.0.0.1:{settings['PREFECT_SERVER_API_PORT']}/api"
    address = settings["PREFECT_API_URL"].removesuffix("/api")
    origins = {address, address.replace("127.0.0.1", "localhost")}
    assert {*settings["PREFECT_SERVER_CORS_ALLOWED_ORIGINS"].split(",")} == origins
    made = Path(settings["PREFECT_HOME"])
    assert (
        settings["TMPDIR"] == str(made)
        and made.name.startswith("ratchet-somebody-")
        and stat.S_IMODE(made.stat().st_mode) == 0o700
    )
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


def test_without_the_password_a_client_reads_and_starts_nothing(guarded, settings, run_study, tmp_path):
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

    embedded.require_answer(embedded.Server(guarded.address, password))
    study = ["--profile", "smoke", "--root", tmp_path / "runs"]
    done = run_study(*study, PREFECT_API_URL=guarded.address)
    assert done.returncode == 2 and "asks for a password and was given none: set PREFECT_API_AUTH_STRING" in done.stderr
    done = run_study(*study, PREFECT_API_URL=guarded.address, PREFECT_API_AUTH_STRING="somebody:guess")
    assert done.returncode == 2 and "asks for a password and was given another one" in done.stderr
    assert not (tmp_path / "runs").exists()


UNITS = REPOSITORY / "deployments" / "systemd"
(CHECK,) = re.findall(r"^ExecStartPre=/bin/sh -c '(.*)'$", (UNITS / "ratchet-server.service").read_text(), re.MULTILINE)


def test_a_unit_does_not_start_without_its_password_or_in_another_person_s_folder(tmp_path):
    """Without the file of settings the server of the unit stood open to everybody on the login node."""
    assert "\nEnvironmentFile=%h/.config/ratchet.env\n" in (UNITS / "ratchet-server.service").read_text(), (
        "with -, it may lack"
    )

    def starts(**environment: str) -> bool:
        given = {"PREFECT_SERVER_API_AUTH_STRING": "me:secret", "PREFECT_HOME": str(tmp_path)} | environment
        return not subprocess.run(["/bin/sh", "-c", CHECK.replace("$$", "$")], env=given, check=False).returncode

    assert starts() and not starts(PREFECT_HOME=str(tmp_path / "gone"))
    assert not starts(PREFECT_SERVER_API_AUTH_STRING="")
    if os.geteuid() == 0:
        shutil.chown(tmp_path, "nobody")
        assert not starts()
        shutil.chown(tmp_path, 0)


def test_the_list_of_hashes_is_of_the_versions_that_make_installs():
    """All but torch, whose builds are many."""
    lines = (REPOSITORY / "constraints.txt").read_text().splitlines()
    named = [line.partition("==") for line in lines if line[0] != "#"]
    pinned = {f"{re.sub('[._]', '-', name.lower())}=={version}" for name, _, version in named}
    hashed = (REPOSITORY / "constraints-hashes.txt").read_text().replace("\\\n", "").splitlines()
    assert {line.split()[0] for line in hashed} == {line for line in pinned if not line.startswith("torch==")}
    assert all(re.fullmatch(r"\S+ +(--hash=sha256:[0-9a-f]{64} *)+", line) for line in hashed)


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
