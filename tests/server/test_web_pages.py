"""What a web page may make a server on this machine do: nothing, unless its origin is allowed."""

import contextlib
import http.client
from collections.abc import Iterator

import pytest

from octavo.config import ServerSection
from octavo.testing.fake_async_llm import fake_async_llm
from tests.server.conftest import serving
from tests.server.http_client import Answer, HttpClient


@pytest.fixture(scope="module")
def client() -> Iterator[HttpClient]:
    with serving(fake_async_llm()) as client:
        yield client


def _post(client: HttpClient, headers: dict[str, str]) -> Answer:
    """A completion with these headers and no others but Host."""
    connection = http.client.HTTPConnection(client.host, client.port, timeout=60)
    with contextlib.closing(connection):
        connection.request("POST", "/v1/completions", b'{"prompt":"Hi","max_tokens":1}', headers)
        response = connection.getresponse()
        return Answer(response.status, dict(response.getheaders()), response.read())


JSON_TYPE = {"Content-Type": "application/json"}


def test_only_json_bodies(client: HttpClient) -> None:
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data",
                 "application/jsonx", ""):
        answer = _post(client, {"Content-Type": kind})
        assert (answer.status, answer.error()["code"]) == (415, "unsupported_media_type"), kind
        assert "application/json" in answer.error()["message"]
    for kind in ("application/json", "Application/JSON; charset=utf-8"):
        assert _post(client, {"Content-Type": kind}).status == 200
    assert _post(client, {}).status == 200  # a program that names no type
    here = f"http://{client.host}:{client.port}"
    assert _post(client, {"Origin": here}).status == 415  # no page does that by accident
    assert client.post("/ping", None, headers={"content-type": "text/plain"}).status == 200


@pytest.mark.parametrize(("origin", "host", "status"), [
    ("http://evil.example", None, 403),
    ("null", None, 403),  # a sandboxed frame, a local file
    ("http://127.0.0.1:1", None, 403),  # another program's page on this machine
    ("http://127.0.0.1", "127.0.0.1", 200),
    ("https://127.0.0.1", "127.0.0.1:443", 200),
    ("http://localhost:8000", "localhost:8000", 200),
    ("http://[::1]:8000", "[::1]:8000", 200),
    ("http://evil.example:8000", "evil.example:8000", 403),  # a name that points here
    ("http://evil.example:99999", "evil.example:99999", 403),
    ("", None, 403),
])
def test_foreign_pages_are_refused(client: HttpClient, origin: str, host: str | None,
                                   status: int) -> None:
    headers = JSON_TYPE | {"Origin": origin} | ({"Host": host} if host else {})
    answer = _post(client, headers)
    assert answer.status == status
    if status == 403:
        assert answer.error()["code"] == "origin_not_allowed"
        assert "--allowed-origins" in answer.error()["message"]


def test_allowed_pages() -> None:
    page = JSON_TYPE | {"Origin": "http://ui.example"}
    for allowed, status in (["http://ui.example"], 200), (["*"], 200), (["http://a.example"], 403):
        with serving(fake_async_llm(), allowed_origins=allowed) as client:
            assert _post(client, page).status == status
    # where others can connect, a name may be the server's own, behind a proxy
    named = page | {"Host": "ui.example"}
    with serving(fake_async_llm(), ServerSection(host="0.0.0.0")) as client:
        assert _post(client, named).status == 200
        assert _post(client, named | {"Origin": "http://other.example"}).status == 403
