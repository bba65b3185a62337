"""The page in the browser: its routes and headers, and what its files may hold."""

import re
from collections.abc import Iterator

import pytest

from octavo.config import ServerSection
from octavo.server.page.routes import page_files
from octavo.testing.fake_async_llm import fake_async_llm
from tests.server.conftest import serving
from tests.server.http_client import HttpClient

BROWSER = {"accept": "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"}
# the first visit loads the shell and the Chat tab, the Engine tab comes when it is opened
MAX_FIRST_BYTES = 128 * 1024
MAX_ENGINE_BYTES = 128 * 1024


@pytest.fixture(scope="module")
def client() -> Iterator[HttpClient]:
    with serving(fake_async_llm()) as found:
        yield found


def test_root_is_the_page_for_browsers_only(client: HttpClient) -> None:
    for accept in ("*/*", "application/json", "text/plain", ""):
        answer = client.get("/", headers={"accept": accept})
        assert answer.text == "Ollama is running (its API, served by Octavo)"
        assert answer.headers["vary"] == "accept"
    assert client.request("HEAD", "/").status == 200
    page = client.get("/", headers=BROWSER)
    assert page.status == 200 and page.headers["content-type"] == "text/html; charset=utf-8"
    assert page.text.startswith("<!doctype html>") and page.headers["vary"] == "accept"
    assert client.post("/", {}).error()["code"] == "method_not_allowed"


def test_headers(client: HttpClient) -> None:
    for path, kind in (("/", "text/html; charset=utf-8"),
                       ("/page/app.js", "text/javascript; charset=utf-8"),
                       ("/page/style.css", "text/css; charset=utf-8"),
                       ("/page/icon.svg", "image/svg+xml")):
        answer = client.get(path, headers=BROWSER)
        assert answer.status == 200 and answer.headers["content-type"] == kind
        rules = dict(rule.split(" ", 1) for rule in
                     answer.headers["content-security-policy"].split("; "))
        assert rules["default-src"] == "'self'"
        assert rules["frame-ancestors"] == rules["base-uri"] == rules["object-src"] == "'none'"
        assert "unsafe" not in answer.headers["content-security-policy"]
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["cache-control"] == "no-cache"
        head = client.request("HEAD", path, headers=BROWSER)
        assert head.status == 200 and head.data == b""
        same = ("content-length", "content-type", "etag", "content-security-policy")
        assert {n: head.headers[n] for n in same} == {n: answer.headers[n] for n in same}


def test_a_file_that_is_known_is_not_sent_again(client: HttpClient) -> None:
    tag = client.get("/page/app.js").headers["etag"]
    for known in (tag, f'"other", W/{tag}'):
        answer = client.get("/page/app.js", headers={"if-none-match": known})
        assert (answer.status, answer.data) == (304, b"") and answer.headers["etag"] == tag
    assert client.get("/page/app.js", headers={"if-none-match": '"other"'}).status == 200


@pytest.mark.parametrize("path", [
    "/page/", "/page", "/page/none.js", "/page/../routes.py", "/page/..%2froutes.py",
    "/page/%2e%2e/routes.py", "/page/..%5croutes.py", "/page//etc/passwd", "/page/static/app.js",
    "/page/app.js/", "/page/app.js%00", "/page/APP.JS", "/page/__init__.py"])
def test_nothing_else_is_served(client: HttpClient, path: str) -> None:
    answer = client.get(path)
    assert answer.status == 404 and answer.error()["code"] == "not_found"


def test_keys() -> None:
    """The page holds no secret and loads without a key; what it calls needs one."""
    with serving(fake_async_llm(), ServerSection(api_keys=("k",))) as client:
        assert client.get("/", headers=BROWSER).status == 200
        assert client.get("/page/app.js").status == 200
        assert client.get("/page/none.js").status == 404
        assert client.get("/v1/models").status == 401
        assert client.get("/pages").status == 401


def test_no_page() -> None:
    with serving(fake_async_llm(), ServerSection(serve_page=False)) as client:
        assert client.get("/", headers=BROWSER).text.startswith("Ollama is running")
        assert client.get("/page/app.js").status == 404


def test_files_name_only_files_that_exist() -> None:
    files = page_files()
    names = {"index.html"}
    for file in files.values():
        text = file.data.decode("utf-8")
        names |= set(re.findall(r"""["'](?:page|\.)/([a-z0-9.-]+)["']""", text))
    assert names == set(files)


def test_files_need_nothing_from_elsewhere() -> None:
    """No other origin, no inline script or style, no text that becomes markup."""
    for name, file in page_files().items():
        text = file.data.decode("utf-8")
        hosts = set(re.findall(r"//([a-z0-9-]+\.[a-z0-9.-]+)", text))
        assert hosts <= {"www.w3.org"}, name  # the name of SVG, which nothing loads
        for bad in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(",
                    "new Function", "DOMParser", "@import"):
            assert bad not in text, name
        if name.endswith((".html", ".svg")):
            assert not re.search(r"\s(style|on\w+)\s*=|<style|<script(?![^>]*\ssrc=)", text), name


def test_sizes() -> None:
    sizes = {name: len(file.data) for name, file in page_files().items()}
    engine = sum(size for name, size in sizes.items() if name.startswith("engine"))
    assert sum(sizes.values()) - engine <= MAX_FIRST_BYTES
    assert engine <= MAX_ENGINE_BYTES
