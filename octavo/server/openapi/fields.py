"""Schemas of request fields, with the bounds the server checks: what the types of the structs do
not say. Each function gives schemas by field name.
"""

from typing import Any

from octavo.core import sampling_params as bounds
from octavo.core.structured_outputs import MAX_CHOICES
from octavo.server.decision_questions import MAX_CHOICES as MAX_QUESTION_CHOICES
from octavo.server.decision_questions import MAX_LEVELS, MAX_QUESTIONS
from octavo.server.messages import ROLES
from octavo.server.openai_completions import MAX_PROMPTS
from octavo.server.openai_tools import REASONING_EFFORTS
from octavo.server.params import MAX_LOGPROBS
from octavo.tools.definitions import MAX_DESCRIPTION_CHARS, MAX_NAME_CHARS, MAX_TOOLS

Schema = dict[str, Any]

TEXT: Schema = {"type": "string"}
_FLAG: Schema = {"type": "boolean"}
_NAME: Schema = {"type": "string", "pattern": f"^[a-zA-Z0-9_.-]{{1,{MAX_NAME_CHARS}}}$"}
_JSON_SCHEMA: Schema = {"type": "object", "description": "A JSON Schema."}
_OBJECT_TEXT: Schema = {"type": "string", "contentMediaType": "application/json",
                        "pattern": r"^\s*(\{[\s\S]*\})?\s*$",
                        "description": "The JSON text of an object.",
                        "examples": ['{"city": "Paris"}']}
_CHOICE_WORDS: Schema = {"enum": ["none", "auto", "required"]}
MODEL: Schema = {"$ref": "#/components/schemas/ModelName"}

# Fields that the server knows only to refuse them, older names of others, and names of other APIs:
# the description leaves them out.
LEFT_OUT = frozenset({
    "audio", "modalities", "documents", "chat_template", "conversation", "prompt_template",
    "context_management", "background", "moderation", "container", "mcp_servers", "functions",
    "function_call", "guided_json", "guided_regex", "guided_choice", "guided_grammar", "suffix",
    "images", "template", "width", "height", "steps", "content", "mirostat", "tfs_z",
    "typical_p", "output_format", "priority", "request_id"})


def one_of(*schemas: Schema, **more: Any) -> Schema:
    """Any of some schemas."""
    return {"anyOf": list(schemas), **more}


def text_list(most: int, *, shortest: int = 1) -> Schema:
    """A list of texts that are not empty."""
    return {"type": "array", "maxItems": most, "items": {"type": "string", "minLength": shortest}}


def tagged(kind: str, *optional: str, **properties: Schema) -> Schema:
    """An object whose `type` is `kind`. optional: those properties that may be left out."""
    return {"type": "object", "properties": {"type": {"enum": [kind]}, **properties},
            "required": ["type", *(name for name in properties if name not in optional)]}


def integer(least: int | None = None, most: int | None = None, **more: Any) -> Schema:
    """A whole number."""
    found: Schema = {"type": "integer", **more}
    if least is not None:
        found["minimum"] = least
    if most is not None:
        found["maximum"] = most
    return found


def number(least: float, most: float, **more: Any) -> Schema:
    """A number."""
    return {"type": "number", "minimum": least, "maximum": most, **more}


def token_ids(vocab_size: int, most: int | None = None, *, least: int = 0) -> Schema:
    """A list of token ids of the model."""
    found: Schema = {"type": "array", "items": integer(0, vocab_size - 1), "minItems": least}
    return found if most is None else found | {"maxItems": most}


def sampling_fields(vocab_size: int, max_model_len: int) -> dict[str, Schema]:
    """What completions, chat, responses and messages have in common."""
    return {
        "model": MODEL,
        "n": integer(1, bounds.MAX_N, description="Samples of each prompt."),
        "temperature": number(0, 100, description="0 takes the most likely token."),
        "top_p": number(0, 1),
        "min_p": number(0, 1),
        "top_k": integer(-1, 2**31, description="0 and -1: all tokens."),
        "repetition_penalty": number(0, 100, exclusiveMinimum=0),
        "presence_penalty": number(-2, 2),
        "frequency_penalty": number(-2, 2),
        "max_tokens": integer(1, max_model_len, description="Prompt and output together have to "
                              "fit into the context."),
        "min_tokens": integer(0, max_model_len, description="At most max_tokens."),
        "stop": one_of({"type": "string", "minLength": 1},
                       text_list(bounds.MAX_STOP_STRINGS)),
        "seed": integer(-2**63, 2**63 - 1, description="-1 draws one."),
        "logit_bias": {"type": "object", "maxProperties": bounds.MAX_LOGIT_BIAS,
                       "propertyNames": {"pattern": ids_below(vocab_size)},
                       "additionalProperties": number(-100, 100),
                       "description": "Token ids -> what is added to their logits."},
        "stop_token_ids": token_ids(vocab_size, bounds.MAX_STOP_TOKEN_IDS),
        "allowed_token_ids": token_ids(vocab_size, least=1),
        "logprob_token_ids": token_ids(vocab_size, bounds.MAX_LOGPROB_TOKEN_IDS, least=1),
        "bad_words": text_list(bounds.MAX_BAD_WORDS),
        "truncate_prompt_tokens": one_of(integer(1, max_model_len), {"enum": [-1]}),
        "prompt_logprobs": integer(0, MAX_LOGPROBS),
        "cache_salt": {"type": "string", "minLength": 1, "maxLength": 1024},
        "response_format": response_format(),
        "structured_outputs": structured_outputs(),
        "stream_options": {"$ref": "#/components/schemas/StreamOptions"},
        "chat_template_kwargs": {"type": "object", "description": "Variables of the template."},
        "timings": _FLAG | {"description": "Report the answer's timings; of a stream, in its last "
                                           "chunk."},
        "timings_per_token": _FLAG | {"description": "Report them in every chunk of a stream."},
    }


