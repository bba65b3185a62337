"""OutputParser: the text of an answer, in pieces of any size -> content, reasoning and tool calls.

    text ─> reasoning? ─> content ─ open marker ─> call ─ ... ─> content

Where the pieces are cut makes no difference to the sum of what comes out. Works from the
descriptions in formats.py; knows no wire format and no tokens.
"""

import dataclasses
from collections.abc import Callable, Sequence

from octavo.tools.formats import (
    CUSTOM_CLOSE,
    CUSTOM_NAME_END,
    CUSTOM_OPEN,
    ReasoningFormat,
    ToolFormat,
)
from octavo.tools.parameters import Kinds
from octavo.tools.python_calls import PythonCall
from octavo.tools.scan import CallObject, JsonValue
from octavo.tools.xml_calls import XmlCall


@dataclasses.dataclass(slots=True, frozen=True)
class CallDelta:
    """News of one call. call_id and name come once, in its first delta; arguments are pieces of
    the JSON text (of a custom tool: of its input)."""

    index: int
    arguments: str = ""
    call_id: str | None = None
    name: str | None = None
    is_custom: bool = False


@dataclasses.dataclass(slots=True)
class OutputDelta:
    """What a piece of text has brought."""

    content: str = ""
    reasoning: str = ""
    calls: list[CallDelta] = dataclasses.field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.content or self.reasoning or self.calls)


@dataclasses.dataclass(slots=True)
class ToolCall:
    """A whole call. arguments: JSON text, or a custom tool's input."""

    call_id: str
    name: str
    arguments: str = ""
    is_custom: bool = False


@dataclasses.dataclass(slots=True)
class ParsedOutput:
    """A whole answer. content and reasoning are "" where there is none."""

    content: str = ""
    reasoning: str = ""
    calls: list[ToolCall] = dataclasses.field(default_factory=list)

    def add(self, delta: OutputDelta) -> None:
        """Takes the next delta."""
        self.content += delta.content
        self.reasoning += delta.reasoning
        for call in delta.calls:
            if call.name is not None:
                self.calls.append(ToolCall(call.call_id or "", call.name,
                                           is_custom=call.is_custom))
            self.calls[call.index].arguments += call.arguments


class OutputParser:
    """One output. feed() its text, then finish().

    tool_format: None: nothing is taken for a call. tool_names: what may be called.
    reasoning: None: no reasoning. prompt: the text the output continues, which tells whether it
    begins inside of reasoning. kinds: of the tools' parameters, for a format of style "xml".
    """

    def __init__(self, *, tool_format: ToolFormat | None, tool_names: Sequence[str] = (),
                 kinds: Kinds | None = None,
                 reasoning: ReasoningFormat | None = None, prompt: str = "") -> None:
        self._reasoning = None
        if reasoning is not None and not reasoning.is_over(prompt):
            self._reasoning = _ReasoningSplitter(
                reasoning, begins_inside=reasoning.begins_inside(prompt))
        self._calls = None
        if tool_format is not None:
            self._calls = _CallParser(tool_format, frozenset(tool_names), kinds or {})

    @property
    def num_calls(self) -> int:
        """Calls begun so far."""
        return 0 if self._calls is None else self._calls.num_calls

    @property
    def in_reasoning(self) -> bool:
        """Whether the end of reasoning is still to come."""
        return self._reasoning is not None and self._reasoning.is_inside

    @property
    def reasoning_is_over(self) -> bool:
        """Whether the output has had reasoning, and its end."""
        return self._reasoning is not None and self._reasoning.is_over

    def feed(self, text: str) -> OutputDelta:
        """What this text completes. Text that may be part of a marker is held back."""
        delta = OutputDelta()
        if self._reasoning is not None:
            delta.reasoning, text = self._reasoning.feed(text)
        self._feed_calls(text, delta)
        return delta

    def finish(self) -> OutputDelta:
        """The end of the text: what was held back is settled. An unfinished call stays as it is;
        one whose name is not complete is text, unless calls came before it."""
        delta = OutputDelta()
        if self._reasoning is not None:
            delta.reasoning, text = self._reasoning.finish()
            self._feed_calls(text, delta)
        if self._calls is not None:
            delta.content += self._calls.finish()
        return delta

    def parse(self, text: str) -> ParsedOutput:
        """A whole output at once."""
        parsed = ParsedOutput()
        parsed.add(self.feed(text))
        parsed.add(self.finish())
        return parsed

    def _feed_calls(self, text: str, delta: OutputDelta) -> None:
        if self._calls is None:
            delta.content += text
        elif text:
            self._calls.feed(text, delta)


