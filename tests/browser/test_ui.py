"""The Prefect UI that `ratchet ui` serves, used as a person uses it: the form, a run, its results, Cancel and Retry."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from deployments.dag.sources import page_names
from deployments.prefect.embedded import Server
from storage import attempts
from tests.browser.conftest import NARROW, WIDE, OpenPage
from tests.conftest import REPOSITORY, heed_ctrl_c, make_prefect_home
from tests.deployments.prefect.test_embedded import answering
from tests.deployments.test_ui import asked, opened
from tests.flows.answers import SMALL

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

RUN_SECONDS = 900


@dataclass(frozen=True)
class Ui:
    """A UI that is kept open, and the folder where it was started."""

    server: Server
    page: str
    """As a person is told it, with the password."""
    folder: Path

    @property
    def address(self) -> str:
        return self.server.address.removesuffix("/api")

    @property
    def runs(self) -> Path:
        return self.folder / "runs"

    def asked(self, what: str, **of: Any) -> Any:
        return asked(self.server, f"{what}/filter", of)


@pytest.fixture(scope="module")
def ui(smoke_root: Path, prefect_server: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ui]:
    folder = tmp_path_factory.mktemp("ui")
    make_prefect_home(folder / "home")
    shutil.copytree(smoke_root / ".cache", folder / "runs" / ".cache")
    with kept_open(folder) as ui:
        yield ui


@contextmanager
def kept_open(folder: Path, *options: str) -> Iterator[Ui]:
    environment = {name: value for name, value in os.environ.items() if name != "PREFECT_API_URL"}
    kept = subprocess.Popen(
        [sys.executable, "-c", "from flows.command import ratchet; raise SystemExit(ratchet())", "ui", *options],
        cwd=folder,
        env=environment | {"PREFECT_HOME": str(folder / "home"), "PYTHONPATH": str(REPOSITORY)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        preexec_fn=heed_ctrl_c,
    )
    try:
        yield Ui(*opened(kept), folder)
    finally:
        kept.send_signal(signal.SIGINT)
        kept.communicate(timeout=600)


def test_a_browser_begins_in_the_ui_that_our_pages_describe(ui: Ui, open_page: OpenPage):
    page = _entered(ui, open_page)
    assert page.url == f"{ui.address}/dashboard"


def test_who_was_let_in_stays_so_after_a_reload_and_in_a_second_tab(ui: Ui, open_page: OpenPage):
    page = _entered(ui, open_page)
    page.reload()
    _let_in(page)
    second = page.context.new_page()
    second.goto(f"{ui.address}/deployments")
    second.get_by_placeholder("Search deployments").wait_for()


def test_a_person_who_comes_back_to_a_new_start_is_let_in_by_its_address(
    own_prefect_home: Path, tmp_path: Path, open_page: OpenPage
):
    """The tab of before asks to log in, and goes on once the new address was opened."""
    own_prefect_home.rename(tmp_path / "home")
    (tmp_path / "small.py").write_text(SMALL)
    with kept_open(tmp_path, "small.py") as first:
        page = _entered(first, open_page, allowed=("401", "vO", "ERR_CONNECTION_REFUSED"))
    with kept_open(tmp_path, "small.py", "--port", first.address.rpartition(":")[2]) as second:
        assert second.address == first.address and second.page != first.page
        page.reload()
        page.wait_for_url("**/login?**")
        again = page.context.new_page()
        again.goto(second.page)
        _let_in(again)
        page.goto(f"{second.address}/deployments")
        page.get_by_placeholder("Search deployments").wait_for()


WRITES = """async (api) => {
    const body = JSON.stringify({name: "evil"})
    const ways = [undefined, "text/plain", "application/json"].flatMap((type) => ["no-cors", "cors"].map((mode) => (
        {method: "POST", mode, credentials: "include", body: new Blob([body], type ? {type} : {})}
    )))
    await Promise.allSettled(ways.map((way) => fetch(`${api}/flows/`, way)))
    const asked = await fetch(`${api}/flows/filter`, {method: "POST", body: new Blob(["{}"])}).catch(() => ({}))
    const heard = await new Promise((resolve) => {
        const socket = new WebSocket(`${api.replace("http", "ws")}/events/out`, "prefect")
        socket.onopen = () => socket.send('{"type": "auth", "token": null}')
        socket.onmessage = (message) => resolve(message.data)
        socket.onclose = () => resolve(null)
    })
    return [asked.status ?? null, heard]
}"""


def test_a_page_of_another_origin_writes_and_hears_nothing(ui: Ui, open_page: OpenPage):
    """In the browser of a person who was let in; another port is another origin."""
    page = _entered(ui, open_page, allowed=("CORS", "ERR_FAILED", "401"))
    with answering([lambda: 200]) as other:
        page.goto(other)
        assert page.evaluate(WRITES, ui.server.address) == [None, None]
    assert "evil" not in [flow["name"] for flow in ui.asked("flows")]


def test_a_study_is_started_from_the_form_watched_and_its_results_are_read(ui: Ui, open_page: OpenPage):
    page = _form(ui, open_page)
    _field(page, "Name").fill("mine")
    _field(page, "Seed (Optional)").fill("7")
    page.get_by_role("button", name="Submit").click()
    run = _newest_run(ui, page)
    watched = _entered(ui, open_page, f"/runs/flow-run/{run}")
    _state(watched, "Running")
    of_run = {"flow_run_id": {"any_": [run]}}
    _wait(lambda: ui.asked("artifacts", artifacts=of_run | {"key": {"any_": ["mine-study"]}}), "the study's progress")
    watched.reload()  # the page asks for artifacts once
    watched.get_by_text("Artifacts", exact=True).last.click()
    watched.get_by_role("link", name="mine-study").wait_for()
    _ended(ui, run, watched, "COMPLETED")

    _state(watched, "Completed")
    watched.get_by_text("Artifacts", exact=True).last.click()
    for name in ("report", "table", "figures", "study"):
        watched.get_by_role("link", name=f"mine-{name}").wait_for()
    made = json.loads(next(ui.runs.glob("mine/train-baseline/*/stage.json")).read_text())
    assert "7" in str(made["configuration"]["seed"])
    artifacts = ui.asked("artifacts", artifacts=of_run, limit=200)
    assert len({one["key"] for one in artifacts}) > 20
    for artifact in artifacts:
        _look_at(watched, f"{ui.address}/artifacts/artifact/{artifact['id']}", artifact["key"])
    report = next(one["id"] for one in artifacts if one["key"] == "mine-report")
    watched.goto(f"{ui.address}/artifacts/artifact/{report}")
    link = watched.get_by_role("link", name="Open the report")
    opened = open_page(ui.address + str(link.get_attribute("href")))
    opened.get_by_role("heading").first.wait_for()
    assert opened.evaluate("window.origin") == "null", "the password lies in the origin of the UI"
    files = [file for file in ui.folder.rglob("*") if file.is_file()]
    assert ui.server.password and not [file for file in files if ui.server.password.encode() in file.read_bytes()]


def test_a_field_that_is_wrong_is_named_before_anything_runs(ui: Ui, open_page: OpenPage):
    before = len(ui.asked("flow_runs"))
    page = _form(ui, open_page, allowed=("409", "FlowRunCreate"))
    _field(page, "Seed (Optional)").fill("-1")
    page.get_by_role("button", name="Submit").click()
    page.locator(".p-toast__message", has_text="'study.seed'").get_by_text(
        "-1 is less than the minimum of 0"
    ).first.wait_for()
    assert len(ui.asked("flow_runs")) == before


def test_what_was_cancelled_goes_on_after_retry(ui: Ui, open_page: OpenPage):
    page = _form(ui, open_page)
    _field(page, "Name").fill("stopped")
    _field(page, "Epochs (Optional)").fill("3")
    page.get_by_role("button", name="Submit").click()
    run = _newest_run(ui, page)
    pid = _wait(lambda: _frozen(ui.runs, "stopped/train-baseline"), "the training began")
    try:
        watched = _entered(ui, open_page, f"/runs/flow-run/{run}")
        watched.get_by_role("button", name="Cancel").click()
        watched.get_by_role("button", name="Confirm").click()
        _wait(lambda: _signalled(pid), "the worker's signal")
    finally:
        os.kill(pid, signal.SIGCONT)
    _state(watched, "Cancelled")
    (stage,) = ui.runs.glob("stopped/train-baseline/*")
    assert not (stage / "COMPLETE.json").exists()
    worker_log = ui.folder / "home" / "ui-worker.log"
    _wait(lambda: "Cancelled flow run" in worker_log.read_text(), "the worker's end of the run")
    assert "Traceback" not in worker_log.read_text()

    watched.get_by_role("button", name="Retry").click()
    watched.locator(".p-modal").get_by_role("button", name="Retry").click()
    watched.locator(".p-modal").wait_for(state="hidden")
    watched.goto("about:blank")  # it draws its timeline all the time, on the CPU
    _wait((stage / "COMPLETE.json").exists, "the training's end")
    assert _run_state(ui, run) == "RUNNING", "and the study goes on"
    attempts = [json.loads(file.read_text()) for file in sorted((stage / "attempts").glob("*.json"))]
    assert len(attempts) == 2
    assert attempts[1]["began_at"][0] > 0, "it began at a step that was saved"


@pytest.mark.parametrize("width", [NARROW, WIDE])
def test_the_deployments_are_listed(ui: Ui, open_page: OpenPage, width: int):
    page = _entered(ui, open_page, "/deployments", width=width)
    page.get_by_placeholder("Search deployments").fill("quick-local")  # a page of the list holds ten
    for study in page_names():
        _row(page, study, "quick-local").wait_for()


def _entered(ui: Ui, open_page: OpenPage, path: str = "", **options: Any) -> Page:
    """A window of a person who opened the address that was printed, and then this page of the UI."""
    page = open_page(ui.page, **options)
    _let_in(page)
    if path:
        page.goto(f"{ui.address}{path}")
    return page


def _let_in(page: Page) -> None:
    """Waits for the first page of the UI, and for what it asks for."""
    page.wait_for_url("**/dashboard")
    page.get_by_text("Dashboard", exact=True).locator("visible=true").first.wait_for()
    page.wait_for_load_state("networkidle")


def _row(page: Page, study: str, profile: str) -> Locator:
    """The line of the list that names this deployment, and the study's flow below it."""
    return page.locator("tr", has_text=re.compile(rf"{profile}\s*{study}"))


