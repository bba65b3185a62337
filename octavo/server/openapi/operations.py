"""The table of operations: every route, with what it takes and gives. No schemas of fields."""

import dataclasses
from typing import Any

import msgspec

from octavo.core import live
from octavo.server.protocol import (
    anthropic,
    decisions,
    ollama,
    requests,
    response_events,
    response_object,
    response_request,
    responses,
)

Schema = dict[str, Any]

SSE = "text/event-stream"
NDJSON = "application/x-ndjson"

_RESPONSE_EVENTS = (
    response_events.Created, response_events.InProgress, response_events.ItemAdded,
    response_events.PartAdded, response_events.TextDelta, response_events.TextDone,
    response_events.ReasoningDelta, response_events.ReasoningDone,
    response_events.ArgumentsDelta, response_events.ArgumentsDone, response_events.InputDelta,
    response_events.InputDone, response_events.PartDone, response_events.ItemDone,
    response_events.Completed, response_events.Incomplete, response_events.Failed,
    response_events.ErrorEvent)
_MESSAGE_EVENTS = (
    anthropic.MessageStart, anthropic.BlockStart, anthropic.BlockDelta, anthropic.BlockStop,
    anthropic.MessageDelta, anthropic.MessageStop, anthropic.Ping,
    anthropic.AnthropicErrorResponse)


class ChatChunk(msgspec.Struct, kw_only=True):
    """An event of a stream. usage: in the last one, which has no choices, if it was asked for.
    timings: in the last one, or in each, if they were asked for."""

    id: str
    object: str = "chat.completion.chunk"
    created: int
    model: str
    system_fingerprint: str
    choices: list[responses.ChatChunkChoice]
    usage: responses.Usage | None = None
    timings: responses.Timings | msgspec.UnsetType = msgspec.UNSET


@dataclasses.dataclass(slots=True, frozen=True)
class Operation:
    """One method of one path.

    Attributes:
        request: its body. response: a struct, a schema, or None where every call is refused.
        chunks: what a stream consists of, where stream=true gives one of media type `stream`.
        parameters: of path and query: name -> (place, schema).
        any_media_type: bodies under another Content-Type are read as JSON, too.
    """

    method: str
    path: str
    tag: str
    summary: str
    name: str
    request: type[msgspec.Struct] | None = None
    response: type[msgspec.Struct] | Schema | None = None
    chunks: tuple[type[msgspec.Struct], ...] = ()
    stream: str = SSE
    media_type: str = "application/json"
    error: type[msgspec.Struct] = responses.ErrorResponse
    parameters: dict[str, tuple[str, Schema]] = dataclasses.field(default_factory=dict)


def _object(**properties: Schema) -> Schema:
    return {"type": "object", "properties": properties, "required": list(properties)}


_TEXT: Schema = {"type": "string"}
_TEXT_OR_NULL: Schema = {"type": ["string", "null"]}
_COUNT: Schema = {"type": "integer", "minimum": 0}
_STATUS = _object(status=_TEXT)
_FREE: Schema = {"type": "object"}
_Parameters = dict[str, tuple[str, Schema]]
_MODEL_ID: _Parameters = {"model_id": ("path", {"$ref": "#/components/schemas/ModelName"})}
_RESPONSE_ID: _Parameters = {"response_id": ("path", {"type": "string", "pattern": "^[!-.0-~]+$"})}
_PAGE: _Parameters = {
    "limit": ("query", {"type": "integer", "minimum": 1, "maximum": 100, "default": 20}),
    "order": ("query", {"enum": ["asc", "desc"], "default": "desc"}),
    "after": ("query", {"type": "string", "description": "The id of an item."}),
}

_INTERVAL: _Parameters = {"interval": ("query", {
    "type": "number", "minimum": 0.05, "maximum": 5, "default": 0.1,
    "description": "Least seconds between two batches of events."})}

_OPENAI = (
    Operation("GET", "/v1/models", "OpenAI", "The names the model is served under", "listModels",
              response=responses.ModelList),
    Operation("GET", "/v1/models/{model_id}", "OpenAI", "One of the names", "retrieveModel",
              response=responses.ModelCard, parameters=_MODEL_ID),
    Operation("POST", "/v1/chat/completions", "OpenAI", "Go on with a conversation",
              "createChatCompletion", requests.ChatRequest, responses.ChatResponse,
              (ChatChunk, responses.ErrorResponse)),
    Operation("POST", "/v1/completions", "OpenAI", "Continue texts, or score them",
              "createCompletion", requests.CompletionRequest, responses.CompletionResponse,
              (responses.CompletionResponse, responses.ErrorResponse)),
    Operation("POST", "/v1/decisions", "OpenAI", "Answer questions about one input by the "
              "probabilities of their options", "createDecision", decisions.DecisionRequest,
              decisions.DecisionResponse),
    Operation("POST", "/v1/responses", "OpenAI", "Make a response", "createResponse",
              response_request.ResponseRequest, response_object.ResponseObject,
              _RESPONSE_EVENTS),
    Operation("POST", "/v1/responses/input_tokens", "OpenAI", "Count the tokens of an input",
              "countInputTokens", response_request.InputTokensRequest,
              response_object.InputTokens),
    Operation("GET", "/v1/responses/{response_id}", "OpenAI", "A response that is kept",
              "getResponse", response=response_object.ResponseObject, parameters=_RESPONSE_ID),
    Operation("DELETE", "/v1/responses/{response_id}", "OpenAI", "Forget a response",
              "deleteResponse", response=response_object.DeletedResponse,
              parameters=_RESPONSE_ID),
    Operation("POST", "/v1/responses/{response_id}/cancel", "OpenAI",
              "Refused: no response is made in the background", "cancelResponse",
              parameters=_RESPONSE_ID),
    Operation("GET", "/v1/responses/{response_id}/input_items", "OpenAI",
              "The items a response answered", "listInputItems",
              response=response_object.ItemList, parameters=_RESPONSE_ID | _PAGE),
)

