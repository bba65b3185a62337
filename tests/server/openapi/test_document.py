"""The description of the API: complete, sound, and true of what the server takes and gives."""

import re
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from starlette.routing import Route

from octavo.config import ServerSection
from octavo.server.app import create_app
from octavo.server.openapi.document import openapi_document
from octavo.server.openapi.fields import ids_below
from octavo.server.openapi.operations import OPERATIONS
from octavo.testing.fake_async_llm import fake_async_llm
from tests.server.conftest import serving
from tests.server.http_client import HttpClient

OWN = {"/openapi.json", "/docs", "/page/{name}"}
REFERENCE = "#/components/schemas/"


@pytest.fixture(scope="module")
def client() -> Iterator[HttpClient]:
    with serving(fake_async_llm()) as found:
        yield found


@pytest.fixture(scope="module")
def document(client: HttpClient) -> dict[str, Any]:
    answer = client.get("/openapi.json")
    assert answer.status == 200 and answer.headers["content-type"] == "application/json"
    found: dict[str, Any] = answer.json
    return found


def test_every_route_is_described(document: dict[str, Any]) -> None:
    """The routes of the application and the document's are the same."""
    app = create_app(fake_async_llm().llm, ServerSection())
    routes = set()
    for route in app.routes:
        assert isinstance(route, Route) and route.methods is not None
        if route.path not in OWN:
            # a GET route takes HEAD by itself
            methods = route.methods - ({"HEAD"} if "GET" in route.methods else set())
            routes |= {(m, re.sub(r":\w+}", "}", route.path)) for m in methods}
    described = {(method.upper(), path) for path, methods in document["paths"].items()
                 for method in methods}
    assert described == routes
    assert len(described) == len(OPERATIONS)


def test_references_and_ids(document: dict[str, Any]) -> None:
    """No reference leads nowhere, no component is unused, operation ids are unique."""
    schemas = document["components"]["schemas"]
    assert document["openapi"] == "3.1.0"
    used = {name.removeprefix(REFERENCE) for name in _references(document)}
    assert used == set(schemas)
    ids = [operation.name for operation in OPERATIONS]
    assert len(set(ids)) == len(ids)
    for path, methods in document["paths"].items():
        for operation in methods.values():
            named = {p["name"] for p in operation.get("parameters", ()) if p["in"] == "path"}
            assert named == set(re.findall(r"{(\w+)}", path))


def _references(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        if "$ref" in value:
            yield value["$ref"]
        for inner in value.values():
            yield from _references(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _references(inner)


def test_every_field_is_described(document: dict[str, Any]) -> None:
    """A field that structs leave open to any value is a hint without effect, or has a schema."""
    schemas = document["components"]["schemas"]
    hints = {"user", "metadata", "store", "service_tier", "prediction", "verbosity",
             "prompt_cache_key", "prompt_cache_options", "prompt_cache_retention",
             "safety_identifier", "personality", "betas", "cache_control", "diagnostics",
             "inference_geo", "speed", "user_profile_id", "workspace_id", "verbose", "system",
             "truncate", "shift", "template", "options"}
    for operation in OPERATIONS:
        if operation.request is not None:
            found = schemas[operation.request.__name__]
            open_ones = {name for name, schema in found["properties"].items()
                         if not set(schema) - {"default", "description"}}
            assert open_ones <= hints, operation.name
            assert set(found["required"]) <= set(found["properties"])


def test_bounds_and_names_are_those_of_the_server(document: dict[str, Any]) -> None:
    """Model names, vocabulary and context length are in the schemas."""
    schemas = document["components"]["schemas"]
    assert schemas["ModelName"]["enum"] == ["fake-model", "alias/fake"]
    tokens = schemas["DetokenizeRequest"]["properties"]["tokens"]
    assert tokens["items"] == {"type": "integer", "minimum": 0, "maximum": 259}
    asked = schemas["ChatRequest"]["properties"]["max_completion_tokens"]
    assert asked["anyOf"][0]["maximum"] == 512


@pytest.mark.parametrize("size", [1, 10, 11, 100, 257, 260, 1000, 1234])
def test_numbers_below(size: int) -> None:
    """The pattern of token ids matches exactly these."""
    pattern = re.compile(ids_below(size))
    assert [i for i in range(2 * size + 20) if pattern.search(str(i))] == list(range(size))
    assert not pattern.search("") and not pattern.search("00") and not pattern.search("1x")


def test_keys() -> None:
    """Where keys are needed, the document says so, and needs one itself."""
    assert "security" not in openapi_document(names=["m"], vocab_size=9, max_model_len=9)
    with serving(fake_async_llm(), ServerSection(api_keys=("secret",))) as client:
        assert client.get("/openapi.json").status == 401
        assert client.get("/docs").status == 401
        found = client.get("/openapi.json", headers={"authorization": "Bearer secret"}).json
        assert found["security"] == [{"bearer": []}, {"key": []}]


def test_page(client: HttpClient) -> None:
    """The page has every route and field, no script, and nothing of another origin."""
    answer = client.get("/docs")
    assert answer.status == 200 and answer.headers["content-type"].startswith("text/html")
    page = answer.text
    for operation in OPERATIONS:
        assert f"<code>{operation.path}</code>" in page
        if operation.request is not None and operation.request.__name__ == "ChatRequest":
            assert "<code>max_completion_tokens</code>" in page
    assert "<script" not in page and "src=" not in page and "://" not in page
    assert "prefers-color-scheme" in page
    assert "default-src 'none'" in answer.headers["content-security-policy"]


def test_names_are_escaped() -> None:
    """A model's name is text on the page, whatever is in it."""
    with serving(fake_async_llm(names=("<b>&'x",))) as client:
        page = client.get("/docs").text
        assert "<b>&'x" not in page and "&lt;b&gt;&amp;&#x27;x" in page


def test_json_is_stable(client: HttpClient) -> None:
    """Two reads give the same bytes."""
    assert client.get("/openapi.json").data == client.get("/openapi.json").data
    assert msgspec.json.decode(client.get("/openapi.json").data)