def _form(ui: Ui, open_page: OpenPage, **options: Any) -> Page:
    """The form of the profile smoke, reached by clicks from the list of deployments."""
    page = _entered(ui, open_page, "/deployments", **options)
    page.get_by_placeholder("Search deployments").fill("smoke-local")
    _row(page, "robustness", "smoke-local").get_by_text("smoke-local", exact=True).click()
    page.get_by_role("button", name="Run", exact=True).first.click()
    page.get_by_text("Custom run").first.click()
    _field(page, "Seed (Optional)").wait_for()
    return page


def _field(page: Page, label: str) -> Locator:
    """The field below a label. Labels of groups hold those of their fields: the last one that fits is the field's."""
    return page.locator(".p-label", has=page.get_by_text(label, exact=True)).last.locator("input, textarea").first


def _newest_run(ui: Ui, page: Page) -> str:
    """The id of the run that the form made."""
    page.wait_for_url("**/deployments/deployment/*?tab=Runs")
    return ui.asked("flow_runs", sort="EXPECTED_START_TIME_DESC", limit=1)[0]["id"]


def _ended(ui: Ui, run: str, page: Page, state: str) -> None:
    """Waits until the run is in a state. Its page is left meanwhile: it draws its timeline all the time, on the CPU."""
    address = page.url
    page.goto("about:blank")
    _wait(lambda: _run_state(ui, run) == state, state)
    page.goto(address)


