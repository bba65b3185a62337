"""Conversation -> prompt, for both doors. Knows templates and tokens, no engine."""

from collections.abc import Mapping, Sequence
from typing import Any

from octavo.errors import InvalidRequestError
from octavo.tokenizer.chat_template import ChatTemplate, encode_chat
from octavo.tokenizer.tokenizer import Tokenizer

Message = Mapping[str, Any]


def chat_prompt(tokenizer: Tokenizer, template: ChatTemplate, messages: Sequence[Message], *,
                add_generation_prompt: bool, continue_final_message: bool,
                tools: Sequence[Mapping[str, Any]] | None,
                chat_template_kwargs: Mapping[str, Any] | None) -> dict[str, Any]:
    """{"prompt": rendered text, "prompt_token_ids": ids}. Raises InvalidRequestError."""
    if not messages:
        raise InvalidRequestError("messages is empty: give at least one message",
                                  param="messages")
    if tools is not None and (isinstance(tools, (str, bytes, Mapping))
                              or not isinstance(tools, Sequence)):
        raise InvalidRequestError(f"tools is a {type(tools).__name__}: give a list of tools",
                                  param="tools")
    if chat_template_kwargs is not None and not isinstance(chat_template_kwargs, Mapping):
        raise InvalidRequestError(
            f"chat_template_kwargs is a {type(chat_template_kwargs).__name__}: give a dict",
            param="chat_template_kwargs")
    rendered = template.render(
        messages, add_generation_prompt=add_generation_prompt,
        continue_final_message=continue_final_message, tools=tools, extra=chat_template_kwargs,
    )
    return {"prompt": rendered.text, "prompt_token_ids": encode_chat(tokenizer, rendered)}
