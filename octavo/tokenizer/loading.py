"""Makes the `Tokenizer` and the `ChatTemplate` of a model file, GGUF or Hugging Face folder.

The only file of this package that reads files. It takes any object with the attributes of
`ModelFile` below and knows nothing of weights.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import tokenizers

from octavo.errors import ConfigError, ModelLoadError
from octavo.tokenizer.chat_template import ChatTemplate
from octavo.tokenizer.gguf_tokenizer import adds_bos, build_from_gguf
from octavo.tokenizer.tokenizer import Tokenizer

_GGUF = "tokenizer.ggml."
_TEMPLATE = "tokenizer.chat_template"
# Control tokens that end a turn or a text in the families Octavo runs. GGUF names one EOS only,
# while the models end with others too (and hub folders list them in generation_config.json).
END_TOKENS = (
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end_of_text|>",
    "<|endoftext|>",
    "<|end|>",
    "<end_of_turn>",
    "<｜end▁of▁sentence｜>",
    "</s>",
)
# A text file of a model folder larger than this is not what it claims to be.
_MAX_FILE_BYTES = 256 << 20


class ModelFile(Protocol):
    """What is needed of a model file."""

    @property
    def path(self) -> Path: ...
    @property
    def format(self) -> str: ...  # "gguf" or "safetensors"
    @property
    def metadata(self) -> Mapping[str, Any]: ...  # GGUF keys; not read for safetensors
    @property
    def tokenizer_dir(self) -> Path | None: ...  # the folder of tokenizer.json
    @property
    def config(self) -> Any: ...  # eos_token_ids and bos_token_id, where it has them


def load_tokenizer(model_file: ModelFile) -> Tokenizer:
    """The model's tokenizer.

    Raises:
        UnsupportedModelError: a tokenizer kind, pre-tokenizer or decoder Octavo does not know.
        ModelLoadError: a file or key is missing or broken.
    """
    if model_file.format == "gguf":
        return _from_gguf(model_file.metadata)
    return _from_folder(_folder(model_file), model_file.config)


def load_chat_template(
    model_file: ModelFile, tokenizer: Tokenizer, *, path: str | Path | None = None
) -> ChatTemplate:
    """The chat template in the file at `path`, else the model's own.

    A model without one, or with one that does not parse, gets a template that refuses every
    message with the reason, so that completions are served all the same.

    Raises:
        ConfigError: the file at `path` is missing or not a template.
    """
    sources = template_sources(model_file)
    bos, eos = _bos_eos_text(tokenizer)
    if path is not None:
        return ChatTemplate.from_file(
            path, bos_token=bos, eos_token=eos, control_tokens=tokenizer.control_tokens
        )
    give = "give one (chat_template, or serve --chat-template FILE)"
    missing = f"this model has no chat template; {give}"
    try:
        return ChatTemplate(
            sources.get("default"),
            bos_token=bos,
            eos_token=eos,
            control_tokens=tokenizer.control_tokens,
            tool_use_source=sources.get("tool_use"),
            missing_reason=missing,
        )
    except ConfigError as error:
        reason = f"the model's own {error}; {give}"
        return ChatTemplate(
            None, bos_token=bos, eos_token=eos, control_tokens=(), missing_reason=reason
        )


def template_sources(model_file: ModelFile) -> dict[str, str]:
    """The chat templates the model comes with, by name; the usual one is "default"."""
    if model_file.format == "gguf":
        return _gguf_templates(model_file.metadata)
    return _folder_templates(_folder(model_file))


def _bos_eos_text(tokenizer: Tokenizer) -> tuple[str, str]:
    bos = "" if tokenizer.bos_token_id is None else tokenizer.token_str(tokenizer.bos_token_id)
    eos = tokenizer.token_str(tokenizer.eos_token_ids[0]) if tokenizer.eos_token_ids else ""
    return bos, eos


# --- GGUF ---


def _from_gguf(metadata: Mapping[str, Any]) -> Tokenizer:
    inner = build_from_gguf(metadata)
    size = len(metadata[_GGUF + "tokens"])
    bos = _gguf_id(metadata, "bos_token_id", size)
    eos = _gguf_id(metadata, "eos_token_id", size)
    ends = [eos, _gguf_id(metadata, "eot_token_id", size), _gguf_id(metadata, "eom_token_id", size)]
    added = inner.get_added_tokens_decoder()
    control = {token.content: i for i, token in added.items() if token.special}
    ends += [control.get(name) for name in END_TOKENS]
    prefix = [bos] if bos is not None and adds_bos(metadata) else []
    suffix = [eos] if eos is not None and metadata.get(_GGUF + "add_eos_token", False) else []
    return Tokenizer(
        inner,
        vocab_size=size,
        eos_token_ids=[end for end in ends if end is not None],
        bos_token_id=bos,
        prefix_ids=prefix,
        suffix_ids=suffix,
        fim_ids=_gguf_fim_ids(metadata, size),
    )


def _gguf_fim_ids(metadata: Mapping[str, Any], size: int) -> list[int | None]:
    """Older files have the second names."""
    ids = []
    for names in (("fim_pre_token_id", "prefix_token_id"), ("fim_suf_token_id", "suffix_token_id"),
                  ("fim_mid_token_id", "middle_token_id")):
        given = [_gguf_id(metadata, name, size) for name in names]
        ids.append(given[1] if given[0] is None else given[0])
    return ids


def _gguf_id(metadata: Mapping[str, Any], name: str, size: int) -> int | None:
    value = metadata.get(_GGUF + name)
    if value is None:
        return None
    if not 0 <= int(value) < size:
        raise ModelLoadError(f"{_GGUF}{name} = {value} is outside the vocabulary of {size} tokens")
    return int(value)


def _gguf_templates(metadata: Mapping[str, Any]) -> dict[str, str]:
    sources = {}
    for key, value in metadata.items():
        if key.startswith(_TEMPLATE) and isinstance(value, str):
            sources[key[len(_TEMPLATE) :].lstrip(".") or "default"] = value
    return sources


# --- Hugging Face folder ---


def _folder(model_file: ModelFile) -> Path:
    if model_file.tokenizer_dir is None:
        raise ModelLoadError(
            f"{model_file.path}: tokenizer.json is missing; copy the model's own there"
        )
    return Path(model_file.tokenizer_dir)


def _from_folder(folder: Path, config: Any) -> Tokenizer:
    path = folder / "tokenizer.json"
    text = _read_text(path)
    if text is None:
        raise ModelLoadError(f"{path}: not found; only the tokenizer.json format is read")
    try:
        inner = tokenizers.Tokenizer.from_str(text)
    except Exception as error:  # the library raises bare Exception
        raise ModelLoadError(f"{path}: not a tokenizer ({_one_line(error)})") from None
    settings = _read_json(folder / "tokenizer_config.json")
    generation = _read_json(folder / "generation_config.json")

    bos = _special_id(inner, settings.get("bos_token"))
    if bos is None:
        bos = getattr(config, "bos_token_id", None)
    eos = _special_id(inner, settings.get("eos_token"))
    listed = generation.get("eos_token_id")
    ends = [eos] if eos is not None else []
    ends += listed if isinstance(listed, list) else [] if listed is None else [listed]
    ends += list(getattr(config, "eos_token_ids", None) or ())
    size = inner.get_vocab_size(with_added_tokens=True)
    ends = [end for end in ends if isinstance(end, int) and end >= 0]
    prefix, suffix = _surroundings(inner)
    prefix = _forced(prefix, bos, settings.get("add_bos_token"))
    suffix = _forced(suffix, eos, settings.get("add_eos_token"))
    return Tokenizer(
        inner,
        vocab_size=max(inner.get_vocab(with_added_tokens=True).values(), default=size - 1) + 1,
        eos_token_ids=ends,
        bos_token_id=bos,
        prefix_ids=prefix,
        suffix_ids=suffix,
    )


def _surroundings(inner: tokenizers.Tokenizer) -> tuple[list[int], list[int]]:
    """What the tokenizer's own post-processor puts before and after a text."""
    bare = inner.encode("a", add_special_tokens=False).ids
    full = inner.encode("a", add_special_tokens=True).ids
    for at in range(len(full) - len(bare) + 1):
        if full[at : at + len(bare)] == bare:
            return full[:at], full[at + len(bare) :]
    raise ModelLoadError("tokenizer.json: its post_processor changes the text it surrounds")