def response_format() -> Schema:
    """The form of a whole answer, in OpenAI's words."""
    inner = {"type": "object", "required": ["name", "schema"], "properties": {
        "name": TEXT, "description": TEXT, "schema": _JSON_SCHEMA, "strict": _FLAG}}
    return one_of(tagged("text"), tagged("json_object"), tagged("json_schema", json_schema=inner))


def structured_outputs() -> Schema:
    """The form of a whole answer, in vLLM's words."""
    kinds = {"json": _JSON_SCHEMA, "regex": {"type": "string", "minLength": 1, "format": "regex"},
             "choice": text_list(MAX_CHOICES) | {"minItems": 1, "uniqueItems": True},
             "json_object": {"enum": [True]},
             "grammar": TEXT | {"description": "A Lark grammar, its rule `start`; or one of "
                                               "llama.cpp's kind, its rule `root`.",
                                "minLength": 1}}
    return one_of(*({"type": "object", "properties": {name: schema}, "required": [name],
                     "additionalProperties": False} for name, schema in kinds.items()))


def tools() -> Schema:
    """Functions and custom tools."""
    function = {"type": "object", "required": ["name"], "properties": {
        "name": _NAME, "description": {"type": "string", "maxLength": MAX_DESCRIPTION_CHARS},
        "parameters": _JSON_SCHEMA, "strict": _FLAG}}
    custom = {"type": "object", "required": ["name"], "properties": {
        "name": _NAME, "description": {"type": "string", "maxLength": MAX_DESCRIPTION_CHARS}}}
    return {"type": "array", "maxItems": MAX_TOOLS,
            "items": one_of(tagged("function", function=function),
                            tagged("custom", custom=custom)),
            "description": "Each has a name of its own."}


def tool_choice() -> Schema:
    """Which tools may or must be called."""
    named = {"type": "object", "required": ["name"], "properties": {"name": _NAME}}
    allowed = {"type": "object", "required": ["mode", "tools"], "properties": {
        "mode": {"enum": ["auto", "required"]},
        "tools": {"type": "array", "minItems": 1, "items": one_of(
            tagged("function", function=named), tagged("custom", custom=named))}}}
    return one_of(tagged("function", function=named), tagged("custom", custom=named),
                  tagged("allowed_tools", allowed_tools=allowed), _CHOICE_WORDS)


def chat_messages() -> Schema:
    """The conversation of chat completions."""
    content = one_of(TEXT, {"type": "array", "minItems": 1, "items": tagged("text", text=TEXT)})
    roles = [role for role in ROLES if role not in ("assistant", "tool")]
    call = tagged("function", id=TEXT, function={
        "type": "object", "required": ["name", "arguments"], "properties": {
            "name": _NAME, "arguments": one_of(_OBJECT_TEXT, {"type": "object"})}})

    def message(names: list[str], **more: Schema) -> Schema:
        required = ["role", "content", *(n for n in more if n == "tool_call_id")]
        return {"type": "object", "required": required,
                "properties": {"role": {"enum": names}, "content": content, **more}}

    return {"type": "array", "minItems": 1, "items": one_of(
        message(roles), message(["assistant"], tool_calls={"type": "array", "items": call}),
        message(["tool"], tool_call_id={"type": "string", "minLength": 1}))}


def completion_fields(vocab_size: int, max_model_len: int) -> dict[str, Schema]:
    """Of CompletionRequest only."""
    text = {"type": "string", "minLength": 1}
    ids = token_ids(vocab_size, max_model_len - 1, least=1)
    return {
        "prompt": one_of(text, ids, *({"type": "array", "minItems": 1, "maxItems": MAX_PROMPTS,
                                       "items": items} for items in (text, ids))),
        "logprobs": integer(0, MAX_LOGPROBS),
        "best_of": integer(1, bounds.MAX_N, description="At least n; not with stream."),
    }


