"""A worker for any OpenAI-compatible server: the "model" of `load` is URL or URL#MODEL-NAME.

Prompts are common words, so their lengths are nearly the asked ones; tokens are counted as pieces
of the streams. Network and HTTP are in the figures; the CPU time is this client's, not the
server's. Runs in Octavo's environment.
"""

import asyncio
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from stdio import Measured, Stopwatch, serve

from octavo.bench.datasets import BenchRequest
from octavo.bench.http_client import HttpClient
from octavo.bench.load import RequestRecord
from octavo.bench.openai_client import WORDS, OpenAISender, served_model


class UrlEngine:
    """See stdio.Engine."""

    def load(self, model: str, threads: int, max_sequences: int,
             max_context: int) -> dict[str, str]:
        self._url, _, name = model.partition("#")
        self._name = name or asyncio.run(self._first_model())
        return {"url": self._url, "model": self._name}

    def vocab_size(self) -> int:
        return 300 + len(WORDS)

    def prefill(self, prompt: list[int]) -> Measured:
        watch = Stopwatch()
        (record,) = asyncio.run(self._send([prompt], 1))
        return record.num_prompt_tokens, record.ttft_s, watch.stop(1)[2]

    def start(self, prompts: list[list[int]], tokens: int) -> None:
        """A stream cannot be paused: each window asks anew."""
        self._prompts = prompts

    def end(self) -> None:
        self._prompts = []

    def window(self, tokens: int) -> Measured:
        prompts = self._prompts
        watch = Stopwatch()
        records = asyncio.run(self._send(prompts, tokens + 1 + 8 * (len(prompts) > 1)))
        moments = [_moments(record) for record in records]
        opens, closes = max(m[0] for m in moments), min(m[-1] for m in moments)
        if closes <= opens:
            raise RuntimeError("the streams did not overlap: raise the number of tokens, or the "
                               "server ran fewer sequences at once")
        count = sum(opens < moment <= closes for found in moments for moment in found)
        return count, closes - opens, watch.stop(count)[2]

    async def _first_model(self) -> str:
        async with HttpClient(self._url) as client:
            return await served_model(client)

    async def _send(self, prompts: list[list[int]], tokens: int) -> list[RequestRecord]:
        async with HttpClient(self._url) as client:
            sender = OpenAISender(client, model=self._name,
                                  sampling={"temperature": 0.0, "ignore_eos": True})
            records = await asyncio.gather(
                *(sender.send(BenchRequest(prompt, tokens)) for prompt in prompts))
        for record in records:
            if record.error is not None:
                raise RuntimeError(record.error)
        return records


def _moments(record: RequestRecord) -> list[float]:
    """When each piece came."""
    found = [record.start_s + record.ttft_s]
    for gap in record.itl_s:
        found.append(found[-1] + gap)
    return found


if __name__ == "__main__":
    serve(UrlEngine())
