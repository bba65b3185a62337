"""SamplingParams: how one request wants its tokens drawn. Validated once, at construction.

Knows nothing about tokenizers or models: bad words and stop strings stay text here; the input
processor turns them into token ids.
"""

import math
import numbers
import operator
from typing import Any

import msgspec

from octavo.core.refusals import short
from octavo.core.structured_outputs import StructuredOutputs
from octavo.errors import InvalidRequestError

MAX_N = 128
MAX_STOP_STRINGS = 64
MAX_STOP_TOKEN_IDS = 256
MAX_LOGIT_BIAS = 4096
MAX_BAD_WORDS = 1024
MAX_TOP_LOGPROBS = 100
MAX_LOGPROB_TOKEN_IDS = 128
SEED_MAX = 2**64 - 1
# far below the probability of any most likely token, which is at least 1 / vocabulary
_LEAST_TOP_P = 1e-9
_WIRE_INT_MAX = 2**63 - 1

_FLOATS = ("temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty",
           "frequency_penalty")
_INTS = ("n", "top_k", "min_tokens")
_OPTIONAL_INTS = ("seed", "max_tokens", "truncate_prompt_tokens", "logprobs", "prompt_logprobs")
_BOOLS = ("include_stop_str_in_output", "ignore_eos", "skip_special_tokens",
          "spaces_between_special_tokens", "detokenize", "skip_reading_prefix_cache")
_ID_LISTS = ("allowed_token_ids", "stop_token_ids", "logprob_token_ids")
_TEXT_LISTS = ("stop", "bad_words")


def _bad(field: str, value: object, fix: str) -> InvalidRequestError:
    return InvalidRequestError(f"{field} is {short(value)}: {fix}", param=field)


