"""Starts the engine requests of one HTTP request and sees them through, or aborts them all.

What both kinds of answer (whole and streamed) share. Knows no wire format.
"""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from typing import Any

from starlette.types import Receive

from octavo.core.sampling_params import SamplingParams
from octavo.engine.output_collector import OutputCollector
from octavo.engine.outputs import OutputKind, RequestOutput
from octavo.errors import EngineDeadError, InvalidRequestError
from octavo.server.protocol.responses import PromptTokensDetails, Timings, Usage
from octavo.server.request_record import current_record
from octavo.server.state import ServerState
from octavo.server.timings import timings_of

# after this many prompts of one request, let others have the event loop
_PROMPTS_A_TURN = 16


class ClientGoneError(Exception):
    """The client left: there is nobody to answer."""


class Generation:
    """The engine requests of one HTTP request, one for each prompt.

    Whoever makes one ends with `close()`, which aborts what still runs.
    """

    def __init__(self, state: ServerState, response_id: str) -> None:
        self._state = state
        self._response_id = response_id
        self._requests: list[tuple[str, OutputCollector]] = []
        self._client_gone = False
        self._record = current_record()
        self.num_prompt_tokens = 0
        self.num_completion_tokens = 0
        self.num_cached_tokens = 0
        self._num_ended = 0
        self._n = 1

    async def start(self, prompts: Sequence[Any], params: SamplingParams, *, priority: int,
                    kind: OutputKind, strict_max_tokens: bool = True,
                    score_only: bool = False) -> None:
        """Starts them all or none. Raises what AsyncLLM.add_request raises, which also says what
        strict_max_tokens and score_only are."""
        self._check_number(len(prompts), params.n)
        self._n = params.n
        try:
            for index, prompt in enumerate(prompts):
                if index and index % _PROMPTS_A_TURN == 0:
                    await asyncio.sleep(0)
                engine_id = self._state.engine_id(self._response_id)
                collector = await self._state.llm.add_request(
                    prompt, params, engine_id, priority=priority, output_kind=kind,
                    strict_max_tokens=strict_max_tokens, score_only=score_only)
                self._note(engine_id, collector, params)
        except BaseException:
            await self.close()
            raise

    async def start_together(self, prompts: Sequence[Any], params: Sequence[SamplingParams], *,
                             score_only: bool) -> None:
        """Starts them all at the same moment, or none; params has one for each prompt."""
        self._check_number(len(prompts), 1)
        ids = [self._state.engine_id(self._response_id) for _ in prompts]
        collectors = await self._state.llm.add_requests(
            list(zip(prompts, params, ids)), output_kind="final", score_only=score_only)
        for engine_id, collector, one in zip(ids, collectors, params, strict=True):
            self._note(engine_id, collector, one)

    def _note(self, engine_id: str, collector: OutputCollector, params: SamplingParams) -> None:
        self._requests.append((engine_id, collector))
        if self._record is not None:
            self._record.generated.append(collector.metrics)
            self._record.response_id = self._response_id
            self._record.model = self._record.model or self._state.names[0]
            self._record.params = self._record.params or params

    def _check_number(self, num_prompts: int, n: int) -> None:
        """More than the queue holds can never run: no later try would help."""
        limits = self._state.llm.config.scheduler
        bound = self._state.llm.max_num_samples
        if num_prompts * n > bound:
            raise InvalidRequestError(
                f"{num_prompts} prompts x n={n} are {num_prompts * n} sequences, but this server "
                f"runs {limits.max_num_seqs} and queues {limits.max_num_waiting}, together "
                f"{bound}: send fewer prompts at once or a smaller n",
                param="prompt" if n == 1 else "n")

    async def close(self) -> None:
        """Aborts what has not finished. Idempotent."""
        for engine_id, _ in self._requests:
            await self._state.llm.abort(engine_id)
        for _, collector in self._requests:
            collector.close()

    async def client_left(self) -> None:
        """Aborts everything; whoever waits for outputs gets ClientGoneError."""
        self._client_gone = True
        for engine_id, _ in self._requests:
            await self._state.llm.abort(engine_id)

    async def outputs(self) -> AsyncGenerator[tuple[int, RequestOutput], None]:
        """(prompt index, output) as they come, until all prompts have finished.

        Raises OctavoError when a request failed or the engine died, ClientGoneError.
        """
        if len(self._requests) == 1:
            collector = self._requests[0][1]
            finished = False
            while not finished:
                output = await collector.get()
                self._check(output)
                finished = output.finished
                yield 0, output
            return
        waiting = {asyncio.ensure_future(collector.get()): index
                   for index, (_, collector) in enumerate(self._requests)}
        try:
            while waiting:
                done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                for task in sorted(done, key=waiting.__getitem__):
                    index = waiting.pop(task)
                    output = task.result()
                    self._check(output)
                    if not output.finished:
                        following = asyncio.ensure_future(self._requests[index][1].get())
                        waiting[following] = index
                    yield index, output
        finally:
            for task in waiting:
                task.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)

    async def finals(self, receive: Receive) -> list[RequestOutput]:
        """Whole outputs, in prompt order, of requests started with kind "final".

        Watches the client meanwhile. Raises as outputs().
        """
        watch = asyncio.create_task(self._watch(receive))
        found: dict[int, RequestOutput] = {}
        try:
            async for index, output in self.outputs():
                found[index] = output
                self.count(index, output)
        finally:
            watch.cancel()
            await self.close()
        return [found[index] for index in range(len(found))]

    async def _watch(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        await self.client_left()

    def count(self, index: int, output: RequestOutput) -> None:
        """Adds a final output, or a delta, to the usage."""
        self.num_completion_tokens += sum(len(c.token_ids) for c in output.outputs)
        if output.finished:
            self.num_prompt_tokens += len(output.prompt_token_ids)
            self.num_cached_tokens += output.num_cached_tokens
            self._num_ended += 1

    def usage(self) -> Usage:
        """Of everything counted."""
        return Usage(
            prompt_tokens=self.num_prompt_tokens,
            completion_tokens=self.num_completion_tokens,
            total_tokens=self.num_prompt_tokens + self.num_completion_tokens,
            prompt_tokens_details=PromptTokensDetails(cached_tokens=self.num_cached_tokens),
        )

    def timings(self) -> Timings:
        """Of everything so far."""
        return timings_of([collector.metrics for _, collector in self._requests], self._n)

    @property
    def has_ended(self) -> bool:
        """Whether every prompt's last output was counted."""
        return self._num_ended == len(self._requests)

    def _check(self, output: RequestOutput) -> None:
        if self._client_gone:
            raise ClientGoneError
        if any(c.finish_reason == "abort" for c in output.outputs):
            raise EngineDeadError("the server is shutting down: this request was ended before it "
                                  "was complete")
