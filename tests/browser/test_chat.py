"""The Chat tab against a real model: answers, branches, schemas, heat-maps, what is kept."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.browser.conftest import WIDTHS
from tests.server.conftest import wait_for
from tests.server.process import ServerProcess

pytestmark = pytest.mark.full
PageAt = Callable[..., Any]
Check = Callable[..., None]
SCHEMA = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 30},
                                           "big": {"type": "boolean"}},
          "required": ["city", "big"], "additionalProperties": False}


def finish(page: Any) -> None:
    """Until no answer is being made."""
    page.get_by_role("button", name="Stop", exact=True).wait_for(state="detached")


def ask(page: Any, text: str) -> None:
    page.fill("#message", text)
    page.keyboard.press("Enter")
    finish(page)


def settings(page: Any, **fields: str) -> None:
    """Opens the panel and fills fields by their names."""
    if page.locator("#chat-settings").is_hidden():
        page.get_by_role("button", name="Settings", exact=True).click()
    for name, value in fields.items():
        page.fill(f"#setting-{name}", value)


def close_settings(page: Any) -> None:
    page.get_by_role("button", name="Close the settings").click()


def answers(page: Any) -> list[str]:
    found: list[str] = page.locator(".message.assistant .body").all_inner_texts()
    return found


def kept(page: Any) -> list[dict[str, Any]]:
    """The conversations in the browser's storage."""
    return [json.loads(text) for text in page.evaluate(
        "Object.keys(localStorage).filter(k => k.startsWith('octavo.chat.'))"
        ".map(k => localStorage[k])")]


@pytest.mark.parametrize("width", WIDTHS)
def test_chat_and_reload(page_at: PageAt, width: int, assert_no_overflow: Check) -> None:
    page = page_at(width)
    settings(page, temperature="0", max_tokens="24")
    close_settings(page)
    ask(page, "What is the capital of France?")
    assert "Paris" in answers(page)[0]
    figures = page.locator(".figures").inner_text()
    for part in ("tokens/s", "first token", "prompt", "cached", "seed"):
        assert part in figures
    page.fill("#message", "Say it\nagain,")
    page.keyboard.press("Shift+Enter")
    page.keyboard.type("please.")
    page.keyboard.press("Enter")
    finish(page)
    assert page.locator(".message.user .body").nth(1).inner_text() == "Say it\nagain,\nplease."
    assert "(0 cached)" not in page.locator(".figures").nth(1).inner_text()
    assert_no_overflow(page)
    before = answers(page)
    page.reload()
    assert answers(page) == before and len(before) == 2
    page.get_by_role("button", name="Settings", exact=True).click()
    assert page.locator("#setting-max_tokens").input_value() == "24"


def test_the_request(page_at: PageAt) -> None:
    """Every control is in the request, and those left empty are not."""
    page = page_at(1280)
    settings(page, system="Be brief.", temperature="0.5", top_p="0.9", top_k="40", min_p="0.1",
             max_tokens="8", seed="12345678901234567890", presence_penalty="0.1",
             frequency_penalty="0.2", repetition_penalty="1.1")
    with page.expect_request("**/v1/chat/completions") as sent:
        ask(page, "Hello")
    text = sent.value.post_data
    body = json.loads(text)
    assert [m["role"] for m in body["messages"]] == ["system", "user"]
    wanted = {"temperature": 0.5, "top_p": 0.9, "top_k": 40, "min_p": 0.1, "max_tokens": 8,
              "presence_penalty": 0.1, "frequency_penalty": 0.2, "repetition_penalty": 1.1,
              "seed": 12345678901234567890, "stream": True,
              "stream_options": {"include_usage": True}}
    assert {name: body[name] for name in wanted} == wanted
    assert "logprobs" not in body and "response_format" not in body
    assert "cut at the length limit" in page.locator(".figures").inner_text()
    page.get_by_role("button", name="Reset", exact=True).click()
    settings(page, min_p="", temperature="", max_tokens="4")
    with page.expect_request("**/v1/chat/completions") as sent:
        ask(page, "Hello")
    assert set(json.loads(sent.value.post_data)) == {"model", "messages", "stream",
                                                     "stream_options", "max_tokens"}


