"""Renders chat messages with a model's Jinja template, keeping track of the control tokens.

A control token in the rendered prompt is real only if the template's own text (or its bos_token and
eos_token) says it. The same characters typed by a user stay text. To tell them apart, every control
token in the template's literals is replaced, once, by one surrogate code point, which no valid text
of a user can hold; after rendering, these are the control tokens and all the rest is text.

Knows nothing of token ids, files of models or HTTP.
"""

import datetime
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2
import jinja2.ext
from jinja2 import meta, nodes
from jinja2.optimizer import optimize
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from octavo.errors import ConfigError, InvalidRequestError
from octavo.tokenizer.messages import ContentFormat, normalize_messages, plain_copy
from octavo.tokenizer.tokenizer import Tokenizer

# Characters of a rendered prompt: beyond any context length, and cheap enough to refuse late.
MAX_RENDERED_CHARS = 8 << 20
_MAX_TEMPLATE_CHARS = 1 << 20

# Surrogate code points that mark things in a rendered text: U+D800 up, one for each control token
# that the template names, and the last three for what follows.
_FIRST_MARK = 0xD800
_ROLE_OPEN, _ROLE_CLOSE, _END_OF_FINAL = "\udffd", "\udffe", "\udfff"
_MAX_MARKS = 0xDFFD - _FIRST_MARK
_MARKS = re.compile("[\ud800-\udfff]")

# Roles that a template may weave into a control token, as in '<|' + role + '|>'.
_KNOWN_ROLES = ("system", "user", "assistant", "tool", "developer", "function", "ipython")
# Names that `extra` cannot set: they are the arguments of `render`, or dangerous.
_RESERVED = frozenset(
    {
        "messages",
        "tools",
        "documents",
        "add_generation_prompt",
        "continue_final_message",
        "bos_token",
        "eos_token",
        "chat_template",
    }
)


@dataclass(slots=True, frozen=True)
class RenderedPrompt:
    """A prompt as (is a control token, text) pieces, in order. No piece is empty."""

    pieces: tuple[tuple[bool, str], ...]

    @property
    def text(self) -> str:
        """The whole prompt as text."""
        return "".join(piece for _, piece in self.pieces)


