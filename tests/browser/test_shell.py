"""The shell of the page: tabs, theme, the API key, the state of the server."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.browser.conftest import WIDTHS
from tests.server.process import ServerProcess

pytestmark = pytest.mark.full
KEY = "sesame-open"


@pytest.fixture(scope="module")
def locked_url(model_path: Path) -> Iterator[str]:
    with ServerProcess("smollm2-135m", "--kv-cache-memory-bytes", "64m", "--api-key", KEY
                       ) as found:
        found.wait_ready()
        yield found.client.base_url


def test_tabs(page_at: Callable[..., Any]) -> None:
    page = page_at(1280)
    chat, engine = page.get_by_role("tab", name="Chat"), page.get_by_role("tab", name="Engine")
    assert chat.get_attribute("aria-selected") == "true"
    assert page.locator("#model").inner_text() == "SmolLM2-135M-Instruct"
    chat.focus()
    page.keyboard.press("ArrowRight")
    assert engine.get_attribute("aria-selected") == "true"
    assert engine.evaluate("e => e === document.activeElement")
    assert page.locator("#panel-engine").is_visible() and page.locator("#panel-chat").is_hidden()
    assert page.url.endswith("/#engine")
    page.reload()
    assert page.locator("#panel-engine").is_visible()
    engine.focus()
    page.keyboard.press("ArrowRight")  # around the end
    assert page.locator("#panel-chat").is_visible()
    page.keyboard.press("End")
    assert page.locator("#panel-engine").is_visible()


def test_theme(page_at: Callable[..., Any]) -> None:
    page = page_at(390)

    def lightness() -> int:
        colour = page.evaluate("getComputedStyle(document.body).backgroundColor")
        return sum(map(int, re.findall(r"\d+", colour)[:3]))

    button = page.locator("#theme")
    page.emulate_media(color_scheme="dark")
    assert lightness() < 150
    button.click()
    assert button.get_attribute("aria-label") == "Theme: light" and lightness() > 600
    button.click()
    page.emulate_media(color_scheme="light")
    assert button.get_attribute("aria-label") == "Theme: dark" and lightness() < 150
    page.reload()
    assert lightness() < 150
    button.click()
    assert button.get_attribute("aria-label") == "Theme: auto" and lightness() > 600


@pytest.mark.parametrize("width", WIDTHS)
def test_the_key_is_asked_for(page_at: Callable[..., Any], locked_url: str, width: int,
                              assert_no_overflow: Callable[..., None],
                              assert_accessible: Callable[..., None]) -> None:
    page = page_at(width, url=locked_url, ready=False)
    field = page.get_by_label("Key", exact=True)
    field.wait_for()
    page.keyboard.type("wrong")  # what is typed on arrival goes into the field
    assert field.input_value() == "wrong"
    assert_no_overflow(page)
    assert_accessible(page)
    page.keyboard.press("Enter")
    page.get_by_text("does not know this key").wait_for()
    assert field.get_attribute("aria-invalid") == "true"
    page.keyboard.type(KEY)
    assert field.input_value() == KEY
    page.get_by_role("button", name="Use this key").click()
    page.wait_for_selector(".dot[data-kind=good]", state="attached")
    page.reload()  # the tab keeps it
    page.wait_for_selector(".dot[data-kind=good]", state="attached")
    assert page.evaluate("JSON.stringify(localStorage)").find(KEY) == -1


def test_a_refused_message_is_sent_again(page_at: Callable[..., Any], locked_url: str) -> None:
    page = page_at(1280, url=locked_url, ready=False)
    field = page.get_by_label("Key", exact=True)
    field.wait_for()
    page.keyboard.press("Escape")
    field.wait_for(state="detached")
    page.fill("#message", "What is the capital of France?")
    page.keyboard.press("Enter")
    error = page.locator(".message.assistant .error")
    error.wait_for()
    assert "once the key is given" in error.inner_text()
    page.keyboard.type("wrong")
    page.keyboard.press("Enter")
    page.get_by_text("does not know this key").wait_for()
    assert error.count() == 1 and page.locator("#state").inner_text() == "needs an API key"
    page.keyboard.type(KEY)
    page.keyboard.press("Enter")
    page.locator(".message.assistant .figures").wait_for()
    assert page.locator(".message.user").count() == 1 and error.count() == 0
    assert "Paris" in page.locator(".message.assistant .body").inner_text()


@pytest.mark.parametrize("broken", ["engine.css", "engine.js", "engine-tree.js"])
def test_an_engine_tab_that_did_not_load(page_at: Callable[..., Any], broken: str) -> None:
    """Whichever of its files was missing, Retry brings it, with a second try at most."""
    page = page_at(1280)
    page.route(f"**/page/{broken}*", lambda route: route.abort())
    page.get_by_role("tab", name="Engine").click()
    retry = page.locator("#panel-engine").get_by_role("button", name="Retry")
    retry.wait_for()
    page.unroute(f"**/page/{broken}*")
    retry.click()
    live = page.locator(".e-status[data-kind=live]")
    live.or_(retry).wait_for()
    if retry.count():
        retry.click()
    live.wait_for()
    assert page.locator(".engine .e-tiles").evaluate("e => getComputedStyle(e).display") == "grid"


def test_a_server_that_ends(page_at: Callable[..., Any], model_path: Path) -> None:
    with ServerProcess("smollm2-135m", "--kv-cache-memory-bytes", "64m") as server:
        server.wait_ready()
        page = page_at(1280, url=server.client.base_url)
    page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
    page.wait_for_selector(".dot[data-kind=bad]")
    assert page.locator("#state").inner_text() == "not reachable"


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_help(page_at: Callable[..., Any], width: int, theme: str,
              assert_no_overflow: Callable[..., None],
              assert_accessible: Callable[..., None]) -> None:
    page = page_at(width)
    page.emulate_media(color_scheme=theme)
    page.locator("#help").click()
    assert page.get_by_role("dialog", name="Help").is_visible()
    assert_no_overflow(page)
    assert_accessible(page)
    page.keyboard.press("Escape")
    assert page.get_by_role("dialog").count() == 0
    assert page.locator("#help").evaluate("e => e === document.activeElement")
