"""What `invariance` asks of a server over HTTP: the same requests at different times and in
different company, at temperature 0. Any OpenAI-compatible one; knows none in particular.
"""

import asyncio
import dataclasses
import hashlib
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

import msgspec

from octavo.bench.http_client import HttpClient, HttpError
from octavo.bench.openai_client import WORDS
from octavo.errors import ConfigError
from octavo.reproduce.claim import Options, Progress
from octavo.reproduce.finding import Figure, Finding, Table
from octavo.reproduce.invariance import CLAIMED, SOURCE

_T = TypeVar("_T")
_SHOWN_HASH = 16
_SHARED_WORDS = 150
_CHECK_S = 10.0  # a server that is there lists its models in milliseconds


@dataclasses.dataclass(slots=True, frozen=True)
class Answer:
    """logprobs: of the tokens, where the server gives them."""

    text: str
    logprobs: list[float] | None

    @property
    def digest(self) -> bytes:
        """Of both."""
        return hashlib.blake2b(msgspec.json.encode((self.text, self.logprobs)),
                               digest_size=16).digest()


@dataclasses.dataclass(slots=True, frozen=True)
class Row:
    """A variation's answers, in the order of the prompts."""

    name: str
    answers: list[Answer]

    @property
    def hash(self) -> str:
        """One for all."""
        return hashlib.blake2b(b"".join(one.digest for one in self.answers),
                               digest_size=16).hexdigest()


def measure_server(url: str, options: Options, progress: Progress) -> Finding:
    """url: with or without /v1. Raises ConfigError where the server cannot be asked."""
    url = _base(url)
    model, rows = _run(url, _ask_all(url, options, progress))
    return _finding(url, model, rows)


def check_server(url: str) -> None:
    """Raises ConfigError where no server with a model answers in a few seconds."""
    url = _base(url)

    async def ask() -> None:
        async with asyncio.timeout(_CHECK_S), HttpClient(url) as client:
            await _model_of(client, url)

    _run(url, ask())


def _base(url: str) -> str:
    return url.rstrip("/").removesuffix("/v1")


def _run(url: str, asking: Coroutine[Any, Any, _T]) -> _T:
    try:
        return asyncio.run(asking)
    except (OSError, HttpError, TimeoutError) as error:
        why = str(error) or "no answer in time"
        raise ConfigError(f"url is {url!r}: {why}; is a server running there?",
                          param="url") from None


async def _model_of(client: HttpClient, url: str) -> str:
    names = await _get(client, "/v1/models")
    try:
        return str(names["data"][0]["id"])
    except (KeyError, IndexError, TypeError):
        raise ConfigError(f"url is {url!r}: its /v1/models names no model", param="url") from None


async def _ask_all(url: str, options: Options, progress: Progress) -> tuple[str, list[Row]]:
    count, max_tokens = (6, 16) if options.quick else (24, 48)
    async with HttpClient(url) as client:
        model = await _model_of(client, url)
        asker = _Asker(client, model, max_tokens, progress)
        prompts = _prompts(count, options.seed)
        rows = []
        for index, (name, ask) in enumerate((
                ("each alone", asker.one_by_one), ("each alone, again", asker.one_by_one),
                ("all at once", asker.together), ("all at once, again", asker.together),
                ("backwards, all at once", lambda p: asker.together(p[::-1])),
                ("four at a time", asker.by_fours))):
            progress.stage(name, index / 6)
            answers = await ask(prompts)
            rows.append(Row(name, answers[::-1] if name.startswith("backwards") else answers))
    return model, rows


