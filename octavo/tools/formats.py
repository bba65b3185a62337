"""How families of models write tool calls and reasoning: small descriptions, and which one a chat
template uses. Parser and grammar are built from these; there is no code for a single model.

Knows the text of templates; knows no request and no tokenizer.
"""

import dataclasses
import json
import secrets
import string
from typing import Any, Literal

from octavo.errors import ConfigError
from octavo.tools.python_calls import write_python
from octavo.tools.xml_calls import FUNCTION_OPEN, write_xml

# A custom tool's call, in every family: raw text, which no JSON string could be constrained to.
CUSTOM_OPEN = '<custom name="'
CUSTOM_NAME_END = '">'
CUSTOM_CLOSE = "</custom>"

_ALPHANUMERICS = string.ascii_letters + string.digits


@dataclasses.dataclass(slots=True, frozen=True)
class ToolFormat:
    """How calls are written.

        text OPEN BEFORE call SEPARATOR call ... AFTER CLOSE

    Attributes:
        open: what begins a call, or a list of them; "" where a call stands at the very start of
            the answer. optional_open: may stand before such an object.
        close: what ends one; "" where nothing does.
        repeats: a second call has its own `open`, behind `between`; else calls are joined by
            `between` under one `open`.
        before, after: text inside of open and close.
        arguments_key: the key of the arguments, beside "name".
        name_then_arguments: not one object, but the name, this text, and the arguments.
        short_ids: nine letters and digits, which these templates insist on.
        style: how a call itself is written: as JSON, or as xml_calls.py or python_calls.py say.
    """

    name: str
    open: str = ""
    close: str = ""
    optional_open: str = ""
    before: str = ""
    after: str = ""
    between: str = "\n"
    repeats: bool = True
    arguments_key: str = "arguments"
    name_then_arguments: str = ""
    short_ids: bool = False
    style: Literal["json", "xml", "python"] = "json"

    @property
    def only_at_start(self) -> bool:
        """A call is the whole answer: text before it cannot be told from text."""
        return not self.open

    @property
    def markers(self) -> tuple[str, ...]:
        """Texts that some tokenizers have as control tokens."""
        return tuple(m for m in (self.open, self.optional_open, self.name_then_arguments,
                                 self.close) if m)

    def new_id(self) -> str:
        """An id for a call."""
        if self.short_ids:
            return "".join(secrets.choice(_ALPHANUMERICS) for _ in range(9))
        return f"call_{secrets.token_hex(12)}"

    def write(self, calls: list[tuple[str, Any]]) -> str:
        """The text of calls, (name, arguments) each, as the model is to write it. A str for
        arguments is a custom tool's input."""
        bodies = [self._body(name, arguments) for name, arguments in calls]
        if self.repeats:
            return self.between.join(f"{self.open}{self.before}{b}{self.after}{self.close}"
                                     for b in bodies)
        return f"{self.open}{self.before}{self.between.join(bodies)}{self.after}{self.close}"

    def _body(self, name: str, arguments: Any) -> str:
        if isinstance(arguments, str):
            return f"{CUSTOM_OPEN}{name}{CUSTOM_NAME_END}{arguments}{CUSTOM_CLOSE}"
        if self.style == "xml":
            return write_xml(name, arguments)
        if self.style == "python":
            return write_python(name, arguments)
        written = json.dumps(arguments, ensure_ascii=False)
        if self.name_then_arguments:
            return f"{name}{self.name_then_arguments}{written}"
        return f'{{"name": {json.dumps(name)}, "{self.arguments_key}": {written}}}'


HERMES = ToolFormat("hermes", open="<tool_call>", before="\n", after="\n", close="</tool_call>")
LLAMA3_JSON = ToolFormat("llama3_json", optional_open="<|python_tag|>", between="; ",
                         repeats=False, arguments_key="parameters")
MISTRAL = ToolFormat("mistral", open="[TOOL_CALLS]", before="[", after="]", between=", ",
                     repeats=False, short_ids=True)
MISTRAL_ARGS = ToolFormat("mistral_args", open="[TOOL_CALLS]", between="",
                          name_then_arguments="[ARGS]", short_ids=True)