class ChatTemplate:
    """A compiled template. Rendering is a pure function of its arguments (and today's date, for
    templates that call strftime_now); safe to share between threads.

    Args:
        source: Jinja text; None makes a template that refuses everything with `missing_reason`.
        bos_token, eos_token: what these names print; "" if the model has none.
        control_tokens: the texts of all control tokens of the tokenizer.
        tool_use_source: another template, for requests with tools.

    Raises:
        ConfigError: the source is not a template.
    """

    def __init__(
        self,
        source: str | None,
        *,
        bos_token: str,
        eos_token: str,
        control_tokens: Iterable[str],
        tool_use_source: str | None = None,
        missing_reason: str = "no chat template is loaded; give one (chat_template, or serve "
        "--chat-template FILE)",
    ) -> None:
        self.source = source
        self._missing_reason = missing_reason
        tokens = tuple(control_tokens)
        self._main = None if source is None else _Compiled(source, bos_token, eos_token, tokens)
        self._tool_use = self._main
        self._tool_use_source = tool_use_source
        if tool_use_source is not None:
            self._tool_use = _Compiled(tool_use_source, bos_token, eos_token, tokens)

    @classmethod
    def from_file(
        cls, path: str | Path, *, bos_token: str, eos_token: str, control_tokens: Iterable[str]
    ) -> "ChatTemplate":
        """The template in a file. Raises ConfigError if it cannot be read or is not a template."""
        try:
            source = Path(path).read_text(encoding="utf-8")
        except OSError as error:
            reason = (error.strerror or _one_line(error)).lower()
            raise ConfigError(f"chat_template {str(path)!r}: {reason}") from None
        except UnicodeDecodeError as error:
            raise ConfigError(f"chat_template {str(path)!r}: {_one_line(error)}") from None
        try:
            return cls(
                source, bos_token=bos_token, eos_token=eos_token, control_tokens=control_tokens
            )
        except ConfigError as error:
            raise ConfigError(f"chat_template {str(path)!r}: {error}") from None

    @property
    def is_missing(self) -> bool:
        """Whether every render is refused."""
        return self._main is None

    @property
    def takes_tools(self) -> bool:
        """Whether it prints the tools of a request."""
        return self._tool_use is not None and "tools" in self._tool_use.names

    @property
    def text(self) -> str:
        """The Jinja text, of both templates where there are two."""
        return "\n".join(filter(None, (self.source, self._tool_use_source)))

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        extra: Mapping[str, Any] | None = None,
    ) -> RenderedPrompt:
        """The prompt for `messages`.

        Args:
            add_generation_prompt: end with the opening of an assistant's turn.
            continue_final_message: leave the last message's turn open, to be gone on with.
            extra: further variables (chat_template_kwargs); names the template does not use are
                dropped.

        Raises:
            InvalidRequestError: a bad message, an error raised by the template, both ways to end
                the prompt asked for, or no template.
        """
        compiled = self._tool_use if tools else self._main
        if compiled is None:
            raise InvalidRequestError(self._missing_reason, param="messages")
        if add_generation_prompt and continue_final_message:
            raise InvalidRequestError(
                "add_generation_prompt and continue_final_message are both true: set one to false",
                param="continue_final_message",
            )
        variables = compiled.checked_extra(extra)
        variables["tools"] = plain_copy(tools, "tools") if tools else None
        variables["documents"] = plain_copy(documents, "documents") if documents else None
        variables["add_generation_prompt"] = add_generation_prompt
        return compiled.render(messages, variables, continue_final_message)


def encode_chat(tokenizer: Tokenizer, rendered: RenderedPrompt) -> list[int]:
    """Token ids of a rendered prompt; BOS is there only if the template wrote it."""
    return tokenizer.encode_pieces(rendered.pieces)


class _Role(str):
    """A well-known role: compares as its text, prints between marks, so that a control token woven
    around it can be told from a user's text."""

    __slots__ = ()

    def __str__(self) -> str:
        return f"{_ROLE_OPEN}{str.__str__(self)}{_ROLE_CLOSE}"

    def __add__(self, other: str) -> str:
        return str(self) + other

    def __radd__(self, other: str) -> str:
        return other + str(self)