class _Asker:
    """Asks one server for the same kind of completion."""

    def __init__(self, client: HttpClient, model: str, max_tokens: int,
                 progress: Progress) -> None:
        self._client = client
        self._fields: dict[str, Any] = {"model": model, "max_tokens": max_tokens,
                                        "temperature": 0, "logprobs": 1, "seed": 1}
        self._progress = progress

    async def one_by_one(self, prompts: Sequence[str]) -> list[Answer]:
        return [await self._ask(prompt) for prompt in prompts]

    async def together(self, prompts: Sequence[str]) -> list[Answer]:
        return list(await asyncio.gather(*map(self._ask, prompts)))

    async def by_fours(self, prompts: Sequence[str]) -> list[Answer]:
        found: list[Answer] = []
        for first in range(0, len(prompts), 4):
            found += await self.together(prompts[first:first + 4])
        return found

    async def _ask(self, prompt: str) -> Answer:
        self._progress.check()
        body = await _post(self._client, "/v1/completions", self._fields | {"prompt": prompt})
        try:
            choice = body["choices"][0]
            listed = choice.get("logprobs") or {}
            return Answer(choice["text"], listed.get("token_logprobs"))
        except (KeyError, IndexError, TypeError, AttributeError):
            raise ConfigError("url: /v1/completions answers without choices: it is no "
                              "OpenAI-compatible server", param="url") from None


def _prompts(count: int, seed: int) -> list[str]:
    """Some short, some long, a quarter of them with a common beginning."""
    shared = " ".join(WORDS[(seed + i) % len(WORDS)] for i in range(_SHARED_WORDS))
    found = []
    for index in range(count):
        length = 2 + (index * 37) % 160
        words = " ".join(WORDS[(seed + 7 * index + i) % len(WORDS)] for i in range(length))
        found.append(f"{shared} {words}" if index % 4 == 3 else words)
    return found


async def _get(client: HttpClient, path: str) -> Any:
    return await _decoded(client, "GET", path, b"")


async def _post(client: HttpClient, path: str, fields: dict[str, Any]) -> Any:
    return await _decoded(client, "POST", path, msgspec.json.encode(fields))


async def _decoded(client: HttpClient, method: str, path: str, body: bytes) -> Any:
    async with client.request(method, path, body) as response:
        data = await response.read()
        if response.status != 200:
            raise ConfigError(f"url: {path} answered {response.status}: "
                              f"{data[:200].decode('utf-8', 'replace')}", param="url")
    try:
        return msgspec.json.decode(data)
    except msgspec.DecodeError:
        raise ConfigError(f"url: {path} does not answer with JSON", param="url") from None


def _finding(url: str, model: str, rows: list[Row]) -> Finding:
    base = rows[0].answers
    cells = []
    for row in rows:
        texts = sum(a.text != b.text for a, b in zip(row.answers, base, strict=True))
        bits = sum(a.digest != b.digest for a, b in zip(row.answers, base, strict=True))
        cells.append((row.name, texts, bits, row.hash[:_SHOWN_HASH]))
    texts, bits = sum(cell[1] for cell in cells), sum(cell[2] for cell in cells)
    has_logprobs = any(answer.logprobs for answer in base)
    of = len(base) * (len(rows) - 1)
    if not bits:
        words = "This server gave every request the same bits in any company."
    else:
        words = (f"Of {of} repetitions at temperature 0, {texts} came with another text and {bits} "
                 "with other logprobs or another text: what a request gets from this server "
                 "depends on what else it computes.")
    if not has_logprobs:
        words += " It gives no logprobs, so only texts were compared."
    return Finding(
        name="invariance", title=f"the same question to {url}", claimed=CLAIMED, source=SOURCE,
        tables=[Table(f"{model}: answers that differ from those of each alone",
                      ["variation", "texts", "texts or logprobs", "hash"],
                      [list(cell) for cell in cells])],
        figures=[Figure("texts that differ", texts, f"of {of}", None),
                 Figure("answers that differ in a bit", bits, f"of {of}", 0, at_least=False)],
        diagrams=[], explanation=words, facts={"model": model, "url": url,
                                               "requests": len(base)},
        identical_outputs=None, raw={"hashes": {row.name: row.hash for row in rows}})
