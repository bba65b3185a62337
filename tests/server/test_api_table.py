"""docs/COMPATIBILITY.md: how it is made, and that it has every route and field there is."""

import json
from typing import Any

from octavo.server.openapi.operations import OPERATIONS
from tests.api_record import names_of
from tools import api_table


def test_names_of_fields() -> None:
    assert names_of({"stop": None, "logit_bias": {"x": 1}, "tool_choice": "auto", "messages": [
        {"role": "user", "content": "secret"}, {"role": "tool", "content": [{"type": "text"}]}]}
    ) == {"logit_bias", "tool_choice", "tool_choice=auto", "messages", "messages[].role",
          "messages[].role=user", "messages[].role=tool", "messages[].content",
          "messages[].content[].type", "messages[].content[].type=text"}


def test_a_field_is_taken_or_blamed() -> None:
    lines: list[dict[str, Any]] = [
        {"at": 2.0, "method": "POST", "path": "/v1/completions", "names": ["prompt", "n"],
         "status": 200, "param": None, "agent": "OpenAI/Python 3"},
        {"at": 4.5, "method": "POST", "path": "/v1/completions", "names": ["prompt", "n"],
         "status": 400, "param": "n", "agent": ""},
        {"at": 4.6, "method": "GET", "path": "/v1/models/a/b", "names": [], "status": 200,
         "param": None, "agent": ""},
        {"test": "tests/one.py::good", "from": 1.0, "until": 3.0},
        {"test": "tests/one.py::bad[n]", "from": 4.0, "until": 5.0}]
    found = api_table.uses(json.dumps(line) for line in lines)
    n = found["POST", "/v1/completions", "n"]
    assert (n.taken, n.refused, n.clients) == (
        {"tests/one.py::good"}, {"tests/one.py::bad"}, {"openai"})
    assert found["POST", "/v1/completions", "prompt"].refused == set()
    assert found["GET", "/v1/models/{model_id}", ""].taken == {"tests/one.py::bad"}
    text = api_table.document(found)
    assert "| `n` | 1 | 1 | openai |" in text
    assert "POST /v1/completions: suffix" in api_table.untested(found)
    assert "POST /v1/completions: n" not in api_table.untested(found)


def test_the_page_is_complete() -> None:
    text = api_table.TARGET.read_text()
    for operation in OPERATIONS:
        assert f"`{operation.method} {operation.path}`" in text
        for field in operation.request.__struct_fields__ if operation.request else ():
            assert f"| `{field}" in text, f"{operation.path}: {field}: make the page again"