class _Compiled:
    """One Jinja source with its control tokens marked."""

    def __init__(
        self, source: str, bos_token: str, eos_token: str, control_tokens: tuple[str, ...]
    ) -> None:
        if len(source) > _MAX_TEMPLATE_CHARS:
            raise ConfigError(f"chat template is longer than {_MAX_TEMPLATE_CHARS} characters")
        if _MARKS.search(source):
            raise ConfigError("chat template is not valid Unicode")
        environment = _environment()
        try:
            tree = environment.parse(source)
            self.names = meta.find_undeclared_variables(tree)
            self._content_format = _content_format(tree)
            self._marker = _Marker(control_tokens)
            # Constant expressions first: a token spelled '<|' ~ 'user' ~ '|>' is one literal.
            optimize(tree, environment)
            self._marker.mark_literals(tree)
            self._bos_eos = {
                "bos_token": self._marker.mark(bos_token),
                "eos_token": self._marker.mark(eos_token),
            }
            self._template = environment.from_string(tree)
        except jinja2.TemplateSyntaxError as error:
            raise ConfigError(
                f"chat template does not parse: line {error.lineno}: {_one_line(error)}"
            ) from None
        except RecursionError:
            raise ConfigError("chat template does not parse: nested too deeply") from None
        self._globals = frozenset(environment.globals)
        self._keep_developer = "developer" in source
        # Control tokens around a role, by role: only those the template does not spell out.
        self._woven = {
            role: tuple(
                (before, after)
                for token in control_tokens
                if role in token and token not in source
                for before, after in [token.split(role, 1)]
            )
            for role in _KNOWN_ROLES
        }
        self._weaves_roles = any(self._woven.values())

    def checked_extra(self, extra: Mapping[str, Any] | None) -> dict[str, Any]:
        """The variables among `extra` that the template uses and that may be set."""
        if not extra:
            return {}
        for name in extra:
            if name in _RESERVED:
                raise InvalidRequestError(
                    f"chat_template_kwargs.{name} cannot be set there", param="chat_template_kwargs"
                )
        return {
            name: plain_copy(value, f"chat_template_kwargs.{name}")
            for name, value in extra.items()
            if name in self.names and name not in self._globals
        }

    def render(
        self, messages: Any, variables: dict[str, Any], continue_final_message: bool
    ) -> RenderedPrompt:
        chat = normalize_messages(
            messages, content_format=self._content_format, keep_developer=self._keep_developer
        )
        tail = _open_end(chat[-1]) if continue_final_message else ""
        if self._weaves_roles:
            for message in chat:
                if message["role"] in _KNOWN_ROLES:
                    message["role"] = _Role(message["role"])
        marked = self._run({**variables, **self._bos_eos, "messages": chat})
        if continue_final_message:
            marked = _cut_at_end(marked, tail)
        return RenderedPrompt(tuple(_merged(self._pieces(marked))))

    def _run(self, variables: dict[str, Any]) -> str:
        parts = []
        size = 0
        try:
            for part in self._template.generate(variables):
                size += len(part)
                if size > MAX_RENDERED_CHARS:
                    raise InvalidRequestError(
                        f"the rendered prompt is longer than {MAX_RENDERED_CHARS} characters",
                        param="messages",
                    )
                parts.append(part)
        except InvalidRequestError:
            raise
        except Exception as error:  # whatever a template does wrong with these messages
            raise InvalidRequestError(
                f"the chat template cannot render these messages: {_one_line(error)}",
                param="messages",
            ) from None
        return "".join(parts)

    def _pieces(self, marked: str) -> Iterator[tuple[bool, str]]:
        """(is a control token, text) in order; neighbouring text pieces are not merged yet."""
        text = ""  # plain text since the last control token
        at = 0
        while (match := _MARKS.search(marked, at)) is not None:
            mark = match[0]
            text += marked[at : match.start()]
            at = match.end()
            if mark == _ROLE_OPEN:
                end = marked.find(_ROLE_CLOSE, at)
                role = marked[at : end if end >= 0 else len(marked)]
                at = end + 1 if end >= 0 else len(marked)
                woven = self._woven_around(role, text, marked, at)
                if woven is None:
                    text += role
                    continue
                before, after = woven
                yield False, text[: len(text) - len(before)]
                yield True, before + role + after
                text = ""
                at += len(after)
            elif (token := self._marker.token(mark)) is not None:
                yield False, text
                yield True, token
                text = ""
        yield False, text + marked[at:]

    def _woven_around(self, role: str, text: str, marked: str, at: int) -> tuple[str, str] | None:
        for before, after in self._woven.get(role, ()):
            if text.endswith(before) and marked.startswith(after, at):
                return before, after
        return None