def test_stop(page_at: PageAt, server: ServerProcess) -> None:
    """Esc and the button stop the answer, in the server too, and keep what came."""
    page = page_at(1280)
    settings(page, temperature="1.5", max_tokens="4000")
    for stop in (lambda: page.keyboard.press("Escape"),
                 lambda: page.get_by_role("button", name="Stop", exact=True).click()):
        page.fill("#message", "Write a very long story.")
        page.keyboard.press("Enter")
        page.locator(".message.assistant").last.locator(".text p").first.wait_for()
        stop()
        finish(page)
        assert "stopped" in page.locator(".figures").last.inner_text()
        assert answers(page)[-1]
        wait_for(lambda: server.client.get("/load").json == {"server_load": 0})
    assert page.locator(".error").count() == 0


def test_branches(page_at: PageAt) -> None:
    """Editing and asking again keep what was there; each branch has its own continuation."""
    page = page_at(1280)
    settings(page, temperature="0", max_tokens="12")
    ask(page, "Name a colour.")
    ask(page, "Name an animal.")
    first, second = answers(page)
    page.locator(".message.user").nth(1).get_by_role("button", name="Edit").click()
    area = page.get_by_label("Edit the message")
    area.fill("never sent")
    page.keyboard.press("Escape")
    assert page.locator(".message.user .body").nth(1).inner_text() == "Name an animal."
    page.locator(".message.user").nth(0).get_by_role("button", name="Edit").click()
    area.fill("Count: 1, 2, 3,")
    page.keyboard.press("Enter")
    finish(page)
    assert len(answers(page)) == 1
    edited = answers(page)[0]
    shown = page.locator(".message.user .branches")
    assert shown.inner_text() == "2/2"
    page.get_by_role("button", name="Previous version").click()
    assert answers(page) == [first, second] and shown.inner_text() == "1/2"
    assert page.get_by_role("button", name="Next version").evaluate(
        "e => e === document.activeElement")
    page.keyboard.press("Enter")
    assert answers(page) == [edited]
    # an answer again, at another temperature
    settings(page, temperature="1.2", seed="7")
    page.get_by_role("button", name="Regenerate").click()
    finish(page)
    assert page.locator(".message.assistant .branches").inner_text() == "2/2"
    page.reload()
    assert page.locator(".message.assistant .branches").inner_text() == "2/2"
    page.get_by_role("button", name="Previous version").last.click()
    assert answers(page) == [edited]
    # deleting takes one branch only, and can be undone
    page.locator(".message.user").get_by_role("button", name="Delete").click()
    assert answers(page) == [first, second]
    ask(page, "Name a tree.")
    page.get_by_role("button", name="Undo").click()
    assert answers(page) == [edited]
    page.get_by_role("button", name="Previous version").first.click()
    assert answers(page)[:2] == [first, second] and len(answers(page)) == 3


