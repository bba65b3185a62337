"""The events of a server's live view, read in a thread and put in a queue.

Keeps trying where a server is gone for a while. Knows the protocol, not what events mean.
"""

import http.client
import json
import queue
import ssl
import threading
from typing import Any
from urllib.parse import urlsplit

from octavo.errors import ConfigError, OctavoError

# between two tries while the server is away
_RETRY_S = 1.0
_CONNECT_TIMEOUT_S = 10.0
# the server sends a comment every 15 s: a longer silence is a dead connection
_SILENCE_S = 40.0
_MAX_LINE_BYTES = 1 << 24
_MAX_NEWS = 1000

News = tuple[str, Any]


class TopError(OctavoError):
    """There is nothing to show, and trying again would not help."""


class TopSource:
    """One server. keep_trying: a server that goes away, once it was there, may come back.

    news: (event name, data); ("lost", why) while the server is away. get() of it raises nothing:
    ("failed", error) comes last where trying again is of no use; TopView.update raises it.
    Raises ConfigError for what is no URL.
    """

    def __init__(self, url: str, api_key: str | None, *, keep_trying: bool) -> None:
        try:
            parts = urlsplit(url if "://" in url else f"http://{url}")
            port = parts.port
            is_url = parts.scheme in ("http", "https") and bool(parts.hostname)
        except ValueError:
            is_url = False
        if not is_url:
            raise ConfigError(f"url is {url!r}: give one like http://127.0.0.1:8000", param="url")
        assert parts.hostname is not None
        if api_key is not None and not (api_key.isascii() and api_key.isprintable()):
            raise ConfigError("api_key holds characters that a header cannot carry",
                              param="api_key")
        self._scheme, self._host, self._port = parts.scheme, parts.hostname, port
        # the base URL of OpenAI clients will do, too
        self._path = parts.path.rstrip("/").removesuffix("/v1")
        self.url = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{self._path}"
        self._headers = {} if not api_key else {"Authorization": f"Bearer {api_key}"}
        self._keep_trying = keep_trying
        self.news: queue.Queue[News] = queue.Queue(_MAX_NEWS)
        self._closed = threading.Event()
        self._was_there = False

    def start(self) -> None:
        """Begins to read, in a thread that ends with the program."""
        threading.Thread(target=self._read, name="octavo-top", daemon=True).start()

    def close(self) -> None:
        """Nobody takes news any more."""
        self._closed.set()

    def _read(self) -> None:
        try:
            while not self._closed.is_set():
                why = self._read_stream()
                if not (self._keep_trying and self._was_there):
                    raise TopError(why)
                self._tell("lost", why)
                self._closed.wait(_RETRY_S)
        except TopError as error:
            self._tell("failed", error)

    def _read_stream(self) -> str:
        """Tells events until there are no more; returns why. Raises TopError."""
        connection = self._connect()
        try:
            connection.request("GET", f"{self._path}/octavo/events", headers=self._headers)
            response = connection.getresponse()
            kind = response.headers.get("content-type", "")
            if response.status != 200 or not kind.startswith("text/event-stream"):
                return self._refusal(response)
            self._was_there = True
            if connection.sock is not None:
                connection.sock.settimeout(_SILENCE_S)
            self._read_events(response)
            return f"the server at {self.url} has ended the stream"
        except (OSError, http.client.HTTPException) as error:
            if self._was_there:
                return f"the connection to {self.url} is lost"
            reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
            return (f"no server answers at {self.url} ({reason}): start one with octavo serve, or "
                    "give its address with --url")
        finally:
            connection.close()

    def _connect(self) -> http.client.HTTPConnection:
        if self._scheme == "https":
            return http.client.HTTPSConnection(self._host, self._port, timeout=_CONNECT_TIMEOUT_S,
                                               context=ssl.create_default_context())
        return http.client.HTTPConnection(self._host, self._port, timeout=_CONNECT_TIMEOUT_S)

    def _refusal(self, response: http.client.HTTPResponse) -> str:
        """Why there is no stream. Raises TopError where there never will be."""
        if response.status == 401:
            if self._headers:
                raise TopError(f"the server at {self.url} does not know the API key given with "
                               "--api-key: give one that it was started with")
            raise TopError(f"the server at {self.url} wants an API key: give it with --api-key")
        message = _message_of(response.read(1 << 16))
        if response.status == 503 and message is not None:
            self._was_there = True  # it is there, and not ready
            return message
        raise TopError(f"the server at {self.url} has no live view (GET /octavo/events gave status "
                       f"{response.status}): is it Octavo's?")

    def _read_events(self, response: http.client.HTTPResponse) -> None:
        name = "message"
        while not self._closed.is_set() and (line := response.readline(_MAX_LINE_BYTES)):
            if line.startswith(b"event: "):
                name = line[7:].decode("utf-8", "replace").strip()
            elif line.startswith(b"data: "):
                try:
                    data = json.loads(line[6:])
                except ValueError:
                    continue  # cut, or not ours
                if name in ("hello", "steps", "state"):
                    self._tell(name, data)
                name = "message"

    def _tell(self, name: str, data: Any) -> None:
        while not self._closed.is_set():
            try:
                self.news.put((name, data), timeout=_RETRY_S)
                return
            except queue.Full:  # a terminal that is stopped (Ctrl-S): the server drops for us
                continue


def _message_of(body: bytes) -> str | None:
    """The message of an error object."""
    try:
        message = json.loads(body)["error"]["message"]
    except (ValueError, KeyError, TypeError):
        return None
    return message if isinstance(message, str) else None
