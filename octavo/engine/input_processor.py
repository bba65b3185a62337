"""InputProcessor: a user's prompt and SamplingParams -> EngineCoreRequests, checked.

The last place where a request can be refused for what it says. Knows the tokenizer and the
engine's limits; knows neither scheduling nor HTTP.
"""

import dataclasses
import hashlib
import itertools
import operator
import secrets
import time
from collections.abc import Mapping, Sequence, Set
from typing import Any

import msgspec

from octavo.core.messages import EngineCoreRequest
from octavo.core.sampling_params import SamplingParams
from octavo.errors import ContextLengthError, InvalidRequestError, RequestTooLargeError
from octavo.grammar.checker import GrammarChecker
from octavo.tokenizer.tokenizer import Tokenizer

# str | token ids | {"prompt": str} | {"prompt_token_ids": ids} (the latter may carry both)
Prompt = str | Sequence[int] | Mapping[str, Any]

_PROMPT_KEYS = {"prompt", "prompt_token_ids", "cache_salt"}
# logprob entries of one request, 150 to 300 bytes each where they are held as objects: 20
# alternatives for 200,000 tokens, or a vocabulary of 49,152 for 85
MAX_LOGPROB_ENTRIES = 1 << 22
_MAX_PRIORITY = 1 << 31
# LiteLLM and LangChain know by these words, and by "prompt is too long", that another model may do
_CONTEXT_IS = "this model's maximum context length is"


@dataclasses.dataclass(slots=True, frozen=True)
class InputLimits:
    """What requests are checked against."""

    max_model_len: int
    max_kv_tokens: int
    vocab_size: int
    default_seed: int | None = None


@dataclasses.dataclass(slots=True, frozen=True)
class PreparedRequest:
    """One user request, ready to run: n core requests, sample 0 first."""

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    params: SamplingParams
    seed: int
    core_requests: list[EngineCoreRequest]