def test_schema(page_at: PageAt) -> None:
    page = page_at(1280)
    requests: list[Any] = []
    page.on("request", lambda r: requests.append(r) if r.method == "POST" else None)
    settings(page, temperature="0", schema='{"type": "object",')
    assert "not JSON" in page.locator("#fault-schema").inner_text()
    close_settings(page)
    ask(page, "Tell me about Paris.")
    assert requests == []  # it is told before anything is sent, and the message stays
    assert page.locator("#setting-schema").evaluate("e => e === document.activeElement")
    assert page.locator("#message").input_value() == "Tell me about Paris."
    settings(page, schema='{"type": "no such type"}')
    ask(page, "Tell me about Paris.")
    refusal = page.locator(".error p").inner_text()  # the server's own words
    assert "no such type" in refusal
    assert page.locator("#fault-schema").inner_text() == refusal
    settings(page, schema=json.dumps(SCHEMA))
    page.get_by_role("button", name="Retry").click()
    finish(page)
    value = json.loads(page.locator(".message.assistant pre").inner_text())
    assert set(value) == {"city", "big"} and isinstance(value["big"], bool)
    assert page.locator(".error").count() == 0


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_heat_map(page_at: PageAt, width: int, theme: str, assert_no_overflow: Check,
                  assert_accessible: Check) -> None:
    page = page_at(width)
    page.emulate_media(color_scheme=theme)
    settings(page, temperature="0")
    close_settings(page)
    heat = page.get_by_role("button", name="Heat-map")
    heat.click()
    ask(page, "Name three rivers.")
    tokens = page.locator("article .token")
    assert tokens.count() > 5
    assert "cut at" not in page.locator(".figures").inner_text()
    assert "<|" not in tokens.last.inner_text()  # what ended the answer is no part of it
    assert page.locator(".legend li").count() == 5
    assert "perplexity" in page.locator(".figures").inner_text()
    tip = page.get_by_role("tooltip")
    tokens.first.focus()
    assert tip.locator("tr").count() in (5, 6)
    drawn = tip.locator("tr.chosen")
    chosen = drawn.locator("code").inner_text()
    assert chosen == tokens.first.inner_text().strip().replace(" ", "␣")
    assert "%" in drawn.inner_text()
    page.keyboard.press("ArrowRight")
    assert tokens.nth(1).evaluate("e => e === document.activeElement")
    assert tip.is_visible() and tokens.nth(1).get_attribute("aria-describedby") == "token-tip"
    assert_no_overflow(page)
    assert_accessible(page)
    page.keyboard.press("Escape")
    assert tip.is_hidden()
    if width > 640:
        tokens.nth(3).hover()
        assert tip.is_visible()
        page.locator("#message").hover()
        assert tip.is_hidden()
    else:
        tokens.nth(3).tap()
        assert tip.is_visible()
    heat.click()  # the same answer as text
    assert tokens.count() == 0 and answers(page)[0]
    page.reload()
    heat.click()
    assert tokens.count() > 5


def test_conversations(page_at: PageAt, tmp_path: Path) -> None:
    """New, rename, switch, delete and undo, export, import; what is kept is bounded and checked."""
    page = page_at(1280)
    settings(page, max_tokens="4")
    close_settings(page)
    ask(page, "First one")
    page.get_by_role("button", name="New conversation").first.click()
    ask(page, "Second one")
    titles = page.locator(".item-title")
    assert titles.all_inner_texts() == ["Second one", "First one"]
    page.get_by_role("button", name="Rename Second one").click()
    page.keyboard.type("A better title")
    page.keyboard.press("Enter")
    assert titles.first.inner_text() == "A better title"
    titles.nth(1).click()
    assert page.locator(".message.user .body").inner_text() == "First one"
    with page.expect_download() as download:
        page.get_by_role("button", name="Export all").click()
    file = tmp_path / "chats.json"
    download.value.save_as(file)
    exported = json.loads(file.read_text())
    assert len(exported["conversations"]) == 2
    page.get_by_role("button", name="Delete First one").click()
    assert titles.all_inner_texts() == ["A better title"]
    page.get_by_role("button", name="Undo").click()
    assert sorted(titles.all_inner_texts()) == ["A better title", "First one"]
    page.set_input_files("input[type=file]", file)
    page.get_by_text("2 conversations imported").wait_for()
    assert len(kept(page)) == 4
    for text in ("no JSON", "{}", '{"format":"octavo-conversations","conversations":[{"a":1}]}'):
        file.write_text(text)
        page.set_input_files("input[type=file]", file)
        page.get_by_text("Not imported").wait_for()
        page.get_by_role("button", name="Dismiss").click()
    page.reload()
    assert titles.count() == 4


