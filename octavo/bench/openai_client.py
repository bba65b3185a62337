"""Sends bench requests to an OpenAI-compatible server and times the pieces of each answer."""

import asyncio
import time
from collections.abc import Callable
from typing import Any, Literal

import msgspec

from octavo.bench.datasets import BenchRequest
from octavo.bench.http_client import EventParser, HttpClient, HttpError, Response
from octavo.bench.load import RequestRecord
from octavo.errors import ConfigError, OctavoError
from octavo.tokenizer.tokenizer import Tokenizer

PromptFormat = Literal["text", "ids"]
# Frequent words: one token each, with their space, in most vocabularies. They stand for ids where
# there is no tokenizer, so lengths are nearly right; the server's usage says what they were.
_WORDS = (
    "the of and to in a is that it for was on are as with his they at be this from have or by one "
    "had not but what all were when we there can an your which their said if do will each about "
    "how up out them then she many some so these would other into has more her two like him see "
    "time could no make than first been its who now people my made over did down only way find use "
    "may water long little very after words called just where most know get through back much go "
    "good new write our used me man too any day same right look think also around another came "
    "come work three word must because does part even place well such here take why help put years "
    "different away again off went old number great tell men say small every found still between "
    "name should home big give air line set own under read last never us left end along while "
    "might next sound below saw something thought both few those always looked show large often "
    "together asked house world going want school important until form food keep children feet "
    "land side without boy once animals life enough took sometimes four head above kind began"
)
WORDS = tuple(_WORDS.split())


class _Delta(msgspec.Struct):
    """Of a chat chunk."""

    content: str | None = None
    reasoning_content: str | None = None


class _Choice(msgspec.Struct):
    """Of a chunk, completions and chat."""

    text: str | None = None
    delta: _Delta | None = None
    finish_reason: str | None = None

    @property
    def has_news(self) -> bool:
        if self.text:
            return True
        return self.delta is not None and bool(self.delta.content or self.delta.reasoning_content)


class _Details(msgspec.Struct):
    """Of the usage."""

    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    """The server's own counts."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    prompt_tokens_details: _Details | None = None


class _Chunk(msgspec.Struct):
    """One event."""

    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: Any = None


_decode_chunk = msgspec.json.Decoder(_Chunk).decode


class OpenAISender:
    """A load.Sender over HTTP.

    endpoint: a path; chat when it ends in /chat/completions. model: the name to ask for.
    prompt_format: "ids" sends token ids (completions only), "text" words or, with a tokenizer,
    its text of the ids. sampling: further fields of every body. timeout_s: of a whole request.
    on_piece: called for each piece of an answer.
    """

    def __init__(self, client: HttpClient, *, model: str, endpoint: str = "/v1/completions",
                 prompt_format: PromptFormat = "text", tokenizer: Tokenizer | None = None,
                 sampling: dict[str, Any] | None = None, timeout_s: float = 3600.0,
                 on_piece: Callable[[BenchRequest], None] | None = None) -> None:
        self._client = client
        self._is_chat = endpoint.rstrip("/").endswith("/chat/completions")
        if self._is_chat and prompt_format == "ids":
            raise ConfigError("prompt_format is 'ids', but chat takes text: use the endpoint "
                              "/v1/completions", param="prompt_format")
        self._endpoint = endpoint
        self._format, self._tokenizer = prompt_format, tokenizer
        self._timeout_s = timeout_s
        self._on_piece = on_piece
        self._fixed = {"model": model, "stream": True,
                       "stream_options": {"include_usage": True}, **(sampling or {})}

    async def send(self, request: BenchRequest) -> RequestRecord:
        """See load.Sender. Never raises, but when it is cancelled."""
        body = msgspec.json.encode(self._body(request))
        record = RequestRecord(start_s=time.perf_counter(),
                               num_prompt_tokens=len(request.prompt_token_ids))
        try:
            async with asyncio.timeout(self._timeout_s):
                async with self._client.request("POST", self._endpoint, body) as response:
                    await self._follow(response, request, record)
        except TimeoutError:
            record.error = f"no complete answer within {self._timeout_s:g} s"
        except (OSError, HttpError) as error:
            record.error = f"{type(error).__name__}: {error}"
        except msgspec.DecodeError as error:
            record.error = f"an event is not what the API says: {error}"
        return record

    def _body(self, request: BenchRequest) -> dict[str, Any]:
        body = dict(self._fixed)
        ids = request.prompt_token_ids
        if self._is_chat:
            body["messages"] = [{"role": "user", "content": self._text(ids)}]
            body["max_completion_tokens"] = request.max_tokens
            return body
        body["prompt"] = ids if self._format == "ids" else self._text(ids)
        body["max_tokens"] = request.max_tokens
        return body

    def _text(self, ids: list[int]) -> str:
        if self._tokenizer is not None:
            return self._tokenizer.decode(ids)
        return " ".join(WORDS[i % len(WORDS)] for i in ids)

    async def _follow(self, response: Response, request: BenchRequest,
                      record: RequestRecord) -> None:
        if response.status != 200:
            text = (await response.read()).decode("utf-8", "replace")
            record.error = f"HTTP {response.status}: {' '.join(text.split())[:200]}"
            return
        last = record.start_s
        num_pieces = 0
        usage: _Usage | None = None
        events = EventParser()
        is_done = False
        async for piece in response.pieces():
            now = time.perf_counter()
            for data in events.feed(piece):
                if data == b"[DONE]":
                    is_done = True
                    continue
                chunk = _decode_chunk(data)
                if chunk.error is not None:
                    record.error = f"the server: {str(chunk.error)[:200]}"
                    return
                usage = chunk.usage or usage
                if not any(choice.has_news for choice in chunk.choices):
                    continue
                if num_pieces == 0:
                    record.ttft_s = now - record.start_s
                else:
                    record.itl_s.append(now - last)
                num_pieces += 1
                last = now
                if self._on_piece is not None:
                    self._on_piece(request)
        record.latency_s = last - record.start_s
        record.num_output_tokens = num_pieces
        if usage is not None:
            record.num_output_tokens = usage.completion_tokens or num_pieces
            record.num_prompt_tokens = usage.prompt_tokens or record.num_prompt_tokens
            details = usage.prompt_tokens_details
            record.num_cached_tokens = (details.cached_tokens or 0) if details else 0
        if num_pieces == 0:
            record.error = "the answer has no text" if is_done else "the stream broke off"


async def served_model(client: HttpClient) -> str:
    """The first model the server lists. Raises OctavoError where it cannot be asked."""
    try:
        async with client.request("GET", "/v1/models") as response:
            data = msgspec.json.decode(await response.read())
        return str(data["data"][0]["id"])
    except (OSError, HttpError) as error:
        raise OctavoError(f"the server does not answer: {error}") from None
    except (msgspec.DecodeError, KeyError, IndexError, TypeError):
        raise OctavoError("the server lists no model: give --model") from None
