"""Text to token ids and back. Control tokens are read in text only when the caller asks.

Wraps a `tokenizers.Tokenizer`, whatever it was made from. Knows nothing of files (`loading.py`),
chat messages (`chat_template.py`) or streaming (`detokenizer.py`).
"""

import json
import re
import threading
from collections.abc import Iterable, Sequence

import tokenizers

from octavo.errors import ContextLengthError, InvalidRequestError, UnsupportedModelError
from octavo.tokenizer.fim import find_fim_tokens

_SPACE_MARK = "▁"  # how SentencePiece-style vocabularies write a space
_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class Tokenizer:
    """Encodes and decodes; safe to share between threads.

    Args:
        inner: the `tokenizers` object; its truncation and padding are switched off.
        vocab_size: number of ids; None means what `inner` says.
        eos_token_ids: ids that end a generation, the primary one first.
        bos_token_id: None if the model has none.
        prefix_ids, suffix_ids: what `add_special_tokens` puts around a text.
        fim_ids: (before, after, middle) of fill-in-the-middle, where the model's file names them.

    Raises:
        UnsupportedModelError: the decoder is neither byte-level nor SentencePiece-style.
    """

    def __init__(
        self,
        inner: tokenizers.Tokenizer,
        *,
        vocab_size: int | None = None,
        eos_token_ids: Sequence[int] = (),
        bos_token_id: int | None = None,
        prefix_ids: Sequence[int] = (),
        suffix_ids: Sequence[int] = (),
        fim_ids: Sequence[int | None] = (),
    ) -> None:
        inner.no_truncation()
        inner.no_padding()
        self._inner = inner
        self._byte_level = _is_byte_level(inner)
        self._plain: tokenizers.Tokenizer | None = None
        self._plain_lock = threading.Lock()

        self.vocab_size = vocab_size or inner.get_vocab_size(with_added_tokens=True)
        self.eos_token_ids = tuple(dict.fromkeys(eos_token_ids))
        self.bos_token_id = bos_token_id
        self._prefix_ids = tuple(prefix_ids)
        self._suffix_ids = tuple(suffix_ids)
        self.fim = find_fim_tokens(inner.token_to_id, fim_ids)

        added = inner.get_added_tokens_decoder()
        self._added_text = {i: token.content for i, token in added.items()}
        special = {i: token for i, token in added.items() if token.special}
        self.special_ids = frozenset(special)
        self.control_tokens = {token.content: i for i, token in special.items()}
        # Control tokens that swallow the whitespace before or after them: id -> (left, right).
        self._strips = {i: (t.lstrip, t.rstrip) for i, t in special.items() if t.lstrip or t.rstrip}
        self._normalized_control = inner.normalizer is not None and any(
            token.normalized for token in special.values()
        )
        # Unknown text becomes the unknown token; that is not a control token come to life.
        unknown = getattr(inner.model, "unk_token", None)
        unknown_id = None if unknown is None else inner.token_to_id(unknown)
        self._unforgeable_ids = self.special_ids - {unknown_id}

        self._max_tokens: int | None = None  # of one text, see limit_text
        self._longest_token: int | None = None  # characters

        self._bytes: list[bytes | None] = [None] * self.vocab_size
        self._text: list[str | None] = [None] * self.vocab_size

    @property
    def add_bos(self) -> bool:
        """Whether `add_special_tokens` begins a text with BOS."""
        return self.bos_token_id is not None and self.bos_token_id in self._prefix_ids

    # --- text to ids ---

    def limit_text(self, max_tokens: int) -> None:
        """From now on a text that surely has more than max_tokens tokens is refused unread.

        Tokenizing costs time and hundreds of bytes a token, so a server must not do it for a
        prompt that cannot run anyway.
        """
        self._max_tokens = max_tokens

    def _check_length(self, num_chars: int) -> None:
        if self._max_tokens is None or num_chars <= self._max_tokens:
            return
        if self._longest_token is None:
            # A vocabulary entry spells at least one character of text a character. A normalizer
            # may join characters before (NFC: up to 3 code points in one), hence the factor.
            shrink = 1 if self._inner.normalizer is None and not self._strips else 4
            self._longest_token = shrink * max(map(len, self._inner.get_vocab()))
        most = self._max_tokens * self._longest_token
        if num_chars > most:
            raise ContextLengthError(
                f"the text has {num_chars} characters; {self._max_tokens} tokens of context hold "
                f"at most {most}: shorten it"
            )

    def encode(
        self, text: str, *, add_special_tokens: bool = True, parse_special: bool = False
    ) -> list[int]:
        """Token ids of `text`.

        Args:
            add_special_tokens: put BOS (and EOS) around it where the model wants them.
            parse_special: read control tokens written in the text. Off, their text is encoded as
                any other text and can never yield a control token.

        Raises:
            InvalidRequestError: the text holds a lone surrogate.
            ContextLengthError: it is too long to be read, see `limit_text`.
        """
        return self.encode_batch(
            [text], add_special_tokens=add_special_tokens, parse_special=parse_special
        )[0]

    def encode_batch(
        self,
        texts: Sequence[str],
        *,
        add_special_tokens: bool = True,
        parse_special: bool = False,
    ) -> list[list[int]]:
        """`encode` for many texts, on all cores."""
        for text in texts:
            if isinstance(text, str):
                self._check_length(len(text))
        try:
            encodings = self._inner.encode_batch_fast(list(texts), add_special_tokens=False)
        except (TypeError, UnicodeError):
            raise InvalidRequestError(
                "a text to tokenize is not valid Unicode (it holds half of a surrogate pair)"
            ) from None
        batch = [encoding.ids for encoding in encodings]
        if not parse_special:
            # Only a text in which a control token was read needs the second, blind tokenizer.
            for row, ids in enumerate(batch):
                if not self._unforgeable_ids.isdisjoint(ids) or self._normalized_control:
                    batch[row] = self._encode_plain(texts[row])
        if add_special_tokens and (self._prefix_ids or self._suffix_ids):
            return [[*self._prefix_ids, *ids, *self._suffix_ids] for ids in batch]
        return batch

    def encode_gap(self, before: Sequence[int], after: Sequence[int], *,
                   add_special_tokens: bool = True) -> list[int]:
        """The prompt for the text between two others, given as ids without special tokens. Only
        where `fim` is not None.

        add_special_tokens: begin with BOS where the model wants it.
        """
        assert self.fim is not None
        start = self._prefix_ids if add_special_tokens else ()
        return [*start, *self.fim.prompt(before, after)]

    def encode_pieces(self, pieces: Sequence[tuple[bool, str]]) -> list[int]:
        """Token ids of a text given as (is a control token, text) pieces; nothing is added.

        Text pieces never yield control tokens. When the joined text has no other control token
        than the marked ones, the result is exactly `encode(joined, parse_special=True)`.

        Raises InvalidRequestError, and ContextLengthError as `limit_text` says.
        """
        self._check_length(sum(len(piece) for _, piece in pieces))
        try:
            encoding = self._inner.encode(
                "".join(piece for _, piece in pieces), add_special_tokens=False
            )
        except (TypeError, UnicodeError):
            raise InvalidRequestError(
                "a text to tokenize is not valid Unicode (it holds half of a surrogate pair)"
            ) from None
        if not self._normalized_control and self._reads_exactly(encoding, pieces):
            return encoding.ids
        return self._encode_piecewise(pieces)

    def _reads_exactly(
        self, encoding: tokenizers.Encoding, pieces: Sequence[tuple[bool, str]]
    ) -> bool:
        """Whether the control tokens in `encoding` are the marked ones, each at its place."""
        marked = []
        at = 0
        for is_control, piece in pieces:
            if is_control:
                marked.append((self.control_tokens[piece], at, at + len(piece)))
            at += len(piece)
        read = [
            (token_id, index)
            for index, token_id in enumerate(encoding.ids)
            if token_id in self._unforgeable_ids
        ]
        if [token_id for token_id, _ in read] != [token_id for token_id, _, _ in marked]:
            return False
        for (_, index), (_, start, end) in zip(read, marked):
            span = encoding.token_to_chars(index)
            # A span may be wider than its token by the whitespace that the token swallows.
            if span is None or not (span[0] <= start and end <= span[1]):
                return False
        return True

    def _encode_piecewise(self, pieces: Sequence[tuple[bool, str]]) -> list[int]:
        ids: list[int] = []
        strip_next = False
        for index, (is_control, text) in enumerate(pieces):
            if is_control:
                token_id = self.control_tokens[text]
                ids.append(token_id)
                strip_next = self._strips.get(token_id, (False, False))[1]
                continue
            if strip_next:
                text = text.lstrip()
            if index + 1 < len(pieces) and pieces[index + 1][0]:
                following = self.control_tokens[pieces[index + 1][1]]
                if self._strips.get(following, (False, False))[0]:
                    text = text.rstrip()
            strip_next = False
            if text:
                ids.extend(self._encode_plain(text))
        return ids

    def _encode_plain(self, text: str) -> list[int]:
        """Ids of `text` with no control token among them, whatever it says."""
        ids = self._blind().encode(text, add_special_tokens=False).ids
        if self._unforgeable_ids.isdisjoint(ids):
            return ids
        # The vocabulary itself spells a control token as a word. Cut that word in two, everywhere.
        for token_id in self._unforgeable_ids.intersection(ids):
            content = self._added_text[token_id]
            if len(content) > 1 and content in text:
                first, rest = content[:1], content[1:]
                between = text.split(content)
                chunks = [rest + chunk + first for chunk in between]
                chunks[0] = chunks[0].removeprefix(rest)
                chunks[-1] = chunks[-1].removesuffix(first)
                return [i for chunk in chunks for i in self._encode_plain(chunk)]
        return [token_id for token_id in ids if token_id not in self._unforgeable_ids]

    def _blind(self) -> tokenizers.Tokenizer:
        """The same tokenizer, blind to control tokens; made when first needed (0.15 s, 49k ids)."""
        with self._plain_lock:
            if self._plain is None:
                plain = tokenizers.Tokenizer.from_str(self._inner.to_str())
                plain.encode_special_tokens = True
                self._plain = plain
            return self._plain

    # --- ids to text ---

    def decode(self, token_ids: Iterable[int], *, skip_special_tokens: bool = True) -> str:
        """Text of `token_ids`; bytes that are not UTF-8 become U+FFFD. Ids without text vanish.

        SentencePiece-style vocabularies mark the start of a text with a space, which is dropped.
        """
        data = b"".join(
            self.id_to_bytes(token_id)
            for token_id in token_ids
            if not (skip_special_tokens and token_id in self.special_ids)
        )
        text = data.decode("utf-8", errors="replace")
        return text if self._byte_level else text.removeprefix(" ")

    def id_to_bytes(self, token_id: int) -> bytes:
        """The exact bytes of one token; nothing for an id outside the vocabulary."""
        if not 0 <= token_id < self.vocab_size:
            return b""
        data = self._bytes[token_id]
        if data is None:
            data = self._bytes[token_id] = self._make_bytes(token_id)
        return data

    def id_to_token_text(self, token_id: int) -> str:
        """One token for people to read: spaces as spaces, broken UTF-8 as U+FFFD."""
        return self.id_to_bytes(token_id).decode("utf-8", errors="replace")

    def token_str(self, token_id: int) -> str:
        """The vocabulary's own spelling of a token; empty for an id outside the vocabulary."""
        if not 0 <= token_id < self.vocab_size:
            return ""
        return self._inner.id_to_token(token_id) or ""

    def whole_text(self, token_id: int) -> str | None:
        """The token's text if its bytes are UTF-8 on their own, else None. Cached."""
        if not 0 <= token_id < self.vocab_size:
            return ""
        text = self._text[token_id]
        if text is None:
            try:
                text = self.id_to_bytes(token_id).decode("utf-8")
            except UnicodeDecodeError:
                return None
            self._text[token_id] = text
        return text

    def token_to_id(self, token: str) -> int | None:
        """Id of a token in the vocabulary's own spelling."""
        return self._inner.token_to_id(token)

    def to_json(self) -> str:
        """The text of a tokenizer.json."""
        return self._inner.to_str()

    def _make_bytes(self, token_id: int) -> bytes:
        added = self._added_text.get(token_id)
        if added is not None:
            return added.encode("utf-8")
        token = self._inner.id_to_token(token_id)
        if token is None:
            return b""
        if self._byte_level:
            try:
                return bytes(map(_BYTE_OF_CHAR.__getitem__, token))
            except KeyError:  # not in the byte alphabet: an unused entry, stands for itself
                return token.encode("utf-8")
        byte = _BYTE_TOKEN.fullmatch(token)
        if byte is not None:
            return bytes([int(byte[1], 16)])
        return token.replace(_SPACE_MARK, " ").encode("utf-8")