_ANTHROPIC = tuple(
    dataclasses.replace(operation, tag="Anthropic", error=anthropic.AnthropicErrorResponse)
    for operation in (
        Operation("POST", "/v1/messages", "", "Go on with a conversation", "createMessage",
                  anthropic.MessagesRequest, anthropic.Message, _MESSAGE_EVENTS),
        Operation("POST", "/v1/messages/count_tokens", "", "Count the tokens of a conversation",
                  "countMessageTokens", anthropic.MessagesRequest, anthropic.TokenCount),
    ))

_OLLAMA_MANAGING = tuple(
    Operation(method, path, "", "Refused: the server has the one model it was started with", name)
    for method, path, name in (
        ("POST", "/api/pull", "ollamaPull"), ("POST", "/api/push", "ollamaPush"),
        ("POST", "/api/create", "ollamaCreate"), ("POST", "/api/copy", "ollamaCopy"),
        ("DELETE", "/api/delete", "ollamaDelete"),
    ))
_DIGEST: _Parameters = {"digest": ("path", {"type": "string", "pattern": "^[!-.0-~]+$"})}
_OLLAMA_LINES = (ollama.OllamaAnswer, ollama.OllamaErrorResponse)
_OLLAMA = tuple(
    dataclasses.replace(operation, tag="Ollama", error=ollama.OllamaErrorResponse)
    for operation in (
        Operation("GET", "/", "", "That the server runs", "ollamaRoot", response=_TEXT,
                  media_type="text/plain"),
        Operation("GET", "/api/version", "", "The version of the API", "ollamaVersion",
                  response=_object(version=_TEXT, octavo=_TEXT)),
        Operation("GET", "/api/tags", "", "The model under its names", "ollamaTags",
                  response=_object(models={"type": "array", "items": _FREE})),
        Operation("GET", "/api/ps", "", "The model, as loaded", "ollamaPs",
                  response=_object(models={"type": "array", "items": _FREE})),
        Operation("POST", "/api/show", "", "Facts about the model", "ollamaShow",
                  ollama.OllamaShowRequest, _FREE),
        Operation("POST", "/api/chat", "", "Go on with a conversation", "ollamaChat",
                  ollama.OllamaChatRequest, ollama.OllamaAnswer, _OLLAMA_LINES, NDJSON),
        Operation("POST", "/api/generate", "", "Answer a prompt", "ollamaGenerate",
                  ollama.OllamaGenerateRequest, ollama.OllamaAnswer, _OLLAMA_LINES, NDJSON),
        *_OLLAMA_MANAGING,
        Operation("HEAD", "/api/blobs/{digest}", "", "Refused: nothing is stored here",
                  "ollamaFindBlob", parameters=_DIGEST),
        Operation("POST", "/api/blobs/{digest}", "", "Refused: nothing is stored here",
                  "ollamaStoreBlob", parameters=_DIGEST),
    ))

_TOOLS = (
    Operation("POST", "/tokenize", "Tokens", "The token ids of a text or conversation",
              "tokenize", requests.TokenizeRequest, responses.TokenizeResponse),
    Operation("POST", "/detokenize", "Tokens", "The text of token ids", "detokenize",
              requests.DetokenizeRequest, responses.DetokenizeResponse),
    Operation("GET", "/tokenizer_info", "Tokens", "Facts about the tokenizer", "tokenizerInfo",
              response=_object(
                  tokenizer_class=_TEXT, vocab_size=_COUNT, bos_token=_TEXT_OR_NULL,
                  eos_token=_TEXT_OR_NULL, pad_token=_TEXT_OR_NULL,
                  chat_template=_TEXT_OR_NULL, max_model_len=_COUNT)),
    Operation("POST", "/v1/chat/completions/render", "Tokens",
              "The prompt that a chat completion would have", "renderChat",
              requests.ChatRequest, responses.RenderedChat),
    Operation("POST", "/apply-template", "Tokens", "The same prompt, text only",
              "applyTemplate", requests.ChatRequest, responses.AppliedTemplate),
)

_SERVER = (
    Operation("GET", "/health", "Server", "Whether the engine lives", "health",
              response=_STATUS),
    Operation("GET", "/v1/health", "Server", "Whether the engine lives", "healthV1",
              response=_STATUS),
    Operation("GET", "/ready", "Server", "Whether requests are taken", "ready",
              response=_STATUS),
    Operation("GET", "/ping", "Server", "Whether the server lives", "ping", response=_FREE),
    Operation("POST", "/ping", "Server", "Whether the server lives", "postPing",
              response=_FREE),
    Operation("GET", "/load", "Server", "How many requests are in hand", "load",
              response=_object(server_load=_COUNT)),
    Operation("GET", "/version", "Server", "The server's version", "version",
              response=_object(version=_TEXT)),
    Operation("GET", "/metrics", "Server", "Counters in Prometheus' text format", "metrics",
              response=_TEXT, media_type="text/plain"),
    Operation("GET", "/octavo/state", "Server", "A snapshot of the engine", "liveState",
              response=live.LiveState),
    Operation("GET", "/octavo/events", "Server", "What the engine does, step by step",
              "liveEvents", response=_TEXT, media_type=SSE, parameters=_INTERVAL,
              chunks=(live.LiveHello, live.LiveSteps, live.LiveState, responses.ErrorResponse)),
)

OPERATIONS = (*_OPENAI, *_ANTHROPIC, *_OLLAMA, *_TOOLS, *_SERVER)
