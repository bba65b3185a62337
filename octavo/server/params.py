"""Request fields -> SamplingParams, and refusals of what the server does not do (yet).

Knows the wire's names and the engine's; no tokenizer, no HTTP.
"""

from typing import Any

from octavo.core.refusals import short
from octavo.core.sampling_params import SamplingParams
from octavo.core.structured_outputs import StructuredOutputs
from octavo.errors import InvalidRequestError
from octavo.server.protocol.requests import ChatRequest, CompletionRequest, SamplingFields
from octavo.server.protocol.response_request import ResponseRequest
from octavo.server.state import ServerState
from octavo.server.structured import structured_outputs

MAX_LOGPROBS = 20  # as OpenAI and vLLM bound it: each costs a place in every chunk
_MAX_PRIORITY = 2**31
_MAX_SALT_CHARS = 1024
# absent fields take the model's advice
_ADVISED = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")
# fields that go through under the same name
_SAME_NAME = (
    *_ADVISED, "n", "seed", "presence_penalty", "frequency_penalty", "stop", "min_tokens",
    "stop_token_ids", "include_stop_str_in_output", "ignore_eos", "skip_special_tokens",
    "spaces_between_special_tokens", "allowed_token_ids", "bad_words", "truncate_prompt_tokens",
    "prompt_logprobs", "logprob_token_ids", "cache_salt",
)


def completion_params(request: CompletionRequest, state: ServerState) -> SamplingParams:
    """Raises InvalidRequestError naming the field. max_tokens=0 (score the prompt only) becomes
    1; the route drops that token."""
    _refuse_common(request, state)
    fields = _fields(request, state)
    if request.suffix:
        fim = state.llm.tokenizer.fim
        if fim is None:
            raise InvalidRequestError(
                "suffix is not supported by this model: its tokenizer has no fill-in-the-middle "
                "tokens, so it only continues a prompt", param="suffix")
        if request.echo:
            raise InvalidRequestError("echo and suffix are given: what is drawn does not stand "
                                      "behind the prompt, set echo=false", param="echo")
        # the model says in several ways that the gap is full
        fields["stop_token_ids"] = list(
            dict.fromkeys([*(request.stop_token_ids or ()), *fim.end_ids]))
    _check_logprobs("logprobs", request.logprobs)
    fields["logprobs"] = request.logprobs
    if ranks_samples(request):
        _check_best_of(request)
        fields["n"] = request.best_of
        fields["logprobs"] = request.logprobs or 0  # what the samples are compared by
    if request.echo and request.logprobs is not None:
        fields["prompt_logprobs"] = max(request.logprobs, request.prompt_logprobs or 0)
    if request.max_tokens is not None:
        fields["max_tokens"] = request.max_tokens
    if request.max_tokens == 0:
        fields["max_tokens"] = 1
    return SamplingParams(**fields)


def ranks_samples(request: CompletionRequest) -> bool:
    """Whether more samples are drawn than answered. best_of of 0 asks for nothing."""
    return bool(request.best_of) and request.best_of != request.n


def _check_best_of(request: CompletionRequest) -> None:
    if request.best_of is not None and request.best_of < request.n:
        raise InvalidRequestError(
            f"best_of is {request.best_of} and n is {request.n}: the best n of best_of samples "
            "are answered, give at least n", param="best_of")
    if request.stream:
        raise InvalidRequestError(
            f"best_of is {request.best_of}: which samples are best is known at their end, set "
            "stream=false", param="best_of")


def chat_params(request: ChatRequest, state: ServerState) -> SamplingParams:
    """Raises InvalidRequestError naming the field."""
    _refuse_common(request, state)
    _refuse_chat(request)
    fields = _fields(request, state)
    _check_logprobs("top_logprobs", request.top_logprobs)
    if request.top_logprobs and not request.logprobs:
        raise InvalidRequestError("top_logprobs needs logprobs=true", param="top_logprobs")
    if request.top_logprobs and request.logprob_token_ids is not None:
        raise InvalidRequestError("logprob_token_ids says which tokens to report: leave out "
                                  "top_logprobs", param="top_logprobs")
    fields["logprobs"] = (request.top_logprobs or 0) if request.logprobs else None
    asked = request.max_completion_tokens
    fields["max_tokens"] = request.max_tokens if asked is None else asked
    if asked is not None and asked < 1:
        raise InvalidRequestError(f"max_completion_tokens is {asked}: give at least 1",
                                  param="max_completion_tokens")
    return SamplingParams(**fields)