def chat_fields(max_model_len: int) -> dict[str, Schema]:
    """Of ChatRequest and TokenizeRequest."""
    return {
        "messages": chat_messages(), "tools": tools(), "tool_choice": tool_choice(),
        "parallel_tool_calls": _FLAG, "reasoning_effort": {"enum": list(REASONING_EFFORTS)},
        "top_logprobs": integer(0, MAX_LOGPROBS, description="Needs logprobs=true."),
        "max_completion_tokens": integer(1, max_model_len),
        "metadata": {"type": "object"}, "store": _FLAG, "user": TEXT,
    }


def response_fields(max_model_len: int) -> dict[str, Schema]:
    """Of the requests of the Responses API."""
    function = tagged("function", "description", "strict", name=_NAME, parameters=_JSON_SCHEMA,
                      description=TEXT, strict=_FLAG)
    custom = tagged("custom", "description", name=_NAME, description=TEXT)
    named = (tagged("function", name=_NAME), tagged("custom", name=_NAME))
    allowed = tagged("allowed_tools", mode={"enum": ["auto", "required"]},
                     tools={"type": "array", "minItems": 1, "items": one_of(*named)})
    form = one_of(tagged("text"), tagged("json_object"),
                  tagged("json_schema", "strict", name=TEXT, schema=_JSON_SCHEMA, strict=_FLAG))
    return {
        "input": one_of({"type": "string"},
                        {"type": "array", "minItems": 1, "items": one_of(*_input_items())}),
        "tools": {"type": "array", "maxItems": MAX_TOOLS, "items": one_of(function, custom),
                  "description": "Each has a name of its own."},
        "tool_choice": one_of(*named, allowed, _CHOICE_WORDS),
        "parallel_tool_calls": _FLAG,
        "text": {"type": "object", "properties": {
            "format": form, "verbosity": {"enum": ["low", "medium", "high"]}}},
        "reasoning": {"type": "object", "properties": {
            "effort": {"enum": list(REASONING_EFFORTS)},
            "summary": {"enum": ["auto", "concise", "detailed"]}}},
        "truncation": {"enum": ["auto", "disabled"]},
        "max_output_tokens": integer(1, max_model_len), "max_tool_calls": integer(0, 2**31),
        "n": {"enum": [1]},
        "top_logprobs": integer(0, MAX_LOGPROBS),
        "include": {"type": "array", "items": {"enum": [
            "message.output_text.logprobs", "reasoning.encrypted_content"]}},
        "metadata": {"type": "object", "maxProperties": 16,
                     "propertyNames": {"maxLength": 64},
                     "additionalProperties": {"type": "string", "maxLength": 512}},
        "prompt_cache_retention": {"enum": ["in_memory", "24h"]},
        "previous_response_id": TEXT | {"description": "Of a response that is kept."},
        **{name: {"type": "string", "maxLength": 512} for name in (
            "user", "safety_identifier", "prompt_cache_key", "service_tier")},
    }


# Fields that the structs leave open, because one of several will do: the description asks for them.
REQUIRED = {"ResponseRequest": ["input"], "InputTokensRequest": ["input"],
            "OllamaChatRequest": ["model"], "OllamaGenerateRequest": ["model"],
            "OllamaShowRequest": ["model"], "MessagesRequest": ["max_tokens"]}

# fields of SamplingFields that have no place in a response, or in a message
NOT_IN_RESPONSE = frozenset({"max_tokens", "response_format", "prompt", "prompt_logprobs",
                             "return_token_ids", "max_completion_tokens"})
NOT_IN_MESSAGE = frozenset({"n", "prompt_logprobs", "return_token_ids", "response_format", "stop",
                            "structured_outputs"})


def _input_items() -> list[Schema]:
    def part(kind: str) -> Schema:
        return tagged(kind, text=TEXT)

    def message(roles: list[str], kind: str) -> Schema:
        return {"type": "object", "required": ["role", "content"], "properties": {
            "type": {"enum": ["message"]}, "role": {"enum": roles}, "content": one_of(
                TEXT, {"type": "array", "minItems": 1, "items": part(kind)})}}

    return [
        message(["user", "system", "developer"], "input_text"),
        message(["assistant"], "output_text"),
        tagged("function_call", call_id=TEXT, name=_NAME, arguments=_OBJECT_TEXT),
        tagged("function_call_output", "call_id", call_id=TEXT, output=TEXT),
        tagged("custom_tool_call", call_id=TEXT, name=_NAME, input=TEXT),
        tagged("custom_tool_call_output", "call_id", call_id=TEXT, output=TEXT),
        tagged("reasoning", "content", summary={"type": "array", "items": part("summary_text")},
               content={"type": "array", "items": part("reasoning_text")}),
    ]


