"""Ollama's API on the wire: requests, and the fields that all answers share. No meaning."""

from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from octavo.server.protocol.responses import ChatLogprob


class OllamaErrorResponse(msgspec.Struct, kw_only=True):
    """Every refusal and failure."""

    error: str


class OllamaOptions(msgspec.Struct, kw_only=True):
    """`options` of a request."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    num_predict: int | None = None
    stop: str | list[str] | None = None
    repeat_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None

    # Known, and refused where they would change what is drawn.
    mirostat: float | None = None
    tfs_z: float | None = None
    typical_p: float | None = None

    # Known, and without effect here: how another engine loads and runs its models.
    num_ctx: Any = None
    num_keep: Any = None
    num_batch: Any = None
    num_gpu: Any = None
    num_thread: Any = None
    main_gpu: Any = None
    low_vram: Any = None
    f16_kv: Any = None
    numa: Any = None
    use_mmap: Any = None
    use_mlock: Any = None
    vocab_only: Any = None
    logits_all: Any = None
    embedding_only: Any = None
    repeat_last_n: Any = None
    penalize_newline: Any = None
    mirostat_tau: Any = None
    mirostat_eta: Any = None


class OllamaRequest(msgspec.Struct, kw_only=True):
    """What /api/chat and /api/generate have in common."""

    model: str | None = None
    stream: bool = True
    options: dict[str, Any] | None = None
    format: Any = None
    think: Any = None
    keep_alive: Any = None
    logprobs: bool = False
    top_logprobs: int | None = None

    # Known, and without effect: prompts are never cut here.
    truncate: Any = None
    shift: Any = None


class OllamaChatRequest(OllamaRequest, kw_only=True):
    """POST /api/chat."""

    messages: list[Any] | None = None
    tools: list[Any] | None = None


class OllamaGenerateRequest(OllamaRequest, kw_only=True):
    """POST /api/generate."""

    prompt: str = ""
    system: str = ""
    raw: bool = False
    context: list[int] | None = None

    # Known, and refused when set.
    suffix: str | None = None
    template: str | None = None
    images: list[Any] | None = None
    width: Any = None
    height: Any = None
    steps: Any = None


class OllamaShowRequest(msgspec.Struct, kw_only=True):
    """POST /api/show. name: what model was called before."""

    model: str | None = None
    name: str | None = None
    verbose: Any = None
    system: Any = None
    template: Any = None
    options: Any = None


class OllamaFunction(msgspec.Struct, kw_only=True):
    """A call. index: its place among those of the answer."""

    index: int
    name: str
    arguments: dict[str, Any]


class OllamaToolCall(msgspec.Struct, kw_only=True):
    """A call, as it stands in messages."""

    id: str
    function: OllamaFunction


class OllamaMessage(msgspec.Struct, kw_only=True):
    """The answer of /api/chat, or a piece of it."""

    role: str = "assistant"
    content: str = ""
    thinking: str | UnsetType = UNSET
    tool_calls: list[OllamaToolCall] | UnsetType = UNSET


class OllamaAnswer(msgspec.Struct, kw_only=True):
    """A line of a stream, or the whole answer: `message` in /api/chat, `response` and `thinking`
    in /api/generate. Durations are nanoseconds; what follows `done` is in the last line only."""

    model: str
    created_at: str
    message: OllamaMessage | UnsetType = UNSET
    response: str | UnsetType = UNSET
    thinking: str | UnsetType = UNSET
    logprobs: list[ChatLogprob] | UnsetType = UNSET
    done: bool = False
    done_reason: str | UnsetType = UNSET
    context: list[int] | UnsetType = UNSET
    total_duration: int | UnsetType = UNSET
    load_duration: int | UnsetType = UNSET
    prompt_eval_count: int | UnsetType = UNSET
    prompt_eval_duration: int | UnsetType = UNSET
    eval_count: int | UnsetType = UNSET
    eval_duration: int | UnsetType = UNSET