def _run_state(ui: Ui, run: str) -> str:
    return ui.asked("flow_runs", flow_runs={"id": {"any_": [run]}})[0]["state_type"]


def _state(page: Page, name: str) -> None:
    """Waits until the run's page says that it is in the state; a person does not press reload."""
    page.locator(".state-badge", has_text=re.compile(f"^{name}$")).first.wait_for(timeout=RUN_SECONDS * 1000)


def _look_at(page: Page, address: str, key: str) -> None:
    """An artifact's page shows a table, a picture that is whole, a bar, or text beside its name."""
    page.goto(address)
    page.get_by_text(key, exact=True).first.wait_for()
    page.wait_for_function("""() => {
        const shown = document.querySelector(".p-table, .markdown-renderer, .progress-artifact, [class*=progress]");
        const pictures = [...document.querySelectorAll("img")];
        return shown?.textContent.trim() && pictures.every((image) => image.complete && image.naturalWidth);
    }""")


def _frozen(runs: Path, stage: str) -> int | None:
    """Stops the process of a stage that has taken a step, so that it is not over before the browser has come to it."""
    for folder in runs.glob(f"{stage}/*"):
        progress, record = folder / "progress.json", attempts.newest(folder / "attempts")
        if record and progress.exists() and json.loads(progress.read_text()).get("step"):
            os.kill(record["pid"], signal.SIGSTOP)
            assert not (attempts.newest(folder / "attempts") or {})["end_state"], "it was over before it was seen"
            return int(record["pid"])
    return None


def _signalled(pid: int) -> bool:
    """Whether a SIGTERM waits for a stopped process."""
    waiting = re.findall(r"^(?:Sig|Shd)Pnd:\s*(\w+)$", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    return any(int(signals, 16) >> (signal.SIGTERM - 1) & 1 for signals in waiting)


def _wait(seen: Callable[[], Any], what: str) -> Any:
    end = time.monotonic() + RUN_SECONDS
    while not (found := seen()):
        assert time.monotonic() < end, f"not seen in {RUN_SECONDS} s: {what}"
        time.sleep(0.5)
    return found
