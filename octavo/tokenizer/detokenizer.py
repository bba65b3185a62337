"""Turns the ids of a growing output into text, never splitting a character.

Knows tokens and bytes; knows nothing of stop strings, requests or logprobs.
"""

import codecs
from collections.abc import Sequence

from octavo.tokenizer.tokenizer import Tokenizer

# A UTF-8 character has at most four bytes, so three can be waiting for the rest.
_MAX_PENDING_BYTES = 3
# Tokens looked at to find the unfinished character at the end of a prompt: each has a byte or more
# (special tokens without text aside), and a few more do no harm.
_PROMPT_TAIL_TOKENS = 8
_REPLACEMENT = "\ufffd"
_REPLACEMENT_BYTES = b"\xef\xbf\xbd"


class IncrementalDetokenizer:
    """Text of one output, piece by piece.

    The pieces and the final `flush` joined are the UTF-8 text of the output's bytes (broken bytes
    become U+FFFD). If the prompt ends inside a character, the output's first bytes may finish it:
    then the whole character is the output's. Text of the prompt is never emitted.

    Args:
        prompt_token_ids: ids the output continues; only the last few are read.
        skip_special_tokens: leave control tokens out of the text.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        prompt_token_ids: Sequence[int] = (),
        *,
        skip_special_tokens: bool = True,
    ) -> None:
        self._tokenizer = tokenizer
        self._skipped_ids = tokenizer.special_ids if skip_special_tokens else frozenset()
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._tail = self._prompt_tail(prompt_token_ids)
        self._decoder.decode(self._tail)
        self._from_prompt = bool(self._tail)  # the waiting bytes are the prompt's alone
        self._pending = bool(self._tail)  # some bytes wait for the rest of a character

    def push(self, token_ids: Sequence[int]) -> str:
        """The text that these tokens add; empty while a character is unfinished.

        Pushing one token at a time gives the text that each token completes.
        """
        text = ""
        for token_id in token_ids:
            if token_id in self._skipped_ids:
                continue
            if not self._pending:
                whole = self._tokenizer.whole_text(token_id)
                if whole is not None:
                    text += whole
                    continue
            text += self._decode(self._tokenizer.id_to_bytes(token_id))
        return text

    def flush(self) -> str:
        """The end of the text: U+FFFD if a character of the output was left unfinished."""
        text = self._decoder.decode(b"", final=True)
        if self._from_prompt:
            text = ""
        self._pending = self._from_prompt = False
        return text

    def _decode(self, data: bytes) -> str:
        if not data:
            return ""
        if not self._from_prompt:
            text = self._decoder.decode(data)
        else:
            self._from_prompt = False
            first = self._decoder.decode(data[:1])
            # The output does not go on with the prompt's character: that U+FFFD is the prompt's.
            if first.startswith(_REPLACEMENT) and self._tail + data[:1] != _REPLACEMENT_BYTES:
                first = first[1:]
            text = first + self._decoder.decode(data[1:])
        self._pending = bool(self._decoder.getstate()[0])
        return text

    def _prompt_tail(self, prompt_token_ids: Sequence[int]) -> bytes:
        """The bytes of an unfinished character at the end of the prompt; mostly none."""
        tail = b""
        for token_id in reversed(prompt_token_ids[-_PROMPT_TAIL_TOKENS:]):
            if token_id in self._tokenizer.special_ids:
                break
            tail = self._tokenizer.id_to_bytes(token_id) + tail
            if len(tail) > _MAX_PENDING_BYTES:
                break
        probe = codecs.getincrementaldecoder("utf-8")(errors="replace")
        probe.decode(tail)
        return probe.getstate()[0]
