"""What callers give to generate() and chat(), in all its forms, as lists of one form.

Checks shapes only; what a prompt says is input_processor.py's business.
"""

import operator
from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Any

from octavo.core.sampling_params import SamplingParams
from octavo.engine.chat import Message
from octavo.engine.input_processor import Prompt
from octavo.errors import InvalidRequestError

_BYTES = (bytes, bytearray, memoryview)
_PROMPT_FORMS = "give text, token ids, or a list of them"
_PARAMS_FORMS = "give one SamplingParams, or a list of one for each prompt"
_MESSAGES_FORM = 'give a list of {"role": ..., "content": ...}'


def prompt_list(prompts: object) -> list[Prompt]:
    """The prompts of a call; a single one, in any of its forms, becomes a list of one.

    Integers of any type, an array of them included, are one prompt of token ids; an array of two
    dimensions is one prompt a row. Raises InvalidRequestError.
    """
    if isinstance(prompts, (str, Mapping)):
        return [prompts]
    if isinstance(prompts, _BYTES):
        raise _bad("prompts", prompts, "decode it to text, or give a list of token ids")
    if isinstance(prompts, Set) or not _is_iterable(prompts):
        raise _bad("prompts", prompts, _PROMPT_FORMS)
    items: list[Any] = list(prompts)  # type: ignore[call-overload]
    empty_array = not items and getattr(prompts, "ndim", 0) == 1
    if empty_array or (items and all(_is_int(i) for i in items)):
        return [items]
    return items


def params_list(given: object, count: int) -> list[SamplingParams]:
    """One SamplingParams for each of `count` prompts. Raises InvalidRequestError."""
    if isinstance(given, SamplingParams):
        return [given] * count
    if not isinstance(given, Sequence) or isinstance(given, (str, *_BYTES)):
        fix = ("give SamplingParams(...) with these as arguments" if isinstance(given, Mapping)
               else _PARAMS_FORMS)
        raise _bad("sampling_params", given, fix)
    if len(given) != count:
        raise InvalidRequestError(f"sampling_params has {len(given)} entries for {count} "
                                  "prompts: give one for all, or one each",
                                  param="sampling_params")
    for i, one in enumerate(given):
        if not isinstance(one, SamplingParams):
            raise _bad(f"sampling_params[{i}]", one, "give a SamplingParams",
                       param="sampling_params")
    return list(given)


def priority_list(given: object, count: int) -> list[int]:
    """A priority for each of `count` prompts. Raises InvalidRequestError."""
    if given is None:
        return [0] * count
    if not _is_iterable(given) or isinstance(given, (str, Mapping, Set, *_BYTES)):
        raise _bad("priority", given, "give a list of whole numbers, one each")
    values = list(given)  # type: ignore[call-overload]
    if len(values) != count:
        raise InvalidRequestError(f"priority has {len(values)} entries for {count} "
                                  "prompts: give one each", param="priority")
    for value in values:
        if not _is_int(value):
            raise _bad("priority", value, "give whole numbers")
    return [operator.index(v) for v in values]


def conversation_list(messages: object) -> list[Sequence[Message]]:
    """The conversations of a call; a single one becomes a list of one. Raises
    InvalidRequestError."""
    if isinstance(messages, (str, Mapping, Set, *_BYTES)) or not _is_iterable(messages):
        raise _bad("messages", messages, f"{_MESSAGES_FORM}, or a list of such lists")
    items: list[Any] = list(messages)  # type: ignore[call-overload]
    if not items or isinstance(items[0], Mapping):
        return [items]
    for i, conversation in enumerate(items):
        if isinstance(conversation, (str, Mapping, *_BYTES)) or not _is_iterable(conversation):
            raise _bad(f"messages[{i}]", conversation, _MESSAGES_FORM, param="messages")
    return [list(conversation) for conversation in items]


def check_num_samples(params: Iterable[SamplingParams], most: int) -> None:
    """Raises InvalidRequestError where one request alone has more samples than may ever wait."""
    for one in params:
        if one.n > most:
            raise InvalidRequestError(
                f"n is {one.n}: this engine runs or queues {most} samples, give at most that many",
                param="n")


def _is_iterable(value: object) -> bool:
    try:
        iter(value)  # type: ignore[call-overload]
    except TypeError:
        return False
    return True


def _is_int(value: object) -> bool:
    try:
        operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        return False
    # an array of one integer converts too, but is a list
    return not getattr(value, "ndim", 0)


def _bad(name: str, value: object, fix: str, *, param: str | None = None) -> InvalidRequestError:
    article = "an" if type(value).__name__[0] in "aeiouAEIOU" else "a"
    kind = "None" if value is None else f"{article} {type(value).__name__}"
    return InvalidRequestError(f"{name} is {kind}: {fix}", param=param or name)