def test_text_never_becomes_markup(page_at: PageAt, tmp_path: Path) -> None:
    """What a model may write: Markdown is shown, HTML and script addresses stay text."""
    text = ("# Title\n\nSome **bold**, *soft* and `code <b>`, [a link](https://example.com/x) and "
            "[none](javascript:alert(1)) <img src=x onerror=alert(1)>\n\n- one\n- two\n  1. inner\n"
            "\n```python\nprint('<i>')\n```\n\n> quoted\n\nsnake_case_name 2 * 3 * 4 "
            "https://example.com/y. **open")
    nodes = {"root": {"children": ["a"], "shown": 0},
             "a": {"role": "user", "content": "<b>q</b>", "children": ["b"]},
             "b": {"role": "assistant", "content": text, "children": [], "state": "done"}}
    file = tmp_path / "chat.json"
    file.write_text(json.dumps({"format": "octavo-conversations", "version": 1,
                                "conversations": [{"title": "<i>t</i>", "nodes": nodes}]}))
    page = page_at(1280)
    page.set_input_files("input[type=file]", file)
    body = page.locator(".message.assistant .text")
    assert body.locator("img, i, b").count() == 0
    assert body.locator("h3").inner_text() == "Title"
    assert body.locator("strong").all_inner_texts() == ["bold"]
    assert body.locator("em").all_inner_texts() == ["soft"]
    assert body.locator("p code").inner_text() == "code <b>"
    assert body.locator("ul > li").count() == 2
    assert body.locator("ul ol li").inner_text() == "inner"
    assert body.locator("pre").inner_text() == "print('<i>')"
    assert body.locator("blockquote").inner_text() == "quoted"
    links = body.locator("a")
    assert [link.get_attribute("href") for link in links.all()] == [
        "https://example.com/x", "https://example.com/y"]
    assert "noopener" in links.first.get_attribute("rel")
    for part in ("javascript:alert(1)", "<img src=x", "snake_case_name 2 * 3 * 4", "**open"):
        assert part in body.inner_text()
    assert page.locator(".message.user .body").inner_text() == "<b>q</b>"


def test_errors_are_told_and_tried_again(page_at: PageAt) -> None:
    page = page_at(1280)
    settings(page, max_tokens="4")
    page.route("**/v1/chat/completions", lambda route: route.abort())
    ask(page, "Hello")
    assert "cannot be reached" in page.locator(".error").inner_text()
    page.unroute("**/v1/chat/completions")
    page.route("**/v1/chat/completions", lambda route: route.fulfill(
        status=200, content_type="text/event-stream",
        body='data: {"choices":[{"index":0,"delta":{"content":"Half"}}]}\n\n'))
    page.get_by_role("button", name="Retry").click()
    page.get_by_text("before it was complete").wait_for()
    assert answers(page) == ["Half"]
    page.unroute("**/v1/chat/completions")
    page.get_by_role("button", name="Retry").click()
    finish(page)
    assert page.locator(".error").count() == 0
    assert page.locator(".branches").inner_text() == "2/2"  # the half answer is not lost


@pytest.mark.parametrize("width", [*WIDTHS, 320])
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_every_state_is_accessible(page_at: PageAt, width: int, theme: str,
                                   assert_no_overflow: Check, assert_accessible: Check) -> None:
    page = page_at(width)
    page.emulate_media(color_scheme=theme)

    def check() -> None:
        assert_no_overflow(page)
        assert_accessible(page)

    check()
    settings(page, max_tokens="20", schema="{")
    check()
    settings(page, schema="")
    close_settings(page)
    ask(page, "https://example.com/" + "long" * 60)
    page.get_by_role("button", name="Regenerate").click()
    finish(page)
    check()
    settings(page, top_p="7")
    close_settings(page)
    ask(page, "Too much")
    if page.locator("#chat-settings").is_visible():
        close_settings(page)
    check()
    page.locator(".message.user").last.get_by_role("button", name="Edit").click()
    check()
    page.keyboard.press("Escape")
    if width < 1100:
        page.get_by_role("button", name="Conversations").click()
    check()