class SamplingParams(msgspec.Struct, omit_defaults=True, kw_only=True):
    """Sampling options of one request, with vLLM's names.

    Attributes:
        n: number of independent samples.
        temperature: 0 means greedy; otherwise logits are divided by it.
        top_k: keep the k most likely tokens; 0 or -1 keeps all.
        top_p: keep the smallest set of tokens whose probability sums to top_p; 0 keeps the
            most likely one alone, as in OpenAI's API.
        min_p: drop tokens less likely than min_p times the most likely one.
        repetition_penalty: > 1 discourages tokens of the prompt and the output.
        presence_penalty, frequency_penalty: subtracted for tokens of the output so far.
        logit_bias: token id to a value added to its logit.
        allowed_token_ids: nothing else may be drawn.
        bad_words: texts that must not be completed.
        seed: 0 .. 2**64 - 1; None draws one, which the output reports.
        max_tokens: most tokens to generate; None means the rest of the context.
        min_tokens: no stop (EOS, stop id, stop string) before this many tokens.
        stop: strings that end the output. stop_token_ids: the same for token ids.
        include_stop_str_in_output: keep the matched stop string in the text.
        ignore_eos: do not stop at EOS.
        skip_special_tokens: leave control tokens out of the text. detokenize: make text at all.
        spaces_between_special_tokens: accepted for compatibility, and without effect: the text is
            the tokens' own bytes, and nothing is put between them.
        truncate_prompt_tokens: keep only the last that many prompt tokens; -1 = as many as fit.
        logprobs: top alternatives to report a token (0 = only the drawn one, -1 = all).
        logprob_token_ids: report these tokens' logprobs with each drawn one, in this order, instead
            of the most likely ones'; the same floats as logprobs=-1 gives, for a fraction of the
            work. Needs no `logprobs` beside it, and takes 0 only.
        prompt_logprobs: as logprobs, for prompt tokens.
        cache_salt: requests share prefix-cache blocks only under the same salt.
        skip_reading_prefix_cache: compute the whole prompt.
        structured_outputs: the form of the output, a StructuredOutputs or a dict of its fields.
            The output ends where the form is complete, before min_tokens and under ignore_eos too;
            until then min_tokens and ignore_eos keep EOS from being drawn.
    """

    n: int = 1
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: dict[int, float] | None = None
    allowed_token_ids: list[int] | None = None
    bad_words: list[str] | None = None
    seed: int | None = None
    max_tokens: int | None = 16
    min_tokens: int = 0
    stop: list[str] | str | None = None
    stop_token_ids: list[int] | None = None
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    detokenize: bool = True
    truncate_prompt_tokens: int | None = None
    logprobs: int | None = None
    logprob_token_ids: list[int] | None = None
    prompt_logprobs: int | None = None
    cache_salt: str | None = None
    skip_reading_prefix_cache: bool = False
    structured_outputs: StructuredOutputs | None = None

    def __post_init__(self) -> None:
        if isinstance(self.stop, str):
            self.stop = [self.stop]
        self._normalize()
        if self.top_k == -1:
            self.top_k = 0
        if self.seed == -1:
            self.seed = None
        self._verify_numbers()
        self._verify_lists()
        if self.structured_outputs is not None:
            self.structured_outputs = _structured_outputs(self.structured_outputs)

    def _normalize(self) -> None:
        """Every field gets its plain type, or is refused: nothing else may reach the wire, where a
        wrong type would hurt more than its own request."""
        for field in _FLOATS:
            setattr(self, field, _plain_float(field, getattr(self, field)))
        for field in (*_INTS, *_OPTIONAL_INTS):
            value = getattr(self, field)
            if value is not None or field in _INTS:
                setattr(self, field, _plain_int(field, value))
        for field in _BOOLS:
            if not isinstance(getattr(self, field), bool):
                raise _bad(field, getattr(self, field), "give True or False")
        for field in _ID_LISTS:
            if getattr(self, field) is not None:
                ids = _plain_list(field, getattr(self, field))
                setattr(self, field, [_plain_int(field, i) for i in ids])
        for field in _TEXT_LISTS:
            if getattr(self, field) is not None:
                texts = _plain_list(field, getattr(self, field))
                setattr(self, field, [_plain_text(field, t) for t in texts])
        if self.cache_salt is not None:
            self.cache_salt = _plain_text("cache_salt", self.cache_salt)
        if self.logit_bias is not None:
            if not isinstance(self.logit_bias, dict):
                raise _bad("logit_bias", self.logit_bias, "give a dict of token ids to numbers")
            self.logit_bias = {
                _plain_int("logit_bias", i): _plain_float("logit_bias", v)
                for i, v in self.logit_bias.items()
            }

    def _verify_numbers(self) -> None:
        if not 1 <= self.n <= MAX_N:
            raise _bad("n", self.n, f"give 1 to {MAX_N}")
        if not 0.0 <= self.temperature <= 100.0:
            raise _bad("temperature", self.temperature, "give 0 (greedy) to 100")
        if 0.0 < self.temperature < 1e-5:
            self.temperature = 0.0  # indistinguishable from greedy in float32 logits
        if self.top_k < 0:
            raise _bad("top_k", self.top_k, "give 0 (off) or a positive count")
        if not 0.0 <= self.top_p <= 1.0:
            raise _bad("top_p", self.top_p, "give a value in [0, 1]")
        self.top_p = max(self.top_p, _LEAST_TOP_P)
        if not 0.0 <= self.min_p <= 1.0:
            raise _bad("min_p", self.min_p, "give a value in [0, 1]")
        if not 0.0 < self.repetition_penalty <= 100.0:
            raise _bad("repetition_penalty", self.repetition_penalty, "give a value in (0, 100]")
        for field in ("presence_penalty", "frequency_penalty"):
            if not -2.0 <= getattr(self, field) <= 2.0:
                raise _bad(field, getattr(self, field), "give a value in [-2, 2]")
        if self.seed is not None and not 0 <= self.seed <= SEED_MAX:
            raise _bad("seed", self.seed, "give 0 to 2**64 - 1, or none for a random one")
        if self.max_tokens is not None and self.max_tokens < 1:
            raise _bad("max_tokens", self.max_tokens, "give at least 1")
        if self.min_tokens < 0:
            raise _bad("min_tokens", self.min_tokens, "give 0 or more")
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise _bad("min_tokens", self.min_tokens, f"give at most max_tokens={self.max_tokens}")
        for field in ("logprobs", "prompt_logprobs"):
            value = getattr(self, field)
            if value is not None and not -1 <= value <= MAX_TOP_LOGPROBS:
                raise _bad(field, value, f"give 0 to {MAX_TOP_LOGPROBS}, or -1 for all")
        if self.truncate_prompt_tokens is not None and (
            self.truncate_prompt_tokens == 0 or self.truncate_prompt_tokens < -1
        ):
            raise _bad("truncate_prompt_tokens", self.truncate_prompt_tokens,
                       "give a positive count, or -1 for as many as fit")

    def _verify_lists(self) -> None:
        if self.stop is not None:
            if len(self.stop) > MAX_STOP_STRINGS:
                raise _bad("stop", f"{len(self.stop)} strings", f"give at most {MAX_STOP_STRINGS}")
            for s in self.stop:
                if not s:
                    raise _bad("stop", s, "give non-empty strings")
            if self.stop and not self.detokenize:
                raise _bad("stop", self.stop, "stop strings need detokenize=true")
        if self.stop_token_ids is not None and len(self.stop_token_ids) > MAX_STOP_TOKEN_IDS:
            raise _bad("stop_token_ids", f"{len(self.stop_token_ids)} ids",
                       f"give at most {MAX_STOP_TOKEN_IDS}")
        if self.logit_bias is not None:
            if len(self.logit_bias) > MAX_LOGIT_BIAS:
                raise _bad("logit_bias", f"{len(self.logit_bias)} entries",
                           f"give at most {MAX_LOGIT_BIAS}")
            for token_id, bias in self.logit_bias.items():
                if token_id < 0 or not -100.0 <= bias <= 100.0:
                    raise _bad("logit_bias", {token_id: bias},
                               "give ids >= 0 and values in [-100, 100]")
        if self.logprob_token_ids is not None:
            self._verify_logprob_ids(self.logprob_token_ids)
        if self.allowed_token_ids is not None and not self.allowed_token_ids:
            raise _bad("allowed_token_ids", [], "give at least one token id, or leave it out")
        if self.bad_words is not None:
            if len(self.bad_words) > MAX_BAD_WORDS:
                raise _bad("bad_words", f"{len(self.bad_words)} words",
                           f"give at most {MAX_BAD_WORDS}")
            if any(not w for w in self.bad_words):
                raise _bad("bad_words", "", "give non-empty strings")

    def _verify_logprob_ids(self, ids: list[int]) -> None:
        if not 1 <= len(ids) <= MAX_LOGPROB_TOKEN_IDS:
            raise _bad("logprob_token_ids", f"{len(ids)} ids",
                       f"give 1 to {MAX_LOGPROB_TOKEN_IDS}, or leave it out")
        if self.logprobs:
            raise _bad("logprobs", self.logprobs,
                       "logprob_token_ids says which tokens to report: give 0, or leave it out")
        self.logprobs = 0

    @property
    def greedy(self) -> bool:
        return self.temperature == 0.0


