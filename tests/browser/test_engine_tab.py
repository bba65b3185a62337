"""The Engine tab during real load: it moves, tells the truth, and costs nothing when it is left."""

import http.client
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.browser.conftest import WIDTHS
from tests.server.http_client import HttpClient, read_until
from tests.server.process import ServerProcess

pytestmark = pytest.mark.full
_MAX_LISTENERS = 16
_WAIT_S = 30.0
_PREAMBLE = "The library opens at ten and closes at six. On Saturdays it closes at two. " * 8


def _open(page_at: Callable[..., Any], width: int = 1280, **more: Any) -> Any:
    page = page_at(width, "/#engine", **more)
    page.wait_for_selector(".e-status[data-kind=live]")
    return page


def _until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _WAIT_S
    while not is_so():
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.05)


def _free_listeners(client: HttpClient) -> int:
    """How many more live views the server takes at this moment."""
    open_ones: list[http.client.HTTPConnection] = []
    try:
        while True:
            connection = http.client.HTTPConnection(client.host, client.port, timeout=60)
            open_ones.append(connection)
            connection.request("GET", "/octavo/events?interval=5")
            if connection.getresponse().status != 200:
                return len(open_ones) - 1
    finally:
        for connection in open_ones:
            connection.close()


def _until_free(client: HttpClient, number: int) -> None:
    _until(lambda: _free_listeners(client) == number)


@pytest.fixture
def long_request(server: ServerProcess) -> Iterator[str]:
    """A request of two samples that runs until the test is over. Its prompt's first words."""
    sock = server.client.open_raw("/v1/completions", {
        "prompt": _PREAMBLE, "max_tokens": 7000, "ignore_eos": True, "n": 2, "temperature": 1,
        "stream": True})
    try:
        read_until(sock, b"data: ")
        yield _PREAMBLE[:20]
    finally:
        sock.close()
    _until(lambda: server.client.metric("octavo:num_requests_running") == 0)


def _value(page: Any, tile: str) -> float:
    return float(page.locator(f"[data-tile={tile}]").get_attribute("data-value") or -1)


def _newest_step(page: Any) -> int:
    return int(page.locator(".e-chart-batch").get_attribute("aria-valuemax"))


def _until_told(page: Any, chart: str, text: str) -> None:
    """Until a screen reader hears that of the chart."""
    _until(lambda: text in page.locator(f".e-chart-{chart}").get_attribute("aria-valuetext"))


def test_it_moves_and_its_counters_are_those_of_the_metrics(
    page_at: Callable[..., Any], server: ServerProcess
) -> None:
    page = _open(page_at)
    client = server.client
    schema = {"type": "object", "properties": {"kind": {"const": "a longer constant"}},
              "required": ["kind"], "additionalProperties": False}
    json_schema = {"name": "x", "strict": True, "schema": schema}
    with ThreadPoolExecutor(4) as pool:
        sent = [pool.submit(client.complete, _PREAMBLE + f"Question {i}:", max_tokens=96,
                            n=1 + i % 4, ignore_eos=True, temperature=0.9) for i in range(8)]
        sent.append(pool.submit(client.chat, "Say it.", max_tokens=40, response_format={
            "type": "json_schema", "json_schema": json_schema}))
        page.wait_for_selector("tr[data-state=running]")
        _until(lambda: _value(page, "decode") > 0)
        first = _newest_step(page)
        _until(lambda: _newest_step(page) > first)
        assert [future.result().status for future in sent] == [200] * 9
    for tile, metric in (("generation_tokens", "generation_tokens_total"),
                         ("hits", "prefix_cache_hits_total"),
                         ("preemptions", "num_preemptions_total"),
                         ("copies_on_write", "kv_copies_on_write_total"),
                         ("jump_forward_tokens", "jump_forward_tokens_total"),
                         ("running", "num_requests_running"),
                         ("waiting", "num_requests_waiting")):
        expected = client.metric(f"octavo:{metric}")
        page.wait_for_selector(f'[data-tile={tile}][data-value="{expected:.0f}"]')
    assert _value(page, "jump_forward_tokens") > 0 and _value(page, "hits") > 0
    assert _value(page, "copies_on_write") > 0
    assert int(page.locator(".e-times").get_attribute("data-steps")) > 96
    # every block is told: nobody holds one, the cached ones and the free ones are all
    counts = [int(count.get_attribute("data-count"))
              for count in page.locator(".e-block-legend [data-count]").all()]
    assert counts[1] > 0 and counts[2:] == [0, 0]
    assert f"{sum(counts):,} blocks" in page.locator(".e-blocks .e-readout").inner_text()
    assert page.locator(".e-tree [role=treeitem]").count() > 0


