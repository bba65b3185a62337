"""AnswerPlan: all that tools and reasoning mean for one request, whatever API it came by.

    plan = AnswerPlan(state.formats, tools, choice)
    messages, template_tools = plan.conversation(messages)    before the template
    plan.structured_outputs(prompt_text, wanted)              what the output is held to
    plan.parser(prompt_text)                                  what becomes of its text, a sample

A route brings messages in the chat completions shape and shapes the parser's deltas; it needs
nothing else of this package. Knows no wire format.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from octavo.core.structured_outputs import StructuredOutputs
from octavo.tokenizer.chat_template import ChatTemplate
from octavo.tokenizer.detokenizer import IncrementalDetokenizer
from octavo.tokenizer.tokenizer import Tokenizer
from octavo.tools.convention import described, for_template, spelled_out
from octavo.tools.definitions import Tool, ToolChoice
from octavo.tools.formats import (
    ReasoningFormat,
    ToolFormat,
    reasoning_format,
    tool_format,
)
from octavo.tools.grammar import output_grammar
from octavo.tools.parameters import kinds_by_tool
from octavo.tools.parser import OutputParser


@dataclasses.dataclass(slots=True, frozen=True)
class ModelFormats:
    """How the served model writes calls and reasoning. Made once a server.

    control_tokens: by marker, for markers that are control tokens, their name in a grammar.
    """

    tools: ToolFormat
    reasoning: ReasoningFormat | None
    takes_tools: bool
    control_tokens: Mapping[str, str]

    @classmethod
    def of(cls, template: ChatTemplate, tokenizer: Tokenizer, *, tool_call_parser: str = "auto",
           reasoning_parser: str = "auto") -> "ModelFormats":
        """Raises ConfigError for an unknown parser name."""
        tools = tool_format(tool_call_parser, template.text, takes_tools=template.takes_tools)
        reasoning = reasoning_format(reasoning_parser, template.text)
        markers = [*tools.markers, *(reasoning.markers if reasoning is not None else ())]
        ids = {marker: tokenizer.token_to_id(marker) for marker in markers}
        return cls(tools, reasoning, template.takes_tools, {
            marker: f"<[{token_id}]>" for marker, token_id in ids.items()
            if token_id is not None and token_id in tokenizer.special_ids})


class AnswerPlan:
    """One request's. Immutable; the parsers it makes are not.

    tools: what the conversation may use, checked (check_tools, check_choice). `given` has them
    all, also where the choice is "none".
    """

    def __init__(self, formats: ModelFormats, tools: Sequence[Tool] = (),
                 choice: ToolChoice = ToolChoice()) -> None:  # noqa: B008 (frozen)
        self._formats = formats
        self.given = tuple(tools)
        self.tools = () if choice.mode == "none" else tuple(tools)
        self.choice = choice
        self._kinds = kinds_by_tool(self.tools) if formats.tools.style == "xml" else {}

    @property
    def is_plain(self) -> bool:
        """The output is content as it is: neither calls nor reasoning are looked for."""
        return not self.tools and self._formats.reasoning is None

    @property
    def is_forced(self) -> bool:
        """The output is calls, with no content."""
        return bool(self.tools) and self.choice.mode == "required"

    @property
    def needs_special_tokens(self) -> bool:
        """Some markers are control tokens: the output's text must show them
        (skip_special_tokens=False)."""
        return not self.is_plain and bool(self._formats.control_tokens)

    def conversation(self, messages: Sequence[Any]
                     ) -> tuple[list[Any], list[dict[str, Any]] | None]:
        """(messages, tools) for the chat template. Calls and results that it cannot print are put
        into texts; reasoning of earlier turns is there under the name that templates read."""
        form = self._formats.tools
        messages = [_with_reasoning(m) for m in messages]
        if self._formats.takes_tools:
            customs = [t for t in self.tools if t.is_custom]
            return described(messages, customs, form), for_template(self.tools) or None
        return described(spelled_out(messages, form), self.tools, form), None

    def structured_outputs(self, prompt: str, wanted: StructuredOutputs | None
                           ) -> StructuredOutputs | None:
        """What the output behind this prompt is held to. wanted: the form of its content.

        Takes a millisecond for a large schema. Raises InvalidRequestError.
        """
        form = self._formats
        return output_grammar(
            form=form.tools if self.tools else None, tools=self.tools, choice=self.choice,
            reasoning=form.reasoning, prompt=prompt, wanted=wanted,
            control_token=form.control_tokens.get)

    def parser(self, prompt: str) -> OutputParser:
        """A fresh parser for one output behind this prompt."""
        return OutputParser(
            tool_format=self._formats.tools if self.tools else None,
            tool_names=[t.name for t in self.choice.among(self.tools)],
            kinds=self._kinds,
            reasoning=self._formats.reasoning, prompt=prompt)

    def num_reasoning_tokens(self, tokenizer: Tokenizer, prompt: str, token_ids: Sequence[int]
                             ) -> int:
        """How many of an output's tokens are reasoning, its tags included."""
        if self._formats.reasoning is None:
            return 0
        parser = OutputParser(tool_format=None, reasoning=self._formats.reasoning, prompt=prompt)
        detokenizer = IncrementalDetokenizer(tokenizer, skip_special_tokens=False)
        for number, token_id in enumerate(token_ids, 1):
            parser.feed(detokenizer.push([token_id]))
            if parser.reasoning_is_over:
                return number
        return len(token_ids) if parser.in_reasoning else 0


def _with_reasoning(message: Any) -> Any:
    """`reasoning` is the newer name of `reasoning_content`; templates read the older one."""
    if not isinstance(message, Mapping) or not isinstance(message.get("reasoning"), str):
        return message
    return {"reasoning_content": message["reasoning"], **message}
