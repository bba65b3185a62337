"""POST /v1/decisions: questions about one input, each answered by one read of the model.

The prompt ends where the model would write a label; the answer is the model's own distribution over
the labels. Nothing is drawn. What the questions have in common is computed once, then all of them
in one step.
"""

import time
from collections.abc import Sequence
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from octavo.core.sampling_params import SamplingParams
from octavo.engine.outputs import RequestOutput
from octavo.errors import InvalidRequestError
from octavo.server.answer import CLIENT_CLOSED_REQUEST
from octavo.server.body import read_request
from octavo.server.decision_questions import Labels, Question, part_text, questions_of
from octavo.server.errors import JSON
from octavo.server.generation import ClientGoneError, Generation
from octavo.server.messages import chat_prompt
from octavo.server.openai_responses.input_items import input_items, messages_of
from octavo.server.openai_tools import tools_of
from octavo.server.protocol.decisions import (
    DecisionInputDetails,
    DecisionOutputDetails,
    DecisionRequest,
    DecisionResponse,
    DecisionUsage,
)
from octavo.server.protocol.requests import ChatRequest
from octavo.server.state import ServerState
from octavo.tools.plan import AnswerPlan

_CALLS = ("function_call", "custom_tool_call")


def routes(state: ServerState) -> list[Route]:
    """The route of this file."""
    labels = Labels(state.llm.tokenizer)

    async def decide(request: Request) -> Response:
        asked = await read_request(request, state, DecisionRequest)
        decision = _Decision(asked, state, labels)
        try:
            answer = await decision.run(request)
        except InvalidRequestError as error:
            # of what is shared with chat completions: the fields of this route
            if (error.param or "").partition("[")[0] in ("messages", "prompt", "max_tokens", "n"):
                error.param = "questions" if error.param == "n" else "input"
            raise
        except ClientGoneError:
            return Response(status_code=CLIENT_CLOSED_REQUEST)
        return Response(msgspec.json.encode(answer), media_type=JSON)

    return [Route("/v1/decisions", decide, methods=["POST"])]


class _Decision:
    """One request: its prompts, its two rounds of engine requests, its answer."""

    def __init__(self, asked: DecisionRequest, state: ServerState, labels: Labels) -> None:
        self._asked = asked
        self._state = state
        self._model = state.model_name(asked.model)
        self._id = state.response_id("decision", asked.request_id)
        self._questions = questions_of(asked.questions, labels)
        self._messages = messages_of(input_items(_plain_input(asked.input)), None)
        if not self._messages:
            raise InvalidRequestError("input is empty: give a text or at least one item",
                                      param="input")
        if asked.cache_salt is not None and not 0 < len(asked.cache_salt) <= 1024:
            raise InvalidRequestError("cache_salt must be a text of 1 to 1024 characters",
                                      param="cache_salt")

    async def run(self, request: Request) -> DecisionResponse:
        """Raises InvalidRequestError, ClientGoneError and what the engine raises."""
        prompts = [await self._prompt(question) for question in self._questions]
        shared = _common_prefix(prompts)
        num_cached = await self._fill_cache(prompts, shared, request)
        generation = Generation(self._state, self._id)
        await generation.start_together(
            [{"prompt_token_ids": ids} for ids in prompts],
            [self._params(question.label_ids) for question in self._questions], score_only=True)
        outputs = await generation.finals(request.receive)
        if num_cached is None:
            num_cached = generation.num_cached_tokens
        return DecisionResponse(
            id=self._id, created=int(time.time()), model=self._model,
            answers=[question.answer(_logprobs(output))
                     for question, output in zip(self._questions, outputs)],
            usage=self._usage(prompts, shared, num_cached))

    async def _prompt(self, question: Question) -> list[int]:
        """The input with the question in the last message of the user: templates that want user and
        assistant in turns take it."""
        messages = [dict(message) for message in self._messages]
        if messages[-1]["role"] == "user":
            messages[-1]["content"] = f"{messages[-1]['content']}\n\n{question.text()}"
        else:
            messages.append({"role": "user", "content": question.text()})
        chat = ChatRequest(messages=messages,
                           chat_template_kwargs=self._asked.chat_template_kwargs)
        plan = AnswerPlan(self._state.formats, tools_of(None))
        prompt = await chat_prompt(messages, chat, self._state, plan)
        ids: list[int] = prompt["prompt_token_ids"]
        return ids

    async def _fill_cache(self, prompts: Sequence[list[int]], shared: int,
                          request: Request) -> int | None:
        """Computes what several questions share, whole blocks of it; returns how many of its tokens
        were cached before, None if there is nothing to do."""
        cache = self._state.llm.config.cache
        whole = shared // cache.block_size * cache.block_size
        if len(prompts) < 2 or not whole or not cache.enable_prefix_caching:
            return None
        generation = Generation(self._state, self._id)
        await generation.start_together([{"prompt_token_ids": prompts[0][:whole]}],
                                        [self._params(())], score_only=True)
        await generation.finals(request.receive)
        return generation.num_cached_tokens

    def _params(self, label_ids: Sequence[int]) -> SamplingParams:
        return SamplingParams(
            temperature=0.0, max_tokens=1, seed=0, detokenize=False,
            cache_salt=self._asked.cache_salt, logprob_token_ids=list(label_ids) or None)

    def _usage(self, prompts: Sequence[list[int]], shared: int, num_cached: int) -> DecisionUsage:
        cache = self._state.llm.config.cache
        once = shared if len(prompts) > 1 and cache.enable_prefix_caching else 0
        num_input = once + sum(len(ids) - once for ids in prompts)
        return DecisionUsage(
            input_tokens=num_input, output_tokens=len(prompts),
            total_tokens=num_input + len(prompts),
            input_tokens_details=DecisionInputDetails(
                cached_tokens=num_cached,
                cache_write_tokens=num_input - num_cached if cache.enable_prefix_caching else 0),
            output_tokens_details=DecisionOutputDetails())


def _logprobs(output: RequestOutput) -> dict[int, float]:
    entries = output.outputs[0].logprobs
    assert entries, "asked for logprobs and got none"
    return {token_id: value.logprob for token_id, value in entries[0].items()}


def _common_prefix(prompts: Sequence[list[int]]) -> int:
    """How many leading tokens all of them share."""
    first, last = min(prompts), max(prompts)
    count = 0
    while count < min(len(first), len(last)) and first[count] == last[count]:
        count += 1
    return count


def _plain_input(given: Any) -> Any:
    """The input with JSON parts as their text, as the items of /v1/responses are. Raises
    InvalidRequestError: for images, and for outputs of calls that are not there."""
    if not isinstance(given, list):
        return given
    called: set[str] = set()
    items = []
    for i, item in enumerate(given):
        where = f"input[{i}]"
        if isinstance(item, dict):
            item = dict(item)
            kind = str(item.get("type", "message"))
            for key in ("content", "output"):
                if isinstance(item.get(key), list):
                    item[key] = part_text(item[key], f"{where}.{key}")
            if kind in _CALLS:
                called.add(str(item.get("call_id")))
            elif kind.endswith("_output") and item.get("call_id") not in called:
                raise InvalidRequestError(
                    f"{where}.call_id is {str(item.get('call_id'))[:80]!r}: no call before it has "
                    "that id", param=f"{where}.call_id")
            elif kind == "reasoning":
                raise InvalidRequestError(
                    f"{where}.type is 'reasoning': give messages, calls and their outputs",
                    param=f"{where}.type")
        items.append(item)
    return items