class InputProcessor:
    """Stateless but for a counter; safe to share between threads.

    Core request ids are never used twice, so news of a request that has left cannot be taken for
    that of a later one of the same id.
    """

    def __init__(self, tokenizer: Tokenizer, limits: InputLimits, *,
                 eos_token_ids: Sequence[int]) -> None:
        self._tokenizer = tokenizer
        self._limits = limits
        self._eos_token_ids = [i for i in dict.fromkeys(eos_token_ids)
                               if 0 <= i < limits.vocab_size]
        self._serials = itertools.count(1)
        self._seed_serials = itertools.count()
        self._grammars = GrammarChecker()

    def process(self, request_id: str, prompt: Prompt, params: SamplingParams, *,
                priority: int = 0, strict_max_tokens: bool = False,
                score_only: bool = False) -> PreparedRequest:
        """Tokenizes, checks and fans out.

        strict_max_tokens: an explicit max_tokens beyond the context raises ContextLengthError;
        otherwise it is cut to what fits. score_only: the caller wants the prompt's logprobs and
        drops the one token that is drawn behind them, so the prompt may fill the context and the
        KV cache. Raises InvalidRequestError and its subclasses. Blocks for
        milliseconds, and for seconds in bad cases, where params.structured_outputs is given.
        """
        if not isinstance(params, SamplingParams):
            raise InvalidRequestError(
                f"sampling_params is a {type(params).__name__}: give a SamplingParams",
                param="sampling_params")
        if not (isinstance(priority, int) and -_MAX_PRIORITY <= priority < _MAX_PRIORITY):
            raise InvalidRequestError(f"priority is {priority}: give a 32-bit number",
                                      param="priority")
        salt = prompt.get("cache_salt") if isinstance(prompt, Mapping) else None
        # a copy, checked again: the caller's object may have been changed since it was made
        params = msgspec.structs.replace(
            params, cache_salt=params.cache_salt if salt is None else salt)
        text, ids = self.tokenize(prompt)
        self._check_ids(params)
        ids = self._truncate(ids, params, score_only=score_only)
        max_tokens = self._max_tokens(len(ids), params, strict=strict_max_tokens,
                                      score_only=score_only)
        self._check_logprobs(len(ids), max_tokens, params)
        if params.structured_outputs is not None:
            self._grammars.check(params.structured_outputs)
        seed = params.seed
        if seed is None:
            seed = self._draw_seed()
        core = self._fan_out(request_id, ids, params, seed=seed, max_tokens=max_tokens,
                             priority=priority)
        return PreparedRequest(request_id, text, ids, params, seed, core)

    def _draw_seed(self) -> int:
        """A seed for a request that gives none: random, or the next of the engine's own seed.

        Below 2**53, so that every JSON reader holds it exactly.
        """
        if self._limits.default_seed is None:
            return secrets.randbits(53)
        key = f"{self._limits.default_seed}/{next(self._seed_serials)}".encode()
        return int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "big") >> 11

    def close(self) -> None:
        """Ends the helper processes, if there are any. Idempotent."""
        self._grammars.close()

    def tokenize(self, prompt: Prompt) -> tuple[str | None, list[int]]:
        """(text or None, ids) of a prompt. Ids are checked against the vocabulary."""
        text: str | None = None
        ids: list[int] | None = None
        if isinstance(prompt, str):
            text = prompt
        elif isinstance(prompt, Mapping):
            text, ids = self._from_mapping(prompt)
        else:
            ids = self._checked_prompt_ids(prompt)
        if ids is None:
            assert text is not None
            # raw text: control tokens written in it are meant (chat prompts come as ids)
            ids = self._tokenizer.encode(text, parse_special=True)
        if not ids:
            raise InvalidRequestError("the prompt is empty: give at least one token",
                                      param="prompt")
        return text, ids

    def _from_mapping(self, prompt: Mapping[str, Any]) -> tuple[str | None, list[int] | None]:
        unknown = set(prompt) - _PROMPT_KEYS
        text, ids = prompt.get("prompt"), prompt.get("prompt_token_ids")
        if unknown or (text is None and ids is None):
            raise InvalidRequestError(
                f"a prompt has the keys {sorted(map(str, prompt))}: give 'prompt' (text) or "
                "'prompt_token_ids'", param="prompt")
        if text is not None and not isinstance(text, str):
            raise InvalidRequestError(f"prompt is a {type(text).__name__}: give text",
                                      param="prompt")
        return text, None if ids is None else self._checked_prompt_ids(ids)

    def _checked_prompt_ids(self, ids: Any) -> list[int]:
        if isinstance(ids, (bytes, bytearray, memoryview)):
            raise InvalidRequestError(f"the prompt is {type(ids).__name__}: decode it to text, or "
                                      "give a list of token ids", param="prompt")
        try:
            if isinstance(ids, (Mapping, Set)):
                raise TypeError  # neither has an order
            ids = list(ids)
            plain = [operator.index(i) for i in ids]
        except TypeError:
            raise InvalidRequestError("the prompt is neither text nor a list of token ids",
                                      param="prompt") from None
        if any(isinstance(i, bool) for i in ids):
            raise InvalidRequestError("the prompt holds true or false: give token ids",
                                      param="prompt")
        self._check_range("prompt_token_ids", plain)
        return plain

    def _check_range(self, field: str, ids: Sequence[int]) -> None:
        size = self._limits.vocab_size
        if ids and not (min(ids) >= 0 and max(ids) < size):
            wrong = next(i for i in ids if not 0 <= i < size)
            raise InvalidRequestError(
                f"{field} holds {wrong}: the vocabulary has the ids 0 to {size - 1}", param=field)

    def _check_ids(self, params: SamplingParams) -> None:
        for field in ("stop_token_ids", "allowed_token_ids", "logit_bias", "logprob_token_ids"):
            ids = getattr(params, field)
            if ids is not None:
                self._check_range(field, list(ids))

    def _truncate(self, ids: list[int], params: SamplingParams, *,
                  score_only: bool) -> list[int]:
        keep = params.truncate_prompt_tokens
        if keep is None:
            return ids
        if keep == -1:
            longest = min(self._limits.max_model_len, self._limits.max_kv_tokens)
            keep = max(1, longest - (0 if score_only else params.max_tokens or 1))
        return ids[-keep:]

    def _max_tokens(self, num_prompt: int, params: SamplingParams, *, strict: bool,
                    score_only: bool) -> int:
        longest = self._limits.max_model_len
        # the token that is dropped is never computed: it needs no room
        num_dropped = 1 if score_only else 0
        rest = longest + num_dropped - num_prompt
        if rest < 1:
            output = "" if score_only else " and at least one must be left for the output"
            raise ContextLengthError(
                f"the prompt is too long: it has {num_prompt} tokens, but {_CONTEXT_IS} {longest} "
                f"tokens{output}: shorten the prompt", param="prompt")
        asked = params.max_tokens
        if asked is not None and asked > rest and strict:
            raise ContextLengthError(
                f"the prompt has {num_prompt} tokens and max_tokens is {asked}, together "
                f"{num_prompt + asked}, but {_CONTEXT_IS} {longest} tokens: shorten the "
                f"prompt or give max_tokens of at most {rest}", param="max_tokens")
        max_tokens = rest if asked is None else min(asked, rest)
        if num_prompt + 1 - num_dropped > self._limits.max_kv_tokens:
            output = "" if score_only else " and one is needed for the output"
            raise RequestTooLargeError(
                f"the prompt has {num_prompt} tokens, but the KV cache holds "
                f"{self._limits.max_kv_tokens}{output}: shorten the prompt", param="prompt")
        if params.min_tokens > max_tokens:
            raise InvalidRequestError(
                f"min_tokens is {params.min_tokens}: only {max_tokens} tokens fit behind a prompt "
                f"of {num_prompt}", param="min_tokens")
        return max_tokens

    def _check_logprobs(self, num_prompt: int, max_tokens: int, params: SamplingParams) -> None:
        """Bounds what a request may make the front end hold."""
        num_entries = max_tokens * params.n * len(params.logprob_token_ids or ())
        for wanted, num_tokens in ((params.prompt_logprobs, num_prompt),
                                   (params.logprobs, max_tokens * params.n)):
            if wanted is not None:
                size = self._limits.vocab_size
                num_entries += num_tokens * (1 + (size if wanted == -1 else min(wanted, size)))
        if num_entries > MAX_LOGPROB_ENTRIES:
            raise InvalidRequestError(
                f"logprobs={params.logprobs} and prompt_logprobs={params.prompt_logprobs} are up "
                f"to {num_entries} entries for {num_prompt} prompt tokens and {params.n} outputs "
                f"of {max_tokens}, and a request may have {MAX_LOGPROB_ENTRIES}: ask for fewer "
                "alternatives or tokens", param="logprobs")

    def _fan_out(self, request_id: str, ids: list[int], params: SamplingParams, *, seed: int,
                 max_tokens: int, priority: int) -> list[EngineCoreRequest]:
        eos = [] if params.ignore_eos else self._eos_token_ids
        bad_words = self._bad_words(params.bad_words) if params.bad_words else None
        now = time.monotonic()
        # the prompt is scored once, by sample 0
        forked = params
        if params.n > 1 and params.prompt_logprobs is not None:
            forked = msgspec.structs.replace(params, prompt_logprobs=None)
        serial = next(self._serials)
        first_id = f"{request_id}#{serial}-0"
        return [
            EngineCoreRequest(
                request_id=f"{request_id}#{serial}-{i}",
                prompt_token_ids=ids, params=params if i == 0 else forked, eos_token_ids=eos,
                seed=seed, max_tokens=max_tokens, sample_index=i,
                bad_words_token_ids=bad_words, fork_of=None if i == 0 else first_id,
                priority=priority, arrival_time_s=now,
            )
            for i in range(params.n)
        ]

    def _bad_words(self, words: Sequence[str]) -> list[list[int]]:
        """Token sequences of each word, at the start of a line and after a space.

        The form after a space counts only where the space is part of the word's first token.
        """
        found: list[list[int]] = []
        for word in words:
            word = word.lstrip() or word  # a word of white space is banned as it is
            bare = self._tokenizer.encode(word, add_special_tokens=False)
            spaced = self._tokenizer.encode(" " + word, add_special_tokens=False)
            if bare:
                found.append(bare)
            if spaced and bare and spaced[0] != bare[0] and len(spaced) == len(bare):
                found.append(spaced)
        return found