def response_params(request: ResponseRequest, state: ServerState, *, num_logprobs: int | None,
                    wanted: StructuredOutputs | None) -> SamplingParams:
    """num_logprobs, wanted: what the request's own fields make of these. Raises
    InvalidRequestError naming the field."""
    _refuse_common(request, state)
    fields = _fields(request, state)
    _check_logprobs("top_logprobs", request.top_logprobs)
    fields["logprobs"] = num_logprobs
    fields["max_tokens"] = request.max_output_tokens
    if wanted is not None:
        if fields["structured_outputs"] is not None:
            raise InvalidRequestError(
                f"text.format and {fields['structured_outputs'].field} are given: give one of "
                "them", param="text.format")
        fields["structured_outputs"] = wanted
    return SamplingParams(**fields)


def check_priority(request: SamplingFields, state: ServerState) -> int:
    """The priority, if the server heeds any. Raises InvalidRequestError."""
    if request.priority and state.llm.config.scheduler.policy != "priority":
        raise InvalidRequestError(
            f"priority is {request.priority}: this server takes requests in order of arrival; "
            "start it with --scheduling-policy priority", param="priority")
    if abs(request.priority) > _MAX_PRIORITY:
        raise InvalidRequestError(
            f"priority is {request.priority}: give {-_MAX_PRIORITY} to {_MAX_PRIORITY}",
            param="priority")
    return request.priority


def _fields(request: SamplingFields, state: ServerState) -> dict[str, Any]:
    advised = state.llm.get_default_sampling_params()
    fields: dict[str, Any] = {name: getattr(advised, name) for name in _ADVISED}
    for name in _SAME_NAME:
        value = getattr(request, name)
        if value is not None:
            fields[name] = value
    if request.seed is not None:
        fields["seed"] = _seed(request.seed)
    if request.logit_bias:
        fields["logit_bias"] = _logit_bias(request.logit_bias)
    fields["structured_outputs"] = structured_outputs(request)
    return fields


def _seed(seed: int) -> int:
    """The API's seeds are signed, the engine's unsigned: a negative one is its two's complement.

    -1 stays what it is, "draw one", as many clients send it for that. The answer reports the
    unsigned seed, which gives the same text."""
    return seed + 2**64 if -(2**63) <= seed < -1 else seed


def _logit_bias(given: dict[str, float]) -> dict[int, float]:
    bias = {}
    for key, value in given.items():
        if not (key.isascii() and key.isdecimal() and len(key) <= 10):
            raise InvalidRequestError(f"logit_bias has the key {key[:40]!r}: give token ids",
                                      param="logit_bias")
        bias[int(key)] = value
    return bias


def _check_logprobs(name: str, value: int | None) -> None:
    if value is not None and not 0 <= value <= MAX_LOGPROBS:
        raise InvalidRequestError(f"{name} is {value}: give 0 to {MAX_LOGPROBS}", param=name)


def _refuse_common(request: SamplingFields, state: ServerState) -> None:
    _check_logprobs("prompt_logprobs", request.prompt_logprobs)
    if request.stream and request.prompt_logprobs is not None:
        raise InvalidRequestError("prompt_logprobs cannot be streamed: set stream=false",
                                  param="prompt_logprobs")
    options = request.stream_options
    if options is not None and options.include_usage and not request.stream:
        raise InvalidRequestError("stream_options.include_usage is true: it needs stream=true, an "
                                  "answer in one piece has its usage", param="stream_options")
    if request.cache_salt is not None and not 0 < len(request.cache_salt) <= _MAX_SALT_CHARS:
        raise InvalidRequestError(
            f"cache_salt must be a text of 1 to {_MAX_SALT_CHARS} characters", param="cache_salt")


def _refuse_chat(request: ChatRequest) -> None:
    if request.modalities and request.modalities != ["text"]:
        raise InvalidRequestError(
            f"modalities is {short(request.modalities)}: this server only produces 'text'",
            param="modalities")
    for name, why in (
        ("documents", "put their text into the messages"),
        ("chat_template", "only the server sets it, with --chat-template FILE"),
    ):
        if getattr(request, name):
            raise InvalidRequestError(f"{name} is not accepted: {why}", param=name)
