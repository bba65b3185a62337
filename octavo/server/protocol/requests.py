"""The requests of every route, as typed fields with the wire's names. No meaning, no defaults that
depend on a model: an absent field is None unless the API fixes its default.
"""

from typing import Any, ClassVar

import msgspec


class StreamOptions(msgspec.Struct, kw_only=True):
    """include_usage: one more chunk with the usage, before the end marker."""

    include_usage: bool = False


class SamplingFields(msgspec.Struct, kw_only=True):
    """What completions and chat have in common: OpenAI's names, then vLLM's further ones."""

    model: str | None = None
    stream: bool = False
    stream_options: StreamOptions | None = None
    n: int = 1
    temperature: float | None = None
    top_p: float | None = None
    max_tokens: int | None = None
    stop: str | list[str] | None = None
    seed: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[str, float] | None = None

    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    min_tokens: int | None = None
    stop_token_ids: list[int] | None = None
    include_stop_str_in_output: bool | None = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None
    spaces_between_special_tokens: bool | None = None
    allowed_token_ids: list[int] | None = None
    bad_words: list[str] | None = None
    truncate_prompt_tokens: int | None = None
    prompt_logprobs: int | None = None
    logprob_token_ids: list[int] | None = None
    priority: int = 0
    cache_salt: str | None = None
    request_id: str | None = None
    return_token_ids: bool = False

    # The form of the output, under its several names: see server/structured.py.
    response_format: dict[str, Any] | None = None
    structured_outputs: Any = None
    guided_json: Any = None
    guided_regex: Any = None
    guided_choice: Any = None
    guided_grammar: Any = None

    # Known, and without effect here: hints, labels, accounting.
    user: Any = None
    metadata: Any = None
    store: Any = None
    service_tier: Any = None


class CompletionRequest(SamplingFields, kw_only=True):
    """POST /v1/completions. prompt: a text, a list of texts, token ids, or a list of such lists;
    null is the beginning of a new document."""

    NULLABLE: ClassVar[frozenset[str]] = frozenset({"prompt"})

    prompt: Any
    echo: bool = False
    logprobs: int | None = None
    best_of: int | None = None
    suffix: str | None = None
    add_special_tokens: bool = True
    timings: bool = False
    timings_per_token: bool = False


class ChatRequest(SamplingFields, kw_only=True):
    """POST /v1/chat/completions. The tokenizer checks the messages; here they are any JSON."""

    messages: list[Any]
    logprobs: bool = False
    top_logprobs: int | None = None
    max_completion_tokens: int | None = None
    echo: bool = False
    add_generation_prompt: bool | None = None
    continue_final_message: bool = False
    chat_template_kwargs: dict[str, Any] | None = None
    timings: bool = False
    timings_per_token: bool = False

    # Tools and reasoning: see server/openai_tools.py.
    tools: list[Any] | None = None
    tool_choice: Any = None
    parallel_tool_calls: Any = None
    functions: list[Any] | None = None
    function_call: Any = None
    reasoning_effort: Any = None
    include_reasoning: bool = True

    # Known, and refused with a reason when set to something that asks for more than text. audio
    # says in what form modalities=["audio"] comes, and nothing alone.
    chat_template: str | None = None
    modalities: list[str] | None = None
    audio: Any = None
    documents: list[Any] | None = None

    # Known, and without effect here.
    prediction: Any = None
    prompt_cache_key: Any = None
    prompt_cache_options: Any = None
    prompt_cache_retention: Any = None
    safety_identifier: Any = None
    verbosity: Any = None


class TokenizeRequest(msgspec.Struct, kw_only=True):
    """POST /tokenize: one of prompt, content (the same under another server's name), messages."""

    model: str | None = None
    prompt: str | None = None
    content: str | None = None
    messages: list[Any] | None = None
    tools: list[Any] | None = None
    add_special_tokens: bool = True
    return_token_strs: bool = False
    with_pieces: bool = False
    add_generation_prompt: bool | None = None
    continue_final_message: bool = False
    chat_template_kwargs: dict[str, Any] | None = None


class DetokenizeRequest(msgspec.Struct, kw_only=True):
    """POST /detokenize."""

    tokens: list[int]
    model: str | None = None