def test_the_block_table_of_a_request(page_at: Callable[..., Any], server: ServerProcess,
                                      long_request: str) -> None:
    page = _open(page_at)
    pick = page.locator("tr[data-state=running] .e-pick").first
    pick.focus()
    page.keyboard.press("Enter")
    page.wait_for_selector("tr[data-state=running] .e-pick[aria-pressed=true]")
    page.wait_for_selector(".e-chip-shared")
    page.get_by_role("button", name="Pause").click()
    request_id = page.locator(".e-selected-name .e-id").inner_text()
    shown = [int(chip.get_attribute("data-block")) for chip in page.locator(".e-chip").all()]
    refs = {int(chip.get_attribute("data-block")) for chip in page.locator(".e-chip-shared").all()}
    (request,) = [r for r in server.client.get("/octavo/state").json["requests"]
                  if r["id"] == request_id]
    assert len(shown) >= 5 and request["blocks"][:len(shown)] == shown
    # the two samples share the blocks of their prompt, and nothing that was drawn since
    assert refs and refs <= set(shown[:-(-request["prompt_tokens"] // 16)])
    share = page.locator(".e-share").inner_text()
    assert "Newest step: 1 of its 2 tokens" in share and "of the tokens" in share
    assert long_request not in page.locator("#panel-engine").inner_text()
    page.get_by_role("button", name="Deselect").click()
    page.wait_for_selector(".e-detail", state="hidden")


def test_pause(page_at: Callable[..., Any], server: ServerProcess, long_request: str) -> None:
    page = _open(page_at)
    _until(lambda: _newest_step(page) > 0)
    first = _newest_step(page)
    _until(lambda: _newest_step(page) > first)
    page.get_by_role("button", name="Pause").click()
    _until_free(server.client, _MAX_LISTENERS)
    page.wait_for_selector(".e-status[data-kind=paused]")
    frozen, text = _newest_step(page), page.locator(".e-batch .e-readout").inner_text()
    steps = server.client.metric("octavo:engine_steps_total")
    _until(lambda: server.client.metric("octavo:engine_steps_total") > steps + 100)
    assert _newest_step(page) == frozen
    assert page.locator(".e-batch .e-readout").inner_text() == text
    # what is frozen can be studied
    page.locator(".e-chart-batch").focus()
    page.keyboard.press("End")
    _until_told(page, "batch", f"step {frozen:,} ")
    page.keyboard.press("ArrowLeft")
    _until_told(page, "batch", f"step {frozen - 1:,} ")
    page.get_by_role("button", name="Go on").click()
    page.wait_for_selector(".e-status[data-kind=live]")
    _until(lambda: _newest_step(page) > frozen)


def test_nobody_listens_when_the_tab_is_left(page_at: Callable[..., Any],
                                             server: ServerProcess) -> None:
    page = _open(page_at)
    _until_free(server.client, _MAX_LISTENERS - 1)
    page.get_by_role("tab", name="Chat").click()
    _until_free(server.client, _MAX_LISTENERS)
    assert page.locator("#panel-engine canvas").count() == 0
    page.get_by_role("tab", name="Engine").click()
    page.wait_for_selector(".e-status[data-kind=live]")
    _until_free(server.client, _MAX_LISTENERS - 1)
    # the whole window out of sight
    page.evaluate("""() => {
      Object.defineProperty(document, 'hidden', {value: true, configurable: true});
      document.dispatchEvent(new Event('visibilitychange'));
    }""")
    _until_free(server.client, _MAX_LISTENERS)
    page.evaluate("""() => {
      delete document.hidden;
      document.dispatchEvent(new Event('visibilitychange'));
    }""")
    _until_free(server.client, _MAX_LISTENERS - 1)
    page.context.close()
    _until_free(server.client, _MAX_LISTENERS)


def test_make_some_load(page_at: Callable[..., Any], server: ServerProcess) -> None:
    page = _open(page_at)
    page.get_by_role("button", name="Make some load").click()
    page.wait_for_selector("tr[data-state=running]")
    _until(lambda: page.locator("tr[data-state=running]").count() >= 6)
    page.wait_for_selector(".e-block-legend li:nth-child(4) [data-count]:not([data-count='0'])")
    before = server.client.metric("octavo:kv_copies_on_write_total")
    _until(lambda: _value(page, "copies_on_write") >= max(before, 1))
    _until(lambda: page.locator(".e-load-note").inner_text() not in ("", "0 answers so far"))
    page.get_by_role("button", name="Stop the load").click()
    page.get_by_role("button", name="Make some load").wait_for()
    assert page.locator(".e-load-note").inner_text() == ""
    page.wait_for_selector("[data-tile=running][data-value='0']")
    _until(lambda: server.client.metric("octavo:num_requests_running") == 0)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_widths_and_accessibility(page_at: Callable[..., Any], long_request: str, width: int,
                                  theme: str, assert_no_overflow: Callable[..., None],
                                  assert_accessible: Callable[..., None]) -> None:
    page = _open(page_at, width)
    page.emulate_media(color_scheme=theme)
    page.locator("tr[data-state=running] .e-pick").first.click()
    page.wait_for_selector(".e-chip")
    assert_no_overflow(page)
    assert_accessible(page)
    for summary in page.locator("#panel-engine summary").all():
        summary.click()
    page.wait_for_selector(".e-batch tbody tr")
    page.get_by_role("button", name="Pause").click()
    assert_no_overflow(page)
    assert_accessible(page)


def test_keyboard(page_at: Callable[..., Any], server: ServerProcess, long_request: str) -> None:
    assert server.client.complete(_PREAMBLE + "And then?", max_tokens=40).status == 200
    page = _open(page_at)
    page.wait_for_selector(".e-tree [role=treeitem]")
    page.get_by_role("button", name="Pause").click()
    blocks = page.locator(".e-chart-blocks")
    blocks.focus()
    page.keyboard.press("Home")
    _until_told(page, "blocks", "block 0 ")
    page.keyboard.press("ArrowRight")
    _until_told(page, "blocks", "block 1 ")
    page.keyboard.press("Escape")
    _until_told(page, "blocks", "tokens each")
    rows = page.locator(".e-tree [role=treeitem]")
    number = rows.count()
    folding = page.locator(".e-tree [aria-expanded=true]").first
    folding.focus()
    page.keyboard.press("ArrowLeft")
    assert rows.count() < number
    page.keyboard.press("ArrowRight")
    assert rows.count() == number
    page.keyboard.press("End")
    assert rows.last.evaluate("e => e === document.activeElement && e.tabIndex === 0")
    assert page.locator(".e-tree [tabindex='0']").count() == 1


def test_it_comes_back_with_the_server(page_at: Callable[..., Any], model_path: Path,
                                       assert_no_overflow: Callable[..., None],
                                       assert_accessible: Callable[..., None]) -> None:
    with ServerProcess("smollm2-135m", "--kv-cache-memory-bytes", "64m") as server:
        server.wait_ready()
        port = server.client.port
        page = _open(page_at, url=server.client.base_url)
        unopened = page_at(1280, url=server.client.base_url)
    page.wait_for_selector(".e-status[data-kind=waiting]")
    # both halves of the page know, without anybody's help, and old figures say that they are old
    _until(lambda: page.locator("#state").inner_text() == "not reachable")
    page.wait_for_selector(".engine.is-stale")
    assert page.get_by_text("Not live").is_visible()
    assert_no_overflow(page)
    assert_accessible(page)
    unopened.get_by_role("tab", name="Engine").click()
    unopened.get_by_text("cannot be loaded").wait_for()
    with ServerProcess("smollm2-135m", "--kv-cache-memory-bytes", "64m", port=port) as server:
        server.wait_ready()
        page.wait_for_selector(".e-status[data-kind=live]")
        unopened.wait_for_selector(".e-status[data-kind=live]")
        page.wait_for_selector(".dot[data-kind=good]", state="attached")
        page.wait_for_selector(".engine:not(.is-stale)")
        assert page.get_by_text("Not live").is_hidden()
        assert server.client.complete("Once", max_tokens=3, ignore_eos=True).status == 200
        page.wait_for_selector("[data-tile=generation_tokens][data-value='3']")


def test_the_key(page_at: Callable[..., Any], model_path: Path) -> None:
    with ServerProcess("smollm2-135m", "--kv-cache-memory-bytes", "64m", "--api-key", "sesame"
                       ) as server:
        server.wait_ready()
        page = page_at(1280, "/#engine", url=server.client.base_url, ready=False)
        page.wait_for_selector(".e-status[data-kind=refused]")
        page.get_by_label("Key", exact=True).fill("sesame")
        page.get_by_role("button", name="Use this key").click()
        page.wait_for_selector(".e-status[data-kind=live]")
