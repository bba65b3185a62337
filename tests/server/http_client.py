"""A small HTTP client for tests: whole answers, parsed event streams, and raw sockets."""

import dataclasses
import http.client
import json
import socket
from collections.abc import Mapping
from typing import Any


@dataclasses.dataclass(slots=True)
class Answer:
    """One answer. events: the JSON of each data line of a stream."""

    status: int
    headers: dict[str, str]
    data: bytes

    @property
    def text(self) -> str:
        return self.data.decode("utf-8")

    @property
    def json(self) -> Any:
        return json.loads(self.data)

    @property
    def events(self) -> list[Any]:
        return [json.loads(line) for line in self._data_lines() if line != "[DONE]"]

    @property
    def is_done(self) -> bool:
        return self.text.endswith("data: [DONE]\n\n")

    def _data_lines(self) -> list[str]:
        return [line.removeprefix("data: ") for line in self.text.split("\n")
                if line.startswith("data: ")]

    def error(self) -> dict[str, Any]:
        """The error object, its shape checked."""
        error = self.json["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert isinstance(error["message"], str) and error["message"]
        assert isinstance(error["type"], str)
        assert error["code"] is None or isinstance(error["code"], str)
        return error


class HttpClient:
    """One connection a request."""

    def __init__(self, host: str, port: int) -> None:
        self.host, self.port = host, port

    @property
    def base_url(self) -> str:
        return f"http://{self.host}:{self.port}"

    def request(self, method: str, path: str, body: Any = None, *,
                headers: Mapping[str, str] | None = None) -> Answer:
        """body: bytes and text go as they are, everything else as JSON."""
        connection = http.client.HTTPConnection(self.host, self.port, timeout=60)
        try:
            if body is not None and not isinstance(body, (bytes, str)):
                body = json.dumps(body)
            if isinstance(body, str):
                body = body.encode()
            sent = {"content-type": "application/json", **(headers or {})}
            connection.request(method, path, body, sent)
            response = connection.getresponse()
            found = {k.lower(): v for k, v in response.getheaders()}
            return Answer(response.status, found, response.read())
        finally:
            connection.close()

    def get(self, path: str, **more: Any) -> Answer:
        return self.request("GET", path, **more)

    def post(self, path: str, body: Any, **more: Any) -> Answer:
        return self.request("POST", path, body, **more)

    def complete(self, prompt: Any, **fields: Any) -> Answer:
        return self.post("/v1/completions", {"prompt": prompt, **fields})

    def chat(self, content: str, **fields: Any) -> Answer:
        messages = [{"role": "user", "content": content}]
        return self.post("/v1/chat/completions", {"messages": messages, **fields})

    def metric(self, name: str) -> float:
        """The value of a metric without labels but the model's."""
        for line in self.get("/metrics").text.splitlines():
            if line.startswith(name + "{"):
                return float(line.rpartition(" ")[2])
        raise AssertionError(f"no metric {name}")

    def open_raw(self, path: str, body: Any) -> socket.socket:
        """A connection with a request sent and nothing read."""
        data = json.dumps(body).encode()
        head = (f"POST {path} HTTP/1.1\r\nHost: {self.host}\r\nContent-Type: application/json\r\n"
                f"Content-Length: {len(data)}\r\n\r\n").encode()
        sock = socket.create_connection((self.host, self.port), timeout=60)
        sock.sendall(head + data)
        return sock


def read_until(sock: socket.socket, marker: bytes) -> bytes:
    """Reads until the marker has come; fails if the connection ends first."""
    data = b""
    while marker not in data:
        piece = sock.recv(65536)
        assert piece, f"the connection ended before {marker!r}: {data[-300:]!r}"
        data += piece
    return data
