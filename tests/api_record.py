"""Writes down which requests the tests send and how they are answered: what docs/COMPATIBILITY.md
is made from.

A pytest plugin, off by default:
`python -m pytest -p tests.api_record --record-api FILE tests/server tests/clients`, and, as
`python -m tests.api_record serve ...`, the `octavo` command with the same recording (the servers
that tests start as processes). Records names of fields, never what clients wrote into them.
"""

import json
import os
import re
import sys
import threading
import time
from collections.abc import Generator
from typing import Any

import pytest
from starlette.types import Message, Receive, Scope, Send

from octavo.server import gate

_FILE = "OCTAVO_TEST_API_RECORD"
_NAME = re.compile(r"[A-Za-z_]{1,40}")
# What is inside of these is the client's own, not the API's.
_OPAQUE = frozenset({
    "metadata", "logit_bias", "schema", "json_schema", "parameters", "input_schema", "arguments",
    "json", "chat_template_kwargs", "format", "vllm_xargs", "definition", "output"})
# Fields whose values are kinds of things: the value belongs to the name.
_KINDS = frozenset({"type", "role", "tool_choice", "include", "truncation", "effort",
                    "reasoning_effort", "service_tier", "syntax"})
_MAX_DEPTH = 4
_lock = threading.Lock()


def names_of(value: Any, before: str = "", depth: int = _MAX_DEPTH) -> set[str]:
    """The names of the fields in a JSON value: `stream_options.include_usage`,
    `messages[].role=user`."""
    found: set[str] = set()
    if isinstance(value, dict) and depth:
        for name, item in value.items():
            if not _NAME.fullmatch(name) or item is None:
                continue
            path = f"{before}.{name}" if before else name
            found.add(path)
            if name in _KINDS and isinstance(item, str) and _NAME.fullmatch(item):
                found.add(f"{path}={item}")
            if name not in _OPAQUE:
                found |= names_of(item, path, depth - 1)
    elif isinstance(value, list):
        for item in value[:64]:
            found |= names_of(item, f"{before}[]", depth)
    return found


def install() -> None:
    """Lets every RequestGate of this process record."""
    inner = gate.RequestGate.__call__

    async def recorded(self: gate.RequestGate, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await inner(self, scope, receive, send)
            return
        body, answer, status = bytearray(), bytearray(), 0

        async def receive_kept() -> Message:
            message = await receive()
            body.extend(message.get("body", b""))
            return message

        async def send_kept(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            elif status >= 400:
                answer.extend(message.get("body", b""))
            await send(message)

        started = time.time()
        try:
            await inner(self, scope, receive_kept, send_kept)
        finally:
            agents = [v for k, v in scope["headers"] if k == b"user-agent"]
            _write({"at": started, "method": scope["method"], "path": scope["path"],
                    "names": sorted(names_of(_json(body))), "status": status,
                    "param": _param(_json(answer)),
                    "agent": agents[0].decode("latin-1") if agents else ""})

    gate.RequestGate.__call__ = recorded  # type: ignore[method-assign]


def _json(data: bytearray) -> Any:
    try:
        return json.loads(bytes(data))
    except (ValueError, RecursionError):
        return None


def _param(answer: Any) -> str | None:
    """The field an answer blames: where the API's error object names none, its message begins with
    it."""
    error = answer.get("error") if isinstance(answer, dict) else None
    if isinstance(error, dict) and isinstance(error.get("param"), str):
        return error["param"]
    message = error.get("message") if isinstance(error, dict) else error
    found = re.match(r"[A-Za-z_][\w.\[\]]*", message) if isinstance(message, str) else None
    return found[0] if found else None


def _write(line: dict[str, Any]) -> None:
    with _lock, open(os.environ[_FILE], "a") as file:
        file.write(json.dumps(line) + "\n")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--record-api", metavar="FILE", help="write down the requests of the tests")


def pytest_configure(config: pytest.Config) -> None:
    path = config.getoption("--record-api")
    if path:
        os.environ[_FILE] = os.path.abspath(path)
        open(os.environ[_FILE], "w").close()
        install()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    started = time.time()
    result = yield
    if _FILE in os.environ:
        _write({"test": item.nodeid, "from": started, "until": time.time()})
    return result


if __name__ == "__main__":
    from octavo.cli.main import main

    install()
    sys.exit(main())