def _structured_outputs(given: Any) -> StructuredOutputs:
    """A fresh, checked one: the caller's may have been changed since it was made."""
    field = "structured_outputs"
    if isinstance(given, StructuredOutputs):
        return msgspec.structs.replace(given)
    if not isinstance(given, dict):
        raise _bad(field, given, "give a StructuredOutputs or a dict of its fields")
    known = set(StructuredOutputs.__struct_fields__) - {"field"}
    for name in given:
        if name not in known:
            raise _bad(field, name, f"its fields are {', '.join(sorted(known))}")
    return StructuredOutputs(**given)


def _plain_float(field: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise _bad(field, value, "give a number")
    if not math.isfinite(value):
        raise _bad(field, value, "give a finite number")
    return float(value)


def _plain_int(field: str, value: Any) -> int:
    """A whole number of any integer type that fits the wire (seeds are unsigned there)."""
    try:
        found = None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        found = None
    largest = SEED_MAX if field == "seed" else _WIRE_INT_MAX
    if found is None or not -_WIRE_INT_MAX <= found <= largest:
        raise _bad(field, value, "give a whole number" if found is None
                   else f"give at most {largest}")
    return found


def _plain_list(field: str, value: Any) -> list[Any]:
    if isinstance(value, (str, bytes, dict)) or not hasattr(value, "__iter__"):
        raise _bad(field, value, "give a list")
    return list(value)


def _plain_text(field: str, value: Any) -> str:
    if not isinstance(value, str):
        raise _bad(field, value, "give text")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise _bad(field, value, "give text without lone surrogates") from None
    return str(value)
