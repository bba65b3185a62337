"""What the API asks of messages beyond what the tokenizer checks: known roles, content present.

Knows no template: in Python a template may have roles of its own; over HTTP a typing mistake in a
role would silently give another prompt.
"""

from typing import Any

from octavo.errors import InvalidRequestError
from octavo.server.openai_tools import plain_calls, template_options
from octavo.server.protocol.requests import ChatRequest, TokenizeRequest
from octavo.server.state import ServerState
from octavo.tools.plan import AnswerPlan

# a function that gave nothing back may say null, as the older API has it
_MAY_BE_EMPTY = ("assistant", "function")
ROLES = ("system", "developer", "user", "assistant", "tool", "function")


def check_messages(messages: list[Any]) -> None:
    """Raises InvalidRequestError naming messages[i].field. Other shapes are the tokenizer's."""
    for index, message in enumerate(messages):
        if not isinstance(message, dict):
            continue  # refused by the tokenizer, with everything else that is no message
        where = f"messages[{index}]"
        role = message.get("role")
        if role not in ROLES:
            shown = "missing" if role is None else repr(role)[:80]
            raise InvalidRequestError(
                f"{where}.role is {shown}: give one of {', '.join(ROLES)}", param=f"{where}.role")
        if role not in _MAY_BE_EMPTY and message.get("content") is None:
            shown = "null" if "content" in message else "missing"
            raise InvalidRequestError(
                f"{where}.content is {shown}: give a text or a list of text parts (only an "
                "assistant message may have none)", param=f"{where}.content")


async def chat_prompt(messages: list[Any], asked: ChatRequest | TokenizeRequest,
                      state: ServerState, plan: AnswerPlan) -> dict[str, Any]:
    """The prompt of a conversation, with the request's template options and the plan's tools.

    A turn is opened for the assistant unless the final message is to be continued. Raises
    InvalidRequestError.
    """
    check_messages(messages)
    rewritten, tools = plan.conversation(plain_calls(messages))
    continued = asked.continue_final_message
    opens_turn = asked.add_generation_prompt
    return await state.llm.chat_prompt(
        rewritten, tools=tools,
        add_generation_prompt=not continued if opens_turn is None else opens_turn,
        continue_final_message=continued, chat_template_kwargs=template_options(asked))