def split_at(text: str, marker: str) -> tuple[str, bool, str]:
    """(before the marker, True, behind it), or (text that cannot be part of it, False, the rest
    that may be)."""
    at = text.find(marker)
    if at >= 0:
        return text[:at], True, text[at + len(marker):]
    for size in range(min(len(marker) - 1, len(text)), 0, -1):
        if text.endswith(marker[:size]):
            return text[:-size], False, text[-size:]
    return text, False, ""


class _ReasoningSplitter:
    """Cuts reasoning from what follows it. White space around the tags belongs to neither."""

    def __init__(self, form: ReasoningFormat, *, begins_inside: bool) -> None:
        self._form = form
        self._begins_inside = begins_inside
        self._state: Callable[[], tuple[str, str] | None] = self._at_start
        self._held = ""
        self._is_first = True
        self._was_inside = begins_inside

    @property
    def is_inside(self) -> bool:
        return self._state == self._inside or (self._state == self._at_start
                                               and self._begins_inside)

    @property
    def is_over(self) -> bool:
        return self._was_inside and not self.is_inside

    def feed(self, text: str) -> tuple[str, str]:
        """(reasoning, text behind it)"""
        self._held += text
        reasoning = content = ""
        while (found := self._state()) is not None:
            reasoning += found[0]
            content += found[1]
        return reasoning, content

    def finish(self) -> tuple[str, str]:
        """The same at the end of the text."""
        held, self._held = self._held, ""
        if self.is_inside:
            return held.strip() if self._is_first else held.rstrip(), ""
        return "", held if self._state == self._at_start else ""

    def _at_start(self) -> tuple[str, str] | None:
        text, tag = self._held.lstrip(), self._form.open
        if text.startswith(tag):
            self._held, self._state = text[len(tag):], self._inside
            self._was_inside = True
        elif tag.startswith(text):
            return None
        elif self._begins_inside:
            self._state = self._inside
        else:
            self._state = self._outside
        return "", ""

    def _inside(self) -> tuple[str, str] | None:
        before, is_found, rest = split_at(self._held, self._form.close)
        if self._is_first:
            before = before.lstrip()
        shown = before.rstrip()
        if is_found:
            self._held, self._state = rest, self._behind
            return shown, ""
        self._held = before[len(shown):] + rest
        if not shown:
            return None
        self._is_first = False
        return shown, ""

    def _behind(self) -> tuple[str, str] | None:
        self._held = self._held.lstrip()
        if not self._held:
            return None
        self._state = self._outside
        return "", ""

    def _outside(self) -> tuple[str, str] | None:
        text, self._held = self._held, ""
        return ("", text) if text else None