def decision_fields() -> dict[str, Schema]:
    """Of DecisionRequest."""
    described = {"type": "object", "properties": {"description": TEXT}}
    choice = described | {"required": ["value"], "properties": {
        "value": TEXT, "description": TEXT}}
    level = described | {"required": ["label"], "properties": {
        "label": TEXT, "description": TEXT}}
    questions = one_of(
        tagged("predicate", "name", instructions=TEXT, name=TEXT),
        tagged("choice", "name", instructions=TEXT, name=TEXT, choices={
            "type": "array", "items": choice, "minItems": 2, "maxItems": MAX_QUESTION_CHOICES,
            "uniqueItems": True,
            "description": "Each has a value of its own."}),
        tagged("score", "name", instructions=TEXT, name=TEXT, levels={
            "type": "array", "items": level, "minItems": 2, "maxItems": MAX_LEVELS}))
    message = {"type": "object", "required": ["role", "content"], "properties": {
        "role": {"enum": ["user", "system", "developer", "assistant"]}, "content": TEXT}}
    return {"input": one_of(TEXT, {"type": "array", "minItems": 1, "items": message}),
            "questions": {"type": "array", "minItems": 1, "maxItems": MAX_QUESTIONS,
                          "items": questions}}


def message_fields(max_model_len: int) -> dict[str, Schema]:
    """Of Anthropic's requests."""
    blocks = {"type": "array", "minItems": 1, "items": tagged("text", text=TEXT)}
    message = {"type": "object", "required": ["role", "content"], "properties": {
        "role": {"enum": ["user", "assistant"]}, "content": one_of(
            {"type": "string", "minLength": 1}, blocks)}}
    return {
        "max_tokens": integer(1, max_model_len), "messages": {
            "type": "array", "minItems": 1, "items": message},
        "system": one_of(TEXT, blocks),
        "stop_sequences": text_list(bounds.MAX_STOP_STRINGS),
        "thinking": one_of(tagged("enabled", budget_tokens=integer(1)), tagged("disabled"),
                           tagged("adaptive")),
        "tools": {"type": "array", "maxItems": MAX_TOOLS, "items": {
            "type": "object", "required": ["name", "input_schema"], "properties": {
                "name": _NAME, "description": TEXT, "input_schema": _JSON_SCHEMA}}},
        "tool_choice": one_of(tagged("tool", name=_NAME), *(
            tagged(kind, "disable_parallel_tool_use", disable_parallel_tool_use=_FLAG)
            for kind in ("any", "auto", "none"))),
        "output_config": {"type": "object", "properties": {
            "effort": {"enum": ["low", "medium", "high", "max"]},
            "format": tagged("json_schema", schema=_JSON_SCHEMA)}},
    }


def ollama_fields(vocab_size: int) -> dict[str, Schema]:
    """Of Ollama's requests."""
    message = {"type": "object", "required": ["role", "content"], "properties": {
        "role": {"enum": ["system", "user", "assistant", "tool"]}, "content": TEXT}}
    options = {
        "temperature": number(0, 100), "top_p": number(0, 1), "top_k": integer(-1, 2**31),
        "min_p": number(0, 1), "seed": integer(-2**63, 2**63 - 1),
        "num_predict": integer(-1, 64), "stop": text_list(bounds.MAX_STOP_STRINGS),
        "repeat_penalty": number(0, 100, exclusiveMinimum=0),
        "presence_penalty": number(-2, 2), "frequency_penalty": number(-2, 2)}
    return {
        "messages": {"type": "array", "items": message}, "tools": tools(),
        "options": {"type": "object", "properties": options},
        "format": one_of({"enum": ["json"]}, _JSON_SCHEMA),
        "think": {"enum": [False], "description": "Or true, or an effort, where the model's "
                                                  "template knows reasoning."},
        "keep_alive": one_of(integer(-1, 2**31),
                             {"type": "string", "pattern": "^[0-9]{1,4}[smh]$"}),
        "top_logprobs": integer(0, MAX_LOGPROBS), "context": token_ids(vocab_size),
    }


def ids_below(size: int) -> str:
    """A regular expression of the decimal numbers 0 to size - 1."""
    digits = str(size - 1)
    ways = ["0"] if len(digits) == 1 else ["0", *(f"[1-9][0-9]{{{n}}}"
                                                  for n in range(len(digits) - 1))]
    for place, digit in enumerate(digits):
        least = 1 if place == 0 else 0
        rest = len(digits) - place - 1
        if int(digit) > least:
            ways.append(f"{digits[:place]}[{least}-{int(digit) - 1}][0-9]{{{rest}}}")
    return f"^({'|'.join([*ways, digits])})$"