def _forced(ids: list[int], token_id: int | None, wanted: Any) -> list[int]:
    """`ids` with `token_id` put in or left out as tokenizer_config.json says, if it does."""
    if token_id is None or not isinstance(wanted, bool) or wanted == (token_id in ids):
        return ids
    return [*ids, token_id] if wanted else [i for i in ids if i != token_id]


def _special_id(inner: tokenizers.Tokenizer, token: Any) -> int | None:
    """Id of a token given as text or as an added-token object."""
    content = token.get("content") if isinstance(token, dict) else token
    return inner.token_to_id(content) if isinstance(content, str) else None


def _folder_templates(folder: Path) -> dict[str, str]:
    sources = {}
    value = _read_json(folder / "tokenizer_config.json").get("chat_template")
    if isinstance(value, str):
        sources["default"] = value
    elif isinstance(value, list):
        for entry in value:
            if isinstance(entry, dict) and isinstance(entry.get("template"), str):
                sources[str(entry.get("name"))] = entry["template"]
    own = _read_text(folder / "chat_template.jinja")
    if own is not None:
        sources["default"] = own
    tool_use = _read_text(folder / "additional_chat_templates" / "tool_use.jinja")
    if tool_use is not None:
        sources["tool_use"] = tool_use
    return sources


def _read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file; an empty one if there is no file."""
    text = _read_text(path)
    if text is None:
        return {}
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ModelLoadError(f"{path}: not JSON ({_one_line(error)})") from None
    if not isinstance(value, dict):
        raise ModelLoadError(f"{path}: not a JSON object")
    return value


def _read_text(path: Path) -> str | None:
    """The file's text; None if there is no such file."""
    try:
        if path.stat().st_size > _MAX_FILE_BYTES:
            raise ModelLoadError(f"{path}: larger than {_MAX_FILE_BYTES >> 20} MiB")
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise ModelLoadError(f"{path}: cannot be read ({_one_line(error)})") from None


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:200]