class _CallParser:
    """Cuts calls from text. States are methods: each takes what it can of the held text and says
    whether it could go on."""

    def __init__(self, form: ToolFormat, names: frozenset[str], kinds: Kinds) -> None:
        self._form = form
        self._names = names
        self._kinds = kinds
        self.num_calls = 0
        self._state: Callable[[OutputDelta], bool] = (
            self._at_start if form.only_at_start else self._in_text)
        self._held = ""
        self._raw = ""  # since the open marker: text again, should there be no call
        self._num_before = 0  # calls before this marker
        self._object: CallObject | XmlCall | PythonCall = CallObject()
        self._value = JsonValue()

    def feed(self, text: str, delta: OutputDelta) -> None:
        self._held += text
        while self._held and self._state(delta):
            pass

    def finish(self) -> str:
        """The text that is left."""
        text, self._held = self._held, ""
        if self._state in (self._in_call, self._in_arguments, self._in_custom):
            return ""
        if self._state != self._in_text and self._num_before < self.num_calls:
            return ""
        text, self._raw = self._raw + text, ""
        return text if text.strip() or not self.num_calls else ""

    # ---- outside of calls

    def _at_start(self, delta: OutputDelta) -> bool:
        """A call or nothing: the first character that is no white space decides."""
        text = self._held.lstrip()
        if not text:
            return False
        for marker in (self._form.optional_open, CUSTOM_OPEN):
            if marker and text.startswith(marker):
                break
            if marker and marker.startswith(text):
                return False
        else:
            marker = ""
            if text[0] not in "{[":
                self._state = self._only_text
                return True
        self._raw = self._held[:len(self._held) - len(text)]
        if marker == self._form.optional_open:
            self._raw += marker
            text = text[len(marker):]
        self._held, self._state = text, self._in_section
        return True

    def _only_text(self, delta: OutputDelta) -> bool:
        delta.content += self._held
        self._held = ""
        return False

    def _in_text(self, delta: OutputDelta) -> bool:
        before, is_found, rest = split_at(self._held, self._form.open)
        # white space before a call belongs to it
        shown = before.rstrip()
        delta.content += shown
        if is_found:
            self._raw = before[len(shown):] + self._form.open
            self._held, self._num_before = rest, self.num_calls
            self._state = self._in_section
            return True
        self._held = before[len(shown):] + rest
        return False

    def _back_to_text(self, delta: OutputDelta) -> bool:
        """Nothing is lost: what looked like a call and is none is text again."""
        if self._num_before == self.num_calls or self._state == self._in_object:
            delta.content += self._raw
        self._raw = ""
        self._state = self._only_text if self._form.only_at_start else self._in_text
        return True

    # ---- between open and close

    def _in_section(self, delta: OutputDelta) -> bool:
        """Before a call, behind one, or at the end."""
        text = self._held
        for marker in (self._form.close, self._form.open, CUSTOM_OPEN):
            if marker and text.startswith(marker):
                self._raw += marker
                self._held = text[len(marker):]
                if marker == self._form.close:
                    return self._back_to_text(delta)
                if marker == CUSTOM_OPEN:
                    self._state = self._in_custom_name
                return True
            if marker and marker.startswith(text):
                return False
        char = text[0]
        if char.isspace() or char in "[],;":
            self._raw += char
            self._held = text[1:]
        elif char == "<" and self._form.style == "xml":
            self._object, self._state = XmlCall(self._kinds), self._in_object
        elif self._form.style == "python" and (char.isalpha() or char == "_"):
            self._object, self._state = PythonCall(), self._in_object
        elif char == "{" and self._form.style == "json":
            self._object, self._state = CallObject(), self._in_object
        elif self._form.name_then_arguments and (char.isalnum() or char in "_-."):
            self._state = self._in_name
        else:
            return self._back_to_text(delta)
        return True

    def _in_object(self, delta: OutputDelta) -> bool:
        """Before the name is known."""
        taken = self._object.feed(self._held)
        text, self._held = self._held[:taken], self._held[taken:]
        self._raw += text
        name = self._object.name
        if name is None:
            return self._back_to_text(delta) if self._object.failed else False
        # What fails behind its name is a call all the same: in other pieces it was told already.
        if self._form.only_at_start and name not in self._names:
            return self._back_to_text(delta)
        self._begin(name, delta)
        self._state = self._in_call
        return self._tell(delta)

    def _in_call(self, delta: OutputDelta) -> bool:
        taken = self._object.feed(self._held)
        self._held = self._held[taken:]
        return self._tell(delta)

    def _tell(self, delta: OutputDelta) -> bool:
        self._add(self._object.take(), delta)
        if self._object.is_done or self._object.failed:
            self._state = self._in_section
        return True

    def _in_name(self, delta: OutputDelta) -> bool:
        """A name, the text behind it, and then the arguments."""
        before, is_found, rest = split_at(self._held, self._form.name_then_arguments)
        brace = before.find("{")
        if brace >= 0:  # some leave the marker out
            before, is_found, rest = before[:brace], True, before[brace:] + (
                self._form.name_then_arguments if is_found else "") + rest
        if not is_found:
            return False
        self._held = rest
        self._begin(before.strip(), delta)
        self._value, self._state = JsonValue(), self._in_arguments
        return True

    def _in_arguments(self, delta: OutputDelta) -> bool:
        end = self._value.feed(self._held, 0)
        text, self._held = self._held[:end], self._held[end:]
        self._add(text, delta)
        if self._value.is_done:
            self._state = self._back_to_text
        return True

    def _in_custom_name(self, delta: OutputDelta) -> bool:
        before, is_found, rest = split_at(self._held, CUSTOM_NAME_END)
        if not is_found:
            return False
        self._held = rest
        self._begin(before, delta, is_custom=True)
        self._state = self._in_custom
        return True

    def _in_custom(self, delta: OutputDelta) -> bool:
        before, is_found, rest = split_at(self._held, CUSTOM_CLOSE)
        self._held = rest
        self._add(before, delta, is_custom=True)
        if is_found:
            self._state = self._in_section
        return is_found

    def _begin(self, name: str, delta: OutputDelta, *, is_custom: bool = False) -> None:
        delta.calls.append(CallDelta(self.num_calls, call_id=self._form.new_id(), name=name,
                                     is_custom=is_custom))
        self.num_calls += 1
        self._raw = ""

    def _add(self, arguments: str, delta: OutputDelta, *, is_custom: bool = False) -> None:
        if not arguments:
            return
        index = self.num_calls - 1
        last = delta.calls[-1] if delta.calls else None
        if last is not None and last.index == index:  # one delta a call and feed
            delta.calls[-1] = dataclasses.replace(last, arguments=last.arguments + arguments)
        else:
            delta.calls.append(CallDelta(index, arguments, is_custom=is_custom))
