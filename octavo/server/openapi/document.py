"""The OpenAPI 3.1 document: the table of operations and the structs of the wire, put together with
the schemas of fields that the structs leave open. Pure.
"""

from collections.abc import Sequence
from typing import Any

import msgspec

from octavo import __version__
from octavo.server.openapi import fields
from octavo.server.openapi.operations import OPERATIONS, SSE, Operation
from octavo.server.protocol import anthropic, decisions, ollama, requests, response_request

Schema = dict[str, Any]
References = dict[type[msgspec.Struct], Schema]

_REF = "#/components/schemas/{name}"
_TAGS = {
    "OpenAI": "OpenAI's API, with vLLM's further fields.", "Anthropic": "Anthropic's Messages API.",
    "Ollama": "Ollama's API.", "Tokens": "Prompts and tokens.", "Server": "The server itself.",
}


def openapi_document(*, names: Sequence[str], vocab_size: int, max_model_len: int,
                     root_path: str = "", has_keys: bool = False) -> Schema:
    """The document of a server: its models' names and bounds are in the schemas.

    has_keys: whether requests need an API key.
    """
    schemas, references = _components()
    for name, found in _request_fields(vocab_size, max_model_len).items():
        schemas[name]["required"] = [*schemas[name].get("required", ()),
                                     *fields.REQUIRED.get(name, ())]
        _complete(schemas[name], found)
    schemas["TokenizeRequest"] |= _exactly_one("prompt", "messages")
    schemas["ModelName"] = {"type": "string", "enum": list(names)}
    document: Schema = {
        "openapi": "3.1.0",
        "info": {"title": "Octavo", "version": __version__,
                 "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"}},
        "servers": [{"url": root_path or "/"}],
        "tags": [{"name": name, "description": text} for name, text in _TAGS.items()],
        "paths": _paths(references),
        "components": {"schemas": schemas},
    }
    if has_keys:
        document["components"]["securitySchemes"] = {
            "bearer": {"type": "http", "scheme": "bearer"},
            "key": {"type": "apiKey", "in": "header", "name": "x-api-key"}}
        document["security"] = [{"bearer": []}, {"key": []}]
    return document


def _components() -> tuple[dict[str, Schema], References]:
    """The structs of all operations by name, and where each is."""
    structs: dict[type[msgspec.Struct], None] = {}
    for operation in OPERATIONS:
        for kind in (operation.request, operation.response, *operation.chunks, operation.error):
            if isinstance(kind, type):
                structs[kind] = None
    references, found = msgspec.json.schema_components(list(structs), ref_template=_REF)
    for schema in found.values():
        schema.pop("title", None)
    return found, dict(zip(structs, references))


def _request_fields(vocab_size: int, max_model_len: int) -> dict[str, dict[str, Schema | None]]:
    """By struct and field: its schema, or None to leave the field out."""
    sampling = fields.sampling_fields(vocab_size, max_model_len)
    chat = fields.chat_fields(max_model_len)
    responses = fields.response_fields(max_model_len)
    messages = fields.message_fields(max_model_len)
    known: dict[type[msgspec.Struct], dict[str, Schema]] = {
        requests.CompletionRequest: sampling | fields.completion_fields(vocab_size, max_model_len),
        requests.ChatRequest: sampling | chat,
        requests.TokenizeRequest: {"model": fields.MODEL, "tools": chat["tools"],
                                   "messages": chat["messages"],
                                   "chat_template_kwargs": sampling["chat_template_kwargs"]},
        requests.DetokenizeRequest: {"model": fields.MODEL,
                                     "tokens": fields.token_ids(vocab_size)},
        response_request.ResponseRequest: sampling | responses,
        response_request.InputTokensRequest: sampling | responses,
        decisions.DecisionRequest: sampling | fields.decision_fields(),
        anthropic.MessagesRequest: sampling | messages,
        ollama.OllamaChatRequest: sampling | fields.ollama_fields(vocab_size),
        ollama.OllamaGenerateRequest: sampling | fields.ollama_fields(vocab_size),
        ollama.OllamaShowRequest: {"model": fields.MODEL, "name": fields.MODEL},
    }
    hidden = {response_request.ResponseRequest: fields.NOT_IN_RESPONSE,
              response_request.InputTokensRequest: fields.NOT_IN_RESPONSE,
              anthropic.MessagesRequest: fields.NOT_IN_MESSAGE}
    found: dict[str, dict[str, Schema | None]] = {}
    for kind, schemas in known.items():
        left_out = fields.LEFT_OUT | hidden.get(kind, frozenset())
        found[kind.__name__] = {
            name: None if name in left_out else schemas.get(name)
            for name in kind.__struct_fields__ if name in left_out or name in schemas}
    return found


def _complete(schema: Schema, found: dict[str, Schema | None]) -> None:
    """Puts the fields' schemas into a struct's. A null means that an optional field is absent."""
    properties: dict[str, Schema] = schema["properties"]
    required = schema["required"]
    for name in list(properties):
        if name in found:
            given = found[name]
            if given is None:
                del properties[name]
                continue
            properties[name] = {**given, **{key: value for key, value in properties[name].items()
                                            if key == "default"}}
        if name not in required and properties[name]:
            properties[name] = _or_null(properties[name])


def _exactly_one(*names: str) -> Schema:
    """A further condition of a struct: one of these fields is given, and is no null."""
    return {"oneOf": [{"required": [name], "properties": {name: {"not": {"type": "null"}}}}
                      for name in names]}


def _or_null(schema: Schema) -> Schema:
    if {"type": "null"} in schema.get("anyOf", ()):
        return schema
    told: Schema = {key: schema[key] for key in ("description", "default") if key in schema}
    rest = {key: value for key, value in schema.items() if key not in told}
    if list(rest) == ["anyOf"]:
        return {"anyOf": [*rest["anyOf"], {"type": "null"}], **told}
    return {"anyOf": [rest, {"type": "null"}], **told}


def _paths(references: References) -> dict[str, Schema]:
    paths: dict[str, Schema] = {}
    for operation in OPERATIONS:
        paths.setdefault(operation.path, {})[operation.method.lower()] = _operation(
            operation, references)
    return paths


def _operation(operation: Operation, references: References) -> Schema:
    def content_of(kind: type[msgspec.Struct]) -> Schema:
        return {"application/json": {"schema": references[kind]}}

    error = {"description": "Refused, or failed.", "content": content_of(operation.error)}
    found: Schema = {"operationId": operation.name, "tags": [operation.tag],
                     "summary": operation.summary, "responses": {"default": error}}
    response = operation.response
    if response is not None:
        schema = response if isinstance(response, dict) else references[response]
        content: Schema = {operation.media_type: {"schema": schema}}
        if operation.chunks:
            parts = {"anyOf": [references[kind] for kind in operation.chunks]}
            content[operation.stream] = {
                "schema": _event(parts) if operation.stream == SSE else parts}
        found["responses"] = {"200": {"description": "Done.", "content": content}, "default": error}
    if operation.request is not None:
        found["requestBody"] = {"required": True, "content": content_of(operation.request)}
    if operation.parameters:
        found["parameters"] = [
            {"name": name, "in": place, "required": place == "path", "schema": schema}
            for name, (place, schema) in operation.parameters.items()]
    return found


def _event(parts: Schema) -> Schema:
    """One event of a stream, as OpenAPI models them: its data is JSON, or the end marker."""
    data = {"anyOf": [{"const": "[DONE]"},
                      {"contentMediaType": "application/json", "contentSchema": parts}]}
    return {"type": "object", "required": ["data"], "properties": {
        "event": {"type": "string"}, "data": {"type": "string", **data}}}