class _Marker:
    """Gives each control token that occurs in the template a surrogate code point."""

    def __init__(self, control_tokens: Iterable[str]) -> None:
        by_length = sorted((t for t in control_tokens if t), key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, by_length))) if by_length else None
        self._marks: dict[str, str] = {}
        self._tokens: dict[str, str] = {}

    def mark(self, text: str) -> str:
        """`text` with its control tokens replaced by their marks."""
        return text if self._pattern is None else self._pattern.sub(self._mark_of, text)

    def token(self, mark: str) -> str | None:
        """The control token of a mark."""
        return self._tokens.get(mark)

    def mark_literals(self, tree: nodes.Template) -> None:
        """Marks, in place, all text that the template itself contributes."""
        for data in tree.find_all(nodes.TemplateData):
            data.data = self.mark(data.data)
        keys = {id(item.arg) for item in tree.find_all(nodes.Getitem)}  # names, never printed
        for constant in tree.find_all(nodes.Const):
            if isinstance(constant.value, str) and id(constant) not in keys:
                constant.value = self.mark(constant.value)

    def _mark_of(self, match: re.Match[str]) -> str:
        token = match[0]
        if token not in self._marks:
            if len(self._marks) >= _MAX_MARKS:
                raise ConfigError(f"chat template names more than {_MAX_MARKS} control tokens")
            mark = chr(_FIRST_MARK + len(self._marks))
            self._marks[token] = mark
            self._tokens[mark] = token
        return self._marks[token]


class _GenerationTag(jinja2.ext.Extension):
    """{% generation %} ... {% endgeneration %}, which training tools use: renders its body."""

    tags = {"generation"}  # noqa: RUF012 (jinja2 declares it as a plain set)

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[_GenerationTag, jinja2.ext.loopcontrols],
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as it is, where Jinja's own filter escapes for HTML."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _raise_exception(message: str) -> None:
    plain = _MARKS.sub("", str(message))
    raise InvalidRequestError(f"the chat template refuses: {_one_line(plain)}", param="messages")


def _strftime_now(form: str) -> str:
    return datetime.datetime.now().strftime(form)


def _content_format(tree: nodes.Template) -> ContentFormat:
    """What the template does with `content`: goes through its parts, prints it, or either."""
    names = {"content"}
    for assign in tree.find_all(nodes.Assign):
        if isinstance(assign.target, nodes.Name) and _is_content(assign.node, names):
            names.add(assign.target.name)
    if not any(_is_content(loop.iter, names) for loop in tree.find_all(nodes.For)):
        return "string"
    for test in tree.find_all(nodes.Test):
        if test.name in ("string", "iterable", "sequence") and _is_content(test.node, names):
            return "both"
    return "list"


def _is_content(node: nodes.Node, names: set[str]) -> bool:
    if isinstance(node, nodes.Getattr):
        return node.attr == "content"
    if isinstance(node, nodes.Getitem):
        return isinstance(node.arg, nodes.Const) and node.arg.value == "content"
    return isinstance(node, nodes.Name) and node.name in names


def _open_end(message: dict[str, Any]) -> str:
    """Marks the end of the final message's text, less the white space at its end, and returns that
    white space (a template may trim it)."""
    content = message["content"]
    text = content if isinstance(content, str) else content[-1]["text"] if content else ""
    kept = text.rstrip()
    if isinstance(content, str):
        message["content"] = kept + _END_OF_FINAL + text[len(kept) :]
    elif content:
        content[-1]["text"] = kept + _END_OF_FINAL + text[len(kept) :]
    return text[len(kept) :]


def _cut_at_end(marked: str, tail: str) -> str:
    """The rendered text up to the end of the final message, its white space too if it is there."""
    before, mark, after = marked.rpartition(_END_OF_FINAL)
    if not mark:
        raise InvalidRequestError(
            "continue_final_message: the chat template does not print the final message's content",
            param="continue_final_message",
        )
    return before + tail if after.startswith(tail) else before


def _merged(pieces: Iterable[tuple[bool, str]]) -> Iterator[tuple[bool, str]]:
    """Without empty pieces, and with neighbouring texts joined."""
    text = ""
    for is_control, piece in pieces:
        if not is_control:
            text += piece
            continue
        if text:
            yield False, text
            text = ""
        yield True, piece
    if text:
        yield False, text


def _one_line(error: object) -> str:
    """At most 300 characters of what went wrong, on one line, without marks."""
    message = " ".join(_MARKS.sub("", str(error)).split())
    return message[:300] or type(error).__name__
