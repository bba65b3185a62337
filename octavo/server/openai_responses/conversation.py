"""From a request's input, and the response it goes on from, to the prompt.

Knows no sampling and no output.
"""

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Any

from octavo.errors import InvalidRequestError
from octavo.server.messages import chat_prompt
from octavo.server.openai_responses.fields import reasoning_effort
from octavo.server.openai_responses.input_items import (
    Item,
    input_items,
    is_object,
    messages_of,
    turn_starts,
)
from octavo.server.openai_responses.store import ResponseStore
from octavo.server.protocol.requests import ChatRequest
from octavo.server.protocol.response_request import InputTokensRequest, ResponseRequest
from octavo.server.state import ServerState
from octavo.tools.plan import AnswerPlan

_PREVIOUS = "previous_response_id"
# With truncation "auto" and no max_output_tokens, this part of the context stays free for the
# answer: a few hundred tokens of a small model's, where less would often cut it.
_FREE_PART = 8


@dataclasses.dataclass(slots=True, frozen=True)
class Conversation:
    """items: all that the response answers, earlier responses included."""

    items: list[Item]
    messages: list[dict[str, Any]]


def conversation_of(request: ResponseRequest | InputTokensRequest,
                    store: ResponseStore) -> Conversation:
    """Raises InvalidRequestError naming the place, ResponseNotFoundError."""
    earlier: list[Item] = []
    if request.previous_response_id is not None:
        previous = store.get(request.previous_response_id, param=_PREVIOUS)
        earlier = previous.input_items() + previous.output_items()
        _check_calls(earlier, request.previous_response_id)
    given = input_items(request.input, find=store.output_item)
    if not earlier and not given and request.instructions is None:
        raise InvalidRequestError(
            "input is missing: give a text or a list of items" if request.input is None else
            "input is empty: give at least one item", param="input")
    items = earlier + given
    return Conversation(items, messages_of(items, request.instructions))


async def prompt_of(messages: list[dict[str, Any]], request: ResponseRequest | InputTokensRequest,
                    state: ServerState, plan: AnswerPlan) -> dict[str, Any]:
    """The prompt; with truncation "auto" without as many of the oldest turns as must go for it to
    fit. Raises InvalidRequestError."""
    effort = reasoning_effort(request)

    async def rendered(shown: list[dict[str, Any]]) -> dict[str, Any]:
        chat = ChatRequest(messages=shown, reasoning_effort=effort,
                           chat_template_kwargs=request.chat_template_kwargs)
        with naming_fields():
            return await chat_prompt(shown, chat, state, plan)

    prompt = await rendered(messages)
    free = getattr(request, "max_output_tokens", None)
    room = state.max_model_len - (state.max_model_len // _FREE_PART if free is None else free)
    if request.truncation != "auto" or len(prompt["prompt_token_ids"]) <= room:
        return prompt
    kept, starts = turn_starts(messages)
    low, high = 0, len(starts) - 1
    while low <= high:  # the first start that fits; if none does, the prompt is the last turn
        middle = (low + high) // 2
        prompt = await rendered(messages[:kept] + messages[starts[middle]:])
        if len(prompt["prompt_token_ids"]) > room:
            low = middle + 1
        else:
            high = middle - 1
    if starts:
        prompt = await rendered(messages[:kept] + messages[starts[min(low, len(starts) - 1)]:])
    return prompt


@contextlib.contextmanager
def naming_fields() -> Iterator[None]:
    """Errors of what is shared with chat completions name the fields of this API."""
    try:
        yield
    except InvalidRequestError as error:
        param = error.param or ""
        if param == "max_tokens":
            error.param = "max_output_tokens"
            error.message = error.message.replace("max_tokens", "max_output_tokens")
        elif param.partition("[")[0] in ("messages", "prompt", "prompt_token_ids"):
            error.param = "input"
        raise


def _check_calls(items: list[Item], response_id: str) -> None:
    """A call that a bound has cut is no call: templates cannot print it."""
    for item in items:
        if item["type"] == "function_call" and not is_object(item["arguments"]):
            raise InvalidRequestError(
                f"{_PREVIOUS} is {response_id[:80]!r}, which ends inside of a call of "
                f"{item['name']!r}: send the items to go on from in input", param=_PREVIOUS)
