"""A headless Chromium on the page of a real server.

Playwright's event loop runs in the main thread for as long as the browser lives: tests here use no
asyncio, and the browser ends with this package.
"""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.server.process import ServerProcess

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

WIDTHS = (1280, 390)
_WAIT_MS = 30_000
_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


@pytest.fixture(scope="package")
def browser() -> Iterator["Browser"]:
    """The system's Chromium, headless."""
    for name in ("playwright", "axe_playwright_python"):
        pytest.importorskip(name, reason="browser tests need: pip install 'octavo[browser]'")
    path = next(filter(None, map(shutil.which, _NAMES)), None)
    if path is None:
        pytest.skip("browser tests need Chromium: apt-get install chromium")
    from playwright.sync_api import sync_playwright
    with sync_playwright() as playwright:
        # as root, as in containers, its sandbox does not start; it sees pages of ours only
        found = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield found
        found.close()


@pytest.fixture(scope="module")
def server(model_path: Path) -> Iterator[ServerProcess]:
    """`octavo serve` of the default model, one a test file."""
    with ServerProcess("smollm2-135m", "--kv-cache-memory-bytes", "256m",
                       "--disable-log-requests") as found:
        found.wait_ready()
        yield found


@pytest.fixture(scope="module")
def server_url(server: ServerProcess) -> str:
    """Its address, without a slash at the end."""
    return server.client.base_url


@pytest.fixture
def page_at(browser: "Browser", request: pytest.FixtureRequest) -> Iterator[Callable[..., "Page"]]:
    """page_at(width, path="/", url=server_url): the page in a window of that width, in a browser
    without memory, ready to use. The test fails if the page logs an error."""
    contexts, errors = [], []

    def made(width: int, path: str = "/", *, url: str | None = None, ready: bool = True
             ) -> "Page":
        base = url or request.getfixturevalue("server_url")
        context = browser.new_context(
            viewport={"width": width, "height": 844 if width < 640 else 800},
            has_touch=width < 640, reduced_motion="reduce")
        contexts.append(context)
        context.set_default_timeout(_WAIT_MS)
        page = context.new_page()
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.goto(base + path)
        if ready:
            page.wait_for_selector(".dot[data-kind=good]", state="attached")
        return page

    yield made
    for context in contexts:
        context.close()
    assert not errors


@pytest.fixture
def assert_no_overflow() -> Callable[["Page"], None]:
    """assert_no_overflow(page): nothing sticks out of the window."""
    from tests.browser import checks
    return checks.assert_no_overflow


@pytest.fixture
def assert_accessible() -> Callable[["Page"], None]:
    """assert_accessible(page): axe-core finds no serious or critical fault."""
    from tests.browser import checks
    return checks.assert_accessible