def _byte_alphabet() -> dict[str, int]:
    """Character to byte, as GPT-2 defined it: printable Latin-1 stands for itself, the other
    bytes follow from U+0100 in order."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(b): b for b in printable} | {chr(0x100 + n): b for n, b in enumerate(others)}


_BYTE_OF_CHAR = _byte_alphabet()


def _is_byte_level(inner: tokenizers.Tokenizer) -> bool:
    """True for byte-level, False for SentencePiece-style with its space mark; refuses others."""
    decoder = inner.decoder
    if decoder is None:
        raise UnsupportedModelError("the tokenizer names no decoder, so ids cannot become text")
    description = json.loads(decoder.__getstate__())
    parts = description["decoders"] if description["type"] == "Sequence" else [description]
    kinds = {part["type"] for part in parts}
    if "ByteLevel" in kinds and kinds <= {"ByteLevel", "Fuse"}:
        return True
    if kinds & {"Metaspace", "Replace"} and kinds <= {
        "Metaspace", "Replace", "ByteFallback", "Fuse", "Strip",
    }:  # fmt: skip
        for part in parts:
            mark = part.get("replacement") or part.get("pattern", {}).get("String")
            if part["type"] in ("Metaspace", "Replace") and mark != _SPACE_MARK:
                raise UnsupportedModelError(f"the tokenizer's decoder replaces {mark!r}, not '▁'")
        return False
    raise UnsupportedModelError(f"the tokenizer's decoder ({', '.join(sorted(kinds))}) is unknown")
