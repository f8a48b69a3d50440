"""A real browser: Chromium of this machine, led by Playwright. What a page asks of other machines is refused."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

REQUIRED = "RATCHET_BROWSER_REQUIRED"
"""1: no browser is a failure."""
NARROW, WIDE = 375, 1600
LACKED_BY_PREFECT = ("/favicon.ico", "/ico/")
"""Pictures that the UI of Prefect 3.8.8 asks its server for in vain."""
OpenPage = Callable[..., "Page"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.parent.samefile(os.path.dirname(__file__)):
            item.add_marker(pytest.mark.browser)


@pytest.fixture(scope="module")
def _browser() -> Iterator[Browser]:
    """It ends before the Prefect server of the test run, whose end would see Playwright's event loop in this thread."""
    program = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        sync_playwright = None
    if not program or not sync_playwright:
        lacks = "Playwright: make test-browser installs it" if program else "Chromium: apt-get install chromium"
        if os.environ.get(REQUIRED) == "1":
            pytest.fail(f"here is no {lacks}", pytrace=False)
        pytest.skip(f"here is no {lacks}")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-dev-shm-usage"])
        yield browser
        browser.close()


@pytest.fixture
def open_page(_browser: Browser) -> Iterator[OpenPage]:
    """Opens an address in a window of its own.

    At the end no window may have had an error in its console (but those that hold a text in `allowed`), or have asked
    another machine for anything.
    """
    contexts, errors = [], []

    def opened(address: str, width: int = WIDE, dark: bool = False, allowed: tuple[str, ...] = ()) -> Page:
        context = _browser.new_context(
            viewport={"width": width, "height": 900}, color_scheme="dark" if dark else "light"
        )
        contexts.append(context)
        context.set_default_timeout(600_000)
        page = context.new_page()

        def note(error: str) -> None:
            if not any(text in error for text in (*LACKED_BY_PREFECT, *allowed)):
                errors.append(f"{page.url}: {error}")

        def only_here(route: object) -> None:
            if urlsplit(route.request.url).hostname not in (None, "", "127.0.0.1"):
                errors.append(f"{page.url} asks for {route.request.url}")
                return route.abort()
            return route.continue_()

        context.route("**/*", only_here)
        page.on("console", lambda said: said.type == "error" and note(f"{said.text} ({said.location['url']})"))
        page.on("pageerror", lambda error: note(str(error)))
        page.goto(address)
        return page

    yield opened
    for context in contexts:
        context.close()
    assert not errors, "\n".join(errors)
