"""A client of /octavo/events for tests: named events, one at a time."""

import http.client
import json
import socket
from collections.abc import Callable, Mapping
from typing import Any

from tests.server.http_client import HttpClient

Event = tuple[str, Any]


class EventReader:
    """An open stream. `seen` has all events read so far, comments as ("", text)."""

    def __init__(self, client: HttpClient, path: str = "/octavo/events", *,
                 headers: Mapping[str, str] | None = None,
                 receive_buffer_bytes: int | None = None) -> None:
        self._connection = http.client.HTTPConnection(client.host, client.port, timeout=60)
        if receive_buffer_bytes is not None:
            sock = socket.socket()
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
            sock.settimeout(60)
            sock.connect((client.host, client.port))
            self._connection.sock = sock
        self._connection.request("GET", path, headers=dict(headers or {}))
        self.response = self._connection.getresponse()
        self.seen: list[Event] = []

    def __enter__(self) -> "EventReader":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        self.response.close()
        self._connection.close()

    def read(self) -> Event | None:
        """The next event; None at the end of the stream."""
        name = ""
        while line := self.response.readline():
            if line.startswith(b":"):
                event: Event = ("", line.decode().strip())
            elif line.startswith(b"event: "):
                name = line[7:].decode().strip()
                continue
            elif line.startswith(b"data: "):
                event = (name, json.loads(line[6:]))
            else:
                assert line == b"\n", line
                continue
            self.seen.append(event)
            return event
        return None

    def until(self, condition: Callable[[str, Any], bool]) -> Any:
        """Reads up to an event that meets the condition; returns its data."""
        while (event := self.read()) is not None:
            if condition(*event):
                return event[1]
        raise AssertionError(f"the stream ended: {self.seen[-3:]}")

    def of(self, name: str) -> list[Any]:
        """The data of the events of a name read so far."""
        return [data for kind, data in self.seen if kind == name]

    @property
    def steps(self) -> list[dict[str, Any]]:
        return [step for frame in self.of("steps") for step in frame["steps"]]