QWEN3_CODER = ToolFormat("qwen3_coder", open="<tool_call>", before="\n", after="\n",
                         close="</tool_call>", style="xml")
PYTHONIC = ToolFormat("pythonic", optional_open="<|python_start|>", before="[", after="]",
                      between=", ", repeats=False, style="python")
JSON = ToolFormat("json", between="\n", repeats=False)

TOOL_FORMATS = {f.name: f for f in (HERMES, LLAMA3_JSON, MISTRAL, MISTRAL_ARGS,
                                     QWEN3_CODER, PYTHONIC, JSON)}
# names that other servers give to the same formats
_TOOL_ALIASES = {"qwen": "hermes", "qwen25": "hermes", "qwen3": "hermes", "llama3": "llama3_json",
                 "llama4_json": "llama3_json", "qwen3_xml": "qwen3_coder",
                 "llama4_pythonic": "pythonic"}
TOOL_PARSER_NAMES = ("auto", *TOOL_FORMATS, *_TOOL_ALIASES)


@dataclasses.dataclass(slots=True, frozen=True)
class ReasoningFormat:
    """Reasoning before the answer, between two tags. always_open: the output begins inside of it,
    whatever the prompt says."""

    name: str
    open: str = "<think>"
    close: str = "</think>"
    always_open: bool = False

    @property
    def markers(self) -> tuple[str, ...]:
        """See ToolFormat.markers."""
        return self.open, self.close

    def begins_inside(self, prompt: str) -> bool:
        """Whether an output behind this prompt begins inside: the template has opened the tag."""
        return self.always_open or prompt.rstrip().endswith(self.open)

    def is_over(self, prompt: str) -> bool:
        """Whether the template has closed the tag itself: no reasoning is wanted."""
        return not self.always_open and prompt.rstrip().endswith(self.close)


REASONING_FORMATS = {f.name: f for f in (
    ReasoningFormat("think"),
    ReasoningFormat("deepseek_r1", always_open=True),
    ReasoningFormat("mistral", "[THINK]", "[/THINK]"),
)}
_REASONING_ALIASES = {"qwen3": "think"}
REASONING_PARSER_NAMES = ("auto", "none", *REASONING_FORMATS, *_REASONING_ALIASES)


def tool_format(name: str, template: str, *, takes_tools: bool) -> ToolFormat:
    """The format of that name; for "auto" the one the template's text uses.

    takes_tools: the template prints tools. One that does not says nothing about formats: then our
    own convention is used, with HERMES. Raises ConfigError for an unknown name.
    """
    if name != "auto":
        found = TOOL_FORMATS.get(_TOOL_ALIASES.get(name, name))
        if found is None:
            raise ConfigError(f"tool_call_parser is {name!r}: give one of "
                              f"{', '.join(TOOL_PARSER_NAMES)}", param="tool_call_parser")
        return MISTRAL_ARGS if found is MISTRAL and "[ARGS]" in template else found
    if not takes_tools:
        return HERMES
    if "[TOOL_CALLS]" in template:
        return MISTRAL_ARGS if "[ARGS]" in template else MISTRAL
    if FUNCTION_OPEN in template:
        return QWEN3_CODER
    if "<tool_call>" in template:
        return HERMES
    if "[func_name1(" in template:  # how templates of Llama explain it
        return PYTHONIC
    if "<|python_tag|>" in template or "ipython" in template:
        return LLAMA3_JSON
    return JSON


def reasoning_format(name: str, template: str) -> ReasoningFormat | None:
    """The format of that name, or for "auto" the one whose closing tag the template writes; None
    for no reasoning. Raises ConfigError for an unknown name."""
    if name == "none":
        return None
    if name != "auto":
        found = REASONING_FORMATS.get(_REASONING_ALIASES.get(name, name))
        if found is None:
            raise ConfigError(f"reasoning_parser is {name!r}: give one of "
                              f"{', '.join(REASONING_PARSER_NAMES)}", param="reasoning_parser")
        return found
    for found in REASONING_FORMATS.values():
        if not found.always_open and found.close in template:
            return found
    return None
